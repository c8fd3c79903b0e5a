//! Header fields for search and display.

use std::collections::HashSet;

use posthaste_message::mime::{
    AddressList, Charset, DecodedAddress, Field, Message, in_reply_to, message_id, references,
};

use crate::extracted::{Extracted, ITEMS_MAX, Priority};
use crate::header_names::{HeaderNames, OTHER_HEADERS};

/// Header fields for the index, read in one pass. If a field that may occur once is repeated, the first usable value
/// counts.
#[derive(Default)]
pub(super) struct Head {
    pub from: AddressText,
    pub to: AddressText,
    pub cc: AddressText,
    pub bcc: AddressText,
    pub subject: String,
    pub date: Option<i64>,
    pub message_id: String,
    pub references: Vec<String>,
    pub list: String,
    pub priority: Priority,
}

impl Head {
    pub fn read(message: &Message<'_>) -> Self {
        Self::read_some(message, &|_| true)
    }

    /// Reads the fields whose names are wanted.
    pub fn read_some(message: &Message<'_>, is_wanted: &dyn Fn(&[u8]) -> bool) -> Self {
        let charset = message.header_charset();
        let mut head = Self::default();
        let mut others = Others::default();
        for field in message.root().header().fields().filter(|field| is_wanted(field.name)) {
            head.take(field, charset, &mut others);
        }
        head.date = head.date.or(others.received);
        head.references = std::mem::take(&mut others.references);
        for id in std::mem::take(&mut others.answered) {
            if head.references.len() < 2 * ITEMS_MAX && others.seen.insert(id.clone()) {
                head.references.push(id);
            }
        }
        head.list = others.list();
        head.priority = others.priority(!head.list.is_empty());
        head
    }

    fn take(&mut self, field: Field<'_>, charset: Option<Charset>, others: &mut Others) {
        // By length first: most fields have none of these names.
        match field.name.len() {
            2 if field.is("To") => self.to.add(field.addresses(charset)),
            2 if field.is("Cc") => self.cc.add(field.addresses(charset)),
            3 if field.is("Bcc") => self.bcc.add(field.addresses(charset)),
            4 if field.is("From") && self.from.text.is_empty() => self.from.add(field.addresses(charset)),
            4 if field.is("Date") && self.date.is_none() => self.date = field.date().map(|date| date.unix_secs()),
            7 if field.is("Subject") && self.subject.is_empty() => self.subject = one_line(&field.text(charset)),
            7 if field.is("List-Id") && others.list_id.is_empty() => others.list_id = one_line(&field.text(charset)),
            8 if field.is("Received") && others.received.is_none() => {
                others.received = field.date().map(|date| date.unix_secs());
            }
            8 if field.is("Priority") => others.level(0, field),
            9 if field.is("List-Post") && others.list_post.is_empty() => {
                others.list_post = one_line(&field.text(charset))
            }
            10 if field.is("Message-ID") && self.message_id.is_empty() => {
                self.message_id = message_id(field.value).map(|id| one_line(&id)).unwrap_or_default();
            }
            10 if field.is("References") => others.refer(references(field.value)),
            10 if field.is("X-Priority") => others.level(1, field),
            10 if field.is("Importance") => others.level(2, field),
            10 if field.is("Precedence") => {
                others.is_bulk |= matches!(word(field).as_str(), "bulk" | "junk" | "list");
            }
            11 if field.is("In-Reply-To") => {
                others.answered.extend(in_reply_to(field.value).iter().map(|id| one_line(id)))
            }
            14 if field.is("X-Mailing-List") && others.mailing_list.is_empty() => {
                others.mailing_list = one_line(&field.text(charset));
            }
            _ => {}
        }
    }
}

/// Maximum bytes indexed of one field's value.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// Collects the values of all fields with these names. False if one of them was truncated.
pub(super) fn take_headers(message: &Message<'_>, names: &HeaderNames, out: &mut Extracted) -> bool {
    let charset = message.header_charset();
    let mut is_whole = true;
    let known = |field: &Field<'_>| std::str::from_utf8(field.name).ok().and_then(|name| names.known_as(name));
    let fields = || message.root().header().fields();
    let mut take = |name: &str, field: Field<'_>| {
        let (value, is_all) = field_value(field, charset);
        is_whole &= is_all;
        out.headers.push((name.to_owned(), value));
    };
    let named = fields().filter_map(|field| Some((known(&field)?, field)));
    named.take(ITEMS_MAX).for_each(|(name, field)| take(name, field));
    if names.known_as(OTHER_HEADERS).is_some() {
        other_fields(fields()).filter(|field| known(field).is_none()).for_each(|field| take(OTHER_HEADERS, field));
    }
    is_whole
}

/// A value, decoded and unfolded; false if it was truncated.
pub(super) fn field_value(field: Field<'_>, charset: Option<Charset>) -> (String, bool) {
    let mut value = one_line(&field.text(charset));
    let is_all = value.len() <= VALUE_BYTES_MAX;
    value.truncate(value.floor_char_boundary(VALUE_BYTES_MAX));
    (value, is_all)
}

/// Fields that a search may refer to and that have no index field of their own; of a very long header, the first ones.
pub(super) fn other_fields<'a>(fields: impl Iterator<Item = Field<'a>>) -> impl Iterator<Item = Field<'a>> {
    const OWN: [&[u8]; 5] = [b"From", b"To", b"Cc", b"Bcc", b"Subject"];
    let is_own = |name: &[u8]| OWN.iter().any(|own| name.eq_ignore_ascii_case(own));
    fields.filter(move |field| !is_own(field.name) && !is_trace(field.name)).take(ITEMS_MAX)
}

/// True for fields that trace or vouch for a message, which a search of all fields does not mean.
pub fn is_trace(name: &[u8]) -> bool {
    const NAMES: [&str; 6] =
        ["Received", "Return-Path", "DKIM-Signature", "DomainKey-Signature", "Authentication-Results", "Received-SPF"];
    let is_arc = name.get(..4).is_some_and(|start| start.eq_ignore_ascii_case(b"ARC-"));
    is_arc || NAMES.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// Fields whose meaning depends on others, evaluated at the end.
#[derive(Default)]
struct Others {
    received: Option<i64>,
    references: Vec<String>,
    answered: Vec<String>,
    /// Ids among the references, to skip repetitions: a header may have any number.
    seen: HashSet<String>,
    list_id: String,
    list_post: String,
    mailing_list: String,
    /// Values of `Priority`, `X-Priority` and `Importance`; the first one that is set counts.
    levels: [Option<Priority>; 3],
    is_bulk: bool,
}

impl Others {
    fn refer(&mut self, ids: Vec<String>) {
        for id in ids.into_iter().map(|id| one_line(&id)) {
            if self.references.len() < ITEMS_MAX && !id.is_empty() && self.seen.insert(id.clone()) {
                self.references.push(id);
            }
        }
    }

    fn level(&mut self, rank: usize, field: Field<'_>) {
        self.levels[rank] = self.levels[rank].or(match word(field).as_str() {
            "high" | "urgent" | "1" | "2" => Some(Priority::High),
            "low" | "non-urgent" | "4" | "5" => Some(Priority::Low),
            _ => None,
        });
    }

    fn priority(&self, is_list: bool) -> Priority {
        let named = self.levels.iter().find_map(|level| *level);
        named.unwrap_or(if self.is_bulk || is_list { Priority::Low } else { Priority::Normal })
    }

    fn list(&self) -> String {
        let bracketed =
            self.list_id.rsplit_once('<').and_then(|(_, id)| id.split_once('>')).map(|(id, _)| id.trim().to_owned());
        let id = bracketed.unwrap_or_else(|| self.list_id.clone());
        if !id.is_empty() {
            return id;
        }
        // Older list managers: `List-Post: <mailto:users@example.org>`, `X-Mailing-List: users@example.org`.
        let post = self.list_post.split_once("mailto:").map(|(_, rest)| rest.split(['>', '?']).next().unwrap_or(""));
        let address = post.filter(|post| !post.is_empty()).unwrap_or(&self.mailing_list);
        address.trim_matches(['<', '>', ' ']).replace('@', ".")
    }
}

/// The first word of a value, in lower case.
fn word(field: Field<'_>) -> String {
    let value = field.value.trim_ascii();
    let end = value.iter().position(|byte| b" ,(\t\r\n;".contains(byte)).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).to_ascii_lowercase()
}

/// Addresses as one text, which [`split_addresses`](crate::split_addresses) splits again: `Name <address>, "Na, me"
/// <address>, address, A Group: member, member;`.
#[derive(Default)]
pub(super) struct AddressText {
    pub text: String,
    /// Addresses seen, of which [`ITEMS_MAX`] are kept.
    pub count: usize,
    opens_group: bool,
    is_in_group: bool,
}

impl AddressText {
    pub fn add(&mut self, addresses: AddressList<'_>) {
        for address in addresses {
            self.count += 1;
            if self.count > ITEMS_MAX {
                return;
            }
            match address {
                DecodedAddress::Mailbox { name, address } => self.mailbox(name, address),
                DecodedAddress::Group(name) => self.group(&one_line(&name)),
                DecodedAddress::GroupEnd => {
                    self.text.push_str(if std::mem::take(&mut self.is_in_group) { ";" } else { "" });
                    self.opens_group = false;
                }
            }
        }
    }

    /// Begins a group; members of a group without a name stand alone.
    fn group(&mut self, name: &str) {
        if !name.is_empty() {
            self.separate();
            self.name(name);
            self.text.push(':');
            (self.opens_group, self.is_in_group) = (true, true);
        }
    }

    fn mailbox(&mut self, name: Option<String>, address: Option<String>) {
        let [name, address] =
            [name, address].map(|text| text.map(|text| one_line(&text)).filter(|text| !text.is_empty()));
        if name.is_none() && address.is_none() {
            return;
        }
        self.separate();
        match (name, address) {
            (Some(name), Some(address)) => {
                self.name(&name);
                self.text.push(' ');
                self.bracketed(&address);
            }
            // In quotes, too, it would be an address.
            (Some(name), None) if name.contains('@') => {
                self.quoted(&name);
                self.text.push_str(" <>");
            }
            // One word without quotes would be an address.
            (Some(name), None) if is_word(&name) => self.quoted(&name),
            (Some(name), None) => self.name(&name),
            (None, Some(address)) if is_plain(&address) => self.text.push_str(&address),
            (None, Some(address)) => self.bracketed(&address),
            (None, None) => {}
        }
    }

    fn separate(&mut self) {
        if std::mem::take(&mut self.opens_group) {
            self.text.push(' ');
        } else if !self.text.is_empty() {
            self.text.push_str(", ");
        }
    }

    fn name(&mut self, name: &str) {
        let is_special = name.contains(SPECIALS) || name.contains('@') || name.contains("=?") || name.contains(" .");
        if is_special { self.quoted(name) } else { self.text.push_str(name) }
    }

    fn quoted(&mut self, name: &str) {
        self.text.push('"');
        for c in name.chars() {
            if matches!(c, '"' | '\\') {
                self.text.push('\\');
            }
            self.text.push(c);
        }
        self.text.push('"');
    }

    /// Adds an address in brackets. An unclosed quote or parenthesis is dropped, since a later one would close it.
    fn bracketed(&mut self, address: &str) {
        let is_plain = is_plain(address);
        let is_kept = |c: &char| is_plain || !(c.is_whitespace() || matches!(c, '"' | '(' | ')' | '<' | '>'));
        self.text.push('<');
        self.text.extend(address.chars().filter(is_kept));
        self.text.push('>');
    }
}

/// Special characters of address lists (RFC 5322 section 3.2.3), except `@` and dots.
const SPECIALS: [char; 11] = ['(', ')', '<', '>', '[', ']', ':', ';', '\\', ',', '"'];

fn is_word(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// True if an address can stand without brackets: a quoted local part and a literal (RFC 5321 section 4.1.3) may have
/// special characters.
fn is_plain(address: &str) -> bool {
    let rest = match address.strip_prefix('"') {
        Some(local) => {
            let mut is_escaped = false;
            let end = local.find(|c| {
                let ends = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                ends
            });
            match end.map(|end| &local[end + 1..]) {
                Some(rest) if rest.starts_with('@') => rest,
                _ => return false,
            }
        }
        None => address,
    };
    let rest = match rest.split_once("@[").and_then(|(local, literal)| Some((local, literal.strip_suffix(']')?))) {
        Some((local, literal)) if !literal.contains(['[', ']', '"', '(', '<', '>', '\\', ' ']) => local,
        _ => rest,
    };
    (rest.contains('@') || rest.len() < address.len() || is_word(rest))
        && !rest.contains(SPECIALS)
        && !rest.contains(char::is_whitespace)
        && !rest.contains("=?")
}

/// Removes line ends and control characters, for display on one line.
pub(super) fn one_line(text: &str) -> String {
    if is_plain_line(text.as_bytes()) {
        return text.to_owned();
    }
    if !text.chars().any(char::is_control) && !text.contains("  ") && text.trim().len() == text.len() {
        return text.to_owned();
    }
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// True for ASCII without control characters, with single blanks between words only.
fn is_plain_line(text: &[u8]) -> bool {
    let blanks = text.iter().zip(text.iter().skip(1)).any(|(&a, &b)| a == b' ' && b == b' ');
    !blanks && !text.starts_with(b" ") && !text.ends_with(b" ") && text.iter().all(|octet| (0x20..0x7f).contains(octet))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split_addresses;

    /// Names and addresses in the header's form.
    fn read(value: &[u8]) -> Vec<(String, String)> {
        let text = |text: Option<String>| text.map(|text| one_line(&text)).unwrap_or_default();
        let mut all = Vec::new();
        let mut group = None;
        for address in AddressList::new(value, None) {
            match address {
                DecodedAddress::Mailbox { name, address } => {
                    group = None;
                    all.push((text(name), text(address)));
                }
                DecodedAddress::Group(name) => group = Some(one_line(&name)),
                DecodedAddress::GroupEnd => all.extend(group.take().map(|name| (name, String::new()))),
            }
        }
        all.retain(|(name, address)| !name.is_empty() || !address.is_empty());
        all
    }

    fn taken_apart(value: &[u8]) -> (String, Vec<(String, String)>) {
        let mut text = AddressText::default();
        text.add(AddressList::new(value, None));
        let found = split_addresses(&text.text);
        (text.text, found)
    }

    #[test]
    fn names_of_the_index_are_those_of_the_header() {
        for value in [
            "Ann <ann@x>, \"Doe, A\" <d@x>, root, \"root\", John Doe, e@[IPv6:::1]",
            "Masao Tester (Example) <m@x>, (Dr.) Ann <a@x> (work), b@x (B) (C), (nobody)",
            "\"B example  <b@x>",
            "\"a \\\"b\\\" c\\\\\" <d@x>, \"a \\\" b\"@x, <\"a b\"@x>",
            "Team: Ann <a@x>, b@x;, \"A: B\":;, undisclosed-recipients:;",
            "=?utf-8?q?J=C3=BC?= <j@x>, =?utf-8?q?=22=2C=3C=28?= <k@x>, =?utf-8?q?a=40b?=, a@x<>",
        ] {
            assert_eq!(taken_apart(value.as_bytes()).1, read(value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn addresses_are_one_text_that_shows_each_name() {
        let check = |value: &str, expected: &str| assert_eq!(taken_apart(value.as_bytes()).0, expected, "{value}");
        check("Masao Tester (Example) <masao@x>", "\"Masao Tester (Example)\" <masao@x>");
        check("\"B example  <b@x>", "B example <b@x>");
        check("\"a \\\"b\\\" c\" <d@x>", "\"a \\\"b\\\" c\" <d@x>");
        check("J. R. Doe <j@x>, eve@[IPv6:2001:db8::1]", "J. R. Doe <j@x>, eve@[IPv6:2001:db8::1]");
        check("\"odd \\\" name\"@x.example", "\"odd \\\" name\"@x.example");
        check("\"root\", root, <a\"b@x>", "\"root\", root, ab@x");
    }
}
