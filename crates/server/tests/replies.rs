//! docs/smtp.md lists every reply that refuses something, and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Each `(CODE, "ENHANCED"` and `code: CODE, status: "ENHANCED"` of the code below `path`, without its tests.
fn in_source(path: &Path, found: &mut BTreeSet<String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            in_source(&entry.unwrap().path(), found);
        }
        return;
    }
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let told = code.split('(').skip(1).filter_map(|part| part.split_once(", \""));
    let of_destinations = code.split("code: ").skip(1).filter_map(|part| {
        let (code, rest) = part.split_once(',')?;
        Some((code, rest.trim_start().strip_prefix("status: \"")?))
    });
    for (code, rest) in told.chain(of_destinations) {
        let is_refusal = code.len() == 3 && code.starts_with(['4', '5']) && code.bytes().all(|b| b.is_ascii_digit());
        let enhanced = rest.split('"').next().unwrap_or_default();
        if is_refusal && enhanced.contains('.') {
            found.insert(format!("{code} {enhanced}"));
        }
    }
}

/// Each `CODE ENHANCED` of the document.
fn in_document(text: &str) -> BTreeSet<String> {
    let words: Vec<&str> = text.split(|c: char| c.is_whitespace() || ",;|`".contains(c)).collect();
    let is_code = |word: &str| word.len() == 3 && word.bytes().all(|b| b.is_ascii_digit());
    let is_enhanced = |word: &str| word.starts_with(['4', '5']) && word.matches('.').count() == 2;
    let pairs = words.windows(2).filter(|pair| is_code(pair[0]) && is_enhanced(pair[1]));
    pairs.map(|pair| pair.join(" ")).collect()
}

#[test]
fn every_refusal_is_in_the_manual() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sent = BTreeSet::new();
    let destinations = [
        "delivery/src/local/destination.rs",
        "mailstore/src/maildirs/arrivals.rs",
        "transport/src/destination.rs",
        "relay/src/sender/destination.rs",
    ];
    for place in ["server/src", "directory/src"].into_iter().chain(destinations) {
        in_source(&root.join("crates").join(place), &mut sent);
    }
    let of_driver = ["driver/server.rs", "driver/session.rs", "driver/panics.rs"];
    for place in ["server", "command", "command.rs", "body_error.rs"].into_iter().chain(of_driver) {
        in_source(&root.join("crates/smtp/src").join(place), &mut sent);
    }
    assert!(sent.len() > 25, "{sent:?}");
    let listed = in_document(&fs::read_to_string(root.join("docs/smtp.md")).unwrap());
    let missing: Vec<_> = sent.difference(&listed).collect();
    assert!(missing.is_empty(), "docs/smtp.md does not list {missing:?}");
    let extra: Vec<_> = listed.difference(&sent).collect();
    assert!(extra.is_empty(), "docs/smtp.md lists {extra:?}, which the server never sends");
}
