//! Documents against reality: files, links, commands and their options, keys of examples, crates.

use std::fs;
use std::path::{Path, PathBuf};

use posthaste_manual::{Program, anchors, commands_in_blocks, documents, links, spans};

use crate::search::Place;
use crate::support::*;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Directories of the paths that documents name.
const PLACES: [&str; 6] = ["crates/", "tools/", "testkit/", "docs/", "tests/", "fuzz/"];

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let mut checked = 0;
    for document in documents(&root()) {
        let text = fs::read_to_string(&document).unwrap();
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (file, place) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            assert!(target.exists(), "{} links to {link}", document.display());
            if !place.is_empty() {
                let places = anchors(&fs::read_to_string(&target).unwrap());
                assert!(places.contains(&place.to_owned()), "{} links to {link}: {places:?}", document.display());
            }
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} links found");
}

#[test]
fn every_path_that_the_documents_name_exists() {
    let root = root();
    let mut checked = 0;
    for document in documents(&root) {
        let spans = spans(&fs::read_to_string(&document).unwrap());
        let first_words = spans.iter().filter_map(|code| code.split_whitespace().next());
        for name in first_words.filter(|word| PLACES.iter().any(|place| word.starts_with(place))) {
            let file = name.split("::").next().unwrap_or(name);
            assert!(root.join(file).exists(), "{} names {name}", document.display());
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} names found");
}

#[test]
fn every_test_that_a_document_names_exists() {
    let mut checked = 0;
    for document in documents(&root()) {
        let spans = spans(&fs::read_to_string(&document).unwrap());
        for (file, test) in spans.iter().filter_map(|code| code.split_once(".rs::")) {
            let path = root().join("crates").join(format!("{file}.rs"));
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(text.contains(&format!("fn {test}(")), "{} names {file}.rs::{test}", document.display());
            checked += 1;
        }
        for (file, test) in spans.iter().filter_map(|code| code.split_once(".py::")) {
            let text = fs::read_to_string(root().join(format!("{file}.py"))).unwrap();
            assert!(text.contains(&format!("def {test}(")), "{} names {file}.py::{test}", document.display());
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} tests found");
}

#[test]
fn every_command_and_option_of_the_documents_exists() {
    // Of cargo, curl, mu and notmuch.
    const FOREIGN: [&str; 8] =
        ["--profile", "--features", "--decrypt", "--crlf", "--muhome", "--nocolor", "--duplicate", "--analyze"];
    let mut program = Program::new(env!("CARGO_BIN_EXE_posthaste"));
    for document in documents(&root()) {
        let path = document.strip_prefix(root()).unwrap();
        // tools/bench and tools/powercut check the pages of their own programs.
        let others = ["BENCHMARKS.md", "docs/bench.md", "docs/powercut.md"];
        if path.starts_with("bench-results") || others.iter().any(|other| path == Path::new(other)) {
            continue;
        }
        let text = fs::read_to_string(&document).unwrap();
        let mistakes = program.mistakes(&text, "posthaste", &FOREIGN);
        assert!(mistakes.is_empty(), "{} (options of other programs: FOREIGN): {mistakes:#?}", path.display());
    }
}

#[test]
fn the_commands_of_the_pages_about_search_can_be_typed() {
    let place = Place::new();
    for folder in ["cur", "new", "tmp"] {
        fs::create_dir_all(place.path().join("mail/.Archive").join(folder)).unwrap();
    }
    let pages = [include_str!("../../../../docs/search.md"), include_str!("../../../../docs/reading.md")];
    let typed: Vec<_> = pages.iter().flat_map(|page| commands_in_blocks(page, "posthaste")).collect();
    // A watch does not end by itself.
    for words in typed.iter().filter(|words| !words.contains(&"--watch".to_owned())) {
        let words: Vec<&str> = words.iter().map(|word| if word == "~/Mail" { "mail" } else { word.as_str() }).collect();
        let output = place.run(&words);
        // Nothing may be found, but nothing may be misunderstood.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{words:?}: {output:?}");
    }
    assert!(typed.len() > 20, "{typed:?}");
}

#[test]
fn the_map_names_every_crate_and_where_it_begins() {
    let root = root();
    let (_, map) = include_str!("../../../../ARCHITECTURE.md").split_once("## Map").unwrap();
    let mut mapped = Vec::new();
    for row in map.split("\n## ").next().unwrap().lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = cells[1].trim_matches('`');
        let path = if name.contains('/') { name.to_owned() } else { format!("crates/{name}") };
        let source = root.join(&path).join("src");
        let begins = cells[3].split('`').skip(1).step_by(2).filter(|code| code.ends_with('/') || code.ends_with(".rs"));
        begins.for_each(|file| assert!(source.join(file).exists(), "{path} has no {file}"));
        mapped.push(path);
    }
    let crates_in = |folder: &str| -> Vec<String> {
        let entries = fs::read_dir(root.join(folder)).unwrap();
        entries.map(|entry| format!("{folder}/{}", entry.unwrap().file_name().into_string().unwrap())).collect()
    };
    // Of the product, each depends only on those below it.
    let product: Vec<&str> =
        mapped.iter().filter_map(|path| path.strip_prefix("crates/")).filter(|name| *name != "posthaste").collect();
    for (place, name) in product.iter().enumerate() {
        let manifest = fs::read_to_string(root.join("crates").join(name).join("Cargo.toml")).unwrap();
        let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap_or_default();
        let own = dependencies.split("\n[").next().unwrap().lines().filter_map(|line| line.strip_prefix("posthaste-"));
        for used in own.map(|line| line.split(['.', ' ', '=']).next().unwrap()) {
            let used_at = product.iter().position(|other| *other == used);
            assert!(used_at.is_some_and(|used_at| used_at > place), "{name} depends on {used}, which is not below it");
        }
    }
    let mut all = ["crates", "tools", "testkit"].map(crates_in).concat();
    mapped.sort();
    all.sort();
    assert_eq!(mapped, all);
}

#[test]
fn documents_stay_short_enough_to_be_read() {
    for (document, octets_max) in [
        ("README.md", 7 << 10),
        ("ARCHITECTURE.md", 16 << 10),
        ("BENCHMARKS.md", 14 << 10),
        ("CONTRIBUTING.md", 4 << 10),
    ] {
        let octets = fs::metadata(root().join(document)).unwrap().len();
        assert!(octets <= octets_max, "{document} has {octets} octets: details go to docs/internals or bench-results");
    }
}

#[test]
fn the_examples_of_the_documents_are_valid() {
    let dir = tempfile::tempdir().unwrap();
    let first = |document: &str| toml_blocks(document).into_iter().next().expect("an example");
    let mut examples =
        vec![first(include_str!("../../../../README.md")), first(include_str!("../../../../docs/configuration.md"))];
    let guides = documents(&root().join("docs/guides"));
    examples.extend(guides.iter().flat_map(|guide| toml_blocks(&fs::read_to_string(guide).unwrap())));
    let node = include_str!("../../../../examples/cluster/node.toml");
    examples.extend((1..=3).map(|number| node.replace('%', &number.to_string())));
    for example in &examples {
        // A group that every system has: Postfix need not be installed for the tests.
        let example = example.replace("group = \"postfix\"", "group = \"mail\"");
        fs::write(dir.path().join("posthaste.toml"), &example).unwrap();
        // The files that it names are not here, so it is read and not checked as a whole.
        let read = command(dir.path(), &["config", "show"]).output().unwrap();
        assert!(read.status.success(), "{example}: {read:?}");
    }
    assert!(examples.len() > 6, "{examples:?}");
}

/// Blocks of TOML, also those inside lists.
fn toml_blocks(document: &str) -> Vec<String> {
    let blocks = document.split("```toml\n").skip(1);
    blocks.filter_map(|rest| rest.split("```").next()).map(str::to_owned).collect()
}

#[test]
fn examples_of_documentation_are_tested() {
    let mut checked = 0;
    for place in ["crates", "tools", "testkit"] {
        for package in fs::read_dir(root().join(place)).unwrap() {
            let package = package.unwrap().path();
            let Ok(manifest) = fs::read_to_string(package.join("Cargo.toml")) else { continue };
            if !manifest.contains("doctest = false") {
                continue;
            }
            for file in sources(&package.join("src")) {
                let text = fs::read_to_string(&file).unwrap();
                let is_example = |line: &str| line.starts_with("//! ```") || line.starts_with("/// ```");
                let has_example = text
                    .lines()
                    .map(str::trim_start)
                    .any(|line| is_example(line) || line.contains("include_str!(\"../README.md\")"));
                assert!(!has_example, "{} has an example; remove `doctest = false`", file.display());
                checked += 1;
            }
        }
    }
    assert!(checked > 50, "only {checked} files found");
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}
