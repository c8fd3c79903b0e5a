//! Replies to failed commands.

use super::MailRefusal;

pub(super) const READ_ONLY: &str = "NO [READ-ONLY] The mailbox is read-only";

/// The reply to a command that changes something.
pub(super) fn refusal(why: MailRefusal) -> String {
    match why {
        MailRefusal::Gone => "NO [NONEXISTENT] There is no such mailbox",
        MailRefusal::UnknownEncoding => "NO [UNKNOWN-CTE] A part cannot be decoded",
        MailRefusal::ReadOnly => READ_ONLY,
        MailRefusal::Exists => "NO [ALREADYEXISTS] That mailbox exists already",
        MailRefusal::UseTaken => "NO [USEATTR] No mailbox can have that special use here, or another one has it",
        MailRefusal::Cannot(why) => return format!("NO [CANNOT] {why}"),
        MailRefusal::NoSpace => "NO [OVERQUOTA] There is no room for it",
        MailRefusal::OverQuota => "NO [OVERQUOTA] The quota is used up",
        MailRefusal::Limit => "NO [LIMIT] That is too much at once, or over a limit",
        MailRefusal::TooBig => "NO [TOOBIG] The message is too long",
        MailRefusal::Unavailable => "NO [UNAVAILABLE] Nothing was changed, try again later",
        MailRefusal::NoPermission => "NO [NOPERM] That is not allowed",
        MailRefusal::Damaged => "NO [CORRUPTION] A message or its mailbox is damaged",
    }
    .into()
}
