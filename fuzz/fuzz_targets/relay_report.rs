//! Any octets are a report or not. What is read of one is bounded and has no line ends, and its line has a class.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use posthaste_notify::report::{MailReport, RECIPIENTS_MAX, TEXT_BYTES_MAX};
use posthaste_relay::classify::Classifier;

static CLASSES: LazyLock<Classifier> = LazyLock::new(Classifier::default);

fuzz_target!(|data: &[u8]| match MailReport::read(data) {
    None => {}
    Some(MailReport::Delivery(report)) => {
        assert!((1..=RECIPIENTS_MAX).contains(&report.recipients.len()));
        for recipient in &report.recipients {
            check(&recipient.recipient);
            let line = recipient.line();
            check(&line[..line.len().min(3)]);
            assert!(line.len() <= TEXT_BYTES_MAX + 50 && !line.contains(['\r', '\n']), "{line:?}");
            assert!(!CLASSES.classify(&line).name().is_empty());
        }
    }
    Some(MailReport::Feedback(report)) => {
        check(&report.feedback_type);
        assert!(report.recipients.len() <= RECIPIENTS_MAX);
        report.recipients.iter().for_each(|recipient| check(recipient));
    }
});

fn check(text: &str) {
    assert!(text.len() <= TEXT_BYTES_MAX && !text.contains(char::is_control), "{text:?}");
}
