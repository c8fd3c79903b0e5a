//! The modules of each crate: no circle of imports. In the relay an object's methods stand in the file of its type.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Types with methods in other modules, which are above them, and the reason.
const METHODS_ELSEWHERE: [(&str, &[&str], &str); 2] = [
    (
        "Relay",
        &["sender::control", "sender::explain", "sender::summary", "sender::transfer"],
        "requests of operators, which nothing in the relay makes",
    ),
    ("Routing", &["sender::preview"], "a question of operators, which needs no relay"),
];

/// The code of modules without comments and tests, by their path; that of the root is empty.
type Modules = BTreeMap<String, String>;

fn join(of: &str, name: &str) -> String {
    if of.is_empty() { name.to_owned() } else { format!("{of}::{name}") }
}

/// An item without `pub`.
fn without_visibility(item: &str) -> &str {
    ["pub(crate) ", "pub(super) ", "pub "].iter().find_map(|seen| item.strip_prefix(seen)).unwrap_or(item)
}

/// Reads the modules below the folder of the module `of`, and the names of those that are compiled for tests alone.
fn read(dir: &Path, of: &str, found: &mut Modules, of_tests: &mut BTreeSet<String>) {
    for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        if path.is_dir() {
            read(&path, &join(of, stem), found, of_tests);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let own = if ["lib", "main", "mod"].contains(&stem) { of.to_owned() } else { join(of, stem) };
            let mut code = &*text;
            for (at, _) in text.match_indices("#[cfg(").filter(|(at, _)| *at == 0 || text[..*at].ends_with('\n')) {
                let mut lines = text[at..].lines().skip_while(|line| line.starts_with("#["));
                let is_of_test = text[at..].lines().next().is_some_and(|line| line.contains("test"));
                let declared = lines.next().map(without_visibility).and_then(|line| line.strip_prefix("mod "));
                match declared.filter(|_| is_of_test) {
                    Some(name) if name.ends_with(';') => drop(of_tests.insert(join(&own, &name[..name.len() - 1]))),
                    // They are at the end of a file.
                    Some(_) if code.len() == text.len() => code = &text[..at],
                    _ => {}
                }
            }
            let code: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
            found.insert(own, code.join("\n"));
        }
    }
}

/// The modules of a crate, without those for tests.
fn modules_of(name: &str) -> Modules {
    let mut found = Modules::new();
    let mut of_tests = BTreeSet::new();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates").join(name).join("src");
    read(&dir, "", &mut found, &mut of_tests);
    let is_of_test = |module: &str| {
        of_tests
            .iter()
            .any(|test| module.strip_prefix(&**test).is_some_and(|rest| rest.is_empty() || rest.starts_with("::")))
    };
    found.retain(|module, _| !is_of_test(module));
    found
}

/// The paths of a `use`, each with the name that it brings.
fn flatten(before: &str, tree: &str, found: &mut Vec<(String, String)>) {
    let Some((head, list)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, tree.rsplit("::").next().unwrap()));
        found.push((format!("{before}{}", path.trim()), name.trim().to_owned()));
        return;
    };
    let (list, head) = (list.rsplit_once('}').expect("its end").0, format!("{before}{}", head.trim()));
    let (mut depth, mut from) = (0, 0);
    for (at, letter) in list.char_indices().chain([(list.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = list[from..at].trim();
                from = (at + 1).min(list.len());
                if !part.is_empty() {
                    flatten(&head, part, found);
                }
            }
            _ => {}
        }
    }
}

/// The paths of all `use` items, each with the name that it brings; and the rest of the code.
fn uses(code: &str) -> (Vec<(String, String)>, String) {
    let (mut found, mut rest, mut lines) = (Vec::new(), String::new(), code.lines());
    while let Some(line) = lines.next() {
        let item = line.trim_start();
        let Some(tree) = without_visibility(item).strip_prefix("use ") else {
            rest.push_str(line);
            rest.push('\n');
            continue;
        };
        let mut tree = tree.to_owned();
        while !tree.ends_with(';') {
            tree.push_str(lines.next().expect("the end of a use").trim());
        }
        flatten("", tree.trim_end_matches(';'), &mut found);
    }
    (found, rest)
}

/// The module that defines a path as `of` sees it: a name that another module re-exports leads there. `None`: it is
/// of another crate.
fn resolve(modules: &Modules, of: &str, path: &str) -> Option<String> {
    let mut names = path.split("::").peekable();
    let mut at = of.to_owned();
    match *names.peek()? {
        "crate" => at.clear(),
        "self" | "super" => {}
        first if modules.contains_key(&join(of, first)) => {}
        _ => return None,
    }
    while let Some(name) =
        names.next_if(|name| ["crate", "self", "super"].contains(name) || modules.contains_key(&join(&at, name)))
    {
        match name {
            "crate" | "self" => {}
            "super" => at = at.rsplit_once("::").map_or("", |(above, _)| above).to_owned(),
            name => at = join(&at, name),
        }
    }
    let Some(name) = names.next() else { return Some(at) };
    let (seen, _) = uses(&modules[&at]);
    let mut through = seen.iter().filter(|(other, brought)| brought == name && (at != of || other != path));
    let found = through.find_map(|(path, _)| resolve(modules, &at, path));
    found.or(Some(at))
}

/// The modules that each module uses.
fn edges(modules: &Modules) -> BTreeMap<&str, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    for (of, code) in modules {
        let (seen, rest) = uses(code);
        let mut paths: BTreeSet<&str> = seen.iter().map(|(path, _)| path.as_str()).collect();
        let of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        paths.extend(
            rest.split(|c: char| !of_path(c)).map(|path| path.trim_matches(':')).filter(|path| path.contains("::")),
        );
        let mut used: BTreeSet<String> = paths.into_iter().filter_map(|path| resolve(modules, of, path)).collect();
        used.remove(of);
        all.insert(of.as_str(), used);
    }
    all
}

/// Modules of which each uses the next, and the last the first.
fn circle<'a>(edges: &'a BTreeMap<&str, BTreeSet<String>>) -> Option<Vec<&'a str>> {
    fn visit<'a>(
        edges: &'a BTreeMap<&str, BTreeSet<String>>,
        at: &'a str,
        way: &mut Vec<&'a str>,
        done: &mut BTreeSet<&'a str>,
    ) -> Option<Vec<&'a str>> {
        if let Some(first) = way.iter().position(|module| *module == at) {
            return Some(way[first..].to_vec());
        }
        if !done.insert(at) {
            return None;
        }
        way.push(at);
        let found = edges[at].iter().find_map(|next| visit(edges, next, way, done));
        way.pop();
        found
    }
    let mut done = BTreeSet::new();
    edges.keys().find_map(|module| visit(edges, module, &mut Vec::new(), &mut done))
}

/// The product's crates, by their folders.
fn crates() -> BTreeSet<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let folders = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let folders = folders.filter(|folder| folder.join("Cargo.toml").exists());
    folders.map(|folder| folder.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn modules_of_a_crate_form_layers() {
    let crates = crates();
    assert!(crates.len() > 40 && crates.contains("queue"), "{crates:?}");
    for name in &crates {
        let modules = modules_of(name);
        let edges = edges(&modules);
        let count: usize = edges.values().map(BTreeSet::len).sum();
        assert!(count + 1 >= modules.len() / 2, "{name}: only {count} uses found");
        let found = circle(&edges);
        assert_eq!(found, None, "{name}: move what both use to a module below, or hand it in as a value");
    }
}

#[test]
fn uses_of_modules_are_found() {
    let check = |name: &str, uses_min: usize, some: &[(&str, &str)]| {
        let modules = modules_of(name);
        let edges = edges(&modules);
        let count: usize = edges.values().map(BTreeSet::len).sum();
        assert!(count > uses_min, "{name}: only {count} uses found");
        for (of, used) in some {
            assert!(edges[of].contains(*used), "{name}: {of} uses {used}");
        }
    };
    // Functions that take the shared state are above it, and so is the relay itself.
    let some = [("sender::serving", "sender::shared"), ("sender::relay", "sender::dispatch")];
    check("relay", 200, &some);
    check("shaping", 30, &[("rules", "automation"), ("limits::site", "limits::state")]);
    check("notify", 10, &[("suppression", "database")]);
    check("queue", 100, &[("apply", "queue"), ("queue", "table")]);
    check("server", 400, &[("receive::handler::checks", "receive::handler::receiver")]);
}

#[test]
fn a_circle_is_found_through_names_that_others_re_export() {
    let check = |files: &[(&str, &str)], expected: Option<&[&str]>| {
        let modules = files.iter().map(|(name, code)| ((*name).to_owned(), (*code).to_owned())).collect();
        assert_eq!(circle(&edges(&modules)).as_deref(), expected);
    };
    let root = ("", "mod a;\nmod b;\npub use a::{\n    A, B as C,\n};\n");
    check(&[root, ("a", ""), ("b", "use super::A;")], None);
    check(&[root, ("a", "use crate::b::{self, D};"), ("b", "use super::C;")], Some(&["a", "b"]));
    check(&[root, ("a", "use std::sync::Arc;\nfn f() { crate::b::g(); }"), ("b", "use crate::A;")], Some(&["a", "b"]));
    check(&[root, ("a", "use super::E;"), ("b", "")], Some(&["", "a"]));
    check(&[root, ("a", "fn f() { std::a::g(); }"), ("b", "")], None);
}

#[test]
fn methods_stand_in_the_file_of_their_type() {
    let modules = modules_of("relay");
    assert!(modules.len() > 60, "{:?}", modules.keys());
    let mut homes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let first = |rest: &str| rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    for (module, code) in &modules {
        for line in code.lines().map(str::trim_start) {
            let item = without_visibility(line);
            for kind in ["struct ", "enum ", "union "] {
                if let Some(rest) = item.strip_prefix(kind) {
                    homes.entry(&rest[..first(rest)]).or_default().insert(module);
                }
            }
        }
    }
    let mut elsewhere: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (module, code) in &modules {
        for line in code.lines().filter(|line| line.ends_with(" {") && !line.contains(" for ")) {
            let Some(rest) = line.strip_prefix("impl") else { continue };
            let rest = if rest.starts_with('<') {
                rest.split_once("> ").map_or("", |(_, rest)| rest)
            } else {
                rest.trim_start()
            };
            let name = &rest[..first(rest)];
            if homes.get(name).is_some_and(|homes| !homes.contains(module.as_str())) {
                elsewhere.entry(name).or_default().insert(module);
            }
        }
    }
    let allowed = METHODS_ELSEWHERE.iter().map(|(name, modules, _)| (*name, modules.iter().copied().collect()));
    let allowed: BTreeMap<&str, BTreeSet<&str>> = allowed.collect();
    assert_eq!(elsewhere, allowed, "found and allowed: an `impl` in another file is a use that nobody sees");
    assert!(homes.len() > 120, "{} types", homes.len());
}
