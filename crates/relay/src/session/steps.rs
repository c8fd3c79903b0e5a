//! Names of the steps of a session and of the work on its messages, for the watch of stuck workers.

use posthaste_smtp::client::Step;

/// Names of the steps, for [`Watch::worker`](posthaste_watch::Watch::worker): a session reports its step to
/// [`SessionSettings::pulse`](super::SessionSettings::pulse).
pub const STEPS: &[&str] = &[
    "",
    "connecting",
    "waiting for the greeting",
    "waiting for the reply to EHLO",
    "waiting for the reply to STARTTLS",
    "in the TLS handshake",
    "waiting for the reply to AUTH",
    "waiting for the reply to RSET",
    "waiting for the reply to MAIL",
    "waiting for the reply to RCPT",
    "waiting for the reply to DATA",
    "waiting for the verdict on the message",
    "waiting for the reply to QUIT",
    "waiting for the host to take what is written",
    "looking up its hosts",
    "reading a message from the spool",
    "recording what became of a message",
    "signing a message",
];

pub(super) const CONNECTING: u8 = 1;
pub(super) const HANDSHAKE: u8 = 5;
/// Looking up the site's hosts.
pub(crate) const LOOKING_UP: u8 = 14;
/// Reading a message.
pub(crate) const READING: u8 = 15;
/// Recording the outcome of a message.
pub(crate) const RECORDING: u8 = 16;
/// Signing a message whose header has changed.
pub(crate) const SIGNING: u8 = 17;

/// The step of a wait. `is_writing`: a write comes first.
pub(super) fn of(step: Step, is_writing: bool) -> u8 {
    match step {
        _ if is_writing => 13,
        Step::Idle => 0,
        Step::Connect => CONNECTING,
        Step::Greeting => 2,
        Step::StartTls => 4,
        Step::Handshake => HANDSHAKE,
        Step::Auth => 6,
        Step::Reset => 7,
        Step::Mail => 8,
        Step::Rcpt => 9,
        Step::Data => 10,
        Step::Body => 11,
        Step::Quit => 12,
        // EHLO and similar.
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_its_name() {
        for (step, expected) in [
            (Step::Idle, ""),
            (Step::Connect, "connecting"),
            (Step::Hello, "waiting for the reply to EHLO"),
            (Step::Handshake, "in the TLS handshake"),
            (Step::Data, "waiting for the reply to DATA"),
            (Step::Body, "waiting for the verdict on the message"),
            (Step::Quit, "waiting for the reply to QUIT"),
        ] {
            assert_eq!(STEPS[usize::from(of(step, false))], expected, "{step:?}");
            assert!(STEPS[usize::from(of(step, true))].contains("take what is written"));
        }
        let others = [LOOKING_UP, READING, RECORDING, SIGNING].map(|step| STEPS[usize::from(step)]);
        let expected = [
            "looking up its hosts",
            "reading a message from the spool",
            "recording what became of a message",
            "signing a message",
        ];
        assert_eq!(others, expected);
    }
}
