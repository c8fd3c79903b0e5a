//! Mail with a detail goes into a folder, if the domain allows it and the folder exists.

use crate::imap::{CONFIG, Imap, serve};
use crate::support::MESSAGE;

fn count(imap: &mut Imap, mailbox: &str) -> u32 {
    let told = imap.ok(&format!("STATUS {mailbox} (MESSAGES)"));
    told.split("MESSAGES ").nth(1).unwrap().split(')').next().unwrap().parse().unwrap()
}

#[test]
fn mail_with_a_detail_goes_into_a_folder_that_exists() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "detail_folders = true\n", "imap");
    let mut imap = Imap::logged_in(address);
    imap.ok("CREATE Lists/Rust");
    imap.ok("CREATE &APw-ber");
    for detail in ["lists", "LISTS", "lists.rust", "none", "INBOX", "lists/rust", ""] {
        server.hello().deliver(&[&format!("ann+{detail}@example.org")], MESSAGE);
    }
    // One message for several of them is in each.
    server.hello().deliver(&["ann@example.org", "ann+lists@example.org", "ann+Lists@example.org"], MESSAGE);
    for (mailbox, expected) in [("INBOX", 4), ("Lists", 3), ("Lists/Rust", 2)] {
        // All of it was acknowledged, and so all is seen, whether its file is there or not.
        assert_eq!(count(&mut imap, mailbox), expected, "{mailbox}");
    }
    assert_eq!(imap.ok("LIST \"\" *").matches("LIST (").count(), 9, "no folder was made");
    server.stop();
}

#[test]
fn without_the_setting_a_detail_means_nothing() {
    let dir = tempfile::tempdir().unwrap();
    assert!(!CONFIG.contains("detail_folders"));
    let (server, address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    imap.ok("CREATE Lists");
    server.hello().deliver(&["ann+Lists@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "ann", 1);
    assert_eq!((count(&mut imap, "Lists"), count(&mut imap, "INBOX")), (0, 1));
    server.stop();
}
