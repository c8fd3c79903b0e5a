use bytes::Bytes;
use posthaste_message::DateTime;
use posthaste_message::mime::Message;

use super::*;

fn at(secs: i64) -> DateTime {
    DateTime::from_unix(1_793_000_000 + secs)
}

fn recipient<'a>(address: &'a str, action: DsnAction) -> Recipient<'a> {
    let orcpt = "";
    let reply = "550 5.1.1 no such user";
    let host = "mx.example.org";
    Recipient { address, orcpt, action, status: (5, 1, 1), reply, host, last_attempt: at(59) }
}

fn written(sender: &str, recipients: &[Recipient<'_>], returned: Returned<'_>) -> (DsnMessage, Vec<u8>) {
    let wording = Wording::default();
    let written = Notification {
        reporting_host: "mx.example.net",
        to: sender,
        is_double_bounce: false,
        envid: "QQ+2B314159",
        received: at(0),
        now: at(60),
        id: 7,
        recipients,
        returned,
        wording: &wording,
    }
    .write();
    let bytes = written.message.concat();
    (written, bytes)
}

fn fields(part: &[u8]) -> Vec<String> {
    let unfolded = String::from_utf8(part.to_vec()).unwrap().replace("\r\n ", " ");
    unfolded.lines().map(str::to_owned).collect()
}

#[test]
fn a_program_finds_the_parts_and_their_fields() {
    let mut late = recipient("cat@example.com", DsnAction::Delayed { until: at(432_000) });
    (late.status, late.orcpt, late.host) = ((4, 4, 1), "rfc822;kitty+40example.com", "");
    let failed = recipient("bob@example.org", DsnAction::Failed);
    let original = [Bytes::from_static(b"Subject: lunch\r\n\r\n"), Bytes::from_static(b"Now?\r\n--=_x\r\n")];
    let (written, bytes) = written("ann@example.net", &[late, failed], Returned::Message(&original));
    assert_eq!((written.is_8bit, written.smtputf8), (false, false));
    let message = Message::parse(&bytes);
    let header = message.root().header();
    for (name, value) in [
        ("Subject", "Your message could not be delivered"),
        ("To", "<ann@example.net>"),
        ("Auto-Submitted", "auto-replied"),
        ("Date", "Mon, 26 Oct 2026 07:34:20 +0000"),
    ] {
        let found = header.first(name).unwrap();
        assert_eq!(found.text(None).trim(), value, "{name}");
    }
    assert_eq!(message.root().media_type(), "multipart/report");
    assert_eq!(message.root().type_parameter("report-type").unwrap(), "delivery-status");
    let parts: Vec<_> = message.root().children().collect();
    let types: Vec<_> = parts.iter().map(|part| part.media_type().into_owned()).collect();
    assert_eq!(types, ["text/plain", "message/delivery-status", "message/rfc822"]);
    let expected = [
        "Original-Envelope-Id: QQ+314159",
        "Reporting-MTA: dns; mx.example.net",
        "Arrival-Date: Mon, 26 Oct 2026 07:33:20 +0000",
        "",
        "Original-Recipient: rfc822; kitty@example.com",
        "Final-Recipient: rfc822; cat@example.com",
        "Action: delayed",
        "Status: 4.4.1",
        "Diagnostic-Code: smtp; 550 5.1.1 no such user",
        "Last-Attempt-Date: Mon, 26 Oct 2026 07:34:19 +0000",
        "Will-Retry-Until: Sat, 31 Oct 2026 07:33:20 +0000",
        "",
        "Final-Recipient: rfc822; bob@example.org",
        "Action: failed",
        "Status: 5.1.1",
        "Remote-MTA: dns; mx.example.org",
        "Diagnostic-Code: smtp; 550 5.1.1 no such user",
        "Last-Attempt-Date: Mon, 26 Oct 2026 07:34:19 +0000",
    ];
    assert_eq!(fields(parts[1].body()), expected);
    assert_eq!(parts[2].body(), original.concat(), "bytes in, same bytes out");
}

#[test]
fn what_others_wrote_adds_no_line() {
    let mut hostile = recipient("a\r\nX-Bad: 1\r\n\r\n--=_0@example.org", DsnAction::Failed);
    hostile.orcpt = "rfc822;x+0D+0AX-Bad: 2";
    hostile.host = "mx\r\nX-Bad: 3";
    let reply = format!("550 no\r\n\r\n--=_{:032x}\r\nX-Bad: 4 {}", 7, "y".repeat(4000));
    hostile.reply = &reply;
    let (_, bytes) = written("ann\r\nBcc: all@example.net", &[hostile], Returned::Header(b"Subject: x\r\n"));
    let text = String::from_utf8(bytes.clone()).unwrap();
    assert!(text.lines().all(|line| !line.starts_with("X-Bad") && !line.starts_with("Bcc")), "{text}");
    assert!(text.lines().all(|line| line.len() <= 998));
    let message = Message::parse(&bytes);
    assert_eq!(message.root().children().count(), 3);
}

#[test]
fn other_letters_than_ascii_make_it_global() {
    let (ascii, bytes) = written(
        "ann@example.net",
        &[recipient("bob@example.org", DsnAction::Delivered)],
        Returned::Header(b"S: x\r\n"),
    );
    assert_eq!((ascii.is_8bit, ascii.smtputf8), (false, false));
    assert!(bytes.is_ascii());
    let (eight, bytes) = written(
        "ann@example.net",
        &[recipient("bob@example.org", DsnAction::Failed)],
        Returned::Header(b"S: \xff\r\n"),
    );
    assert_eq!((eight.is_8bit, eight.smtputf8), (true, false));
    let message = Message::parse(&bytes);
    assert_eq!(message.root().children().last().unwrap().media_type(), "text/rfc822-headers");
    let (global, bytes) = written(
        "ann@example.net",
        &[recipient("jürgen@example.org", DsnAction::Failed)],
        Returned::Header(b"S: x\r\n"),
    );
    assert_eq!((global.is_8bit, global.smtputf8), (true, true));
    let message = Message::parse(&bytes);
    let parts: Vec<_> = message.root().children().collect();
    assert_eq!(parts[1].media_type(), "message/global-delivery-status");
    assert!(fields(parts[1].body()).contains(&"Final-Recipient: utf-8; jürgen@example.org".to_owned()));
    assert_eq!(parts[2].media_type(), "message/global-headers");
}

#[test]
fn a_sender_is_told_what_it_asked_for() {
    let delayed = DsnAction::Delayed { until: at(0) };
    for (asked, told) in [
        (0, [true, false, false]),
        (notify::FAILURE, [true, false, false]),
        (notify::DELAY | notify::SUCCESS, [false, true, true]),
        (notify::NEVER, [false; 3]),
    ] {
        assert_eq!(
            [DsnAction::Failed, delayed, DsnAction::Relayed].map(|action| action.is_told("a@example.net", asked)),
            told
        );
        assert!(!DsnAction::Failed.is_told("", asked), "never to the empty sender");
    }
}

#[test]
fn the_header_is_found_in_any_pieces() {
    let message = b"A: 1\r\nB: 2\r\n\r\nbody\r\n\r\n";
    for size in 1..message.len() {
        let pieces: Vec<_> = message.chunks(size).map(Bytes::from_static).collect();
        assert_eq!(header_of(&pieces, 100), b"A: 1\r\nB: 2\r\n\r\n", "{size}");
        assert_eq!(header_of(&pieces, 14), b"A: 1\r\nB: 2\r\n\r\n", "{size}");
        assert_eq!(header_of(&pieces, 13), b"A: 1\r\nB: 2\r\n", "{size}");
        assert_eq!(header_of(&pieces, 7), b"A: 1\r\n", "{size}");
    }
    assert_eq!(header_of(&[Bytes::from_static(b"\r\nbody")], 100), b"\r\n");
    assert_eq!(header_of(&[Bytes::from_static(b"A: 1\r\n")], 100), b"A: 1\r\n");
    assert_eq!(header_of(&[], 100), b"");
}

#[test]
fn a_double_bounce_is_known_again_behind_fields_of_others() {
    let wording = Wording::default();
    let written = |is_double_bounce| {
        let notification = Notification {
            reporting_host: "mx.example.net",
            to: "postmaster@example.net",
            is_double_bounce,
            envid: "",
            received: at(0),
            now: at(60),
            id: 7,
            recipients: &[recipient("bob@example.org", DsnAction::Failed)],
            // What it returns is no sign of it.
            returned: Returned::Header(b"X-Posthaste-Double-Bounce: yes\r\n\r\n"),
            wording: &wording,
        };
        notification.write().message
    };
    assert!(!is_double_bounce(&written(false)));
    let mut copy = written(true);
    assert!(is_double_bounce(&copy));
    copy.insert(0, Bytes::from_static(b"Received: from elsewhere\r\n"));
    assert!(is_double_bounce(&copy));
    assert!(String::from_utf8(copy.concat()).unwrap().contains("Subject: A notification could not be delivered\r\n"));
    assert!(!is_double_bounce(&[]));
}

#[test]
fn words_of_a_template_are_for_the_reader_and_add_no_line() {
    let text =
        "Subject: Rückläufer an ${to}\n\nGrüße von ${host},\nvom ${received}, für $$5:\n\n${recipients}\n\n.\n--x\n";
    let wording = Wording { failed: Template::parse(text).unwrap(), ..Wording::default() };
    let recipients = [recipient("bob@example.org", DsnAction::Failed)];
    let notification = |to| Notification {
        reporting_host: "mx.example.net",
        to,
        is_double_bounce: false,
        envid: "",
        received: at(0),
        now: at(60),
        id: 7,
        recipients: &recipients,
        returned: Returned::Header(b"Subject: lunch\r\n\r\n"),
        wording: &wording,
    };
    let written = notification("ann@example.net").write();
    let bytes = written.message.concat();
    assert!(!written.is_8bit && !written.smtputf8 && bytes.is_ascii(), "any host takes it");
    let message = Message::parse(&bytes);
    let subject = message.root().header().first("Subject").unwrap().text(None).into_owned();
    assert_eq!(subject.trim(), "Rückläufer an ann@example.net");
    let parts: Vec<_> = message.root().children().collect();
    let expected = "Grüße von mx.example.net,\nvom Mon, 26 Oct 2026 07:33:20 +0000, für $5:\n\n<bob@example.org>: failed\n    \
                    mx.example.org: 550 5.1.1 no such user\n\n.\n--x\n";
    assert_eq!(parts[0].text().replace("\r\n", "\n").trim_end(), expected.trim_end());
    assert!(fields(parts[1].body()).contains(&"Action: failed".to_owned()), "the part for programs is ours");
    let hostile = notification("ann\r\nBcc: all@example.net\r\n\r\n--=_0").write().message.concat();
    let text = String::from_utf8(hostile.clone()).unwrap();
    assert!(text.lines().all(|line| !line.starts_with("Bcc")), "{text}");
    assert_eq!(Message::parse(&hostile).root().children().count(), 3);
}
