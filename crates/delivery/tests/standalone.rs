//! Standalone mode through its public API.

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use posthaste_delivery::{DeliveryError, DeliveryExecutor, IntakeError};

fn place() -> (tempfile::TempDir, impl Fn(&str) -> PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let base = dir.path().to_owned();
    (dir, move |below: &str| base.join(below))
}

fn messages_in(mailbox: &Path) -> usize {
    std::fs::read_dir(mailbox.join("new")).expect("new/ is there").count()
}

#[tokio::test]
async fn a_message_is_in_new_with_its_bytes_when_ok_comes() {
    let (_dir, at) = place();
    let executor = DeliveryExecutor::spawn();
    let body = "Subject: hi\n\nbare\r and all\n";
    let id = executor.deliver(at("ann"), body).await.expect("delivered");
    assert_eq!(std::fs::read(at("ann/new").join(id.as_str())).expect("readable"), body.as_bytes());
    assert_eq!(id.name().disk_size(), Some(body.len() as u64));
    assert_eq!(id.name().is_verbatim(), Some(true));
    let stats = executor.stats();
    assert_eq!((stats.delivered, stats.failed, stats.batches, stats.batch_messages), (1, 0, 1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_and_mailboxes_share_batches_and_lose_nothing() {
    let (_dir, at) = place();
    for flushes in [1, 2, 3] {
        let executor = DeliveryExecutor::with_full_config(16, Duration::ZERO, flushes);
        let tasks: Vec<_> = (0..200)
            .map(|n| {
                let (executor, mailbox) = (executor.clone(), at(&format!("f{flushes}/u{}", n % 7)));
                tokio::spawn(async move {
                    let body = format!("message {n}\n");
                    let id = executor.deliver(&mailbox, body.clone()).await.expect("delivered");
                    assert_eq!(
                        std::fs::read(mailbox.join("new").join(id.as_str())).expect("readable"),
                        body.as_bytes()
                    );
                    id
                })
            })
            .collect();
        let mut ids = HashSet::new();
        for task in tasks {
            assert!(ids.insert(task.await.expect("task")), "an id twice");
        }
        let stats = executor.stats();
        assert_eq!((stats.delivered, stats.batch_messages), (200, 200));
        assert!(stats.batches >= 200 / 16 && stats.batch_messages_max <= 16, "{stats:?}");
        let found: usize = (0..7).map(|n| messages_in(&at(&format!("f{flushes}/u{n}")))).sum();
        assert_eq!(found, 200);
    }
}

#[tokio::test]
async fn a_bad_mailbox_fails_only_its_own_messages() {
    let (_dir, at) = place();
    // One batch for all: the executor waits for six messages.
    let executor = DeliveryExecutor::with_full_config(6, Duration::from_secs(60), 1);
    std::fs::write(at("file"), b"in the way").expect("written");
    std::os::unix::fs::symlink(at("ann"), at("link-base")).expect("link");
    executor_made(&at("linked"));
    std::fs::remove_dir(at("linked/new")).expect("empty");
    std::os::unix::fs::symlink(at("ann"), at("linked/new")).expect("link");
    let long = at(&"n".repeat(256));
    let deliver = |mailbox: PathBuf| {
        let executor = executor.clone();
        async move { executor.deliver(mailbox, "body\n").await }
    };
    let (ann, file, below_file, linked, too_long, bob) = tokio::join!(
        deliver(at("ann")),
        deliver(at("file")),
        deliver(at("file/below")),
        deliver(at("linked")),
        deliver(long),
        deliver(at("bob")),
    );
    ann.expect("delivered");
    bob.expect("delivered");
    for bad in [file, below_file, linked, too_long] {
        assert!(matches!(bad, Err(DeliveryError::Mailbox(_))), "{bad:?}");
    }
    assert_eq!((executor.stats().delivered, executor.stats().failed), (2, 4));
}

fn executor_made(mailbox: &Path) {
    for sub in ["tmp", "new", "cur"] {
        std::fs::create_dir_all(mailbox.join(sub)).expect("made");
    }
}

#[tokio::test]
async fn a_mailbox_that_is_replaced_while_open_is_noticed() {
    let (_dir, at) = place();
    let executor = DeliveryExecutor::spawn();
    executor.deliver(at("ann"), "one\n").await.expect("delivered");
    std::fs::remove_dir_all(at("ann")).expect("removed");
    executor.deliver(at("ann"), "two\n").await.expect("made anew");
    assert_eq!(messages_in(&at("ann")), 1);
    std::fs::rename(at("ann"), at("moved")).expect("renamed");
    std::fs::write(at("ann"), b"a file").expect("written");
    let error = executor.deliver(at("ann"), "three\n").await.expect_err("a file is in the way");
    assert!(matches!(error, DeliveryError::Mailbox(_)), "{error}");
    executor.deliver(at("bob"), "four\n").await.expect("others go on");
    std::fs::remove_file(at("ann")).expect("removed");
    executor.deliver(at("ann"), "five\n").await.expect("and ann, once repaired");
}

#[tokio::test]
async fn a_read_only_directory_fails_only_its_own_messages() {
    let (_dir, at) = place();
    executor_made(&at("ann"));
    std::fs::set_permissions(at("ann/tmp"), PermissionsExt::from_mode(0o500)).expect("chmod");
    let executor = DeliveryExecutor::spawn();
    let ann = executor.deliver(at("ann"), "body\n").await;
    // The superuser may write anywhere, so for it the mode is no obstacle.
    if rustix::process::geteuid().is_root() {
        ann.expect("root may write");
    } else {
        assert!(matches!(ann, Err(DeliveryError::Mailbox(_))), "{ann:?}");
    }
    executor.deliver(at("bob"), "body\n").await.expect("delivered");
}

#[tokio::test]
async fn what_was_queued_is_flushed_after_the_last_handle_is_dropped() {
    let (_dir, at) = place();
    let executor = DeliveryExecutor::with_full_config(8, Duration::ZERO, 1);
    executor.deliver(at("ann"), "first\n").await.expect("delivered");
    let waiting: Vec<_> = (0..50)
        .map(|n| {
            let (executor, mailbox) = (executor.clone(), at("ann"));
            tokio::spawn(async move { executor.deliver(mailbox, format!("message {n}\n")).await })
        })
        .collect();
    drop(executor);
    for task in waiting {
        task.await.expect("task").expect("delivered");
    }
    assert_eq!(messages_in(&at("ann")), 51);
}

#[tokio::test]
async fn shutdown_waits_for_what_nobody_waits_for_and_then_refuses() {
    let (_dir, at) = place();
    let executor = DeliveryExecutor::with_full_config(8, Duration::ZERO, 2);
    executor.deliver(at("ann"), "first\n").await.expect("delivered");
    for n in 0..20 {
        // Polled once, so that the message is queued; then its caller goes away.
        let deliver = executor.deliver(at("ann"), format!("message {n}\n"));
        tokio::select! { biased; _ = deliver => {}, () = std::future::ready(()) => {} }
    }
    executor.clone().shutdown().await;
    assert_eq!(messages_in(&at("ann")), 21);
    let refused = executor.deliver(at("ann"), "late\n").await;
    assert!(matches!(refused, Err(DeliveryError::Intake(IntakeError::Closed))), "{refused:?}");
    executor.shutdown().await;
}

#[tokio::test]
async fn relative_paths_and_other_file_systems_are_served() {
    let executor = DeliveryExecutor::spawn();
    let (_dir, at) = place();
    let mut mailboxes = vec![at("here")];
    // A second mount, where the machine has one that is not the first.
    let shm = tempfile::tempdir_in("/dev/shm").ok();
    mailboxes.extend(shm.as_ref().map(|dir| dir.path().join("there")));
    for mailbox in &mailboxes {
        for _ in 0..3 {
            executor.deliver(mailbox, "body\n").await.expect("delivered");
        }
        assert_eq!(messages_in(mailbox), 3, "{mailbox:?}");
    }
    let tasks: Vec<_> = (0..40)
        .map(|n| {
            let (executor, mailbox) = (executor.clone(), mailboxes[n % mailboxes.len()].clone());
            tokio::spawn(async move { executor.deliver(mailbox, "body\n").await })
        })
        .collect();
    for task in tasks {
        task.await.expect("task").expect("delivered");
    }
}
