//! Whatever an address, a reply or a message has, a notification stays one report about the recipients that it was written for.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use posthaste_message::DateTime;
use posthaste_notify::dsn::{DsnAction, Notification, Recipient, Returned, Template, Wording};
use posthaste_notify::report::{self, MailReport};

fuzz_target!(|data: &[u8]| {
    let Some((how, rest)) = data.split_first() else { return };
    let fields: Vec<&[u8]> = rest.splitn(8, |octet| *octet == 0xff).collect();
    let text = |at: usize| fields.get(at).map_or_else(Default::default, |field| String::from_utf8_lossy(field));
    // A recipient has an address: a group without one says nothing of anybody.
    let texts: Vec<_> = (0..7).map(|at| format!("{}{}", if at < 2 { "a" } else { "" }, text(at))).collect();
    let (time, until) = (DateTime::from_unix(1_793_000_000), DateTime::from_unix(1_793_400_000));
    let actions = [DsnAction::Failed, DsnAction::Delayed { until }, DsnAction::Relayed, DsnAction::Delivered];
    let recipient = |at: usize| Recipient {
        address: &texts[at],
        orcpt: &texts[2],
        action: actions[usize::from(how >> (2 * at)) % 4],
        status: (5, 1, 1),
        reply: &texts[3],
        host: &texts[4],
        last_attempt: time,
    };
    let recipients = [recipient(0), recipient(1)];
    let body = fields.get(7).copied().unwrap_or_default();
    let pieces = [Bytes::copy_from_slice(body)];
    let returned = if how & 0x80 == 0 { Returned::Header(body) } else { Returned::Message(&pieces) };
    let mut wording = Wording::default();
    // The words of a file are any that it takes.
    if let Ok(template) = Template::parse(&String::from_utf8_lossy(body)) {
        wording = Wording { failed: template.clone(), delayed: template.clone(), delivered: template, ..wording };
    }
    let written = Notification {
        reporting_host: "mx.example.net",
        to: &texts[5],
        is_double_bounce: how & 0x40 != 0,
        envid: &texts[6],
        received: time,
        now: time,
        // No input knows it.
        id: u128::from(crc32c::crc32c(data)) << 64 | 0x9e37_79b9_7f4a_7c15,
        recipients: &recipients,
        returned,
        wording: &wording,
    }
    .write();
    let message = written.message.concat();
    let Some(MailReport::Delivery(report)) = MailReport::read(&message) else {
        panic!("no report: {}", message.escape_ascii())
    };
    let mut found: Vec<_> = report.recipients.iter().map(|recipient| recipient.action).collect();
    let kind = |recipient: &Recipient<'_>| match recipient.action {
        DsnAction::Failed => report::ReportedAction::Failed,
        DsnAction::Delayed { .. } => report::ReportedAction::Delayed,
        DsnAction::Relayed => report::ReportedAction::Relayed,
        DsnAction::Delivered => report::ReportedAction::Delivered,
    };
    let mut expected: Vec<_> = recipients.iter().map(kind).collect();
    found.sort_by_key(|action| format!("{action:?}"));
    expected.sort_by_key(|action| format!("{action:?}"));
    assert_eq!(found, expected, "{}", message.escape_ascii());
});
