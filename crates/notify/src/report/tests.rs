use bytes::Bytes;
use posthaste_message::DateTime;
use posthaste_random::Random;

use super::*;
use crate::dsn;

fn report(kind: &str, part: &str, fields: &str) -> Vec<u8> {
    format!(
        "From: x@example.org\r\nContent-Type: multipart/report; report-type={kind}; boundary=\"b\"\r\n\r\n--b\r\n\r\ntext\r\n\
         --b\r\nContent-Type: {part}\r\n\r\n{fields}\r\n--b\r\nContent-Type: message/rfc822\r\n\r\nMessage-ID: <1@example.net>\r\n\r\nhi\r\n--b--\r\n"
    )
    .into_bytes()
}

fn status(fields: &str) -> Option<DeliveryReport> {
    match MailReport::read(&report("delivery-status", "message/delivery-status", fields)) {
        Some(MailReport::Delivery(report)) => Some(report),
        _ => None,
    }
}

#[test]
fn our_own_notifications_are_understood() {
    let at = DateTime::from_unix(1_793_000_000);
    for (address, kind) in [("bob@example.org", "rfc822"), ("jürgen@example.org", "utf-8")] {
        let original = [Bytes::from_static(b"Message-ID: <1@example.net>\r\n\r\nhi\r\n")];
        for returned in [dsn::Returned::Message(&original), dsn::Returned::Header(&original[0])] {
            let recipient = dsn::Recipient {
                address,
                orcpt: "rfc822;bobby+40example.com",
                action: dsn::DsnAction::Failed,
                status: (5, 1, 1),
                reply: "550 5.1.1 no such user, and a text so long that it goes on in a second line of the field that has it",
                host: "mx.example.org",
                last_attempt: at,
            };
            let written = dsn::Notification {
                reporting_host: "mx.example.net",
                to: "ann@example.net",
                is_double_bounce: false,
                envid: "QQ+2B3",
                received: at,
                now: at,
                id: 7,
                recipients: &[recipient, recipient],
                returned,
                wording: &dsn::Wording::default(),
            };
            let Some(MailReport::Delivery(report)) = MailReport::read(&written.write().message.concat()) else {
                panic!("{kind} is not read")
            };
            assert_eq!(report.reporting_mta.as_deref(), Some("mx.example.net"));
            assert_eq!(report.envelope_id.as_deref(), Some("QQ+3"));
            assert_eq!(report.message_id.as_deref(), Some("1@example.net"));
            let expected = RecipientReport {
                recipient: address.to_owned(),
                original: Some("bobby@example.com".to_owned()),
                action: ReportedAction::Failed,
                status: Some((5, 1, 1)),
                diagnostic: Some(recipient.reply.to_owned()),
                remote_mta: Some("mx.example.org".to_owned()),
            };
            assert_eq!(report.recipients, [expected.clone(), expected]);
        }
    }
}

#[test]
fn what_other_hosts_write_is_read() {
    let report = status("Reporting-MTA: mx\n\nfinal-recipient: <bob@example.org>\naction: FAILED\nstatus: 5.2.2 (full)\n\n\n\nOriginal-Recipient: rfc822;cat@x\nAction: delayed\n").unwrap();
    assert_eq!(report.reporting_mta.as_deref(), Some("mx"));
    let [bob, cat] = &report.recipients[..] else { panic!("{report:?}") };
    assert_eq!((&*bob.recipient, bob.action, bob.status), ("bob@example.org", ReportedAction::Failed, Some((5, 2, 2))));
    assert_eq!((&*cat.recipient, cat.action, cat.status), ("cat@x", ReportedAction::Delayed, None));
    let said = |text: &str| RecipientReport { diagnostic: Some(text.to_owned()), ..bob.clone() }.line();
    assert_eq!(said("550-5.1.1 no such user"), "550 5.1.1 no such user");
    assert_eq!(said("äöü no"), "550 5.2.2 äöü no");
    // Base64 around the fields.
    let part = "message/delivery-status\r\nContent-Transfer-Encoding: base64";
    let mail = self::report("delivery-status", part, "RmluYWwtUmVjaXBpZW50OiByZmM4MjI7IGJAYwpBY3Rpb246IGZhaWxlZAo=");
    assert!(
        matches!(MailReport::read(&mail), Some(MailReport::Delivery(report)) if report.recipients[0].recipient == "b@c")
    );
}

#[test]
fn a_complaint_is_read() {
    let fields = "Feedback-Type: Abuse\r\nUser-Agent: x/1\r\nVersion: 1\r\nOriginal-Mail-From: <ann@example.net>\r\n\
         Original-Rcpt-To: <bob@example.org>\r\nOriginal-Rcpt-To: cat@example.org\r\nSource-IP: 192.0.2.1\r\nReported-Domain: example.net\r\n";
    let Some(MailReport::Feedback(feedback)) =
        MailReport::read(&report("feedback-report", "message/feedback-report", fields))
    else {
        panic!()
    };
    assert!(feedback.is_complaint());
    assert_eq!(feedback.mail_from.as_deref(), Some("ann@example.net"));
    assert_eq!(feedback.recipients, ["bob@example.org", "cat@example.org"]);
    assert_eq!(
        (feedback.source_ip.as_deref(), feedback.message_id.as_deref()),
        (Some("192.0.2.1"), Some("1@example.net"))
    );
    let without = fields.replace("Original-Mail-From: <ann@example.net>\r\n", "");
    let encloses = String::from_utf8(report("feedback-report", "message/feedback-report", &without)).unwrap();
    let encloses = encloses.replace("Message-ID: <1", "Return-Path: <eve@example.net>\r\nMessage-ID: <1");
    let Some(MailReport::Feedback(feedback)) = MailReport::read(encloses.as_bytes()) else { panic!() };
    assert_eq!(feedback.mail_from.as_deref(), Some("eve@example.net"));
    for (kind, expected) in [("not-spam", false), ("auth-failure", false), ("opt-out", true)] {
        let feedback = FeedbackReport { feedback_type: kind.to_owned(), ..FeedbackReport::default() };
        assert_eq!(feedback.is_complaint(), expected, "{kind}");
    }
}

#[test]
fn other_mail_is_no_report() {
    let whole = report("delivery-status", "message/delivery-status", "Final-Recipient: rfc822; b@c\r\nAction: failed");
    assert!(MailReport::read(&whole).is_some());
    // A forwarded report is not a report about our mail.
    let forwarded = [
        b"Content-Type: multipart/mixed; boundary=o\r\n\r\n--o\r\nContent-Type: message/rfc822\r\n\r\n",
        &whole[..],
        b"--o--\r\n",
    ];
    assert_eq!(MailReport::read(&forwarded.concat()), None);
    let within = [b"Content-Type: multipart/mixed; boundary=o\r\n\r\n--o\r\n", &whole[..], b"--o--\r\n"];
    assert!(MailReport::read(&within.concat()).is_some());
    for mail in [&b""[..], b"Subject: hi\r\n\r\nFinal-Recipient: rfc822; b@c\r\nAction: failed\r\n"] {
        assert_eq!(MailReport::read(mail), None);
    }
    for (kind, part) in [("disposition-notification", "message/delivery-status"), ("delivery-status", "text/plain")] {
        assert_eq!(MailReport::read(&report(kind, part, "Final-Recipient: rfc822; b@c\r\nAction: failed")), None);
    }
    for fields in [
        "",
        "Final-Recipient: rfc822; b@c",
        "Action: failed",
        "Final-Recipient: rfc822;\r\nAction: failed",
        "Final-Recipient: rfc822; b@c\r\nAction: eaten",
    ] {
        assert_eq!(status(fields), None, "{fields}");
    }
}

#[test]
fn hostile_reports_are_bounded() {
    let many = "Final-Recipient: rfc822; b@c\r\nAction: failed\r\n\r\n".repeat(3 * RECIPIENTS_MAX);
    assert_eq!(status(&many).unwrap().recipients.len(), RECIPIENTS_MAX);
    let long = format!(
        "Final-Recipient: rfc822; b@c\r\nAction: failed\r\nDiagnostic-Code: smtp; {}\r\n",
        "ä\x1b ".repeat(100_000)
    );
    let diagnostic = status(&long).unwrap().recipients.remove(0).diagnostic.unwrap();
    assert!(diagnostic.len() <= TEXT_BYTES_MAX && !diagnostic.contains(char::is_control));
    // Any damage to a report.
    let whole = report(
        "delivery-status",
        "message/delivery-status",
        "Final-Recipient: rfc822; b@c\r\nAction: failed\r\nStatus: 5.1.1\r\nDiagnostic-Code: smtp; 550-x",
    );
    for end in 0..whole.len() {
        MailReport::read(&whole[..end]);
    }
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let mut damaged = whole.clone();
        for _ in 0..1 + random.below(8) {
            let at = random.below(damaged.len() as u64) as usize;
            damaged[at] = random.next() as u8;
        }
        if let Some(MailReport::Delivery(report)) = MailReport::read(&damaged) {
            report.recipients.iter().for_each(|recipient| drop(recipient.line()));
        }
    }
}

#[test]
fn status_codes_are_checked() {
    for (text, expected) in [
        ("5.1.1", Some((5, 1, 1))),
        ("4.2.2 (full)", Some((4, 2, 2))),
        ("3.1.1", None),
        ("5.1", None),
        ("5.1.1.1", None),
        ("5.1000.1", None),
        ("", None),
        ("5..1", None),
    ] {
        assert_eq!(code(text), expected, "{text}");
    }
}
