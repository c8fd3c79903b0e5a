//! GETQUOTA and GETQUOTAROOT (RFC 9208): an account has one quota root, with an empty name.

use super::select::no_mailbox;
use super::state::State;
use super::{ImapEvent, ImapMachine, MailQuota, MailRefusal};
impl ImapMachine {
    pub(super) fn get_quota(&mut self, tag: String, root: &[u8]) -> Option<ImapEvent> {
        if !root.is_empty() {
            self.reply(&tag, NO_ROOT);
            return None;
        }
        self.state = State::Quota { tag, mailbox: None };
        Some(ImapEvent::Quota { mailbox: None })
    }

    pub(super) fn get_quota_root(&mut self, tag: String, mailbox: &[u8]) -> Option<ImapEvent> {
        let Ok(name) = self.name(mailbox) else {
            self.reply(&tag, no_mailbox(MailRefusal::Gone));
            return None;
        };
        self.state = State::Quota { tag, mailbox: Some(name.clone()) };
        Some(ImapEvent::Quota { mailbox: Some(name) })
    }

    /// Answers [`ImapEvent::Quota`]. `None`: unlimited.
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn quota(&mut self, answer: Result<Option<MailQuota>, MailRefusal>) {
        let State::Quota { tag, mailbox } = std::mem::replace(&mut self.state, State::Command) else {
            panic!("a quota in {:?}", self.state)
        };
        let quota = match answer {
            Ok(quota) => quota,
            Err(why) => return self.reply(&tag, no_mailbox(why)),
        };
        if let Some(mailbox) = &mailbox {
            self.text("* QUOTAROOT ");
            self.write_name(mailbox);
            self.line(if quota.is_some() { " \"\"" } else { "" });
        }
        match quota {
            Some(quota) => {
                let limits = [("STORAGE", storage(quota.bytes)), ("MESSAGE", quota.messages)];
                let limits =
                    limits.iter().filter_map(|(name, (used, most))| Some(format!("{name} {used} {}", (*most)?)));
                let text = format!("* QUOTA \"\" ({})", limits.collect::<Vec<_>>().join(" "));
                self.line(&text);
            }
            None if mailbox.is_none() => return self.reply(&tag, NO_ROOT),
            None => {}
        }
        drop(self.done(tag, if mailbox.is_some() { "GETQUOTAROOT" } else { "GETQUOTA" }));
    }
}

const NO_ROOT: &str = "NO [NONEXISTENT] There is no such quota root";

/// Converts octets to units of 1,024 (RFC 9208 section 5.1).
fn storage((used, most): (u64, Option<u64>)) -> (u64, Option<u64>) {
    (used.div_ceil(1024), most.map(|most| most / 1024))
}
