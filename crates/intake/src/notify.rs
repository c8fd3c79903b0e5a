//! NOTIFY of a recipient (RFC 3461 section 4.1) as bits; 0 if the client did not specify it.

use crate::NotifyWhen;

/// NOTIFY=NEVER, alone.
pub const NEVER: u8 = 1;
/// NOTIFY=SUCCESS.
pub const SUCCESS: u8 = 2;
/// NOTIFY=FAILURE.
pub const FAILURE: u8 = 4;
/// NOTIFY=DELAY.
pub const DELAY: u8 = 8;
/// With NOTIFY=SUCCESS: a mailbox here has the message, and only the sender's notice remains to be sent.
pub const IN_MAILBOX: u8 = 32;
/// Like [`IN_MAILBOX`], for a program, file or LMTP server, which reports no success itself.
pub const HANDED_ON: u8 = 64;

/// The bits of a parameter.
pub fn bits(said: Option<NotifyWhen>) -> u8 {
    let Some(said) = said else { return 0 };
    let all = [(said.success, SUCCESS), (said.failure, FAILURE), (said.delay, DELAY)];
    match all.iter().filter(|(is_asked, _)| *is_asked).map(|(_, bit)| bit).sum() {
        0 => NEVER,
        asked => asked,
    }
}
