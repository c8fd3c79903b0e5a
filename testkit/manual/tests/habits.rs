//! Habits of the workspace's tests.

use std::collections::BTreeSet;
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
