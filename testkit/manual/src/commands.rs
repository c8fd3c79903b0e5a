//! Commands that a document tells its reader to type.

/// Every command of `program` in a document, as its words after the name: in code blocks, and in spans of code that begin with the name.
///
/// `cargo run … --` before the words also stands for `program`. Alternatives such as `check|show` become one command
/// each, and the brackets of `[--json]` are removed. Only blocks of a shell, or without a language, are read.
pub fn commands(document: &str, program: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for span in spans(document).iter().filter(|span| span.starts_with(program)) {
        found.extend(simple_commands(&span.replace("\\|", "\u{1}").replace(['[', ']', '…'], " ")));
    }
    let behind_name = found.iter().filter_map(|words| behind_name(words, program));
    let in_spans = behind_name.flat_map(alternatives);
    commands_in_blocks(document, program).into_iter().chain(in_spans).collect()
}

/// The [`commands`] in code blocks, which can be typed as they are. Redirections with `>` are left out.
pub fn commands_in_blocks(document: &str, program: &str) -> Vec<Vec<String>> {
    let blocks = blocks(document).into_iter().filter(|(language, _)| ["", "sh", "console"].contains(language));
    let found: Vec<_> = blocks.flat_map(|(_, code)| simple_commands(&code)).collect();
    let behind_name = found.iter().filter_map(|words| behind_name(words, program));
    behind_name.map(|words| words.iter().take_while(|word| !word.starts_with('>')).cloned().collect()).collect()
}

/// The spans of code in a document, without its blocks.
pub fn spans(document: &str) -> Vec<String> {
    let text: String = document.split("```").step_by(2).collect();
    text.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " ")).collect()
}

/// The blocks of code in a document: language and text.
fn blocks(document: &str) -> Vec<(&str, String)> {
    let inside = document.split("```").skip(1).step_by(2);
    let of_lines = inside.filter_map(|block| block.split_once('\n'));
    of_lines
        .map(|(language, code)| {
            let typed = code.lines().map(|line| line.strip_prefix("$ ").unwrap_or(line));
            (language.trim(), typed.map(|line| format!("{line}\n")).collect())
        })
        .collect()
}

/// The words after the program's name, if they are words of one of its commands.
fn behind_name<'a>(words: &'a [String], program: &str) -> Option<&'a [String]> {
    let is_setting = |word: &String| word.contains('=') && word.starts_with(|first: char| first.is_ascii_uppercase());
    let begin = words.iter().position(|word| !is_setting(word) && word != "sudo" && word != "exec")?;
    let (name, rest) = words[begin..].split_first()?;
    if name.rsplit('/').next() == Some(program) {
        return Some(rest);
    }
    let is_cargo =
        program == "posthaste" && name == "cargo" && rest.first()? == "run" && !rest.contains(&"--example".to_owned());
    let end = rest.iter().position(|word| word == "--")?;
    is_cargo.then(|| &rest[end + 1..])
}

/// One command for each alternative, which U+0001 separates.
fn alternatives(words: &[String]) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    for word in words {
        all = word
            .split('\u{1}')
            .flat_map(|choice| all.iter().map(move |one| [&one[..], &[choice.to_owned()]].concat()))
            .collect();
    }
    all
}

/// The commands of a shell's text, each split into words.
fn simple_commands(text: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if letters.peek() == Some(&'\n') => drop(letters.next()),
            '\\' => word.get_or_insert_default().extend(letters.next()),
            '\'' | '"' => {
                let quoted = word.get_or_insert_default();
                while let Some(inner) = letters.next().filter(|inner| *inner != letter) {
                    let escaped = inner == '\\' && letter == '"';
                    quoted.extend(if escaped { letters.next() } else { Some(inner) });
                }
            }
            '#' if word.is_none() => while letters.next_if(|inner| *inner != '\n').is_some() {},
            ' ' | '\t' | '\n' | '|' | '&' | ';' | '(' | ')' => {
                commands.last_mut().expect("there is one").extend(word.take());
                if !" \t".contains(letter) {
                    commands.push(Vec::new());
                }
            }
            letter => word.get_or_insert_default().push(letter),
        }
    }
    commands.last_mut().expect("there is one").extend(word);
    commands.retain(|words| !words.is_empty());
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_as_a_shell_would() {
        let document = "Say `posthaste find -u`, never\n`other x`:\n\n```sh\nA=1 sudo posthaste load a:1 \\\n  --to 'b c'  # why\ncat x | target/posthaste tag \
            +x && posthaste info;\ncargo run --release -- serve\n```\n\n```toml\nposthaste = 1\n```\n| `posthaste config check\\|show [--json]` |\n";
        let found: Vec<String> = commands(document, "posthaste").iter().map(|words| words.join("_")).collect();
        let expected =
            ["load_a:1_--to_b c", "tag_+x", "info", "serve", "find_-u", "config_check_--json", "config_show_--json"];
        assert_eq!(found, expected);
    }
}
