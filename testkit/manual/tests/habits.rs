//! Habits of the workspace's tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folders of all packages.
fn packages() -> Vec<PathBuf> {
    let folders = ["crates", "testkit", "tools"].map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let folders = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    let found: Vec<PathBuf> = folders.filter(|folder| folder.join("Cargo.toml").exists()).collect();
    assert!(found.len() > 40, "{found:?}");
    found
}

#[test]
fn a_file_of_tests_is_a_program_or_a_module_of_one() {
    let mut checked = 0;
    for package in packages() {
        let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
        // Cargo takes every file for a program.
        if !manifest.contains("\nautotests = false\n") {
            continue;
        }
        let named = manifest.split("[[test]]\nname = \"").skip(1).map(|rest| rest.split('"').next().unwrap());
        let mut named: BTreeSet<String> = named.map(str::to_owned).collect();
        let dir = package.join("tests");
        for program in named.clone() {
            let Ok(text) = fs::read_to_string(dir.join(&program).with_extension("rs")) else { continue };
            named
                .extend(text.lines().filter_map(|line| Some(line.strip_prefix("mod ")?.strip_suffix(';')?.to_owned())));
        }
        for path in fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()) {
            if path.join("main.rs").exists() || path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.file_stem().unwrap().to_str().unwrap();
                assert!(named.contains(name), "{} is compiled by nobody", path.display());
                checked += 1;
            }
        }
    }
    assert!(checked > 50, "{checked} files");
}

/// The sources of all packages.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = packages();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn the_name_of_a_test_has_at_most_60_characters() {
    let mut tests = 0;
    let mut long = Vec::new();
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        let mut attributed = false;
        for line in text.lines().map(str::trim_start) {
            let function = line.trim_start_matches("pub ").trim_start_matches("async ");
            if let Some(name) = function.strip_prefix("fn ").and_then(|rest| rest.split(['(', '<']).next()) {
                tests += usize::from(attributed);
                if attributed && name.len() > 60 {
                    long.push(format!("{}: {name}", path.display()));
                }
                attributed = false;
            } else if line.starts_with("#[") {
                attributed |= line.contains("test]") || line.contains("test(");
            }
        }
    }
    assert!(tests > 3_000, "{tests} tests");
    assert!(long.is_empty(), "{long:#?}");
}

/// The code of the product without its tests, by file.
fn product() -> Vec<(PathBuf, String)> {
    let of_product = |path: &PathBuf| {
        let path = path.strip_prefix(root()).unwrap().to_str().unwrap();
        path.starts_with("crates/") && path.contains("/src/") && !path.ends_with("tests.rs")
    };
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
        (path, code)
    };
    sources().into_iter().filter(of_product).map(read).collect()
}

/// The functions of a file that is formatted, each with its number of lines.
fn functions(code: &str) -> Vec<(&str, usize)> {
    const BEFORE: [&str; 5] = ["pub ", "pub(crate) ", "pub(super) ", "const ", "async "];
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let text = line.trim_start();
        let indent = &line[..line.len() - text.len()];
        let text = BEFORE.iter().fold(text, |text, word| text.strip_prefix(word).unwrap_or(text));
        let Some(rest) = text.strip_prefix("fn ") else { continue };
        // A trait's function may have no body, and a short one is a line.
        let head = lines[start..].iter().find(|line| line.ends_with(['{', '}', ';']));
        if head.is_some_and(|line| line.ends_with('{')) {
            let ends = |line: &&str| line.strip_prefix(indent) == Some("}");
            let length = lines[start..].iter().position(ends).expect("the end of a function") + 1;
            found.push((rest.split(['(', '<']).next().unwrap(), length));
        }
    }
    found
}

#[test]
fn a_function_has_at_most_80_lines() {
    let (mut count, mut long) = (0, Vec::new());
    for (path, code) in product() {
        for (name, lines) in functions(&code) {
            count += 1;
            if lines > 80 {
                long.push(format!("{}: {name} has {lines} lines", path.display()));
            }
        }
    }
    assert!(count > 5_000, "{count} functions");
    assert!(long.is_empty(), "split them where layers meet: {long:#?}");
    let code = "trait T {\n    fn a(\n        b: B,\n    ) -> C;\n    pub async fn d<E>() {\n        e();\n    }\n    fn f() {}\n}\n";
    assert_eq!(functions(code), [("d", 3)]);
}

/// True for an arm of a `match` of a bool.
fn is_arm_of_bool(line: &str) -> bool {
    let rest = ["true ", "false "].iter().find_map(|arm| line.trim_start().strip_prefix(arm));
    rest.is_some_and(|rest| rest.starts_with("=> ") || rest.starts_with("if "))
}

#[test]
fn a_choice_between_two_is_an_if() {
    let mut found = Vec::new();
    for (path, code) in product() {
        let arms = code.lines().enumerate().filter(|(_, line)| is_arm_of_bool(line));
        found.extend(arms.map(|(at, line)| format!("{}:{}: {}", path.display(), at + 1, line.trim())));
    }
    assert!(found.is_empty(), "an `if` says it: {found:#?}");
    let code = "match a {\n    true if b => c,\n    true => d,\n    Some(true) => e,\n    _ if true => f,\n}\n";
    assert_eq!(code.lines().filter(|line| is_arm_of_bool(line)).count(), 2);
}

/// Crates whose values get a name each: others are to follow.
const ONE_BY_ONE: [&str; 5] = ["cluster", "notify", "queue", "relay", "shaping"];

#[test]
fn a_pair_is_not_made_to_be_taken_apart() {
    let mut found = Vec::new();
    let of_these = |path: &Path| {
        let own = path.strip_prefix(root()).unwrap().to_str().unwrap().split('/').nth(1).unwrap().to_owned();
        ONE_BY_ONE.contains(&own.as_str())
    };
    for (path, code) in product().into_iter().filter(|(path, _)| of_these(path)) {
        // A long value stands in the next line.
        let code = code.replace(") =\n", ") =");
        let pairs = code.lines().filter(|line| is_pair_taken_apart(line));
        found.extend(pairs.map(|line| format!("{}: {}", path.display(), line.trim())));
    }
    assert!(found.is_empty(), "two statements say it: {found:#?}");
    assert!(is_pair_taken_apart("    let (a, mut b) = (c(), d);"));
    assert!(is_pair_taken_apart("    let (a, b) =        (c, d);"));
    assert!(!is_pair_taken_apart("    let (a, b) = (c.d)(e);"));
    assert!(!is_pair_taken_apart("    let (a, b) = if f { (1, 2) } else { (2, 1) };"));
}

/// True for `let (a, b) = (c, d);`.
fn is_pair_taken_apart(line: &str) -> bool {
    let parts = line.trim_start().strip_prefix("let (").and_then(|rest| rest.split_once(") ="));
    let value = parts.map_or("", |(_, value)| value.trim_start());
    value.starts_with('(') && value.ends_with(");") && value.contains(", ") && !value.contains(")(")
}

/// Names that each crate may have: they are read with its own.
const IDIOMS: [&str; 2] = ["Config", "Section"];
/// Names of two crates that stay, with the reason.
const REPEATED: [(&str, &str); 3] = [
    ("Event", "the machines of `smtp` are read with their side: `server::Event`"),
    ("Lsn", "the number of `spool` is that of `ring` by another type, so that neither is taken for the other"),
    ("Machine", "the machines of `smtp` are read with their side: `server::Machine`"),
];

#[test]
fn a_public_type_has_a_name_of_its_own() {
    let mut crates_of: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, code) in product() {
        let path = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let own = path.split('/').nth(1).unwrap();
        // The program has no types for others.
        if own == "posthaste" {
            continue;
        }
        for line in code.lines() {
            let Some((kind, rest)) = line.strip_prefix("pub ").and_then(|rest| rest.split_once(' ')) else { continue };
            if ["struct", "enum", "trait", "type", "union"].contains(&kind) {
                let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap();
                crates_of.entry(name.to_owned()).or_default().insert(own.to_owned());
            }
        }
    }
    assert!(crates_of.len() > 800, "{} names", crates_of.len());
    crates_of.retain(|name, crates| crates.len() > 1 && !IDIOMS.contains(&name.as_str()));
    for (name, why) in REPEATED {
        assert!(crates_of.remove(name).is_some(), "`{name}` is unique now ({why}): remove it here");
    }
    assert!(crates_of.is_empty(), "name one of them by its field's own term: {crates_of:#?}");
}
