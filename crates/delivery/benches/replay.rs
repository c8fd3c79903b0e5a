//! Measures opening a spool whose mail is in none of its mailboxes: 50,000 messages of 10 KiB for 64 mailboxes.
//! Leaves out the crash itself; the messages wait because something lay in the place of each mailbox, which is then removed.
//! `cargo test` runs it tiny so it cannot rot; `cargo bench` runs it whole. Files lie in `$POSTHASTE_BENCH_DIR` or the
//! target directory, never on tmpfs.

use std::path::{Path, PathBuf};
use std::time::Instant;

use bytes::Bytes;
use posthaste_delivery::local::{Body, LineEnds, LocalConfig, LocalDelivery, Message, Target};

fn main() {
    let whole = std::env::args().any(|arg| arg == "--bench");
    let (messages, mailboxes) = if whole { (50_000, 64) } else { (200, 4) };
    let dir = scratch();
    let config = LocalConfig::new(dir.join("spool"), dir.join("mail"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let path = |mailbox: usize| dir.join(format!("mail/u{mailbox}"));
    for mailbox in 0..mailboxes {
        std::fs::create_dir_all(path(mailbox)).expect("a directory");
        std::fs::write(path(mailbox).join("Maildir"), "in the way").expect("a file");
    }
    {
        let (delivery, _) = LocalDelivery::open(config.clone()).expect("opens");
        let body = Bytes::from("0123456789 a line of a message of ten kilobytes\r\n".repeat(209));
        runtime.block_on(async {
            let tasks: Vec<_> = (0..64)
                .map(|task| {
                    let (delivery, body) = (delivery.clone(), body.clone());
                    tokio::spawn(async move {
                        for number in (task..messages).step_by(64) {
                            let mailbox = format!("u{}/Maildir", number % mailboxes).into();
                            let targets = vec![Target { mailbox, prefix: Bytes::from_static(b"Delivered-To: u\r\n") }];
                            let body = Body::Memory(vec![body.clone()]);
                            let message = Message { targets, body, line_ends: LineEnds::ToLf, also: Vec::new() };
                            delivery.deliver_message(message).await.expect("accepted");
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("a task");
            }
        });
    }
    for mailbox in 0..mailboxes {
        std::fs::remove_file(path(mailbox).join("Maildir")).expect("cleared");
    }
    // The same spool twice, because opening it finishes what is in it.
    let again = LocalConfig { spool_dir: dir.join("spool-again"), ..config.clone() };
    copy_files(&config.spool_dir, &again.spool_dir);
    for (what, config, missing) in [("all missing", config, messages), ("all there", again, 0)] {
        let begun = Instant::now();
        let (delivery, report) = LocalDelivery::open(config).expect("opens");
        let took = begun.elapsed();
        println!(
            "{what}: {} messages, {} restored, opened in {:.2} s",
            report.messages,
            report.restored,
            took.as_secs_f64()
        );
        assert_eq!((report.messages, report.restored), (messages, missing));
        drop(delivery);
    }
    std::fs::remove_dir_all(&dir).expect("remove scratch");
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a spool") {
        let path = entry.expect("an entry").path();
        let copy = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy_files(&path, &copy);
        } else {
            std::fs::copy(&path, copy).expect("copied");
        }
    }
}

fn scratch() -> PathBuf {
    let base = std::env::var_os("POSTHASTE_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let dir = base.join(format!("bench-replay-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("scratch directory");
    let kind = rustix::fs::statfs(&dir).expect("statfs").f_type;
    const TMPFS: i64 = 0x0102_1994;
    assert_ne!(kind as i64, TMPFS, "{} is on tmpfs, where syncs cost nothing", dir.display());
    dir
}
