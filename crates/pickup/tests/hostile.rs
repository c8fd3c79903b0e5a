//! Files that are torn, damaged or not what they seem.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::Path;

use posthaste_pickup::{EntryError, PickupDirectory, PickupEntry, PickupHead, PickupMessage, PickupReadError};
use posthaste_smtp::{ForwardPath, MailFrom, RcptTo, ReversePath};
use proptest::prelude::*;

fn head() -> PickupHead {
    let mail = MailFrom::new(ReversePath::parse("<a@example.org>").unwrap());
    PickupHead::new(mail, vec![RcptTo::new(ForwardPath::parse("<b@example.org>").unwrap())])
}

/// All octets of a file, as it is written for a message.
fn file_of(text: &[u8]) -> Vec<u8> {
    let place = tempfile::tempdir().unwrap();
    let directory = PickupDirectory::open(place.path()).unwrap();
    let mut entry = PickupEntry::begin(&directory, head(), None).unwrap();
    entry.write(text).unwrap();
    std::fs::read(place.path().join(entry.finish().unwrap())).unwrap()
}

/// The message in a file of these octets.
fn read(octets: &[u8]) -> Result<Vec<u8>, PickupReadError> {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("x"), octets).unwrap();
    read_at(place.path(), "x")
}

fn read_at(dir: &Path, name: &str) -> Result<Vec<u8>, PickupReadError> {
    let mut message = PickupMessage::open(&PickupDirectory::open(dir).unwrap(), OsStr::new(name))?;
    let mut text = Vec::new();
    while let Some(piece) = message.read()? {
        text.extend_from_slice(&piece);
    }
    Ok(text)
}

const TEXT: &[u8] = b"Subject: x\r\n\r\nhello\r\n";

#[test]
fn a_file_that_is_cut_off_anywhere_or_has_too_much_is_seen() {
    let file = file_of(TEXT);
    assert_eq!(read(&file).unwrap(), TEXT);
    for len in 0..file.len() {
        let error = read(&file[..len]).unwrap_err();
        assert!(error.is_final(), "{len}: {error}");
        // What a power cut may leave of a file that was not synced.
        let mut zeros = file.clone();
        zeros[len..].fill(0);
        assert!(read(&zeros).unwrap_err().is_final(), "{len}");
    }
    assert!(matches!(read(&[&file[..], b"x"].concat()), Err(PickupReadError::Length { .. })));
}

#[test]
fn a_file_can_be_written_by_hand_without_a_checksum() {
    let behind = "MAIL FROM:<>\nRCPT TO:<b@example.org>\n\nSubject: x\r\n\r\n";
    let file = format!("POSTHASTE-PICKUP/1 {} -\n{behind}", behind.len());
    assert_eq!(read(file.as_bytes()).unwrap(), b"Subject: x\r\n\r\n");
    assert!(matches!(read(b"POSTHASTE-PICKUP/1 1 -\n\n"), Err(PickupReadError::Head(_))));
    let none = "MAIL FROM:<>\nRCPT TO:<b@example.org>\n\n";
    assert_eq!(read(format!("POSTHASTE-PICKUP/1 {} -\n{none}", none.len()).as_bytes()).unwrap(), b"");
}

#[test]
fn what_is_not_a_file_of_one_name_is_not_read() {
    let place = tempfile::tempdir().unwrap();
    let (own, elsewhere) = (place.path().join("pickup"), place.path().join("secret"));
    std::fs::create_dir(&own).unwrap();
    std::fs::write(&elsewhere, file_of(TEXT)).unwrap();
    symlink(&elsewhere, own.join("link")).unwrap();
    std::fs::hard_link(&elsewhere, own.join("second-name")).unwrap();
    std::fs::create_dir(own.join("dir")).unwrap();
    let fifo = rustix::fs::mknodat(
        rustix::fs::CWD,
        own.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    );
    fifo.unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(own.join("socket")).unwrap();
    for name in ["link", "second-name", "fifo", "socket", "dir"] {
        let error = read_at(&own, name).unwrap_err();
        assert!(matches!(error, PickupReadError::NotAFile), "{name}: {error}");
    }
    assert!(matches!(read_at(&own, "nothing"), Err(PickupReadError::Gone)));
}

#[test]
fn a_file_that_changes_while_it_is_read_is_not_taken() {
    let place = tempfile::tempdir().unwrap();
    let directory = PickupDirectory::open(place.path()).unwrap();
    let mut entry = PickupEntry::begin(&directory, head(), None).unwrap();
    for _ in 0..40 {
        entry.write(&[b'x'; 65_536]).unwrap();
    }
    let name = entry.finish().unwrap();
    let path = place.path().join(&name);
    let mut message = PickupMessage::open(&directory, name.as_ref()).unwrap();
    message.read().unwrap();
    let mut octets = std::fs::read(&path).unwrap();
    let last = octets.len() - 1;
    octets[last] = b'y';
    std::fs::write(&path, &octets).unwrap();
    let mut read_all = || loop {
        match message.read() {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(()),
            Err(error) => return Err(error),
        }
    };
    assert!(matches!(read_all(), Err(PickupReadError::Checksum)));
    let mut message = PickupMessage::open(&directory, name.as_ref()).is_ok();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(2000).unwrap();
    message &= PickupMessage::open(&directory, name.as_ref()).is_ok();
    assert!(!message);
}

#[test]
fn another_user_is_named_only_by_the_server_itself() {
    let place = tempfile::tempdir().unwrap();
    let directory = PickupDirectory::open(place.path()).unwrap();
    let name =
        PickupEntry::begin(&directory, PickupHead { uid: Some(4711), ..head() }, None).unwrap().finish().unwrap();
    assert_eq!(PickupMessage::open(&directory, name.as_ref()).unwrap().uid(), 4711, "the file is ours");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(place.path().join(&name), Some(4712), None).unwrap();
        assert_eq!(PickupMessage::open(&directory, name.as_ref()).unwrap().uid(), 4712, "the file is not ours");
    }
}

#[test]
fn what_is_too_large_leaves_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    let directory = PickupDirectory::open(place.path()).unwrap();
    let mut entry = PickupEntry::begin(&directory, head(), Some(10)).unwrap();
    entry.write(&[b'x'; 10]).unwrap();
    assert!(matches!(entry.write(b"x"), Err(EntryError::TooLarge { limit: 10 })));
    drop(entry);
    let many = PickupHead { recipients: vec![head().recipients[0].clone(); 200_000], ..head() };
    assert!(matches!(PickupEntry::begin(&directory, many, None), Err(EntryError::TooManyRecipients)));
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

proptest! {
    #[test]
    fn any_damage_to_a_file_is_seen(at in 0_usize..200, flip in 1_u8..=255) {
        let mut file = file_of(TEXT);
        let at = at % file.len();
        file[at] ^= flip;
        match read(&file) {
            Err(error) => prop_assert!(error.is_final()),
            // A digit of the checksum in capitals, a length with another number of noughts: the same file.
            Ok(text) => prop_assert_eq!(text, TEXT),
        }
    }

    #[test]
    fn no_octets_make_it_panic(
        octets in proptest::collection::vec(
            prop_oneof![
                Just(b"POSTHASTE-PICKUP/1 ".to_vec()), Just(b"\n".to_vec()), Just(b"\n\n".to_vec()), Just(b"40 -\n".to_vec()),
                Just(b"MAIL FROM:<a@b>".to_vec()), Just(b"RCPT TO:<a@b>".to_vec()), Just(b"UID 0\n".to_vec()),
                any::<u8>().prop_map(|octet| vec![octet])
            ],
            0..30,
        ),
    ) {
        let _ = read(&octets.concat());
    }
}
