//! The table on a machine whose power goes at any write, whose disk is full, and whose disk fails.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use posthaste_fsops::{Choice, Cut, Faults, Machine, Recording};
use rustix::io::Errno;

use super::*;

type Model = BTreeMap<(TableName, Vec<u8>), Vec<u8>>;

const COMMITS: u64 = 5;

fn dir(machine: &Machine) -> PathBuf {
    machine.path().join("mailstore")
}

/// The changes of commit `number`: rows that are full, rows that change, and rows that go.
fn changes(number: u64) -> RowChanges {
    let mut changes = RowChanges::default();
    changes.put(TableName::Store, b"applied", number.to_le_bytes().to_vec());
    for row in 0..6u64 {
        let key = values::key_of_two(1, (number * 3 + row) as u32);
        changes.put(TableName::Fixed, &key, vec![number as u8; columns::ROW_BYTES_MAX - 4]);
        changes.put(TableName::State, &values::key_of_two(1, row as u32), vec![number as u8 ^ row as u8; 3000]);
    }
    changes.remove(TableName::Fixed, &values::key_of_two(1, (number * 3) as u32));
    changes
}

/// The content of the table after so many commits.
fn model(commits: u64) -> Model {
    let mut model = Model::from([((TableName::Store, FORMAT_KEY.to_vec()), FORMAT.to_vec())]);
    for (at, value) in (1..=commits).flat_map(|number| changes(number).0) {
        match value {
            Some(value) => drop(model.insert(at, value)),
            None => drop(model.remove(&at)),
        }
    }
    model
}

fn content(reader: &TableReader) -> Model {
    let mut content = Model::new();
    for table in TableName::ALL {
        let mut add = |key: &[u8], value: Option<&[u8]>| {
            content.insert((table, key.to_vec()), value.expect("a whole value").to_vec());
            Ok(())
        };
        reader.for_each(table, &[], &mut add).unwrap();
    }
    content
}

fn has(table: &MetaTable) -> Model {
    content(&table.reader().unwrap())
}

/// Cuts the power at each event from `from` on. What the table has then is what was acknowledged, or the commit that was under way; it can be written on.
fn cut_at_each(recording: &Recording, from: usize, seeds: u64) {
    cut_at(recording, from..=recording.events.len(), seeds);
}

fn cut_at(recording: &Recording, positions: impl Iterator<Item = usize>, seeds: u64) {
    for position in positions {
        let acknowledged = recording.acknowledged_before(position).last().unwrap_or(0);
        for seed in 0..seeds {
            let cut = Cut { position, choice: Choice::Seed(seed) };
            let machine = Machine::boot(&recording.cut(cut), true, false).unwrap();
            let table = MetaTable::open(&dir(&machine)).unwrap_or_else(|error| panic!("{cut}: {error}"));
            let found = has(&table);
            let is_whole = [acknowledged, acknowledged + 1].map(model).contains(&found);
            assert!(is_whole, "{cut}: neither commit {acknowledged} nor the next");
            // A commit takes longer than all the rest: every fifth goes on.
            if seed == 0 && position % 5 == 0 {
                (acknowledged + 1..=COMMITS).for_each(|number| table.commit(&changes(number)).unwrap());
                drop(table);
                assert!(has(&MetaTable::open(&dir(&machine)).unwrap()) == model(COMMITS.max(acknowledged)), "{cut}");
                assert_eq!(machine.unrecorded().unwrap(), Vec::<PathBuf>::new());
            }
        }
    }
}

fn commit(machine: &Machine, table: &MetaTable, number: u64) {
    table.commit(&changes(number)).unwrap();
    machine.acknowledge(number);
}

/// Scenario 6.
#[test]
fn a_cut_at_each_write_leaves_one_commit_or_the_next() {
    let machine = Machine::new().unwrap();
    let table = MetaTable::open(&dir(&machine)).unwrap();
    (1..=COMMITS).for_each(|number| commit(&machine, &table, number));
    drop(table);
    assert_eq!(machine.unrecorded().unwrap(), Vec::<PathBuf>::new(), "past the door");
    cut_at_each(&machine.recording(), 0, 4);
}

/// Scenario 6, where syncs do nothing: the test notices.
#[test]
fn a_table_without_syncs_is_noticed() {
    let machine = Machine::new().unwrap();
    let table = MetaTable::open(&dir(&machine)).unwrap();
    (1..=COMMITS).for_each(|number| commit(&machine, &table, number));
    let from = machine.position() - 40;
    let recording = machine.recording().without_syncs(|index| index >= from);
    let cuts = std::panic::catch_unwind(|| cut_at_each(&recording, from, 6));
    assert!(cuts.is_err());
}

/// Scenario 23.
#[test]
fn a_full_disk_keeps_the_last_commit_and_room_helps() {
    let reached = AtomicUsize::new(0);
    for nth in 1.. {
        let machine = Machine::new().unwrap();
        let table = MetaTable::open(&dir(&machine)).unwrap();
        commit(&machine, &table, 1);
        let at = machine.counts().1 + nth;
        machine.set_faults(Faults { fail_changes: Some((at..u64::MAX, Errno::NOSPC)), ..Faults::default() });
        let outcome = table.commit(&changes(2));
        if outcome.is_ok() {
            break;
        }
        assert!(matches!(outcome, Err(MetaError::NoRoom(_))), "{outcome:?}");
        assert!([1, 2].map(model).contains(&has(&table)), "reading works");
        assert!(table.commit(&changes(2)).is_err());
        machine.set_faults(Faults::default());
        commit(&machine, &table, 2);
        assert!(has(&table) == model(2));
        let recording = machine.recording();
        cut_at_each(&recording, recording.events.len(), 4);
        reached.fetch_add(1, Ordering::Relaxed);
    }
    assert!(reached.into_inner() > 5, "writes of a commit");
}

/// Scenario 24, where the spool is on another device.
#[test]
fn a_failed_sync_moves_the_rows_into_a_new_file() {
    let mut reached = 0;
    for nth in 1.. {
        let machine = Machine::new().unwrap();
        let table = MetaTable::open(&dir(&machine)).unwrap();
        commit(&machine, &table, 1);
        let from = machine.position();
        machine.set_faults(Faults { fail_syncs: vec![machine.counts().0 + nth], ..Faults::default() });
        let outcome = table.commit(&changes(2));
        if outcome.is_ok() {
            break;
        }
        assert!(matches!(outcome, Err(MetaError::Disk(_))), "{outcome:?}");
        let before = inode(&machine);
        assert!([1, 2].map(model).contains(&has(&table)));
        (2..=3).for_each(|number| commit(&machine, &table, number));
        assert_ne!(inode(&machine), before, "no transaction is repeated on the same pages");
        assert!(has(&table) == model(3));
        let recording = machine.recording();
        cut_at(&recording, (from..=recording.events.len()).skip(nth as usize % 5).step_by(5), 1);
        reached += 1;
    }
    assert!(reached >= 2, "a commit has two syncs");
}

fn inode(machine: &Machine) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(dir(machine).join(FILE)).unwrap())
}

#[test]
fn a_disk_that_fails_for_good_can_still_be_read() {
    let machine = Machine::new().unwrap();
    let table = MetaTable::open(&dir(&machine)).unwrap();
    commit(&machine, &table, 1);
    let device = posthaste_fsops::declared(File::open(machine.path()).unwrap()).unwrap().device;
    machine.set_faults(Faults { fail_syncs_on: Some(device), ..Faults::default() });
    for _ in 0..3 {
        assert!(table.commit(&changes(2)).is_err());
        assert!([1, 2].map(model).contains(&has(&table)));
    }
    machine.set_faults(Faults::default());
    commit(&machine, &table, 2);
    assert!(has(&table) == model(2));
}

/// Scenario 24, where it is the spool's device: that is poisoned, the process ends, and the next one replays.
#[test]
fn a_failed_sync_on_the_spools_device_ends_in_a_replay() {
    for nth in 1.. {
        let machine = Machine::new().unwrap();
        let table = MetaTable::open(&dir(&machine)).unwrap();
        commit(&machine, &table, 1);
        let told = std::sync::Arc::new(Mutex::new(Vec::new()));
        let noted = std::sync::Arc::clone(&told);
        let spool = File::open(machine.path()).unwrap();
        let _watch = posthaste_fsops::watch(spool, move |what| noted.lock().unwrap().push(what.to_owned()));
        let from = machine.position();
        machine.set_faults(Faults { fail_syncs: vec![machine.counts().0 + nth], ..Faults::default() });
        let outcome = table.commit(&changes(2));
        if outcome.is_ok() {
            break;
        }
        assert_eq!(told.lock().unwrap().len(), 1, "the spool is poisoned before the commit returns");
        machine.kill();
        drop(table);
        machine.go_on();
        machine.set_faults(Faults::default());
        let table = MetaTable::open(&dir(&machine)).unwrap();
        assert!([1, 2].map(model).contains(&has(&table)));
        (2..=4).for_each(|number| commit(&machine, &table, number));
        let recording = machine.recording();
        cut_at(&recording, (from..=recording.events.len()).skip(nth as usize % 5).step_by(5), 1);
    }
}

#[test]
fn a_damaged_value_is_told_and_the_others_are_read() {
    let temporary = tempfile::tempdir().unwrap();
    let table = MetaTable::open(temporary.path()).unwrap();
    (1..=2).for_each(|number| table.commit(&changes(number)).unwrap());
    drop(table);
    let path = temporary.path().join(FILE);
    let mut bytes = std::fs::read(&path).unwrap();
    // A row of the second commit, in the middle.
    let row = [2u8; 3000];
    let at = bytes.windows(row.len()).rposition(|window| window == row).expect("the row");
    bytes[at + 1500] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let table = MetaTable::open(temporary.path()).unwrap();
    let reader = table.reader().unwrap();
    let (mut whole, mut damaged) = (0, Vec::new());
    let mut look = |key: &[u8], value: Option<&[u8]>| {
        match value {
            Some(_) => whole += 1,
            None => damaged.push(key.to_vec()),
        }
        Ok(())
    };
    for name in [TableName::Fixed, TableName::State] {
        reader.for_each(name, &[], &mut look).unwrap();
    }
    assert_eq!((whole, damaged.len()), (model(2).len() - 3, 1));
    let damaged = &damaged[0];
    let found = [TableName::Fixed, TableName::State].map(|name| reader.get(name, damaged));
    assert!(found.iter().any(|found| matches!(found, Err(MetaError::Value(_)))), "{found:?}");
}

/// Rows of 6 MB, and their removal.
fn many_rows() -> (RowChanges, RowChanges) {
    let (mut many, mut none) = (RowChanges::default(), RowChanges::default());
    for uid in 0..1500 {
        many.put(TableName::Foreign, &values::key_of_two(1, uid), vec![7; 4000]);
        none.remove(TableName::Foreign, &values::key_of_two(1, uid));
    }
    (many, none)
}

fn file_bytes(dir: &Path) -> u64 {
    std::fs::metadata(dir.join(FILE)).unwrap().len()
}

#[test]
fn a_sparse_file_is_compacted_and_a_cut_leaves_its_rows() {
    let machine = Machine::new().unwrap();
    let table = MetaTable::open(&dir(&machine)).unwrap();
    let (many, none) = many_rows();
    table.commit(&many).unwrap();
    commit(&machine, &table, 1);
    drop(table);
    let full = file_bytes(&dir(&machine));
    let table = MetaTable::open(&dir(&machine)).unwrap();
    table.commit(&none).unwrap();
    drop(table);
    assert!(full > COMPACTED_BYTES_MIN && file_bytes(&dir(&machine)) >= full / 2, "nothing but an opening shortens it");
    let from = machine.position();
    drop(MetaTable::open(&dir(&machine)).unwrap());
    let recording = machine.recording();
    assert!(file_bytes(&dir(&machine)) < full / 4, "{full} {}", file_bytes(&dir(&machine)));
    let step = (recording.events.len() - from).div_ceil(12);
    cut_at(&recording, (from..=recording.events.len()).step_by(step), 1);
    // It is written on as any other.
    let table = MetaTable::open(&dir(&machine)).unwrap();
    (2..=COMMITS).for_each(|number| commit(&machine, &table, number));
    assert!(has(&table) == model(COMMITS));
}

#[test]
fn an_estimate_tells_a_full_file_from_a_sparse_one() {
    let temporary = tempfile::tempdir().unwrap();
    let table = MetaTable::open(temporary.path()).unwrap();
    let of = |table: &MetaTable, measure: fn(&redb::ReadTransaction) -> Result<u64, redb::Error>| {
        measure(&table.lock().open.as_ref().unwrap().database.begin_read().unwrap()).unwrap()
    };
    let (many, none) = many_rows();
    table.commit(&many).unwrap();
    let (live, about) = (of(&table, live_bytes), of(&table, about_live_bytes));
    assert!((live / 2..live * 2).contains(&about), "{about} of {live}");
    // A full file is not looked at as a whole: it has at most twice its live pages.
    assert!(about > file_bytes(temporary.path()) / SPARSE_RATIO, "{about} of {}", file_bytes(temporary.path()));
    table.commit(&none).unwrap();
    assert!(of(&table, about_live_bytes) < file_bytes(temporary.path()) / SPARSE_RATIO);
    drop(table);
    let (before, after) = MetaTable::compact(temporary.path()).unwrap();
    assert!(after < before / 4 && after == file_bytes(temporary.path()), "{before} {after}");
    assert!(MetaTable::compact(&temporary.path().join("none")).is_err());
    assert!(!temporary.path().join("none").exists());
}

#[test]
fn a_failed_sync_of_a_compaction_keeps_the_rows() {
    let mut failed = 0;
    for nth in 1.. {
        let machine = Machine::new().unwrap();
        let table = MetaTable::open(&dir(&machine)).unwrap();
        let (many, none) = many_rows();
        table.commit(&many).unwrap();
        commit(&machine, &table, 1);
        table.commit(&none).unwrap();
        drop(table);
        machine.set_faults(Faults { fail_syncs: vec![machine.counts().0 + nth], ..Faults::default() });
        let (syncs, opened) = (machine.counts().0, MetaTable::open(&dir(&machine)));
        let had_all = machine.counts().0 < syncs + nth;
        machine.set_faults(Faults::default());
        if had_all {
            break;
        }
        failed += 1;
        // Where the opening itself failed, the next one counts.
        let table = opened.unwrap_or_else(|_| MetaTable::open(&dir(&machine)).unwrap());
        assert!(has(&table) == model(1), "sync {nth}");
        commit(&machine, &table, 2);
        assert!(has(&table) == model(2), "sync {nth}");
    }
    assert!(failed >= 2, "{failed}");
}

#[test]
fn hostile_files_are_errors() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join(FILE);
    for bytes in [vec![], vec![0; 10], vec![0xFF; 100_000], b"redb\x1a\n\xa9\r\n".repeat(20_000)] {
        std::fs::write(&path, bytes).unwrap();
        assert!(MetaTable::open(temporary.path()).is_err());
    }
    std::fs::remove_file(&path).unwrap();
    let table = MetaTable::open(temporary.path()).unwrap();
    let mut changes = RowChanges::default();
    changes.put(TableName::Store, FORMAT_KEY, vec![2, 0, 0, 0]);
    table.commit(&changes).unwrap();
    drop(table);
    assert!(matches!(MetaTable::open(temporary.path()), Err(MetaError::Value(_))), "of a later version");
}

#[test]
fn a_table_in_use_is_read_by_another_process() {
    let temporary = tempfile::tempdir().unwrap();
    assert!(matches!(peek(temporary.path(), |_| Ok(())), Err(MetaError::Open(_))));
    let table = MetaTable::open(temporary.path()).unwrap();
    for number in 1..=3 {
        table.commit(&changes(number)).unwrap();
        let before = std::fs::read(temporary.path().join(FILE)).unwrap();
        assert!(peek(temporary.path(), |reader| Ok(content(reader))).unwrap() == model(number));
        assert!(std::fs::read(temporary.path().join(FILE)).unwrap() == before, "it changes nothing");
    }
}
