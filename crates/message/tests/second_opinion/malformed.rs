//! Mail that violates its RFC, where readers may differ. For the fuzz target, which makes more of it than anybody can
//! judge.

use posthaste_message::mime::{Header, Part};

use super::readers::Case;

/// True if the subject of `case` is damaged. Each test is strict, so that nothing obsolete or odd counts as well
/// formed.
pub fn is_malformed(case: &Case<'_>) -> bool {
    let values = |names: &[&str]| -> Vec<Vec<u8>> {
        let header = Header::new(case.bytes);
        let fields = header.fields().filter(|field| names.iter().any(|name| field.is(name)));
        fields.map(|field| unfolded(field.value)).collect()
    };
    let any = |names: &[&str], is_good: fn(&str) -> bool| {
        values(names).iter().any(|value| !std::str::from_utf8(value).is_ok_and(|text| text.is_ascii() && is_good(text)))
    };
    // mail-parser reads past the end of a date's line if the date is invalid: the following octets are lost, or count
    // though they follow the header.
    let is_bad_header = || !has_plain_header(case.bytes) || any(&["Date"], is_date);
    match case.what {
        "subject" | "date" => is_bad_header(),
        "message_id" => is_bad_header() || any(&["Message-ID"], is_message_id),
        "addresses" => is_bad_header() || any(&["From", "To", "Cc"], is_address_list),
        _ => !has_plain_header(case.bytes) || has_control(case.bytes) || case.any_part(|part| !is_plain_part(part)),
    }
}

fn unfolded(value: &[u8]) -> Vec<u8> {
    value.iter().copied().filter(|byte| !b"\r\n".contains(byte)).collect()
}

/// True for octets that no line of text holds: controls except tabs and line ends, and lone CR.
fn has_control(bytes: &[u8]) -> bool {
    let next = bytes.iter().skip(1).chain([&b'\n']);
    bytes.iter().zip(next).any(|(byte, next)| match byte {
        b'\r' => *next != b'\n',
        b'\t' | b'\n' => false,
        byte => byte.is_ascii_control(),
    })
}

/// A header of fields alone, each with a name of letters, digits and `-`, followed by an empty line, without control
/// characters.
fn has_plain_header(bytes: &[u8]) -> bool {
    let mut header = Vec::new();
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    for line in lines.by_ref() {
        let text = line.strip_suffix(b"\n").map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        match text {
            None => return false,
            Some(b"") => return !header.is_empty() && !has_control(&header),
            Some([b' ' | b'\t', rest @ ..]) if header.is_empty() || rest.trim_ascii().is_empty() => return false,
            Some([b' ' | b'\t', ..]) => {}
            Some(field) => {
                let name = field.split(|byte| *byte == b':').next().unwrap_or_default();
                let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
                if name.is_empty() || name.len() == field.len() || !name.iter().all(is_name) {
                    return false;
                }
            }
        }
        header.extend_from_slice(line);
    }
    false
}

fn is_atom(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(letter))
}

fn is_dot_atom(text: &str) -> bool {
    text.split('.').all(is_atom)
}

/// `local@domain` without quotes, comments and blanks.
fn is_address(text: &str) -> bool {
    let Some((local, domain)) = text.split_once('@') else { return false };
    let is_label =
        |label: &str| !label.is_empty() && label.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-');
    is_dot_atom(local) && domain.split('.').all(is_label)
}

/// Addresses, alone or in angle brackets after atoms or one quoted text, with commas between.
fn is_address_list(text: &str) -> bool {
    text.split(',').map(str::trim).all(|one| match one.strip_suffix('>').and_then(|one| one.split_once('<')) {
        None => is_address(one),
        Some((name, address)) => {
            let name = name.trim();
            let quoted = name.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
            let is_quoted = quoted.is_some_and(|text| !text.contains(['"', '\\']));
            is_address(address)
                && (name.is_empty() || is_quoted || name.split(' ').filter(|word| !word.is_empty()).all(is_atom))
        }
    })
}

/// `<left@right>` alone.
fn is_message_id(text: &str) -> bool {
    let id = text.trim().strip_prefix('<').and_then(|text| text.strip_suffix('>'));
    id.is_some_and(|id| id.split_once('@').is_some_and(|(left, right)| is_dot_atom(left) && is_dot_atom(right)))
}

/// `Tue, 4 Mar 2025 10:13:00 +0100`, with or without the day of the week.
fn is_date(text: &str) -> bool {
    const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let text = text.trim();
    let text = text.split_once(", ").map_or(text, |(day, rest)| if DAYS.contains(&day) { rest } else { "" });
    let words: Vec<&str> = text.split(' ').collect();
    let [day, month, year, time, zone] = words[..] else { return false };
    let number = |text: &str, digits: usize| {
        let is_number = text.len() == digits && text.chars().all(|letter| letter.is_ascii_digit());
        is_number.then(|| text.parse::<u32>().unwrap_or(u32::MAX))
    };
    let times: Vec<_> = time.split(':').map(|part| number(part, 2)).collect();
    let sign = zone.strip_prefix(['+', '-']).and_then(|zone| number(zone, 4));
    // Not every month has a 29th or later days.
    number(day, day.len().min(2)).is_some_and(|day| (1..=28).contains(&day))
        && MONTHS.contains(&month)
        && number(year, 4).is_some_and(|year| (1970..2100).contains(&year))
        && matches!(times[..], [Some(0..=23), Some(0..=59), Some(0..=59)])
        && sign.is_some_and(|zone| zone <= 1400 && zone % 100 < 60)
}

/// True for a part with one type, made of tokens, and one known encoding.
fn is_plain_part(part: &Part<'_, '_>) -> bool {
    let header = part.header();
    let values = |name: &str| -> Vec<String> {
        let fields = header.fields().filter(|field| field.is(name));
        fields.map(|field| String::from_utf8_lossy(&unfolded(field.value)).trim().to_ascii_lowercase()).collect()
    };
    let (types, encodings) = (values("Content-Type"), values("Content-Transfer-Encoding"));
    let is_token = |text: &str| {
        !text.is_empty() && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-.+_".contains(letter))
    };
    let is_parameter = |text: &str| {
        text.split_once('=').is_some_and(|(name, value)| {
            let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            is_token(name) && (is_token(value) || quoted.is_some_and(|value| !value.contains(['"', '\\', ';'])))
        })
    };
    let is_type = |text: &str| {
        let mut parts = text.split(';').map(str::trim);
        let names = parts.next().and_then(|name| name.split_once('/'));
        names.is_some_and(|(left, right)| is_token(left) && is_token(right)) && parts.all(is_parameter)
    };
    types.len() < 2
        && encodings.len() < 2
        && types.iter().all(|value| is_type(value))
        && encodings
            .iter()
            .all(|value| ["7bit", "8bit", "binary", "base64", "quoted-printable"].contains(&value.as_str()))
}
