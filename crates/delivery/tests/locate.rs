//! Finding a delivered message in both modes, and valid paths.

use std::path::Path;

use posthaste_delivery::{DeliveryError, DeliveryExecutor, MessageId};

const BODY: &str = "Subject: hello\n\nbody\n";

fn content(executor: &DeliveryExecutor, path: impl AsRef<Path>, id: &MessageId) -> Option<String> {
    executor.locate(path, id).unwrap().map(|file| std::fs::read_to_string(file).unwrap())
}

#[tokio::test]
async fn a_standalone_message_is_found_wherever_its_reader_moves_it() {
    let dir = tempfile::tempdir().unwrap();
    let (ann, bob) = (dir.path().join("ann"), dir.path().join("bob"));
    let executor = DeliveryExecutor::spawn();
    let id = executor.deliver(&ann, BODY).await.unwrap();
    assert_eq!(content(&executor, &ann, &id).as_deref(), Some(BODY));
    let seen = ann.join("cur").join(format!("{id}:2,S"));
    std::fs::rename(executor.locate(&ann, &id).unwrap().unwrap(), &seen).unwrap();
    assert_eq!(executor.locate(&ann, &id).unwrap(), Some(seen.clone()));
    std::fs::remove_file(seen).unwrap();
    assert_eq!(executor.locate(&ann, &id).unwrap(), None);
    assert_eq!(executor.locate(&bob, &id).unwrap(), None, "no such mailbox");
    std::fs::write(&bob, "a file").unwrap();
    assert!(matches!(executor.locate(&bob, &id), Err(DeliveryError::Mailbox(_))));
}

#[tokio::test]
async fn a_journaled_message_has_its_sizes_in_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let (executor, _) = DeliveryExecutor::with_journal(&dir).unwrap();
    let relative = executor.deliver("lists/ann", BODY).await.unwrap();
    let absolute = executor.deliver(dir.path().join("mail/ann"), BODY).await.unwrap();
    executor.shutdown().await;
    for (path, id) in [("lists/ann", &relative), ("ann", &absolute)] {
        assert_eq!(content(&executor, path, id).as_deref(), Some(BODY));
        assert_eq!(content(&executor, dir.path().join("mail").join(path), id).as_deref(), Some(BODY));
        assert!(
            !dir.path().join("mail").join(path).join("new").join(id.as_str()).exists(),
            "the id alone is not a name"
        );
    }
}

#[tokio::test]
async fn a_path_outside_the_root_is_told_with_the_root() {
    let dir = tempfile::tempdir().unwrap();
    let (executor, _) = DeliveryExecutor::with_journal(&dir).unwrap();
    let id = executor.deliver("ann", BODY).await.unwrap();
    let root = dir.path().join("mail");
    let cases = [
        ("/elsewhere/ann".to_owned(), format!("/elsewhere/ann: lies outside the mail root, {}", root.display())),
        ("../ann".to_owned(), "../ann: a component of the mailbox path is `.` or `..`".to_owned()),
        (root.display().to_string(), format!("{}: a component of the mailbox path is empty", root.display())),
    ];
    for (path, expected) in cases {
        let refused = executor.deliver(&path, BODY).await.unwrap_err();
        assert!(matches!(refused, DeliveryError::BadMailbox(_)), "{refused:?}");
        assert_eq!(refused.to_string(), format!("not a mailbox: {expected}"));
        assert_eq!(executor.locate(&path, &id).unwrap_err().to_string(), refused.to_string());
    }
}

#[tokio::test]
async fn a_spool_in_use_is_named_with_what_helps() {
    let dir = tempfile::tempdir().unwrap();
    let _first = DeliveryExecutor::with_journal(dir.path()).unwrap();
    let said = DeliveryExecutor::with_journal(dir.path()).err().unwrap().to_string();
    let expected = format!("{}: the spool is in use: stop the process", dir.path().join("spool").display());
    assert!(said.starts_with(&expected), "{said}");
}
