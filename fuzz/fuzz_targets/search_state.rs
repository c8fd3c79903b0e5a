//! The side store's file is damaged wherever the input says, and all checksums are made right again: whatever the directory and the chunks say
//! then, they are read or refused, without a panic and without more memory than the file accounts for.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use posthaste_search::state::{Column, FolderState, Record, Snapshot, StateWriter};
use serde_json::Value;

struct Store {
    dir: PathBuf,
    /// What `current` says.
    current: Value,
    /// The state file.
    octets: Vec<u8>,
}

/// A store as it is written, with three folders, some tags, and references.
static STORE: LazyLock<Store> = LazyLock::new(|| {
    // A directory that `fuzz/run` has made for this run.
    let dir = std::env::temp_dir().join(format!("search-state-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a directory");
    let mut writer = StateWriter::open(&dir).expect("an empty store");
    writer.directory.roots = vec![PathBuf::from("/mail")];
    let folder = |path: &str| FolderState { path: path.into(), present: true, ..FolderState::default() };
    writer.directory.folders = ["", ".Sent", ".a.b"].map(folder).to_vec();
    let tags = writer.tag_set(vec!["todo".into(), "work".into()]);
    for number in 0..20_u32 {
        writer.push(Record {
            digest: u128::from(number) << 90,
            size: 1000 + u64::from(number),
            folder: number % 3,
            tags: if number % 2 == 0 { tags } else { 0 },
            name: format!("17{number:08}.M1P2Q{number}.host,S=1000:2,S"),
            references: vec![7; number as usize % 4],
            ..Record::default()
        });
    }
    writer.directory.messages = 20;
    writer.directory.present = 20;
    writer.commit().expect("it can be written");
    let current: Value = serde_json::from_slice(&fs::read(dir.join("current")).expect("current")).expect("JSON");
    let octets = fs::read(dir.join(current["file"].as_str().expect("a name"))).expect("the state file");
    Store { dir, current, octets }
});

fuzz_target!(|data: &[u8]| {
    let store = &*STORE;
    let mut octets = store.octets.clone();
    // Each damage is three octets: where (two), and what is put there.
    for damage in data.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([damage[0], damage[1]])) % octets.len();
        octets[at] ^= damage[2];
    }
    let number = |value: &Value| value.as_u64().unwrap_or(0) as usize;
    let (offset, length) = (number(&store.current["offset"]), number(&store.current["length"]));
    // A directory that is not JSON any more is read as it is.
    let mut directory = octets[offset..offset + length].to_vec();
    if let Ok(mut value) = serde_json::from_slice::<Value>(&directory) {
        // An update notes the device of each tree.
        if let Some(fields) = value.as_object_mut() {
            fields.insert("devices".to_owned(), serde_json::json!([1]));
        }
        for chunk in value["chunks"].as_array_mut().into_iter().flatten() {
            let (from, length) = (number(&chunk["offset"]), number(&chunk["length"]));
            let place = from.checked_add(length).and_then(|end| octets.get(from..end));
            if let (Some(place), Some(chunk)) = (place, chunk.as_object_mut()) {
                chunk.insert("crc".to_owned(), crc32c::crc32c(place).into());
            }
        }
        directory = serde_json::to_vec(&value).expect("JSON");
    }
    octets.truncate(offset);
    octets.extend_from_slice(&directory);
    let mut current = store.current.clone();
    current["length"] = directory.len().into();
    current["crc"] = crc32c::crc32c(&directory).into();
    fs::write(store.dir.join(current["file"].as_str().expect("a name")), &octets).expect("the state can be kept");
    fs::write(store.dir.join("current"), current.to_string()).expect("the state can be kept");
    match Snapshot::open(&store.dir) {
        Ok(snapshot) => read_all(&snapshot),
        Err(error) => assert!(!data.is_empty(), "a store without damage is refused: {error}"),
    }
});

fn read_all(snapshot: &Snapshot) {
    let directory = snapshot.directory();
    let _ = snapshot.records();
    for column in [Column::Date, Column::Size, Column::Mtime, Column::Flags, Column::Id, Column::Subject] {
        let values = snapshot.wide(column);
        assert!(values.is_err() || values.is_ok_and(|values| values.len() == directory.messages as usize));
    }
    for column in [Column::Thread, Column::Parent, Column::Tags, Column::NameEnd, Column::ReferencesEnd] {
        let _ = snapshot.narrow(column);
    }
    let folders = snapshot.narrow(Column::Folder).unwrap_or_default();
    for number in 0..directory.messages.min(40) {
        let _ = snapshot.name(number);
        // As a query does: with what the column says.
        let _ = snapshot.path(number, folders.get(number as usize).copied().unwrap_or(0), number % 2 == 0);
    }
}
