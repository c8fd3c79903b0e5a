//! Tables of keys for the manual of a configuration file, from the doc comments of the structs that the file is parsed
//! into.

/// A struct for a table of a configuration file.
#[derive(Debug, PartialEq, Eq)]
pub struct DeclaredTable {
    /// Its doc comment, line by line.
    pub introduction: String,
    /// Its fields, in order.
    pub keys: Vec<DeclaredKey>,
}

/// A field of such a struct.
#[derive(Debug, PartialEq, Eq)]
pub struct DeclaredKey {
    /// Its name in the file.
    pub name: String,
    /// Its doc comment as one line, without `default`.
    pub meaning: String,
    /// The text of a last sentence `Default: text.`
    pub default: Option<String>,
}

impl DeclaredKey {
    /// Its row in a table of keys, defaults and meanings. `shown` is what the program has if nothing is set, for a key that names no default.
    pub fn row(&self, shown: &str) -> String {
        format!("| `{}` | {} | {} |\n", self.name, self.default.as_deref().unwrap_or(shown), self.meaning)
    }
}

/// Reads the struct of this name in Rust source that rustfmt has formatted, within a macro too. Fields that serde flattens are left out.
pub fn declared_table(source: &str, name: &str) -> Option<DeclaredTable> {
    let lines: Vec<&str> = source.lines().collect();
    let begins = |line: &&str| {
        let rest = line.trim_start().strip_prefix("pub struct ").and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with([' ', ',']))
    };
    let at = lines.iter().position(begins)?;
    let above = lines[..at].iter().rev().map(|line| line.trim_start());
    let above: Vec<&str> = above.take_while(|line| line.starts_with("///") || line.starts_with("#[")).collect();
    let introduction: Vec<&str> = above.into_iter().rev().filter_map(doc_line).collect();
    let end = " ".repeat(lines[at].len() - lines[at].trim_start().len()) + "}";
    let mut keys = Vec::new();
    let (mut doc, mut renamed, mut is_flat) = (Vec::new(), None, false);
    for line in lines[at + 1..].iter().take_while(|line| **line != end).map(|line| line.trim()) {
        if let Some(text) = doc_line(line) {
            doc.push(text);
        } else if line.starts_with("#[") {
            is_flat |= line.contains("flatten");
            renamed = line.split_once("rename = \"").and_then(|(_, rest)| rest.split('"').next()).or(renamed);
        } else if let Some((field, _)) = line.split_once(": ") {
            let name = renamed.take().unwrap_or(field.trim_start_matches("pub "));
            let text = std::mem::take(&mut doc).join(" ");
            if !std::mem::take(&mut is_flat) {
                keys.push(key(name, &text));
            }
        }
    }
    Some(DeclaredTable { introduction: introduction.join("\n"), keys })
}

fn doc_line(line: &str) -> Option<&str> {
    line.strip_prefix("///").map(|text| text.strip_prefix(' ').unwrap_or(text))
}

fn key(name: &str, doc: &str) -> DeclaredKey {
    let (meaning, default) = match doc.rsplit_once("Default: ") {
        Some((meaning, default)) => (meaning.trim_end(), Some(default.trim_end_matches('.').to_owned())),
        None => (doc, None),
    };
    DeclaredKey { name: name.to_owned(), meaning: meaning.trim_end_matches('.').to_owned(), default }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_with_their_names_and_defaults() {
        let source = "/// Not this.\npub struct Sections;\n\nkeys! {\n    /// Who may.\n    ///\n    /// More.\n    #[derive(Debug)]\n    \
                      pub struct Section, overridden by Other {\n        /// How many. 0: none. Default:\n        /// a sixteenth.\n        \
                      count: u64 = 1, values::count;\n        #[serde(flatten)]\n        pub inner: Inner,\n        /// Where.\n        \
                      #[serde(default, rename = \"dir\")]\n        pub directory: PathBuf,\n        pub bare: bool,\n    }\n}\n/// After.\npub b: u8,\n";
        let key = |name: &str, meaning: &str, default: Option<&str>| DeclaredKey {
            name: name.to_owned(),
            meaning: meaning.to_owned(),
            default: default.map(str::to_owned),
        };
        let expected = DeclaredTable {
            introduction: "Who may.\n\nMore.".to_owned(),
            keys: vec![
                key("count", "How many. 0: none", Some("a sixteenth")),
                key("dir", "Where", None),
                key("bare", "", None),
            ],
        };
        let found = declared_table(source, "Section").unwrap();
        assert_eq!(found, expected);
        let rows: Vec<String> = found.keys.iter().map(|key| key.row("`1`")).collect();
        assert_eq!(
            rows,
            ["| `count` | a sixteenth | How many. 0: none |\n", "| `dir` | `1` | Where |\n", "| `bare` | `1` |  |\n"]
        );
        assert_eq!(declared_table(source, "None"), None);
    }
}
