//! Needles in many scripts and charsets, in the project's own corpus.

use std::fs;
use std::path::Path;

use posthaste_search::Searcher;

use crate::common::{hits, maildir, update};

#[test]
fn needles_are_found_in_their_scripts_and_charsets() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus");
    for entry in fs::read_dir(corpus).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "eml") {
            fs::copy(&path, mail.path().join("cur").join(path.file_stem().unwrap())).unwrap();
        }
    }
    update(index.path(), mail.path());
    let searcher = Searcher::open(index.path()).unwrap();
    let finds = |query: &str, name: &str| {
        assert!(hits(&searcher, query).contains(name), "{query} in {name}: {:?}", hits(&searcher, query))
    };
    let misses = |query: &str, name: &str| assert!(!hits(&searcher, query).contains(name), "{query} not in {name}");

    let scripts = "search-many-scripts";
    for query in [
        "NAIVE cafe",
        "strasse",
        "straße",
        "größe",
        "grosse",
        "ubermut",
        "istanbul",
        "diyarbakir",
        "σισυφοσ",
        "ΤΑΧΎΣ",
        "елка",
        "мороз",
        "全文検索",
        "検索テスト",
        "京",
        "カタカナ",
        "ｶﾀｶﾅ",
        "ひらがな",
        "中华人民",
        "全文檢索",
        "전자우편",
        "검색",
        "ภาษาไทย",
        "ช่องว่าง",
        "السلام",
        "שלום",
        "खोज",
        "tim kiem thu dien tu",
        "\"tìm kiếm\"",
        "å",
        "fi",
        "CVE-2024-12345",
        "foo_bar",
        "bar.baz()",
        "192.0.2.17",
        "2001:db8::1",
        "a.b+c@corpus.example",
        "corpus.example/a",
        "password",
        "softhyphen",
        "Donaudampf*",
        "/^donau.*schaft$/",
        "\"non breaking\"",
        "subject:поиск",
        "subject:検索",
        "subject:بحث",
    ] {
        finds(query, scripts);
    }
    for query in ["東文", "検検", "bar_foo", "\"cafe naive\"", "donau", "192.0.2.18", "यात्रा"] {
        misses(query, scripts);
    }
    // Both alternatives, entities, a word split over tags; nothing that a browser would not show.
    let html = "html-only-hidden";
    for word in
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/html-only-hidden.eml"))
            .unwrap()
            .split_whitespace()
    {
        if word.contains("hidden-by") {
            misses(&format!("\"{word}\""), html);
        }
    }
    assert_eq!(hits(&searcher, "*").len(), 45);
}
