//! Links of a document, and its anchors.

/// Targets of the links in a document: `docs/load.md#reports`, `#tags`, `https://…`. Code is skipped.
pub fn links(document: &str) -> Vec<String> {
    let text = without_code(document);
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.map(str::to_owned).collect()
}

/// The anchors of a document's headings, in GitHub's form: lower case, a hyphen for each blank, no punctuation.
/// Repeated headings get a number, except the first.
pub fn anchors(document: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut is_code = false;
    for line in document.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let heading = line.trim_start_matches('#');
        if is_code || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        let anchor = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let taken = |name: &String| anchors.contains(name);
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(numbered).find(|name| !taken(name));
        anchors.extend(free);
    }
    anchors
}

/// A document without its blocks and spans of code.
fn without_code(document: &str) -> String {
    let text: String = document.split("```").step_by(2).collect();
    text.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_anchors() {
        let document = "# Mail as it is\n## `[log]`\n[a](b.md#c) `[x](y)` ![p](q.svg)\n```\n# no heading\n```\n## Load: sending, twice\n## `[log]`\n#tag\n";
        assert_eq!(links(document), ["b.md#c", "q.svg"]);
        assert_eq!(anchors(document), ["mail-as-it-is", "log", "load-sending-twice", "log-1"]);
    }
}
