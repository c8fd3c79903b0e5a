//! Maps for mail that is received: of addresses, of copies, and of recipients in the domains that are relayed.

use std::collections::HashMap;
use std::sync::Arc;

use posthaste_message::address::Address;
use posthaste_message::rewrite::AddressMap;
use posthaste_relay::sender::{LocalParts, Section};
use posthaste_smtp::{Envelope, ForwardPath, Notify, RcptTo, ReversePath};

/// `[relay.maps]` and `[[relay.recipients]]`.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    canonical: Option<Arc<AddressMap>>,
    always_bcc: Option<Address>,
    sender_bcc: AddressMap,
    recipient_bcc: AddressMap,
    /// Lists by domain, in lower case.
    recipients: HashMap<String, RecipientList>,
}

/// The recipients of a domain that is relayed.
#[derive(Debug)]
enum RecipientList {
    Listed(LocalParts),
    ToNextHop,
}

/// Result of a look-up of a recipient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exists {
    /// The recipient exists, or cannot be checked.
    Yes,
    /// The recipient does not exist.
    No,
    /// Ask the next hop.
    AskNextHop,
}

impl Maps {
    pub fn new(section: &Section) -> Self {
        let maps = &section.maps;
        let list_of =
            |users: &Option<LocalParts>| users.clone().map_or(RecipientList::ToNextHop, RecipientList::Listed);
        let lists = section.recipients.iter().map(|list| (list.domain.to_lowercase(), list_of(&list.users)));
        Self {
            canonical: Some(maps.canonical.map()).filter(|map| !map.is_empty()).map(Arc::new),
            always_bcc: Address::parse(&maps.always_bcc).ok(),
            sender_bcc: maps.sender_bcc.map(),
            recipient_bcc: maps.recipient_bcc.map(),
            recipients: lists.collect(),
        }
    }

    /// The map for the header of mail of trusted clients.
    pub fn canonical(&self) -> Option<&Arc<AddressMap>> {
        self.canonical.as_ref()
    }

    /// Maps a recipient.
    pub fn recipient(&self, rcpt: &RcptTo) -> Option<RcptTo> {
        let other = self.canonical.as_ref()?.address(rcpt.forward_path.address()?)?;
        Some(RcptTo { forward_path: other.into(), ..rcpt.clone() })
    }

    /// Maps a sender.
    pub fn sender(&self, sender: &ReversePath) -> Option<ReversePath> {
        Some(self.canonical.as_ref()?.address(sender.address()?)?.into())
    }

    /// Looks for a recipient in a domain that is relayed.
    pub fn has_recipient(&self, address: &Address) -> Exists {
        if self.recipients.is_empty() {
            return Exists::Yes;
        }
        match self.recipients.get(&address.domain().to_string().to_lowercase()) {
            None => Exists::Yes,
            Some(RecipientList::ToNextHop) => Exists::AskNextHop,
            Some(RecipientList::Listed(users)) if users.has(address.local_part()) => Exists::Yes,
            Some(RecipientList::Listed(_)) => Exists::No,
        }
    }

    /// Recipients of copies of a message, without duplicates. No notices report their outcomes.
    pub fn copies(&self, envelope: &Envelope) -> Vec<RcptTo> {
        if self.always_bcc.is_none() && self.sender_bcc.is_empty() && self.recipient_bcc.is_empty() {
            return Vec::new();
        }
        let mut found: Vec<Address> = self.always_bcc.iter().cloned().collect();
        found.extend(envelope.mail.reverse_path.address().and_then(|sender| self.sender_bcc.address(sender)));
        for rcpt in &envelope.recipients {
            let mapped = self.recipient(rcpt);
            let path = mapped.as_ref().map_or(&rcpt.forward_path, |mapped| &mapped.forward_path);
            found.extend(path.address().and_then(|recipient| self.recipient_bcc.address(recipient)));
        }
        let mut copies: Vec<RcptTo> = Vec::new();
        for address in found {
            let path = ForwardPath::from(address);
            if !copies.iter().any(|copy| copy.forward_path == path) {
                copies.push(RcptTo { notify: Some(Notify::default()), ..RcptTo::new(path) });
            }
        }
        copies
    }
}

#[cfg(test)]
mod tests {
    use posthaste_smtp::MailFrom;

    use super::*;

    #[test]
    fn copies_go_to_each_once() {
        let section: Section = toml::from_str(
            "[maps]\nalways_bcc = 'all@x.example'\nsender_bcc = { '@a.example' = 'sent@x.example' }\n\
             recipient_bcc = { 'new@b.example' = 'sent@x.example', '@c.example' = 'c@x.example' }\ncanonical = { 'old@b.example' = 'new@b.example' }\n",
        )
        .unwrap();
        let maps = Maps::new(&section);
        let check = |from: &str, to: &[&str], expected: &[&str]| {
            let rcpt = |to: &&str| RcptTo::new(ForwardPath::parse(&format!("<{to}>")).unwrap());
            let mail = MailFrom::new(ReversePath::parse(&format!("<{from}>")).unwrap());
            let copies = maps.copies(&Envelope { mail, recipients: to.iter().map(rcpt).collect() });
            let found: Vec<String> = copies.iter().map(|copy| copy.forward_path.to_string()).collect();
            assert_eq!(found, expected.iter().map(|to| format!("<{to}>")).collect::<Vec<_>>(), "{from} {to:?}");
        };
        check("s@a.example", &["old@b.example"], &["all@x.example", "sent@x.example"]);
        check("", &["a@c.example", "b@c.example", "postmaster"], &["all@x.example", "c@x.example"]);
        check("s@b.example", &["old@b.example"], &["all@x.example", "sent@x.example"]);
    }

    #[test]
    fn recipients_of_a_domain_are_listed_here_or_by_the_next_hop() {
        let text = "domains = ['b.example', 'c.example', 'd.example']\n\
                    [[recipients]]\ndomain = 'B.example'\nusers = ['Ann']\n\
                    [[recipients]]\ndomain = 'd.Example'\ncall_ahead = true\n";
        let maps = Maps::new(&toml::from_str(text).unwrap());
        let check = |to: &str, expected| assert_eq!(maps.has_recipient(&Address::parse(to).unwrap()), expected, "{to}");
        check("ann@b.EXAMPLE", Exists::Yes);
        check("joe@b.example", Exists::No);
        check("joe@c.example", Exists::Yes);
        check("joe@D.example", Exists::AskNextHop);
    }
}
