//! Any text is a dump of tags and saved queries or an error that names its line; what was read is kept, dumped and read as the same.
#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use posthaste_search::tags::{TagError, TagStore, Tags, check_tag, dump, restore};

/// In a directory that `fuzz/run` has made for this run; each process has its own.
static STORE: LazyLock<TagStore> = LazyLock::new(|| {
    let dir = std::env::temp_dir().join(format!("search-tags-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a directory");
    TagStore::open(&dir).expect("a new store")
});

/// What a restored message has for a digest: it need not be there.
const ANY_CONTENT: u128 = 0;

fuzz_target!(|text: &str| {
    let mut restored = match restore(text) {
        Ok(restored) => restored,
        Err(error) => {
            assert!(!matches!(error, TagError::Line { line, .. } if line == 0 || line > text.lines().count()));
            return;
        }
    };
    assert!(restored.tags.values().flatten().all(|tag| check_tag(tag).is_ok()));
    // What has no tags and no text is taken away, and so not in a dump.
    restored.tags.retain(|_, tags| !tags.is_empty());
    restored.queries.retain(|_, text| !text.is_empty());
    let rows = restored.tags.iter().map(|(id, tags)| (id.as_str(), ANY_CONTENT, tags));
    let queries: Vec<_> = restored.queries.iter().map(|(name, text)| (name.as_str(), Some(text.as_str()))).collect();
    STORE.set(rows, &queries).expect("it can be kept");
    let written = dump(&STORE.all().expect("tags"), &STORE.queries().expect("queries"));
    assert_eq!(restore(&written).expect("what was written reads"), restored);
    let none = Tags::new();
    let rows = restored.tags.keys().map(|id| (id.as_str(), ANY_CONTENT, &none));
    let queries: Vec<_> = restored.queries.keys().map(|name| (name.as_str(), None)).collect();
    STORE.set(rows, &queries).expect("it can be forgotten");
});
