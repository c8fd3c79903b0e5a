//! Hold and expiry times of a message: HOLDFOR and HOLDUNTIL (RFC 4865).

use std::fmt;

/// HOLDFOR= or HOLDUNTIL= (RFC 4865 section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Hold for this many seconds from now.
    For(u32),
    /// Hold until this time, in seconds since 1970.
    Until(i64),
}

/// Writes the parameter.
impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::For(secs) => write!(f, "HOLDFOR={secs}"),
            Self::Until(secs) => write!(f, "HOLDUNTIL={}", date_time(*secs)),
        }
    }
}

/// Parses one to nine digits.
pub(super) fn parse_secs(text: &str) -> Option<u32> {
    let fits = (1..=9).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    fits.then(|| text.parse().ok()).flatten()
}

/// Parses a date and time of RFC 3339 as seconds since 1970, and drops fractions of a second. Examples:
/// `2027-01-02T03:04:05Z`, `2027-01-02T03:04:05+01:00`.
pub fn parse_date_time(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
    };
    let is = |at: usize, octets: &[u8]| bytes.get(at).is_some_and(|b| octets.contains(b));
    let marks = is(4, b"-") && is(7, b"-") && is(10, b"Tt") && is(13, b":") && is(16, b":");
    let year = number(0, 4)?;
    let month = number(5, 7)?;
    let day = number(8, 10)?;
    let hour = number(11, 13)?;
    let minute = number(14, 16)?;
    let second = number(17, 19)?;
    let days_of = [31, 28 + i64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let days = *days_of.get(usize::try_from(month - 1).ok()?)?;
    // A leap second is the first of the next minute.
    if !marks || !(1..=days).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut zone = text.get(19..)?;
    if let Some(fraction) = zone.strip_prefix('.') {
        zone = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
        if zone.len() == fraction.len() {
            return None;
        }
    }
    let offset = match zone.as_bytes() {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] if [h1, h2, m1, m2].iter().all(|b| b.is_ascii_digit()) => {
            let two = |a: &u8, b: &u8| i64::from(a - b'0') * 10 + i64::from(b - b'0');
            let hours = two(h1, h2);
            let minutes = two(m1, m2);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 3600 + minutes * 60) * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return None,
    };
    Some(days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset)
}

/// Writes the date and time of RFC 3339 in UTC; years from 0 to 9999.
pub fn date_time(unix_secs: i64) -> impl fmt::Display {
    struct Shown(i64);
    impl fmt::Display for Shown {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let days = self.0.div_euclid(86_400);
            let secs = self.0.rem_euclid(86_400);
            let (year, month, day) = civil_from_days(days);
            let hour = secs / 3600;
            let minute = secs / 60 % 60;
            let second = secs % 60;
            write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
        }
    }
    Shown(unix_secs.clamp(YEAR_0, YEAR_9999))
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Days since 1970 in the Gregorian calendar: years begin in March here, so that the leap day is the last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

const YEAR_0: i64 = -62_167_219_200;
const YEAR_9999: i64 = 253_402_300_799;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dates_and_times() {
        for (text, secs) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00+01:00", 951_822_000),
            ("1994-11-06t08:49:37z", 784_111_777),
            ("1994-11-06T08:49:37.123-00:30", 784_113_577),
            ("2106-02-07T06:28:15Z", i64::from(u32::MAX)),
            ("0000-01-01T00:00:00Z", YEAR_0),
            ("9999-12-31T23:59:59Z", YEAR_9999),
        ] {
            assert_eq!(parse_date_time(text), Some(secs), "{text}");
        }
        for text in [
            "",
            "2027-01-02",
            "2027-01-02T03:04:05",
            "2027-13-02T03:04:05Z",
            "2027-02-29T03:04:05Z",
            "1900-02-29T00:00:00Z",
            "2027-00-02T03:04:05Z",
            "2027-01-00T03:04:05Z",
            "2027-01-02T24:04:05Z",
            "2027-01-02T03:60:05Z",
            "2027-01-02T03:04:61Z",
            "2027-01-02T03:04:05.Z",
            "2027-01-02T03:04:05+1:00",
            "2027-01-02T03:04:05+24:00",
            "2027-01-02T03:04:05Zx",
            "+027-01-02T03:04:05Z",
            "2027/01/02T03:04:05Z",
            "2027-01-02T03:04:05é",
            "20é7-01-02T03:04:05Z",
        ] {
            assert_eq!(parse_date_time(text), None, "{text}");
        }
    }

    #[test]
    fn seconds_have_one_to_nine_digits() {
        assert_eq!((parse_secs("0"), parse_secs("999999999")), (Some(0), Some(999_999_999)));
        assert!(["", "1000000000", "-1", "+1", "1s"].iter().all(|text| parse_secs(text).is_none()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(secs in YEAR_0..=YEAR_9999) {
            prop_assert_eq!(parse_date_time(&date_time(secs).to_string()), Some(secs));
        }

        #[test]
        fn nothing_panics(text in "\\PC{0,30}|[0-9TZ:+.-]{0,30}") {
            let _ = parse_date_time(&text);
        }
    }
}
