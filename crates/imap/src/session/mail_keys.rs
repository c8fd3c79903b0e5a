//! Decoded header values that SORT, THREAD and SEARCH compare, cached with the message.

use std::borrow::Cow;

use posthaste_message::mime::{DecodedAddress, Header, base_subject, in_reply_to, message_id, references};
use posthaste_text::MailText;
use unicode_normalization::UnicodeNormalization;

/// Maximum octets of a value that are compared. Longer values with the same beginning count as equal.
const TEXT_BYTES_MAX: usize = 200;
/// Maximum octets read of a field.
const FIELD_BYTES_MAX: usize = 4000;
/// Maximum ids read of one message: the last ones, which name the nearest messages.
const REFERENCES_MAX: usize = 100;
/// Maximum octets read of a `References` field, from its end.
const REFERENCES_BYTES_MAX: usize = 32 << 10;
/// Maximum octets of a cached searched field. A longer one is read from its message.
const SEARCHED_BYTES_MAX: usize = 500;
/// Maximum octets of a message's cached values. Larger ones are not cached.
const KEPT_BYTES_MAX: usize = 8 << 10;
/// First octet of the encoding. Another number means that the values follow other rules.
const VERSION: u8 = 1;

/// Fields whose text is cached for SEARCH.
const SEARCHED: [&str; 4] = ["From", "To", "Cc", "Subject"];
/// A length that marks a missing field.
const ABSENT: u16 = u16::MAX;
/// A length that marks a text to be read from the message.
const UNKNOWN: u16 = u16::MAX - 1;

const HAS_DATE: u8 = 1;
const IS_REPLY: u8 = 2;

/// Texts in the form of i;unicode-casemap (RFC 5051), of the first address if a field has several.
#[derive(Debug, Clone, Copy)]
pub(super) enum Compared {
    /// The base subject (RFC 5256 section 2.1).
    Subject,
    From,
    To,
    Cc,
    DisplayFrom,
    DisplayTo,
}

/// The text of a field as SEARCH sees it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
enum SearchedText<'k> {
    /// Not cached: read the message.
    #[default]
    Unknown,
    Absent,
    Is(Cow<'k, str>),
}

/// The compared values of one header.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct MailKeys<'k> {
    /// `Date` in seconds since 1970.
    pub sent: Option<i64>,
    /// The subject is that of a reply or a forward.
    pub is_reply: bool,
    /// Values in the order of [`Compared`].
    compared: [Cow<'k, str>; 6],
    /// `Message-ID`; empty if there is none.
    pub id: Cow<'k, str>,
    /// Ids of referenced messages, oldest first.
    pub references: Vec<Cow<'k, str>>,
    /// Texts in the order of [`SEARCHED`].
    searched: [SearchedText<'k>; 4],
}

impl<'k> MailKeys<'k> {
    /// Makes the keys from a header, without texts for SEARCH.
    pub fn of_fields(header: &Header<'_>) -> Self {
        let base = base_subject(&subject(header));
        let compared = [
            collated(&base.text),
            collated(&first_mailbox(header, "From")),
            collated(&first_mailbox(header, "To")),
            collated(&first_mailbox(header, "Cc")),
            collated(&display(header, "From")),
            collated(&display(header, "To")),
        ];
        let value = header.first("References").map(|field| field.value).unwrap_or_default();
        let mut ids = references(&value[value.len().saturating_sub(REFERENCES_BYTES_MAX)..]);
        if ids.is_empty() {
            let value = header.first("In-Reply-To").map(|field| cut_field(field.value));
            ids = value.map(in_reply_to).unwrap_or_default();
            ids.truncate(1);
        }
        ids.drain(..ids.len().saturating_sub(REFERENCES_MAX));
        let id = header.first("Message-ID").and_then(|field| message_id(cut_field(field.value)));
        Self {
            sent: header.first("Date").and_then(|field| field.date()).map(|date| date.unix_secs()),
            is_reply: base.is_reply,
            compared: compared.map(Cow::Owned),
            id: Cow::Owned(id.unwrap_or_default()),
            references: ids.into_iter().map(Cow::Owned).collect(),
            searched: Default::default(),
        }
    }

    /// Reads the keys of a header section that has at least the fields that clients list.
    pub fn of_header(octets: &[u8]) -> Self {
        let is_kept = |name: &[u8]| SEARCHED.iter().any(|kept| name.eq_ignore_ascii_case(kept.as_bytes()));
        let text = MailText::of_header(octets, &is_kept);
        let searched = SEARCHED.map(|name| match text.header_text(name) {
            None => SearchedText::Unknown,
            Some(None) => SearchedText::Absent,
            Some(Some(text)) if text.len() > SEARCHED_BYTES_MAX => SearchedText::Unknown,
            Some(Some(text)) => SearchedText::Is(Cow::Owned(text.to_owned())),
        });
        Self { searched, ..Self::of_fields(&Header::new(octets)) }
    }

    pub fn text(&self, which: Compared) -> &str {
        &self.compared[which as usize]
    }

    /// The text of a field, as returned by [`MailText::header_text`].
    pub fn searched(&self, name: &str) -> Option<Option<&str>> {
        let at = SEARCHED.iter().position(|kept| name.eq_ignore_ascii_case(kept))?;
        match &self.searched[at] {
            SearchedText::Unknown => None,
            SearchedText::Absent => Some(None),
            SearchedText::Is(text) => Some(Some(text)),
        }
    }

    /// True if texts of this field are cached.
    pub fn may_have(name: &str) -> bool {
        SEARCHED.iter().any(|kept| name.eq_ignore_ascii_case(kept))
    }

    /// Octets to cache; `None` if there are too many.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let has_date = if self.sent.is_some() { HAS_DATE } else { 0 };
        let mut out = vec![VERSION, has_date | if self.is_reply { IS_REPLY } else { 0 }];
        out.extend_from_slice(&self.sent.unwrap_or_default().to_le_bytes());
        for text in self.compared.iter().chain([&self.id]) {
            write_text(&mut out, text)?;
        }
        out.extend_from_slice(&u16::try_from(self.references.len()).ok()?.to_le_bytes());
        for id in &self.references {
            write_text(&mut out, id)?;
        }
        for text in &self.searched {
            match text {
                SearchedText::Unknown => out.extend_from_slice(&UNKNOWN.to_le_bytes()),
                SearchedText::Absent => out.extend_from_slice(&ABSENT.to_le_bytes()),
                SearchedText::Is(text) => write_text(&mut out, text)?,
            }
        }
        (out.len() <= KEPT_BYTES_MAX).then_some(out)
    }

    /// Decodes the output of [`encode`](Self::encode); `None` for anything else.
    pub fn decode(octets: &'k [u8]) -> Option<Self> {
        let (&[version, flags], octets) = octets.split_first_chunk()?;
        let (sent, octets) = octets.split_first_chunk()?;
        let has_date = flags & HAS_DATE != 0;
        if version != VERSION || flags & !(HAS_DATE | IS_REPLY) != 0 || !has_date && *sent != [0; 8] {
            return None;
        }
        let mut left = Left(octets);
        let mut keys = Self {
            sent: has_date.then(|| i64::from_le_bytes(*sent)),
            is_reply: flags & IS_REPLY != 0,
            ..Self::default()
        };
        for text in &mut keys.compared {
            *text = left.text()?;
        }
        keys.id = left.text()?;
        let count = usize::from(left.number()?);
        if count > REFERENCES_MAX {
            return None;
        }
        keys.references = (0..count).map(|_| left.text()).collect::<Option<_>>()?;
        for text in &mut keys.searched {
            *text = match left.number()? {
                UNKNOWN => SearchedText::Unknown,
                ABSENT => SearchedText::Absent,
                length => SearchedText::Is(left.text_of(length)?),
            };
        }
        left.0.is_empty().then_some(keys)
    }
}

fn write_text(out: &mut Vec<u8>, text: &str) -> Option<()> {
    let length = u16::try_from(text.len()).ok().filter(|length| *length < UNKNOWN)?;
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    Some(())
}

/// The remaining octets.
struct Left<'k>(&'k [u8]);

impl<'k> Left<'k> {
    fn number(&mut self) -> Option<u16> {
        let (number, left) = self.0.split_first_chunk()?;
        self.0 = left;
        Some(u16::from_le_bytes(*number))
    }

    fn text(&mut self) -> Option<Cow<'k, str>> {
        let length = self.number()?;
        self.text_of(length)
    }

    fn text_of(&mut self, length: u16) -> Option<Cow<'k, str>> {
        let (text, left) = self.0.split_at_checked(length.into())?;
        self.0 = left;
        std::str::from_utf8(text).ok().map(Cow::Borrowed)
    }
}

fn subject(header: &Header<'_>) -> String {
    let text = header.first("Subject").map(|field| cut_field(field.value));
    let text = text.map(|value| posthaste_message::mime::decode_text(value, None)).unwrap_or_default();
    text.chars().take(FIELD_BYTES_MAX / 4).collect()
}

fn cut_field(value: &[u8]) -> &[u8] {
    &value[..value.len().min(FIELD_BYTES_MAX)]
}

fn first_address(header: &Header<'_>, name: &str) -> Option<DecodedAddress> {
    let value = cut_field(header.first(name)?.value);
    posthaste_message::mime::AddressList::new(value, None).next()
}

/// The local part of the first address, or the name of the first group.
fn first_mailbox(header: &Header<'_>, name: &str) -> String {
    match first_address(header, name) {
        Some(DecodedAddress::Mailbox { address: Some(address), .. }) => {
            address.rsplit_once('@').map_or(address.as_str(), |(local, _)| local).to_owned()
        }
        Some(DecodedAddress::Group(name)) => name,
        _ => String::new(),
    }
}

/// The display name of the first address; without one, the address (RFC 5957 section 3).
fn display(header: &Header<'_>, name: &str) -> String {
    match first_address(header, name) {
        Some(DecodedAddress::Mailbox { name: Some(name), .. } | DecodedAddress::Group(name)) => name,
        Some(DecodedAddress::Mailbox { address, .. }) => address.unwrap_or_default(),
        _ => String::new(),
    }
}

/// A text as i;unicode-casemap compares it (RFC 5051).
fn collated(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars().flat_map(char::to_uppercase).nfkd() {
        if out.len() + character.len_utf8() > TEXT_BYTES_MAX {
            break;
        }
        out.push(character);
    }
    out
}

#[cfg(test)]
mod tests {
    use posthaste_text::SearchedField;
    use proptest::prelude::*;

    use super::*;

    const MAIL: &[u8] =
        b"From: \"Doe, Ann\" <Ann@example.org>\r\nTo: b@c, d@e\r\nSubject: Re: =?utf-8?Q?Gr=C3=BC=C3=9Fe?=\r\n\
        Date: Thu, 1 Jan 1970 00:00:20 +0000\r\nMessage-ID: <1@x>\r\nReferences: <a@x> <b@x>\r\n\r\n";

    #[test]
    fn kept_values_are_those_of_the_header() {
        let made = MailKeys::of_header(MAIL);
        let octets = made.encode().unwrap();
        let kept = MailKeys::decode(&octets).unwrap();
        assert_eq!(kept, made);
        assert_eq!((kept.sent, kept.is_reply, &*kept.id), (Some(20), true, "1@x"));
        assert_eq!(kept.references, ["a@x", "b@x"]);
        let texts = [Compared::From, Compared::DisplayFrom, Compared::To, Compared::Cc].map(|which| kept.text(which));
        assert_eq!(texts, ["ANN", "DOE, ANN", "B", ""]);
        assert_eq!(kept.searched("SUBJECT"), Some(Some("Re: Grüße")));
        assert_eq!((kept.searched("Cc"), kept.searched("X-Other")), (Some(None), None));
        let none = MailKeys::of_header(b"\r\n");
        assert_eq!(MailKeys::decode(&none.encode().unwrap()), Some(none));
    }

    #[test]
    fn long_or_odd_fields_are_read_from_the_message() {
        let header = |subject: &[u8]| [b"Subject: ", subject, b"\r\n\r\n"].concat();
        let searched = |header: &[u8]| MailKeys::of_header(header).searched("Subject").is_some();
        assert!(searched(&header(&[b'x'; SEARCHED_BYTES_MAX])));
        assert!(!searched(&header(&[b'x'; SEARCHED_BYTES_MAX + 1])));
        // A charset that only the body may name.
        assert!(!searched(&header(b"Gr\xfc\xdfe")));
        let ids =
            format!("References: {}\r\n\r\n", "<0123456789012345678901234567890123456789@example.org> ".repeat(200));
        let many = MailKeys::of_header(ids.as_bytes());
        assert_eq!((many.references.len(), many.encode().is_some()), (REFERENCES_MAX, true));
        let ids = format!("References: {}\r\n\r\n", format!("<{}@x> ", "y".repeat(100)).repeat(100));
        assert_eq!(MailKeys::of_header(ids.as_bytes()).encode(), None);
    }

    proptest! {
        #[test]
        fn any_octets_are_values_or_nothing(octets in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(keys) = MailKeys::decode(&octets) {
                prop_assert_eq!(keys.encode().unwrap(), octets);
            }
        }

        #[test]
        fn one_octet_more_or_less_is_no_value(cut in 0usize..100) {
            let mut octets = MailKeys::of_header(MAIL).encode().unwrap();
            octets.push(0);
            prop_assert_eq!(MailKeys::decode(&octets), None);
            octets.truncate((octets.len() - 1).saturating_sub(1 + cut));
            prop_assert_eq!(MailKeys::decode(&octets), None);
        }

        #[test]
        fn a_search_finds_in_kept_texts_what_it_finds_in_the_header(
            subject in "[a-cA-C =?._é-]{0,20}", needle in "[a-c .]{0,3}",
        ) {
            let header = format!("Subject: {subject}\r\nFrom: {subject}\r\n\r\n");
            let keys = MailKeys::of_header(header.as_bytes());
            let text = MailText::of_header(header.as_bytes(), &|_| true);
            let needle = posthaste_text::Needle::new(&needle);
            for name in SEARCHED {
                let found = keys.searched(name).map(|text| needle.is_in_field(text));
                prop_assert_eq!(found, text.has(&SearchedField::Header(name.to_owned()), &needle));
            }
        }
    }
}
