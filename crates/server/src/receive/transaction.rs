//! Results of MAIL and RCPT, kept for the message: the recipients' mailboxes, and their memory.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use posthaste_directory::{Mailbox, Mailboxes, Place};
use posthaste_intake::{
    Mail, MailPlace, MailRecipient, MemoryBudget, NotifyWhen, Reservation, ReturnedPart, SuccessHere,
};
use posthaste_message::address::PATH_BYTES_MAX;
use posthaste_message::{write_delivered_to, write_return_path};
use posthaste_smtp::{BodyType, Envelope, RcptTo, Ret, ReversePath};
use posthaste_spool::Entry;

use crate::receive::cluster::Begun;
use crate::receive::returned::Returned;
use crate::receive::shards::ShardQueue;

/// An open transaction.
#[derive(Default)]
pub(crate) struct Transaction {
    /// The recipients as looked up at RCPT; a later reload does not change them.
    recipients: Vec<Recipient>,
    /// Recipients that are sent on.
    remote: Vec<RcptTo>,
    /// Some mailbox of a recipient is at another host.
    is_forwarded: bool,
    /// Recipients whose mail is discarded.
    discarded: usize,
    /// Recipients that are signed return paths.
    returned: Vec<Returned>,
    /// The client of HTTP is named in `Received`.
    names_client: bool,
    /// The message's id in `Received`, if its client's request supplied one.
    received_id: Option<String>,
    /// Announced octets; 0 if unknown.
    announced: u64,
    /// The tenant that the client's token is bound to.
    tenant: Option<Arc<str>>,
    /// True if the batch has entries of streams that only this node's home shard has.
    must_be_home: bool,
    /// Entries for its batch that are no destination's.
    also: Vec<Entry>,
    /// In a cluster: guard that prevents a hand-over of the shard.
    begun: Option<Begun>,
    /// Octets of local recipients, in the envelope and in the spool's record.
    bytes: usize,
    room: Reservation,
}

/// A recipient with a destination.
struct Recipient {
    mailboxes: Mailboxes,
    /// Address without brackets, as the client gave it.
    original: Arc<str>,
    /// ORCPT and NOTIFY, for its mailboxes at other hosts (RFC 3461 section 5.2.7.1).
    orcpt: Arc<str>,
    notify: Option<NotifyWhen>,
}

/// Why a further recipient is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The transaction has no room for it: 452 4.5.3.
    Transaction,
    /// No memory left for all transactions together: 452 4.3.1.
    Memory,
}

impl Transaction {
    /// Adds a recipient with its mailboxes; `None`: its mail is discarded.
    pub fn add(&mut self, rcpt: &RcptTo, mailboxes: Option<Mailboxes>, memory: &MemoryBudget) -> Result<(), Full> {
        // An entry for a transport has the recipient's address three times.
        let target = |mailbox: &Mailbox| {
            let addresses = if matches!(mailbox.place, Place::Maildir(_)) { 1 } else { 3 };
            let texts = mailbox.text().len() + addresses * mailbox.address.len();
            size_of::<MailRecipient>() + FIELD_NAMES_BYTES + PATH_BYTES_MAX + texts
        };
        let targets: usize = mailboxes.iter().flat_map(|found| found.iter()).map(target).sum();
        let bytes = self.bytes + size_of::<RcptTo>() + size_of::<Recipient>() + PATH_BYTES_MAX + targets;
        if bytes > ENVELOPE_BYTES_MAX {
            return Err(Full::Transaction);
        }
        if !memory.try_grow(&mut self.room, bytes.saturating_sub(ENVELOPE_BYTES_FREE)) {
            return Err(Full::Memory);
        }
        self.bytes = bytes;
        self.discarded += usize::from(mailboxes.is_none());
        self.is_forwarded |=
            mailboxes.iter().flat_map(|found| found.iter()).any(|mailbox| mailbox.place == Place::Remote);
        let original = rcpt.forward_path.bare().into();
        let orcpt = rcpt.orcpt.as_deref().unwrap_or_default().into();
        let notify = notify_when(rcpt);
        self.recipients.extend(mailboxes.map(|mailboxes| Recipient { mailboxes, original, orcpt, notify }));
        Ok(())
    }

    /// Number of accepted recipients.
    pub fn recipients(&self) -> usize {
        self.recipients.len()
    }

    /// A recipient by its index: its address as the client gave it, and its mailboxes.
    pub fn recipient(&self, index: usize) -> (&str, &Mailboxes) {
        let Recipient { original, mailboxes, .. } = &self.recipients[index];
        (original, mailboxes)
    }

    /// Redirects mail of a recipient to other folders.
    pub fn set_mailboxes(&mut self, index: usize, mailboxes: Vec<Mailbox>) {
        if let Some(mailboxes) = Mailboxes::several(mailboxes) {
            self.recipients[index].mailboxes = mailboxes;
        }
    }

    /// Adds a recipient at another host.
    pub fn add_remote(&mut self, rcpt: &RcptTo, memory: &MemoryBudget) -> Result<(), Full> {
        let bytes = self.bytes + 2 * size_of::<RcptTo>() + 4 * PATH_BYTES_MAX;
        if bytes > ENVELOPE_BYTES_MAX {
            return Err(Full::Transaction);
        }
        if !memory.try_grow(&mut self.room, bytes.saturating_sub(ENVELOPE_BYTES_FREE)) {
            return Err(Full::Memory);
        }
        self.bytes = bytes;
        self.remote.push(rcpt.clone());
        Ok(())
    }

    /// Notes the announced length of the message (RFC 1870).
    pub fn announce(&mut self, size: Option<u64>) {
        self.announced = size.unwrap_or(0);
    }

    /// Announced octets; 0 if unknown.
    pub fn announced(&self) -> u64 {
        self.announced
    }

    /// Names the client of HTTP in `Received`.
    pub fn name_client(&mut self) {
        self.names_client = true;
    }

    /// True if the HTTP client is named in `Received`.
    pub fn names_client(&self) -> bool {
        self.names_client
    }

    /// Gives the message its id in `Received`, the log and the events.
    pub fn name_message(&mut self, received_id: String) {
        self.received_id = Some(received_id);
    }

    /// Id assigned to the message.
    pub fn received_id(&self) -> Option<&str> {
        self.received_id.as_deref()
    }

    /// Binds the message to the tenant of its client's token.
    pub fn bind(&mut self, tenant: Option<Arc<str>>) {
        self.tenant = tenant;
    }

    /// Tenant that the message is bound to.
    pub fn tenant(&self) -> Option<&Arc<str>> {
        self.tenant.as_ref()
    }

    /// In a cluster: only this node's own shard may take the message.
    pub fn keep_at_home(&mut self) {
        self.must_be_home = true;
    }

    /// True if only this node's home shard may take the message.
    pub fn must_be_home(&self) -> bool {
        self.must_be_home
    }

    /// Stores the guard of the shard.
    pub fn hold(&mut self, begun: Begun) {
        self.begun = Some(begun);
    }

    /// Shard of the transaction, in a cluster.
    pub fn shard(&self) -> Option<&Arc<ShardQueue>> {
        self.begun.as_ref().map(Begun::shard)
    }

    /// Adds an entry to the batch of the message.
    pub fn add_entry(&mut self, entry: Entry) {
        self.also.push(entry);
    }

    /// Recipients added as remote ones.
    pub fn remotes(&self) -> usize {
        self.remote.len()
    }

    /// True if any mail goes to other hosts.
    pub fn has_remote(&self) -> bool {
        self.is_forwarded || !self.remote.is_empty()
    }

    /// Accepted recipients whose sender wants a notice of success.
    pub fn successes(&self) -> Vec<SuccessHere> {
        let kept = self.recipients.iter().filter(|recipient| recipient.notify.is_some_and(|notify| notify.success));
        let success = |Recipient { mailboxes, original, orcpt, .. }: &Recipient| {
            let is_mailbox = mailboxes.iter().any(|mailbox| matches!(mailbox.place, Place::Maildir(_)));
            let is_ours = mailboxes.iter().any(|mailbox| mailbox.place != Place::Remote);
            is_ours.then(|| SuccessHere { address: original.clone(), orcpt: orcpt.clone(), is_mailbox })
        };
        kept.filter_map(success).collect()
    }

    /// True if a local address forwards it to another host.
    pub fn is_forwarded(&self) -> bool {
        self.is_forwarded
    }

    /// A recipient was a signed return path.
    pub fn note_returned(&mut self, returned: Returned) {
        self.returned.push(returned);
    }

    /// Recipients that are signed return paths.
    pub fn returned(&self) -> &[Returned] {
        &self.returned
    }

    /// Takes the signed return paths.
    pub fn into_returned(self) -> Vec<Returned> {
        self.returned
    }

    /// Number of recipients whose mail is discarded.
    pub fn discarded(&self) -> usize {
        self.discarded
    }

    /// The message for its destinations: each place once, those at other hosts last. Forwarded copies leave from
    /// `forwards_from`. `detail` returns the part of an address after the separator.
    pub fn mail(
        &self,
        envelope: &Envelope,
        forwards_from: &ReversePath,
        detail: impl Fn(&str) -> Arc<str>,
    ) -> Mail<'static> {
        let said = &envelope.mail;
        let sender = said.reverse_path.bare();
        let mut recipients = Vec::with_capacity(self.recipients.len() + self.remote.len());
        self.add_places_here(&mut recipients, &sender, detail);
        self.add_remote_places(&mut recipients);
        let is_forwarded = |recipient: &MailRecipient| recipient.is_forwarded;
        let leaves_from_other = *forwards_from != said.reverse_path && recipients.iter().any(is_forwarded);
        Mail {
            forwards_from: leaves_from_other.then(|| forwards_from.bare()),
            is_8bit: said.body == BodyType::EightBitMime,
            smtputf8: said.smtputf8,
            ret: said.ret.map(|ret| match ret {
                Ret::Full => ReturnedPart::Full,
                Ret::Headers => ReturnedPart::Headers,
            }),
            envid: said.envid.as_deref().map_or_else(Arc::default, Arc::from),
            sender,
            recipients,
            also: self.also.clone(),
            internal_date: Some(unix_secs(SystemTime::now())),
            ..Mail::default()
        }
    }

    fn add_places_here(&self, to: &mut Vec<MailRecipient>, sender: &str, detail: impl Fn(&str) -> Arc<str>) {
        let several = self.recipients.len() > 1;
        let mut seen = HashSet::new();
        for Recipient { mailboxes, original, .. } in &self.recipients {
            for mailbox in mailboxes.iter() {
                // Those of one recipient differ already.
                if several && !seen.insert(mailbox.identity()) {
                    continue;
                }
                let place = match place_of(mailbox) {
                    MailPlace::Remote => continue,
                    here => here,
                };
                let address = mailbox.address.clone();
                let original = original.clone();
                let (prefix, detail) = match &place {
                    MailPlace::Maildir(_) => (prefix(sender, &address), Arc::default()),
                    _ => (Bytes::new(), detail(&address)),
                };
                to.push(MailRecipient { address, original, prefix, detail, ..MailRecipient::to(place) });
            }
        }
    }

    /// Each address once, ignoring the case of its domain: RFC 5321 section 2.4 leaves the case of the local part to
    /// the host. Named recipients get no forwarded copy.
    fn add_remote_places(&self, to: &mut Vec<MailRecipient>) {
        let mut seen = HashSet::new();
        let mut add = |address: Arc<str>, orcpt: Arc<str>, notify, is_forwarded| {
            if seen.insert(with_lower_domain(&address)) {
                to.push(MailRecipient { address, orcpt, notify, is_forwarded, ..MailRecipient::to(MailPlace::Remote) });
            }
        };
        for rcpt in &self.remote {
            let orcpt = rcpt.orcpt.as_deref().map_or_else(Arc::default, Arc::from);
            add(rcpt.forward_path.bare().into(), orcpt, notify_when(rcpt), false);
        }
        for Recipient { mailboxes, orcpt, notify, .. } in self.recipients.iter().filter(|_| self.is_forwarded) {
            for mailbox in mailboxes.iter().filter(|mailbox| mailbox.place == Place::Remote) {
                add(mailbox.address.clone(), orcpt.clone(), *notify, true);
            }
        }
    }
}

/// The place of a mailbox in its destination.
pub(crate) fn place_of(mailbox: &Mailbox) -> MailPlace {
    match &mailbox.place {
        Place::Maildir(path) => MailPlace::Maildir(path.clone()),
        Place::Transport(transport) => MailPlace::Transport(transport.text().clone()),
        Place::Remote => MailPlace::Remote,
    }
}

fn unix_secs(time: SystemTime) -> u32 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

/// The fields in front of a message in one mailbox.
fn prefix(sender: &str, address: &str) -> Bytes {
    let mut prefix = Vec::with_capacity(FIELD_NAMES_BYTES + sender.len() + address.len());
    // The field has brackets of its own.
    write_return_path(&mut prefix, sender);
    write_delivered_to(&mut prefix, address);
    prefix.into()
}

/// This address with its domain in lower case.
fn with_lower_domain(address: &Arc<str>) -> Arc<str> {
    let at = address.rfind('@').unwrap_or(0);
    if !address[at..].chars().any(|letter| letter.to_lowercase().ne([letter])) {
        return address.clone();
    }
    format!("{}{}", &address[..at], address[at..].to_lowercase()).into()
}

/// NOTIFY, if given.
pub(crate) fn notify_when(rcpt: &RcptTo) -> Option<NotifyWhen> {
    let notify = rcpt.notify?;
    Some(NotifyWhen { success: notify.success, failure: notify.failure, delay: notify.delay })
}

/// Maximum octets of an envelope. The largest alias fits. The smallest segment of a spool has room for such an envelope
/// and a body in memory.
const ENVELOPE_BYTES_MAX: usize = 2 << 20;
/// Octets of an envelope included in every session's memory.
const ENVELOPE_BYTES_FREE: usize = 4 << 10;
/// `Return-Path: <>`, `Delivered-To: ` and their line ends, generously.
const FIELD_NAMES_BYTES: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_smtp::command::Notify;
    use posthaste_smtp::{ForwardPath, MailFrom};

    fn envelope() -> Envelope {
        Envelope { mail: MailFrom::new(ReversePath::parse("<s@example.net>").unwrap()), recipients: Vec::new() }
    }

    fn rcpt() -> RcptTo {
        RcptTo::new(ForwardPath::parse("<r@example.org>").unwrap())
    }

    fn recipients(transaction: &Transaction, envelope: &Envelope) -> Vec<MailRecipient> {
        transaction.mail(envelope, &envelope.mail.reverse_path, |_| "".into()).recipients
    }

    fn alias(mailboxes: usize, octets: usize) -> Mailboxes {
        let mailbox = |number| Mailbox {
            place: Place::Maildir(format!("example.org/{number:0octets$}/Maildir").into()),
            address: format!("{number:0octets$}@example.org").into(),
        };
        Mailboxes::several((0..mailboxes).map(mailbox).collect::<Vec<_>>()).expect("one at least")
    }

    /// Adds `mailboxes` until there is no more room, and tells how often that went well.
    fn fill(transaction: &mut Transaction, mailboxes: &Mailboxes, memory: &MemoryBudget) -> (usize, Full) {
        for added in 0.. {
            assert!(added < 100_000, "there is no bound");
            if let Err(full) = transaction.add(&rcpt(), Some(mailboxes.clone()), memory) {
                return (added, full);
            }
        }
        unreachable!("the loop has no end of its own")
    }

    #[test]
    fn the_largest_alias_fits_and_a_list_of_them_has_a_bound() {
        let memory = MemoryBudget::new(1 << 30);
        let mut transaction = Transaction::default();
        // As many as an alias may lead to, each name as long as a directory may be.
        let (added, full) = fill(&mut transaction, &alias(1000, 240), &memory);
        assert_eq!(full, Full::Transaction);
        assert!((1..10).contains(&added), "{added}");
        let recipients = recipients(&transaction, &envelope());
        assert_eq!(recipients.len(), 1000, "each mailbox once");
        let path = |place: &MailPlace| if let MailPlace::Maildir(path) = place { path.len() } else { 0 };
        let record: usize = recipients.iter().map(|to| path(&to.place) + to.prefix.len()).sum();
        assert!(record <= ENVELOPE_BYTES_MAX);
    }

    #[test]
    fn the_return_path_is_the_sender_as_it_came() {
        let check = |path: &str| {
            let mut transaction = Transaction::default();
            let envelope = Envelope { mail: MailFrom::new(ReversePath::parse(path).unwrap()), ..envelope() };
            transaction.add(&rcpt(), Some(alias(1, 1)), &MemoryBudget::new(0)).expect("one recipient");
            let prefix = recipients(&transaction, &envelope).remove(0).prefix;
            let expected = format!("Return-Path: {path}\r\nDelivered-To: 0@example.org\r\n");
            assert_eq!(String::from_utf8_lossy(&prefix), expected);
        };
        check("<>");
        check("<a>");
        check("<\"a b\">");
        check("<a@example.net>");
    }

    #[test]
    fn what_was_said_of_notifications_goes_with_the_message() {
        let mut transaction = Transaction::default();
        let memory = MemoryBudget::new(0);
        let said = |rcpt: &str, notify| RcptTo { notify, ..RcptTo::new(ForwardPath::parse(rcpt).unwrap()) };
        let none = Notify { success: false, failure: false, delay: false };
        let both = Notify { success: true, delay: true, ..none };
        let first = RcptTo { orcpt: Some("rfc822;x@example.net".to_owned()), ..said("<a@example.net>", Some(both)) };
        for rcpt in [
            first,
            said("<b@example.net>", Some(none)),
            said("<b@EXAMPLE.net>", None),
            said("<c@Example.Net>", None),
            said("<c@example.net>", None),
            said("<C@example.net>", None),
        ] {
            transaction.add_remote(&rcpt, &memory).expect("room");
        }
        let mut envelope = envelope();
        (envelope.mail.ret, envelope.mail.envid) = (Some(Ret::Headers), Some("QQ314159".to_owned()));
        let mail = transaction.mail(&envelope, &envelope.mail.reverse_path, |_| "".into());
        assert_eq!((mail.ret, &*mail.envid, &*mail.sender), (Some(ReturnedPart::Headers), "QQ314159", "s@example.net"));
        let recipients: Vec<_> = mail.recipients.iter().map(|to| (&*to.address, &*to.orcpt, to.notify)).collect();
        let all = Some(NotifyWhen { success: true, failure: false, delay: true });
        let never = Some(NotifyWhen { success: false, failure: false, delay: false });
        let expected = [
            ("a@example.net", "rfc822;x@example.net", all),
            ("b@example.net", "", never),
            ("c@Example.Net", "", None),
            ("C@example.net", "", None),
        ];
        assert_eq!(recipients, expected, "each address once, whatever the case of its domain");
    }

    #[test]
    fn those_to_whom_it_is_forwarded_get_it_from_another_sender() {
        let (memory, envelope) = (MemoryBudget::new(0), envelope());
        let check = |forwards: &[&str], from: &str, expected: Option<&[&str]>| {
            let mut transaction = Transaction::default();
            transaction
                .add_remote(&RcptTo::new(ForwardPath::parse("<a@example.net>").unwrap()), &memory)
                .expect("room");
            let mailbox = |address: &&str| Mailbox { place: Place::Remote, address: Arc::from(*address) };
            let mailboxes = Mailboxes::several(forwards.iter().map(mailbox).collect::<Vec<_>>());
            transaction.add(&rcpt(), mailboxes, &memory).expect("room");
            let from = ReversePath::parse(from).unwrap();
            let mail = transaction.mail(&envelope, &from, |_| "".into());
            assert_eq!(mail.sender, "s@example.net");
            let forwarded = mail.recipients.iter().filter(|to| to.is_forwarded).map(|to| &*to.address);
            let forwarded = mail.forwards_from.is_some().then(|| forwarded.collect::<Vec<_>>());
            assert_eq!(forwarded.as_deref(), expected);
            assert!(mail.forwards_from.is_none_or(|from| from == "f@example.org"));
        };
        check(&["b@example.net", "c@example.net"], "<f@example.org>", Some(&["b@example.net", "c@example.net"]));
        // Who is named as well gets it from the sender.
        check(&["a@example.net", "c@example.net"], "<f@example.org>", Some(&["c@example.net"]));
        check(&["a@example.net"], "<f@example.org>", None);
        check(&["b@example.net"], "<s@example.net>", None);
    }

    #[test]
    fn all_transactions_share_the_budget_and_give_it_back() {
        let memory = MemoryBudget::new(0);
        let all = memory.available_bytes();
        let mut transactions: Vec<Transaction> = Vec::new();
        while memory.available_bytes() > 0 {
            transactions.push(Transaction::default());
            assert!(transactions.len() < 1000, "the budget is never spent");
            fill(transactions.last_mut().unwrap(), &alias(100, 20), &memory);
        }
        let mut late = Transaction::default();
        assert_eq!(fill(&mut late, &alias(100, 20), &memory).1, Full::Memory);
        // A message with one recipient is served all the same.
        late.add(&rcpt(), Some(alias(1, 20)), &memory).expect("a small envelope");
        drop(transactions);
        assert_eq!(memory.available_bytes(), all);
    }
}
