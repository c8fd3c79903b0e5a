//! Measures opening a spool whose mail is in none of its mailboxes: 50,000 messages of 10 KiB for 64 mailboxes. Leaves
//! out the crash itself; the messages wait because a file lay in the place of each mailbox, which is then removed. With
//! `-- --waiting N`: an opening with N messages without bodies whose mailboxes stay closed. It measures the spool, a
//! replay alone, then a replay into the table of messages.
//! `cargo test` runs it tiny so it cannot rot; `cargo bench` runs it whole. Files lie in `$POSTHASTE_BENCH_DIR` or the
//! target directory, never on tmpfs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_delivery::local::{GatheredBody, LineEnds, LocalConfig, LocalDelivery, MailboxMessage, MailboxTarget};
use posthaste_intake::Intake;
use posthaste_spool::FileSpool;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let whole = args.iter().any(|arg| arg == "--bench");
    let number = args.iter().position(|arg| arg == "--waiting").and_then(|at| args.get(at + 1)?.parse().ok());
    match number {
        Some(messages) => wait(messages),
        None if whole => deliver(whole),
        None => {
            deliver(whole);
            wait(200);
        }
    }
}

fn deliver(whole: bool) {
    let (messages, mailboxes) = if whole { (50_000, 64) } else { (200, 4) };
    let dir = scratch();
    let config = LocalConfig::new(dir.join("spool"), dir.join("mail"));
    fill(&config, messages, mailboxes, &"0123456789 a line of a message of ten kilobytes\r\n".repeat(209));
    for mailbox in 0..mailboxes {
        std::fs::remove_file(dir.join(format!("mail/u{mailbox}/Maildir"))).expect("cleared");
    }
    // The same spool twice, because opening it finishes its deliveries.
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

/// Fills a spool with messages for mailboxes whose places are occupied by files.
fn fill(config: &LocalConfig, messages: usize, mailboxes: usize, body: &str) {
    for mailbox in 0..mailboxes {
        let path = config.mail_root.join(format!("u{mailbox}"));
        std::fs::create_dir_all(&path).expect("a directory");
        std::fs::write(path.join("Maildir"), "in the way").expect("a file");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let (delivery, _) = LocalDelivery::open(config.clone()).expect("opens");
    let body = Bytes::from(body.to_owned());
    runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (delivery, body) = (delivery.clone(), body.clone());
                tokio::spawn(async move {
                    for number in (task..messages).step_by(TASKS) {
                        let mailbox = format!("u{}/Maildir", number % mailboxes).into();
                        let targets =
                            vec![MailboxTarget { mailbox, prefix: Bytes::from_static(b"Delivered-To: u\r\n") }];
                        let body = GatheredBody::Memory(vec![body.clone()]);
                        let message = MailboxMessage { targets, body, line_ends: LineEnds::ToLf, also: Vec::new() };
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

/// Opens a spool with waiting messages, and leaves them waiting.
fn wait(messages: usize) {
    let dir = scratch();
    let mut config = LocalConfig::new(dir.join("spool"), dir.join("mail"));
    (config.intake.backlog_bytes, config.open_patience) = (u32::MAX, Duration::ZERO);
    fill(&config, messages, 64, "");
    let begun = Instant::now();
    let (spool, _) = FileSpool::open(&config.spool_dir, config.spool.clone()).expect("opens");
    let intake = Intake::new(Arc::new(spool), config.intake.clone());
    println!("{messages} wait: spool opened in {:.2} s", begun.elapsed().as_secs_f64());
    let (begun, mut shown) = (Instant::now(), 0);
    let stream = intake.spool().streams().into_iter().find(|stream| stream.name.starts_with("local:")).expect("one");
    intake.spool().replay(stream.id, &mut |_| shown += 1).expect("a replay");
    println!("{shown} entries replayed in {:.2} s", begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    let (delivery, report) = LocalDelivery::open_on(intake, config).expect("opens");
    println!("{} messages replayed into the table in {:.2} s", report.messages, begun.elapsed().as_secs_f64());
    assert_eq!(report.messages, messages);
    drop(delivery);
    std::fs::remove_dir_all(&dir).expect("remove scratch");
}

const TASKS: usize = 256;

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
