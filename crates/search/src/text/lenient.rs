//! What a strict reader gives up on and a person would read all the same: dates in other forms, base64 with dirt in it.

use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// Seconds since 1970 of a date whose month is a name: `Thursday, April 09, 2003 9:00 AM`, `Wed, 11 Feb 98 11:51 CST`,
/// `Fri Mar 10 2006 13:40:00 GMT+0100`. Years of two digits as in RFC 5322 section 4.3; a zone that is not understood counts as UTC.
pub(super) fn date(text: &str) -> Option<i64> {
    let mut found = Found::default();
    for word in text.split([' ', ',', '\t', '(', ')', '\r', '\n']).filter(|word| !word.is_empty()) {
        found.note(&word.to_ascii_lowercase())?;
    }
    let time = found.time.unwrap_or_default();
    let hour = match found.afternoon {
        Some(afternoon) => time.0 % 12 + 12 * i8::from(afternoon),
        None => time.0,
    };
    let at = DateTime::new(found.year?, found.month?, found.day?, hour, time.1, time.2, 0).ok()?;
    let offset = Offset::from_seconds(found.zone_seconds).ok()?;
    Some(at.to_zoned(TimeZone::fixed(offset)).ok()?.timestamp().as_second())
}

#[derive(Default)]
struct Found {
    year: Option<i16>,
    month: Option<i8>,
    day: Option<i8>,
    time: Option<(i8, i8, i8)>,
    afternoon: Option<bool>,
    zone_seconds: i32,
}

impl Found {
    /// `None` if the word makes nonsense of the date.
    fn note(&mut self, word: &str) -> Option<()> {
        if let Some(number) = word.parse::<i16>().ok().filter(|_| word.bytes().all(|b| b.is_ascii_digit())) {
            return self.number(number, word.len());
        }
        if word.contains(':') {
            let mut parts = word.split(':').map(|part| part.parse::<i8>().ok());
            let mut next = || parts.next().unwrap_or(Some(0));
            self.time = Some((next()?, next()?, next()?));
        } else if let Some(month) = MONTHS.iter().position(|month| word.starts_with(month)) {
            self.month = i8::try_from(month + 1).ok();
        } else if let "am" | "pm" = word {
            self.afternoon = Some(word == "pm");
        } else if let Some(zone) = zone(word.trim_start_matches("gmt").trim_start_matches("utc")) {
            self.zone_seconds = zone;
        }
        Some(())
    }

    fn number(&mut self, number: i16, digits: usize) -> Option<()> {
        if digits == 4 || self.day.is_some() {
            let year = match number {
                0..50 if digits <= 2 => number + 2000,
                50..1000 if digits <= 3 => number + 1900,
                year => year,
            };
            self.year.is_none().then_some(())?;
            self.year = Some(year);
        } else {
            self.day = i8::try_from(number).ok();
        }
        Some(())
    }
}

/// Seconds east of UTC: `+0100`, or a name of RFC 5322 section 4.3.
fn zone(word: &str) -> Option<i32> {
    let hours = match word {
        "edt" => -4,
        "est" | "cdt" => -5,
        "cst" | "mdt" => -6,
        "mst" | "pdt" => -7,
        "pst" => -8,
        _ => {
            let (sign, digits) = match word.strip_prefix('+') {
                Some(digits) => (1, digits),
                None => (-1, word.strip_prefix('-')?),
            };
            let number: i32 = digits.parse().ok().filter(|_| digits.len() == 4)?;
            return Some(sign * (number / 100 * 3600 + number % 100 * 60));
        }
    };
    Some(hours * 3600)
}

/// Decodes base64, passing over what is not of its alphabet (RFC 2045 section 6.8). Padding ends a quantum, not the text.
pub(super) fn base64(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for &byte in text {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'=' => {
                (bits, count) = (0, 0);
                continue;
            }
            _ => continue,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_in_other_forms_are_read() {
        let check = |text: &str, expected: Option<&str>| {
            let expected = expected.map(|text| text.parse::<jiff::Timestamp>().unwrap().as_second());
            assert_eq!(date(text), expected, "{text}");
        };
        check("Thursday, April 09, 2003 9:00 AM", Some("2003-04-09T09:00:00Z"));
        check("Thursday, April 09, 2003 12:30 PM", Some("2003-04-09T12:30:00Z"));
        check("Wed, 11 Feb 98 11:51 CST", Some("1998-02-11T17:51:00Z"));
        check("Fri Mar 10 2006 13:40:00 GMT+0100", Some("2006-03-10T12:40:00Z"));
        check("Sat, 1 Jan 00 (a comment)", Some("2000-01-01T00:00:00Z"));
        check("1 Feb 3 4", None);
        check("31 Feb 2003", None);
        check("tomorrow 99999999999999999999", None);
        check("", None);
        check("1 Jan 2003 25:00", None);
        check("1 Jan 2003 +9999", None);
    }

    #[test]
    fn dirt_in_base64_is_passed_over() {
        assert_eq!(base64(b"SGVs!bG8g\r\n  d29y bGQ=\r\nIQ"), b"Hello world!");
        assert_eq!(base64(b"==="), b"");
        assert_eq!(base64(b"S"), b"");
    }
}
