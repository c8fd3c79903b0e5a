//! `posthaste spool …` on intact spools, damaged ones and spools in use.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Output;
use std::sync::mpsc::channel;

use posthaste_spool::{
    Batch, Body, ClosedFileSpool, Config, Entry, FileSpool, Lsn, Released, SnapshotName, Spool, SpoolImport, StoreKind,
    StreamId,
};
use serde_json::Value;

use crate::support::command;

pub fn append(spool: &FileSpool, streams: &[StreamId], body: Body) -> Lsn {
    let (tell, told) = channel();
    let entry = |stream: &StreamId| Entry { stream: *stream, needs_body: true, payload: "for you".into() };
    let batch = Batch { entries: streams.iter().map(entry).collect(), body };
    spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv().unwrap().unwrap()
}

pub fn open(dir: &Path) -> FileSpool {
    let mut config = Config { keeper: false, ..Config::default() };
    config.ring.segment_bytes = 64 << 10;
    FileSpool::open(&dir.join("spool"), config).unwrap().0
}

/// Two streams, ten batches for both and one for the first alone, of which one is large.
fn fill(dir: &Path) -> Lsn {
    let spool = open(dir);
    let [one, two] = ["local:one", "local:two"].map(|name| spool.stream(name).unwrap());
    for n in 0..10_u8 {
        append(&spool, &[one, two], Body::inline(vec![vec![n; 3000].into()]));
    }
    let mut upload = spool.upload(0).unwrap();
    upload.write(&[99; 300_000]).unwrap();
    append(&spool, &[one], Body::file(upload.finish().unwrap()))
}

pub fn run(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command(dir, &[&["spool"], args].concat()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

pub fn json(dir: &Path, args: &[&str]) -> (i32, Value) {
    let (code, out, err) = run(dir, &[args, &["--json"]].concat());
    (code, serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}")))
}

fn only(dir: &Path, below: &str) -> std::path::PathBuf {
    std::fs::read_dir(dir.join("spool").join(below)).unwrap().next().unwrap().unwrap().path()
}

fn turn_over(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_spool_is_shown_and_checked_also_while_it_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    let (code, shown) = json(dir.path(), &["inspect", "spool"]);
    assert_eq!(code, 0);
    assert_eq!(shown["streams"][0]["name"], "local:one");
    assert_eq!((shown["streams"][0]["entries"].as_u64(), shown["streams"][1]["bodies"].as_u64()), (Some(11), Some(10)));
    assert_eq!((shown["in_use"].as_bool(), shown["large"][0]["bytes"].as_u64()), (Some(false), Some(300_000)));
    let (code, text, _) = run(dir.path(), &["inspect", "spool"]);
    assert!(
        code == 0 && text.contains("stream local:two  position ") && text.contains("10 batches not consumed"),
        "{text}"
    );
    let (code, text, _) = run(dir.path(), &["verify", "spool"]);
    assert_eq!((code, text.starts_with("kind: ring\nsound: ")), (0, true), "{text}");
    assert_eq!(run(dir.path(), &["verify", "."]).1, text, "of the data directory that it is in");
    assert_eq!(json(dir.path(), &["scrub", "spool", "--rate", "1GiB"]).1["read"], 11 + 1);
    let in_use = open(dir.path());
    let (code, shown) = json(dir.path(), &["inspect", "spool"]);
    assert_eq!((code, &shown["in_use"], &shown["streams"][0]["entries"]), (0, &true.into(), &11.into()));
    let (code, _, error) = run(dir.path(), &["verify", "spool"]);
    assert!(code == 2 && error.contains("the spool is in use; stop the server first"), "{error}");
    drop(in_use);
    let (code, _, error) = run(dir.path(), &["verify", "spool/bodies"]);
    assert!(code == 2 && error.contains("there is no spool in this directory"), "{error}");
}

#[test]
fn damage_is_named_and_what_has_a_second_copy_is_repaired() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    turn_over(&dir.path().join("spool/checkpoint.1"), 30);
    let (code, text, _) = run(dir.path(), &["verify", "spool"]);
    assert!(code == 0 && text.contains("damaged, but there is a second copy: checkpoint.1"), "{text}");
    let (code, repaired) = json(dir.path(), &["repair", "spool"]);
    assert_eq!((code, &repaired["repaired"][0]), (0, &"checkpoint.1".into()));
    assert_eq!(json(dir.path(), &["verify", "spool"]).1["spare"], Value::Array(Vec::new()));
    turn_over(&only(dir.path(), "bodies"), 5);
    let (code, checked) = json(dir.path(), &["verify", "spool"]);
    assert_eq!((code, checked["damage"].as_array().unwrap().len()), (1, 1));
    let (code, text, _) = run(dir.path(), &["repair", "spool"]);
    assert!(code == 1 && text.contains("DAMAGED, and kept nowhere else"), "{text}");
}

#[test]
fn what_is_needed_is_exported_and_a_stream_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let large = fill(dir.path());
    let (code, _, error) = run(dir.path(), &["forget-stream", "spool", "local:one"]);
    assert!(code == 2 && error.contains("--export"), "{error}");
    let (code, _, error) = run(dir.path(), &["forget-stream", "spool", "nobody", "--discard"]);
    assert!(code == 2 && error.contains("no stream \"nobody\"; existing streams: local:one, local:two"), "{error}");
    assert_eq!(json(dir.path(), &["export", "spool", "--to", "two", "--stream", "local:two"]).1["exported"], 10);
    let (code, _, error) = run(dir.path(), &["export", "spool", "--to", "two"]);
    assert!(code == 2 && error.contains("two"), "{error}");
    let (code, forgotten) = json(dir.path(), &["forget-stream", "spool", "local:one", "--export", "one"]);
    assert_eq!((code, &forgotten["forgotten"], &forgotten["exported"]), (0, &true.into(), &11.into()));
    let file = |ending: &str| std::fs::read(dir.path().join(format!("one/{:020}.{ending}", large.get()))).unwrap();
    assert_eq!(file("body"), vec![99; 300_000]);
    let entries: Value = serde_json::from_slice(&file("json")).unwrap();
    assert_eq!(entries["entries"][0]["entry"]["hex"], "666f7220796f75");
    let (_, shown) = json(dir.path(), &["inspect", "spool"]);
    assert_eq!((shown["streams"].as_array().unwrap().len(), &shown["streams"][0]["entries"]), (1, &10.into()));
    assert_eq!((&shown["large"], &shown["unnamed_bodies"]), (&Value::Array(Vec::new()), &Value::Array(Vec::new())));
}

#[test]
fn a_stream_of_which_something_cannot_be_exported_stays() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    turn_over(&only(dir.path(), "bodies"), 5);
    let (code, forgotten) = json(dir.path(), &["forget-stream", "spool", "local:one", "--export", "one"]);
    assert_eq!((code, &forgotten["forgotten"], &forgotten["exported"]), (1, &false.into(), &11.into()));
    assert_eq!(json(dir.path(), &["inspect", "spool"]).1["streams"].as_array().unwrap().len(), 2);
    assert_eq!(run(dir.path(), &["forget-stream", "spool", "local:one", "--discard"]).0, 0);
    assert_eq!(json(dir.path(), &["inspect", "spool"]).1["streams"].as_array().unwrap().len(), 1);
}

#[test]
fn an_export_without_a_batch_says_so_and_keeps_the_stream() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { kind: StoreKind::Files, keeper: false, ..Config::default() };
    let spool = FileSpool::open(&dir.path().join("spool"), config).unwrap().0;
    let [one, two] = ["local:one", "local:two"].map(|name| spool.stream(name).unwrap());
    append(&spool, &[two], Body::inline(vec!["whole".into()]));
    spool.checkpoint().unwrap();
    let whole = only(dir.path(), "files/00/00");
    for _ in 0..2 {
        append(&spool, &[one], Body::inline(vec!["text".into()]));
    }
    spool.checkpoint().unwrap();
    drop(spool);
    let mut records =
        std::fs::read_dir(dir.path().join("spool/files/00/00")).unwrap().map(|entry| entry.unwrap().path());
    std::fs::remove_file(records.find(|path| *path != whole).unwrap()).unwrap();

    let (code, text, _) = run(dir.path(), &["export", "spool", "--to", "out"]);
    let last = text.lines().last().unwrap();
    assert!(code == 1 && text.contains("DAMAGED, and not exported: "), "{text}");
    assert_eq!(last, "exported 2 batches to out; 1 damaged part is left out");
    let (code, _, error) = run(dir.path(), &["import", "new", "--from", "out"]);
    assert!(code == 2 && error.contains("--give-up-damaged") && !dir.path().join("new").exists(), "{error}");
    let (code, forgotten) = json(dir.path(), &["forget-stream", "spool", "local:one", "--export", "one"]);
    assert_eq!((code, &forgotten["forgotten"], &forgotten["exported"]), (1, &false.into(), &1.into()));
    assert_eq!(forgotten["damage"].as_array().unwrap().len(), 1);
    // The other stream has lost nothing.
    let (code, exported) = json(dir.path(), &["export", "spool", "--to", "two", "--stream", "local:two"]);
    assert_eq!((code, &exported["exported"]), (0, &1.into()));
}

/// A copy of the directory `out`.
fn copy_of_export(dir: &Path) -> std::path::PathBuf {
    let to = dir.join("changed");
    let _ = std::fs::remove_dir_all(&to);
    std::fs::create_dir_all(to.join("snapshots")).unwrap();
    for entry in std::fs::read_dir(dir.join("out")).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    to
}

#[test]
fn a_changed_export_is_refused_before_anything_is_made() {
    type Change = fn(&Path, &str, &str);
    let cases: [(&str, Change); 9] = [
        ("1.body is missing", |dir, one, _| std::fs::remove_file(dir.join(format!("{one}.body"))).unwrap()),
        ("1.body has 7 bytes, not 3000", |dir, one, _| {
            std::fs::write(dir.join(format!("{one}.body")), [1; 7]).unwrap();
        }),
        ("1.body has another checksum", |dir, one, two| {
            let [one, two] = [one, two].map(|name| dir.join(format!("{name}.body")));
            std::fs::rename(&one, dir.join("x")).unwrap();
            std::fs::rename(&two, &one).unwrap();
            std::fs::rename(dir.join("x"), &two).unwrap();
        }),
        ("1.body has another checksum", |dir, one, _| turn_over(&dir.join(format!("{one}.body")), 2000)),
        ("1.json is missing", |dir, one, _| {
            for ending in ["body", "json"] {
                std::fs::remove_file(dir.join(format!("{one}.{ending}"))).unwrap();
            }
        }),
        ("1.json has another checksum", |dir, one, _| turn_over(&dir.join(format!("{one}.json")), 20)),
        ("99.body is not one of its files", |dir, _, _| std::fs::write(dir.join("99.body"), "x").unwrap()),
        ("streams.json has another checksum", |dir, _, _| turn_over(&dir.join("streams.json"), 20)),
        ("not a complete export", |dir, _, _| std::fs::remove_file(dir.join("manifest")).unwrap()),
    ];
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    assert_eq!(json(dir.path(), &["export", "spool", "--to", "out"]).0, 0);
    let mut names: Vec<String> = std::fs::read_dir(dir.path().join("out"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".body").map(str::to_owned))
        .collect();
    names.sort_unstable();
    for (expected, change) in cases {
        change(&copy_of_export(dir.path()), &names[0], &names[1]);
        let (code, _, error) = run(dir.path(), &["import", "new", "--from", "changed"]);
        let expected = expected.replacen("1.", &format!("{}.", names[0]), usize::from(expected.starts_with("1.")));
        assert!(code == 2 && error.contains(&expected), "{expected}: {error}");
        assert!(!dir.path().join("new").exists(), "{expected}");
    }
    copy_of_export(dir.path());
    assert_eq!(json(dir.path(), &["import", "new", "--from", "changed"]).0, 0, "a whole copy");
}

#[test]
fn an_export_that_was_cut_short_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    assert_eq!(json(dir.path(), &["export", "spool", "--to", "out"]).0, 0);
    let at = |name: &str| dir.path().join("out").join(name);
    let (code, _, error) = run(dir.path(), &["export", "spool", "--to", "out"]);
    assert!(code == 2 && error.contains("a finished export is in this directory"), "{error}");
    // As a kill before the end leaves it.
    std::fs::rename(at("manifest"), at("manifest.new")).unwrap();
    std::fs::remove_file(at("streams.json")).unwrap();
    let (code, _, error) = run(dir.path(), &["import", "new", "--from", "out"]);
    assert!(code == 2 && error.contains("repeat `posthaste spool export`"), "{error}");
    assert_eq!(json(dir.path(), &["export", "spool", "--to", "out"]).1["exported"], 11);
    assert_eq!(json(dir.path(), &["import", "new", "--from", "out"]).1["imported"], 11);
}

#[test]
fn exported_mail_is_its_owners_and_root_imports_it_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let last = fill(dir.path());
    let spool = open(dir.path());
    let name = SnapshotName::new("one.1").unwrap();
    spool.write_snapshot(&name, &mut |out| out.write_all(b"the state")).unwrap();
    let none = Released { below: Lsn::ZERO, also: Vec::new() };
    spool.advance(spool.stream("local:one").unwrap(), last, Some(name), none);
    spool.checkpoint().unwrap();
    drop(spool);
    assert_eq!(json(dir.path(), &["export", "spool", "--to", "out"]).0, 0);
    let (code, text, _) = run(dir.path(), &["forget-stream", "spool", "local:two", "--export", "two"]);
    assert!(
        code == 0 && text.contains("deleted: stream local:two; not consumed: 10 batches; bodies held: 10"),
        "{text}"
    );
    for export in ["out", "out/snapshots", "two"] {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir.path().join(export)), 0o700, "{export}");
        let files = std::fs::read_dir(dir.path().join(export)).unwrap().map(|entry| entry.unwrap().path());
        let files: Vec<_> = files.filter(|path| path.is_file()).collect();
        assert!(!files.is_empty());
        files.iter().for_each(|path| assert_eq!(mode(path), 0o600, "{path:?}"));
    }
    if rustix::process::geteuid().is_root() {
        let theirs = dir.path().join("theirs");
        std::fs::create_dir(&theirs).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        chown(&theirs, Some(65_534), Some(65_534)).unwrap();
        assert_eq!(json(dir.path(), &["import", "theirs/new", "--from", "out"]).0, 0);
    }
}

#[test]
fn an_import_that_was_cut_short_is_named_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    assert_eq!(json(dir.path(), &["export", "spool", "--to", "out"]).0, 0);
    let streams = ClosedFileSpool::open(&dir.path().join("spool")).unwrap().streams();
    drop(SpoolImport::begin(&dir.path().join("half"), StoreKind::Files, &streams).unwrap());
    let commands: [&[&str]; 6] = [
        &["inspect", "half"],
        &["verify", "half"],
        &["repair", "half"],
        &["repair", "half", "--rebuild", "rebuilt"],
        &["export", "half", "--to", "nothing"],
        &["forget-stream", "half", "local:one", "--discard"],
    ];
    for args in commands {
        let (code, _, error) = run(dir.path(), args);
        assert!(code == 2 && error.contains("repeat `posthaste spool import`"), "{args:?}: {error}");
        assert!(!error.contains("--rebuild"), "{error}");
    }
    assert!(!dir.path().join("rebuilt").exists() && !dir.path().join("nothing").exists());
    assert_eq!(json(dir.path(), &["import", "half", "--from", "out"]).1["imported"], 11);
}

#[test]
fn a_spool_without_a_checkpoint_says_how_to_go_on() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    (0..2).for_each(|n| std::fs::remove_file(dir.path().join(format!("spool/checkpoint.{n}"))).unwrap());
    for command in ["inspect", "verify", "repair"] {
        let (code, _, error) = run(dir.path(), &[command, "spool"]);
        assert!(code == 2 && error.contains("posthaste spool repair spool --rebuild NEW"), "{error}");
    }
    let (code, text, _) = run(dir.path(), &["repair", "spool", "--rebuild", "new"]);
    assert!(code == 0 && text.contains("may come a second time"), "{text}");
    assert_eq!(json(dir.path(), &["inspect", "new"]).1["streams"][0]["entries"], 11);
    let (code, _, error) = run(dir.path(), &["repair", "new", "--rebuild", "another"]);
    assert!(code == 2 && error.contains("nothing needs to be rebuilt"), "{error}");
}

#[test]
fn holes_of_packs_are_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path());
    let stream = spool.stream("local:one").unwrap();
    let lsns: Vec<Lsn> = (0..40).map(|n| append(&spool, &[stream], Body::inline(vec![vec![n; 3000].into()]))).collect();
    // The pack is made of a segment in which every second batch is not needed any more.
    let also = lsns.iter().copied().step_by(2).collect();
    spool.advance(stream, lsns[39], None, Released { below: Lsn::ZERO, also });
    assert_eq!(spool.pack_oldest(1).unwrap(), 1);
    spool.checkpoint().unwrap();
    drop(spool);
    let (code, text, _) = run(dir.path(), &["verify", "spool"]);
    assert!(code == 0 && text.contains("sound: ") && !text.contains("amaged"), "{text}");
    let (code, text, _) = run(dir.path(), &["repair", "spool"]);
    assert!(code == 0 && !text.to_lowercase().contains("damaged"), "{text}");
    (0..2).for_each(|n| std::fs::remove_file(dir.path().join(format!("spool/checkpoint.{n}"))).unwrap());
    let (code, text, _) = run(dir.path(), &["repair", "spool", "--rebuild", "new"]);
    assert!(code == 0 && !text.to_lowercase().contains("damaged"), "{text}");
    let (code, text, _) = run(dir.path(), &["verify", "new"]);
    assert!(code == 0 && text.contains("sound: "), "{text}");
}

#[test]
fn a_spool_moves_to_another_kind_and_no_export_is_reused() {
    let dir = tempfile::tempdir().unwrap();
    let large = fill(dir.path());
    assert_eq!(json(dir.path(), &["export", "spool", "--to", "out"]).0, 0);
    let (code, imported) = json(dir.path(), &["import", "new", "--from", "out", "--kind", "files"]);
    assert_eq!((code, &imported["imported"], &imported["kind"]), (0, &11.into(), &"files".into()));
    let streams = |spool: &str| json(dir.path(), &["inspect", spool]).1["streams"].clone();
    assert_eq!(streams("new"), streams("spool"));
    let (_, verified) = json(dir.path(), &["verify", "new"]);
    assert_eq!((&verified["kind"], &verified["sound"]), (&"files".into(), &true.into()));
    let (code, _, error) = run(dir.path(), &["import", "new", "--from", "out", "--kind", "files"]);
    assert!(code == 2 && error.contains("not empty; an export is imported once"), "{error}");
    let (code, text, _) = run(dir.path(), &["inspect", "new"]);
    assert!(code == 0 && text.starts_with("kind: files\n"), "{text}");
    let (code, _, error) = run(dir.path(), &["import", "other", "--from", "out", "--kind", "fjall"]);
    let is_unbuilt = code == 2 && error.contains("built without") && !dir.path().join("other").exists();
    assert!(is_unbuilt || json(dir.path(), &["inspect", "other"]).1["kind"] == "fjall", "{error}");
    // And back.
    assert_eq!(json(dir.path(), &["export", "new", "--to", "again"]).0, 0);
    let (code, text, _) = run(dir.path(), &["import", "back", "--from", "again"]);
    assert_eq!((code, &*text), (0, "imported 11 batches to back, a spool of the kind ring\n"));
    let content = |export: &str, ending: &str| {
        std::fs::read(dir.path().join(format!("{export}/{:020}.{ending}", large.get()))).unwrap()
    };
    for ending in ["body", "json"] {
        assert_eq!(content("out", ending), content("again", ending));
    }
    assert_eq!(streams("back"), streams("spool"));
    // Of one stream alone it is none.
    assert_eq!(json(dir.path(), &["export", "spool", "--to", "one", "--stream", "local:one"]).0, 0);
    let (code, _, error) = run(dir.path(), &["import", "never", "--from", "one"]);
    assert!(code == 2 && error.contains("not a complete export of all streams"), "{error}");
    assert!(!dir.path().join("never").exists());
}

#[test]
fn an_export_has_the_ids_of_mounts_from_either_list() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    let lists = ["mounts", "mounts.copy"].map(|name| dir.path().join("spool").join(name));
    let text = posthaste_fsops::with_checksum("582093ea38a542b626c902c426c09c59 \n".to_owned());
    let exported = |nth: usize| {
        assert_eq!(json(dir.path(), &["export", "spool", "--to", &format!("out{nth}")]).0, 0);
        std::fs::read_to_string(dir.path().join(format!("out{nth}/mounts"))).ok()
    };
    assert_eq!(exported(0), None);
    for (nth, damaged) in [Some(""), Some("x"), None].into_iter().enumerate() {
        for (at, list) in lists.iter().enumerate() {
            std::fs::write(list, &text).unwrap();
            std::fs::write(&lists[1 - at], damaged.unwrap_or_default()).unwrap();
            if damaged.is_none() {
                std::fs::remove_file(&lists[1 - at]).unwrap();
            }
            assert_eq!(exported(1 + 2 * nth + at).as_deref(), Some(&*text), "{damaged:?}");
        }
    }
    // Without both, the new spool has none that could be believed.
    lists.iter().for_each(|list| std::fs::write(list, "x").unwrap());
    assert_eq!(exported(7).as_deref(), Some("lost\n"));
}

#[test]
fn an_export_and_its_spool_lie_beside_each_other() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    std::os::unix::fs::symlink("spool", dir.path().join("link")).unwrap();
    for inside in ["spool/out", "spool/../spool/out", "link/out", "spool"] {
        for args in [
            &["export", "spool", "--to", inside][..],
            &["repair", "spool", "--rebuild", inside],
            &["drop", "spool", "1", "--export", inside],
            &["forget-stream", "spool", "local:one", "--export", inside],
        ] {
            let (code, _, error) = run(dir.path(), args);
            assert!(code == 2 && error.contains("name a directory outside of it"), "{args:?}: {error}");
        }
    }
    assert_eq!(json(dir.path(), &["export", "spool", "--to", "spool/../out"]).0, 0);
    let (code, _, error) = run(dir.path(), &["import", "out/new", "--from", "out"]);
    assert!(code == 2 && error.contains("out/new is inside out"), "{error}");
    assert_eq!(json(dir.path(), &["import", "new", "--from", "out"]).0, 0);
}

#[test]
fn damage_outside_checkpoints_is_named_until_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { kind: StoreKind::Files, keeper: false, ..Config::default() };
    let (spool, _) = FileSpool::open(&dir.path().join("spool"), config).unwrap();
    let stream = spool.stream("local:one").unwrap();
    for n in 0..4_u8 {
        append(&spool, &[stream], Body::inline(vec![vec![n; 300].into()]));
    }
    spool.abandon();
    // In the head.
    turn_over(&dir.path().join("spool/files/00/00/0000000000000002"), 40);
    for command in ["inspect", "verify", "repair"] {
        let (code, text, _) = run(dir.path(), &[command, "spool"]);
        assert!(code == 1 && text.contains("batch 2: record 2 is damaged"), "{text}");
    }
    let (code, exported) = json(dir.path(), &["export", "spool", "--to", "damaged"]);
    assert_eq!((code, &exported["exported"], &exported["damage"][0]["batch"]), (1, &3.into(), &"2".into()));
    assert_eq!(run(dir.path(), &["import", "new", "--from", "damaged"]).0, 2);
    let (code, text, _) = run(dir.path(), &["repair", "spool", "--give-up-damaged"]);
    assert!(code == 0 && text.starts_with("LOST: files: batch 2: ") && text.ends_with("sound\n"), "{text}");
    assert_eq!(json(dir.path(), &["export", "spool", "--to", "whole"]).1["damage"], Value::Array(Vec::new()));
    assert_eq!(run(dir.path(), &["import", "new", "--from", "whole"]).0, 0);
    assert_eq!(json(dir.path(), &["inspect", "new"]).1["streams"][0]["entries"], 3);
}
