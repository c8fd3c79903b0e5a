//! Walking other programs' trees: what is a folder, what is passed over, and when a stamp can be believed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use posthaste_maildir::Subdir;
use posthaste_maildir::tree::{TreeOptions, flag_letters_of, key_of_name, stat_files, walk};

fn maildir(root: &Path, path: &str) {
    for sub in ["new", "cur", "tmp"] {
        fs::create_dir_all(root.join(path).join(sub)).unwrap();
    }
}

fn paths(root: &Path) -> Vec<String> {
    walk(root, &TreeOptions::default()).unwrap().folders.into_iter().map(|folder| folder.path).collect()
}

#[test]
fn folders_beside_and_inside_each_other_are_found() {
    let root = tempfile::tempdir().unwrap();
    maildir(root.path(), "");
    for path in [".Sent", ".Lists.Rust", "work/inbox", "work/inbox/sub", "deep/a/b/c"] {
        maildir(root.path(), path);
    }
    assert_eq!(paths(root.path()), ["", ".Lists.Rust", ".Sent", "deep/a/b/c", "work/inbox", "work/inbox/sub"]);
}

#[test]
fn furniture_and_marked_directories_are_passed_over() {
    let root = tempfile::tempdir().unwrap();
    for path in ["keep", "hidden", "frozen/a", "dovecot-cache", ".notmuch", "#x", ".#y", "a/tmp/b"] {
        maildir(root.path(), path);
    }
    fs::write(root.path().join("hidden/.noindex"), "").unwrap();
    fs::write(root.path().join("frozen/.noupdate"), "").unwrap();
    fs::write(root.path().join("dovecot.index"), "").unwrap();
    let tree = walk(root.path(), &TreeOptions::default()).unwrap();
    assert_eq!(tree.folders.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["keep"]);
    assert_eq!(tree.frozen, ["frozen"]);
    let all = walk(root.path(), &TreeOptions { into_noupdate: true }).unwrap();
    assert_eq!(all.folders.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["frozen/a", "keep"]);
}

#[test]
fn links_are_followed_and_circles_end() {
    let root = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    maildir(elsewhere.path(), "box");
    fs::write(elsewhere.path().join("message"), "x").unwrap();
    maildir(root.path(), "own");
    symlink(elsewhere.path().join("box"), root.path().join("linked")).unwrap();
    symlink(root.path(), root.path().join("own/circle")).unwrap();
    symlink(root.path().join("own"), root.path().join("another name")).unwrap();
    symlink("/nonexistent", root.path().join("dangling")).unwrap();
    symlink(elsewhere.path().join("message"), root.path().join("own/cur/1.a.h:2,S")).unwrap();
    symlink("/nonexistent", root.path().join("own/cur/2.a.h:2,S")).unwrap();
    fs::create_dir(root.path().join("own/cur/directory")).unwrap();
    fs::write(root.path().join("own/cur/.hidden"), "").unwrap();
    let tree = walk(root.path(), &TreeOptions::default()).unwrap();
    assert_eq!(tree.folders.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["linked", "own"]);
    assert!(tree.troubles.is_empty(), "{:?}", tree.troubles);
    let mut names = Vec::new();
    tree.folders[1].for_each_name(Subdir::Cur, |name, _| names.push(name.to_owned())).unwrap();
    assert_eq!(names, ["1.a.h:2,S"]);
}

#[test]
fn a_root_that_is_not_there_is_an_error_and_not_an_empty_tree() {
    let root = tempfile::tempdir().unwrap();
    let error = walk(&root.path().join("gone"), &TreeOptions::default()).unwrap_err();
    assert!(error.to_string().contains("gone"), "{error}");
    assert!(paths(root.path()).is_empty());
}

#[test]
fn a_directory_that_changed_just_now_is_not_believed() {
    let root = tempfile::tempdir().unwrap();
    maildir(root.path(), "box");
    let looked_at = SystemTime::now();
    let changed = looked_at - Duration::from_secs(1);
    fs::File::open(root.path().join("box/new")).unwrap().set_modified(changed).unwrap();
    let stamp = walk(root.path(), &TreeOptions::default()).unwrap().folders[0].new.unwrap();
    assert!(!stamp.is_settled(looked_at), "it changed within two seconds of the look");
    assert!(stamp.is_settled(looked_at + Duration::from_secs(60)));
}

#[test]
fn adding_removing_and_renaming_move_the_stamp() {
    let root = tempfile::tempdir().unwrap();
    maildir(root.path(), "box");
    let cur = root.path().join("box/cur");
    let old = SystemTime::now() - Duration::from_secs(3600);
    let stamp = || walk(root.path(), &TreeOptions::default()).unwrap().folders[0].cur.unwrap();
    let changes: [&dyn Fn(); 3] = [
        &|| fs::write(cur.join("1.a.h:2,"), "x").unwrap(),
        &|| fs::rename(cur.join("1.a.h:2,"), cur.join("1.a.h:2,S")).unwrap(),
        &|| fs::remove_file(cur.join("1.a.h:2,S")).unwrap(),
    ];
    for change in changes {
        fs::File::open(&cur).unwrap().set_modified(old).unwrap();
        let before = stamp();
        assert!(before.is_settled(SystemTime::now()));
        assert_eq!(before, stamp(), "looking changes nothing");
        change();
        assert_ne!(before, stamp());
    }
}

#[test]
fn names_tell_key_and_flags() {
    for (name, key, flags) in [
        ("1.a.h,S=5,W=6:2,FS", "1.a.h", "FS"),
        ("1.a.h:2,", "1.a.h", ""),
        ("1.a.h", "1.a.h", ""),
        ("1.a.h;2,S", "1.a.h", "S"),
        ("1.a.h!2,RS", "1.a.h", "RS"),
        ("a:b,c", "a:b", ""),
    ] {
        assert_eq!((key_of_name(name), flag_letters_of(name)), (key, flags), "{name}");
    }
}

#[test]
fn files_are_looked_at_in_inode_order() {
    let root = tempfile::tempdir().unwrap();
    maildir(root.path(), "box");
    let folder = &walk(root.path(), &TreeOptions::default()).unwrap().folders[0];
    for n in 0..700usize {
        fs::write(root.path().join(format!("box/new/{n}.a.h")), "x".repeat(n)).unwrap();
    }
    let mut files = Vec::new();
    folder.for_each_name(Subdir::New, |name, inode| files.push((name.to_owned(), inode))).unwrap();
    fs::remove_file(root.path().join("box/new/13.a.h")).unwrap();
    let facts = stat_files(&root.path().join("box/new"), &mut files).unwrap();
    assert!(files.is_sorted_by_key(|(_, inode)| *inode));
    for ((name, inode), facts) in files.iter().zip(&facts) {
        let n: u64 = name.split('.').next().unwrap().parse().unwrap();
        match facts {
            Some(facts) => assert_eq!((facts.size, facts.inode), (n, *inode)),
            None => assert_eq!(n, 13),
        }
    }
    assert_eq!(facts.iter().flatten().count(), 699);
}
