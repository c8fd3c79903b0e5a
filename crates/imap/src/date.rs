//! Dates of the protocol (RFC 3501 section 9): `date` in SEARCH, `date-time` in APPEND and INTERNALDATE.

use crate::command::ImapCommandError;
use crate::lex::Cursor;

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const SECS_PER_DAY: i64 = 86_400;
/// INTERNALDATE has 32 bits (decision 6): values outside are clamped.
const LAST_SECOND: i64 = u32::MAX as i64;

/// Days since 1970-01-01.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(pub i64);

impl Day {
    /// The UTC day of a time in seconds since 1970.
    pub fn of_unix(secs: i64) -> Self {
        Self(secs.div_euclid(SECS_PER_DAY))
    }

    /// `None` if there is no such day.
    pub fn from_civil(year: i64, month: u32, day: u32) -> Option<Self> {
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days = match month {
            2 if is_leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            1..=12 => 31,
            _ => return None,
        };
        if !(1..=days).contains(&day) {
            return None;
        }
        // Years begin in March, so that the leap day is the last one; an era is 400 years.
        let year = if month <= 2 { year - 1 } else { year };
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let month = i64::from(month + 9) % 12;
        let day_of_year = (153 * month + 2) / 5 + i64::from(day) - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        Some(Self(era * 146_097 + day_of_era - 719_468))
    }

    /// Year, month, day.
    fn civil(self) -> (i64, u32, u32) {
        let days = self.0 + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        (era * 400 + year_of_era + i64::from(month <= 2), month as u32, day as u32)
    }
}

/// The value of INTERNALDATE, always in UTC: `"06-Nov-1994 08:49:37 +0000"`.
pub(crate) fn write_internal_date(out: &mut Vec<u8>, unix_secs: i64) {
    let secs = unix_secs.clamp(0, LAST_SECOND);
    let (year, month, day) = Day::of_unix(secs).civil();
    let second = secs.rem_euclid(SECS_PER_DAY);
    let hour = second / 3600;
    let minute = second / 60 % 60;
    let second = second % 60;
    let month = MONTHS[month as usize - 1];
    let text = format!("\"{day:02}-{month}-{year:04} {hour:02}:{minute:02}:{second:02} +0000\"");
    out.extend_from_slice(text.as_bytes());
}

/// `date`: `1-Feb-1994`, quoted or not.
pub(crate) fn date(cursor: &mut Cursor<'_>) -> Result<Day, ImapCommandError> {
    let quoted = cursor.take(b'"');
    let text = cursor.run(|octet| octet.is_ascii_alphanumeric() || octet == b'-');
    let day = civil(text).ok_or(ImapCommandError::Bad("That is not a date"))?;
    if quoted {
        cursor.expect(b'"', "A date is not closed")?;
    }
    Ok(day)
}

/// `date-time`: `" 1-Feb-1994 21:52:25 -0800"`, in seconds since 1970.
pub(crate) fn date_time(cursor: &mut Cursor<'_>) -> Result<i64, ImapCommandError> {
    const WRONG: ImapCommandError = ImapCommandError::Bad("That is not a date and time");
    cursor.expect(b'"', "A date is missing")?;
    let text = cursor.run(|octet| octet != b'"' && (b' '..=b'~').contains(&octet));
    cursor.expect(b'"', "A date is not closed")?;
    let text = std::str::from_utf8(text).map_err(|_| WRONG)?;
    if text.len() != "dd-Mon-yyyy hh:mm:ss +zzzz".len() || !text.is_ascii() {
        return Err(WRONG);
    }
    let day = civil(text[..11].trim_start_matches(' ').as_bytes()).ok_or(WRONG)?;
    let number = |at: usize, most: i64| {
        let number: i64 = text[at..at + 2].parse().ok().filter(|_| !text[at..].starts_with('+'))?;
        (0..=most).contains(&number).then_some(number)
    };
    let punctuation = [(11, b' '), (14, b':'), (17, b':'), (20, b' ')];
    let is_right = punctuation.iter().all(|&(at, octet)| text.as_bytes()[at] == octet);
    let sign = match text.as_bytes()[21] {
        b'+' => 1,
        b'-' => -1,
        _ => return Err(WRONG),
    };
    let secs = || {
        let time = number(12, 23)? * 3600 + number(15, 59)? * 60 + number(18, 60)?;
        let zone = number(22, 99)? * 3600 + number(24, 59)? * 60;
        Some(day.0 * SECS_PER_DAY + time - sign * zone)
    };
    secs().filter(|_| is_right).ok_or(WRONG)
}

/// `d-Mon-yyyy`.
fn civil(text: &[u8]) -> Option<Day> {
    let text = std::str::from_utf8(text).ok()?;
    let mut parts = text.split('-');
    let day = parts.next()?;
    let month = parts.next()?;
    let year = parts.next()?;
    let digits = |text: &str| text.bytes().all(|octet| octet.is_ascii_digit());
    let is_right = parts.next().is_none() && digits(day) && (1..=2).contains(&day.len());
    let month = MONTHS.iter().position(|name| name.eq_ignore_ascii_case(month))?;
    let year = Some(year).filter(|year| year.len() == 4 && digits(year))?;
    Day::from_civil(year.parse().ok()?, month as u32 + 1, day.parse().ok()?).filter(|_| is_right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_days_of_the_calendar() {
        let read = |text: &str| date(&mut Cursor::new(text.as_bytes())).ok().map(|day| day.0);
        assert_eq!(read("1-Jan-1970"), Some(0));
        assert_eq!(read("\"01-feb-1994\""), Some(8797));
        assert_eq!(read("29-Feb-2000"), Some(11_016));
        for wrong in
            ["29-Feb-1900", "31-Apr-2000", "0-Jan-2000", "1-Foo-2000", "1-Jan-20", "001-Jan-2000", "\"1-Jan-2000"]
        {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        for days in (-800_000..800_000).step_by(991) {
            let (year, month, day) = Day(days).civil();
            assert_eq!(Day::from_civil(year, month, day), Some(Day(days)));
        }
    }

    #[test]
    fn times_are_read_with_their_zone() {
        let read = |text: &str| date_time(&mut Cursor::new(text.as_bytes())).ok();
        assert_eq!(read("\" 6-Nov-1994 08:49:37 +0000\""), Some(784_111_777));
        assert_eq!(read("\"06-Nov-1994 00:49:37 -0800\""), Some(784_111_777));
        for wrong in [
            "\"6-Nov-1994 08:49:37 +0000\"",
            "\"06-Nov-1994 24:49:37 +0000\"",
            "\"06-Nov-1994 08:49:37\"",
            "06",
            "\"06-Nov-1994 +8:49:37 +0000\"",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn internal_dates_are_shown_in_utc() {
        let shown = |secs| {
            let mut out = Vec::new();
            write_internal_date(&mut out, secs);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(shown(784_111_777), "\"06-Nov-1994 08:49:37 +0000\"");
        assert_eq!(shown(-5), "\"01-Jan-1970 00:00:00 +0000\"");
        assert_eq!(shown(i64::MAX), "\"07-Feb-2106 06:28:15 +0000\"");
    }
}
