//! Changes of mailboxes in memory.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};

use super::mailboxes::{Account, FakeMailbox, File, Mailboxes, lock};
use crate::error::{Asked, MailstoreError};
use crate::flags::{FlagUpdate, FlagUpdateMode, KeywordTable, MessageFlags};
use crate::message_list::Message;
use crate::name::{MailboxName, SEPARATOR, SpecialUse};
use crate::row::{MailboxId, ModSeq, NumberRange, Uid};
use crate::snapshot::ChangeTarget;
use crate::store::{AppendRequest, AppendedMessage, CopiedMessages, MessageWriter, StoredFlags};

impl Account {
    pub(super) fn check_change(&self) -> Result<(), MailstoreError> {
        lock(&self.refusal).clone().map_or(Ok(()), Err)
    }

    pub(super) fn make(
        &self,
        name: &MailboxName,
        special_use: Option<SpecialUse>,
    ) -> Result<MailboxId, MailstoreError> {
        self.check_change()?;
        let mut mailboxes = lock(&self.mailboxes);
        if mailboxes.contains_key(name) {
            return Err(MailstoreError::Exists);
        }
        let is_taken = |special_use| mailboxes.values().any(|mailbox| mailbox.special_use == Some(special_use));
        if special_use.is_some_and(is_taken) {
            return Err(MailstoreError::UseTaken);
        }
        let special_use = special_use.or(SpecialUse::of_name(name).filter(|usual| !is_taken(*usual)));
        let mailbox = Arc::new(FakeMailbox::new(self, special_use));
        let id = mailbox.id;
        mailboxes.insert(name.clone(), mailbox);
        self.make_above(&mut mailboxes, name);
        Ok(id)
    }

    fn make_above(&self, mailboxes: &mut Mailboxes, name: &MailboxName) {
        for above in std::iter::successors(name.parent(), MailboxName::parent) {
            mailboxes.entry(above).or_insert_with(|| Arc::new(FakeMailbox::new(self, None)));
        }
    }

    pub(super) fn unmake(&self, id: MailboxId) -> Result<(), MailstoreError> {
        self.check_change()?;
        let mut mailboxes = lock(&self.mailboxes);
        let name = name_of(&mailboxes, id)?;
        if name.is_inbox() {
            return Err(MailstoreError::Cannot("INBOX cannot be deleted"));
        }
        if let Some(mailbox) = mailboxes.remove(&name) {
            mailbox.now.send_replace(None);
        }
        Ok(())
    }

    pub(super) fn give_name(&self, id: MailboxId, to: &MailboxName) -> Result<(), MailstoreError> {
        self.check_change()?;
        let mut mailboxes = lock(&self.mailboxes);
        let from = name_of(&mailboxes, id)?;
        if mailboxes.contains_key(to) {
            return Err(MailstoreError::Exists);
        }
        if from.is_inbox() {
            let inbox = Arc::clone(&mailboxes[&from]);
            let mailbox = Arc::new(FakeMailbox::new(self, None));
            mailboxes.insert(to.clone(), Arc::clone(&mailbox));
            self.make_above(&mut mailboxes, to);
            drop(mailboxes);
            let now = inbox.now.borrow().clone().ok_or(MailstoreError::NoMailbox)?;
            let all: Vec<Uid> = now.messages.iter().map(uid_of).collect();
            return inbox.copy_to(&mailbox, &all, true).map(drop);
        }
        let below = format!("{from}{SEPARATOR}");
        if to.as_str().starts_with(&below) {
            return Err(MailstoreError::Cannot("A mailbox cannot be below itself"));
        }
        let moving: Vec<MailboxName> =
            mailboxes.keys().filter(|name| **name == from || name.as_str().starts_with(&below)).cloned().collect();
        let renamed =
            |name: &MailboxName| MailboxName::parse(&format!("{to}{}", &name.as_str()[from.as_str().len()..]));
        let names: Vec<MailboxName> = moving
            .iter()
            .map(renamed)
            .collect::<Result<_, _>>()
            .map_err(|_| MailstoreError::Cannot("A name would be too long"))?;
        let moved: Vec<Arc<FakeMailbox>> = moving.iter().filter_map(|name| mailboxes.remove(name)).collect();
        mailboxes.extend(names.into_iter().zip(moved));
        self.make_above(&mut mailboxes, to);
        Ok(())
    }
}

fn name_of(mailboxes: &Mailboxes, id: MailboxId) -> Result<MailboxName, MailstoreError> {
    let found = mailboxes.iter().find(|(_, mailbox)| mailbox.id == id);
    found.map(|(name, _)| name.clone()).ok_or(MailstoreError::NoMailbox)
}

fn uid_of(message: &Message<File>) -> Uid {
    Uid::new(message.uid).expect("UIDs begin at 1")
}

fn flags_of(
    keywords: &mut KeywordTable,
    names: &[String],
    flags: MessageFlags,
    mode: FlagUpdateMode,
) -> Result<MessageFlags, MailstoreError> {
    names.iter().try_fold(flags, |flags, name| match mode {
        FlagUpdateMode::Remove => Ok(flags.with(keywords.flag(name).unwrap_or_default())),
        _ => keywords.add(name).map(|flag| flags.with(flag)).ok_or(MailstoreError::Limit),
    })
}

impl FakeMailbox {
    fn check_change(&self) -> Result<(), MailstoreError> {
        self.account.upgrade().ok_or(MailstoreError::NoMailbox)?.check_change()
    }

    fn take_out(&self, uids: &[Uid]) -> Result<(), MailstoreError> {
        self.change(|snapshot| {
            snapshot.messages.retain(|message| uids.binary_search(&uid_of(message)).is_err());
            Ok(())
        })
    }

    fn copy_to(&self, to: &Self, uids: &[Uid], moves: bool) -> Result<Option<CopiedMessages>, MailstoreError> {
        let now = self.now.borrow().clone().ok_or(MailstoreError::NoMailbox)?;
        let found: Vec<&Message<File>> = uids.iter().filter_map(|uid| now.find(*uid)).collect();
        if found.is_empty() {
            return Ok(None);
        }
        let copies = to.change(|target| {
            let mut copies = Vec::with_capacity(found.len());
            for message in &found {
                let names: Vec<String> = now.keywords.names(message.flags).map(str::to_owned).collect();
                let names: Vec<String> = names.into_iter().filter(|name| !name.starts_with('\\')).collect();
                let system = MessageFlags(message.flags.0 & 0xff);
                let flags = flags_of(&mut target.keywords, &names, system, FlagUpdateMode::Add)?;
                copies.push(target.push(flags, message.internal_date, message.file.clone()));
            }
            Ok(copies)
        })?;
        let from: Vec<Uid> = found.iter().map(|message| uid_of(message)).collect();
        if moves {
            self.take_out(&from)?;
        }
        Ok(Some(CopiedMessages { uid_validity: to.uid_validity, from, to: copies }))
    }
}

impl ChangeTarget for FakeMailbox {
    fn is_read_only(&self) -> bool {
        self.check_change() == Err(MailstoreError::ReadOnly)
    }

    fn store(&self, uids: Vec<Uid>, update: FlagUpdate, unchanged_since: Option<ModSeq>) -> Asked<'_, StoredFlags> {
        Box::pin(async move {
            self.check_change()?;
            self.change(|snapshot| {
                let modseq = snapshot.highest_modseq;
                let these = flags_of(&mut snapshot.keywords, &update.keywords, update.flags, update.mode)?;
                let mut stored = StoredFlags::default();
                for uid in uids {
                    let Some(at) = snapshot.messages.position(uid.get()) else {
                        stored.gone = true;
                        continue;
                    };
                    let message = &snapshot.messages[at];
                    let flags = update.mode.apply(message.flags, these);
                    if unchanged_since.is_some_and(|since| message.modseq > since.0) {
                        stored.modified.push(uid);
                    } else if flags != message.flags {
                        let only = NumberRange { first: uid.get(), last: uid.get() };
                        snapshot.messages.set_flags(&[only], flags, modseq, drop);
                    }
                }
                Ok(stored)
            })
        })
    }

    fn expunge(&self, uids: Option<Vec<NumberRange>>) -> Asked<'_, ()> {
        Box::pin(async move {
            self.check_change()?;
            let is_meant = |uid: u32| {
                uids.as_ref().is_none_or(|uids| uids.iter().any(|range| (range.first..=range.last).contains(&uid)))
            };
            self.change(|snapshot| {
                let messages = &mut snapshot.messages;
                messages.retain(|message| !(message.flags.contains(MessageFlags::DELETED) && is_meant(message.uid)));
                Ok(())
            })
        })
    }

    fn remove(&self, uids: Vec<Uid>) -> Asked<'_, ()> {
        Box::pin(async move {
            self.check_change()?;
            self.take_out(&uids)
        })
    }

    fn copy(&self, uids: Vec<Uid>, to: MailboxId, moves: bool) -> Asked<'_, Option<CopiedMessages>> {
        Box::pin(async move {
            self.check_change()?;
            let account = self.account.upgrade().ok_or(MailstoreError::NoMailbox)?;
            self.copy_to(&*account.mailbox(to)?, &uids, moves)
        })
    }
}

struct FakeWriter {
    mailbox: Arc<FakeMailbox>,
    earlier: Vec<(AppendRequest, Bytes)>,
    message: AppendRequest,
    octets: BytesMut,
}

pub(super) fn writer(mailbox: Arc<FakeMailbox>, message: AppendRequest) -> Box<dyn MessageWriter> {
    Box::new(FakeWriter { mailbox, earlier: Vec::new(), message, octets: BytesMut::new() })
}

impl MessageWriter for FakeWriter {
    fn next(&mut self, message: AppendRequest) -> Asked<'_, ()> {
        Box::pin(async move {
            self.mailbox.check_change()?;
            let earlier = std::mem::replace(&mut self.message, message);
            self.earlier.push((earlier, self.octets.split().freeze()));
            Ok(())
        })
    }

    fn write(&mut self, octets: Bytes) -> Asked<'_, ()> {
        Box::pin(async move {
            self.mailbox.check_change()?;
            self.octets.extend_from_slice(&octets);
            Ok(())
        })
    }

    fn finish(self: Box<Self>) -> Asked<'static, AppendedMessage> {
        Box::pin(async move {
            let Self { mailbox, earlier: mut messages, message, octets } = *self;
            mailbox.check_change()?;
            messages.push((message, octets.freeze()));
            let uids = mailbox.change(|snapshot| {
                let mut uids = Vec::with_capacity(messages.len());
                for (message, octets) in messages {
                    let date = message.internal_date.unwrap_or_else(SystemTime::now);
                    let secs = date.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
                    let secs = u32::try_from(secs).unwrap_or(u32::MAX);
                    let keywords = &mut snapshot.keywords;
                    let flags = flags_of(keywords, &message.keywords, message.flags, FlagUpdateMode::Add)?;
                    uids.push(snapshot.push(flags, secs, File(Some(octets))));
                }
                Ok(uids)
            })?;
            let count = u32::try_from(uids.len()).map_err(|_| MailstoreError::Limit)?;
            Ok(AppendedMessage { uid_validity: mailbox.uid_validity, uid: uids[0], count })
        })
    }
}
