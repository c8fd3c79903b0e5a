//! Dates (RFC 5322 section 3.3, obsolete forms of section 4.3), and other forms that mail programs write.

use super::params::comment_len;
use crate::DateTime;

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
/// Octets of a value that are parsed.
const DATE_BYTES_MAX: usize = 300;

impl DateTime {
    /// Parses the value of a `Date` field: `Tue, 4 Mar 2025 10:40:00 +0100`, and also `Thursday, April 09, 2003 9:00
    /// AM`, `Fri Mar 10 13:40:00 GMT+0100 2006`, `2003-04-09T09:00:00Z`, `9-Apr-03`.
    ///
    /// Years of two and three digits follow RFC 5322 section 4.3; an unknown zone counts as UTC. `None` without a day,
    /// a month or a year from 1900 on, or if there is no such day.
    ///
    /// ```
    /// use posthaste_message::DateTime;
    /// assert_eq!(DateTime::parse(b"Sun, 6 Nov 1994 08:49:37 GMT"), Some(DateTime::from_unix(784_111_777)));
    /// assert_eq!(DateTime::parse(b"31 Feb 2025"), None);
    /// ```
    pub fn parse(value: &[u8]) -> Option<Self> {
        let value = &value[..value.len().min(DATE_BYTES_MAX)];
        let mut found = Found::default();
        let mut at = 0;
        while let Some(&byte) = value.get(at) {
            if byte == b'(' {
                at += comment_len(&value[at..]).unwrap_or(1);
            } else if is_between(byte) {
                at += 1;
            } else {
                let len =
                    value[at..].iter().position(|&byte| is_between(byte) || byte == b'(').unwrap_or(value.len() - at);
                found.word(std::str::from_utf8(&value[at..at + len]).unwrap_or(""))?;
                at += len;
            }
        }
        found.moment()
    }
}

fn is_between(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, b',' | b')' | b';' | b'"' | 0)
}

#[derive(Default)]
struct Found {
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    /// Hour, minute, second.
    time: Option<(i64, i64, i64)>,
    is_afternoon: Option<bool>,
    /// Seconds east of UTC.
    zone: Option<i64>,
}

impl Found {
    /// Parses a word; `None` if it contradicts the date.
    fn word(&mut self, word: &str) -> Option<()> {
        let first = word.bytes().next()?;
        if word.bytes().all(|byte| byte.is_ascii_digit()) {
            return self.number(word);
        }
        if first.is_ascii_digit() {
            return self.digits_first(word);
        }
        if matches!(first, b'+' | b'-') {
            self.zone = self.zone.or_else(|| offset(word));
        } else if let Some(month) = month(word).filter(|_| self.month.is_none()) {
            self.month = Some(month);
            // `Apr-09-2003`
            if let Some((_, rest)) = word.split_once('-') {
                rest.split('-').try_for_each(|number| self.number(number))?;
            }
        } else if word.eq_ignore_ascii_case("am") || word.eq_ignore_ascii_case("pm") {
            self.is_afternoon = Some(!word.eq_ignore_ascii_case("am"));
        } else if let Some(zone) = zone(word) {
            // `GMT` next to an offset adds nothing.
            self.zone = Some(self.zone.filter(|&known| known != 0).unwrap_or(zone));
        } else if let Some((_, date)) = word.split_once('.').filter(|(day, rest)| is_weekday(day) && !rest.is_empty()) {
            return self.word(date);
        }
        Some(())
    }

    fn number(&mut self, digits: &str) -> Option<()> {
        let number: i64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
        match digits.len() {
            8 if self.day.is_none() && self.month.is_none() => {
                (self.year, self.month, self.day) =
                    (Some(number / 10_000), Some(number / 100 % 100), Some(number % 100));
            }
            1 | 2 if self.day.is_none() => self.day = Some(number),
            // Programs that prefix 19 to the years since 1900 write 19103.
            5 if self.year.is_none() && (19_100..19_200).contains(&number) => self.year = Some(number - 17_100),
            1..=4 if self.year.is_none() => self.year = Some(full_year(number, digits.len())),
            _ => return None,
        }
        Some(())
    }

    /// Parses a time, a date of numbers, or both in ISO 8601.
    fn digits_first(&mut self, word: &str) -> Option<()> {
        if let Some((date, time)) = word.split_once(['T', 't']).filter(|(date, _)| date.contains('-')) {
            self.date(date, '-')?;
            return self.digits_first(time);
        }
        if word.contains(':') {
            return self.clock(word, ':');
        }
        if word.contains('-') {
            return self.date(word, '-');
        }
        if word.contains('/') {
            return self.date(word, '/');
        }
        if word.contains('.') {
            return if self.month.is_some() { self.clock(word, '.') } else { self.date(word, '.') };
        }
        // `9AM`, `4th`, `10h30`.
        let len = word.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = word.split_at(len);
        if rest.eq_ignore_ascii_case("am") || rest.eq_ignore_ascii_case("pm") {
            self.time = Some((number.parse().ok()?, 0, 0));
            return self.word(rest);
        }
        self.number(number)
    }

    fn clock(&mut self, word: &str, between: char) -> Option<()> {
        let is_part_of = |c: char| c.is_ascii_digit() || c == between || c == '.';
        let end = word.find(|c| !is_part_of(c)).unwrap_or(word.len());
        let (time, rest) = word.split_at(end);
        let mut parts = time.split(between);
        let mut next = || match parts.next() {
            // Without fractions of a second.
            Some(part) => part.split('.').next().unwrap_or(part).parse().ok(),
            None => Some(0),
        };
        self.time = Some((next()?, next()?, next()?));
        if rest.is_empty() { Some(()) } else { self.word(rest) }
    }

    /// `9-Apr-03`, `2003-04-09`, `04/09/2003` (month first), `9.4.2003` (day first).
    fn date(&mut self, word: &str, between: char) -> Option<()> {
        let mut parts = word.splitn(3, between);
        let first = parts.next()?;
        let second = parts.next()?;
        let third = parts.next().unwrap_or("");
        if let Some(named) = month(second) {
            self.month = Some(named);
            self.number(first)?;
            return if third.is_empty() { Some(()) } else { self.number(third) };
        }
        let number = |text: &str| text.parse::<i64>().ok().filter(|_| text.len() <= 4);
        let [a, b, c] = [number(first)?, number(second)?, number(third)?];
        (self.year, self.month, self.day) = match between {
            _ if first.len() == 4 => (Some(a), Some(b), Some(c)),
            '/' if a <= 12 => (Some(full_year(c, third.len())), Some(a), Some(b)),
            _ => (Some(full_year(c, third.len())), Some(b), Some(a)),
        };
        Some(())
    }

    fn moment(self) -> Option<DateTime> {
        let year = self.year?;
        let month = self.month?;
        let day = self.day?;
        let (hour, minute, second) = self.time.unwrap_or_default();
        let hour = match self.is_afternoon {
            Some(afternoon) if hour <= 12 => hour % 12 + 12 * i64::from(afternoon),
            _ => hour,
        };
        let is_real = (1900..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day)
            && (0..24).contains(&hour)
            && (0..60).contains(&minute)
            // A leap second (RFC 5322 section 3.3).
            && (0..=60).contains(&second);
        is_real.then(|| {
            let time = hour * 3600 + minute * 60 + second;
            DateTime::from_unix(days_from_civil(year, month, day) * 86_400 + time - self.zone.unwrap_or(0))
        })
    }
}

fn full_year(number: i64, digits: usize) -> i64 {
    match number {
        0..50 if digits <= 2 => number + 2000,
        _ if digits <= 3 => number + 1900,
        year => year,
    }
}

fn month(word: &str) -> Option<i64> {
    let start = word.get(..3)?;
    let at = MONTHS.iter().position(|month| start.eq_ignore_ascii_case(month))?;
    Some(at as i64 + 1)
}

fn is_weekday(word: &str) -> bool {
    let days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    word.get(..3).is_some_and(|start| days.iter().any(|day| start.eq_ignore_ascii_case(day)))
}

/// `+0100`, `-5`, `+01:00`: seconds east of UTC.
fn offset(word: &str) -> Option<i64> {
    let (sign, rest) = match word.strip_prefix('+') {
        Some(rest) => (1, rest),
        None => (-1, word.strip_prefix('-')?),
    };
    let (hours, minutes): (i64, i64) = match rest.split_once(':') {
        Some((hours, minutes)) => (hours.parse().ok()?, minutes.parse().ok()?),
        None => {
            let number: i64 = rest.parse().ok().filter(|_| rest.bytes().all(|byte| byte.is_ascii_digit()))?;
            if rest.len() <= 2 { (number, 0) } else { (number / 100, number % 100) }
        }
    };
    ((0..=24).contains(&hours) && (0..60).contains(&minutes)).then(|| sign * (hours * 3600 + minutes * 60))
}

/// A zone by its name (RFC 5322 section 4.3, and names used in Europe and Asia). Military letters other than `Z` count
/// as unknown, as there.
fn zone(word: &str) -> Option<i64> {
    let split = word.find(['+', '-']).unwrap_or(word.len());
    let (name, rest) = word.split_at(split);
    if name.len() > 5 {
        return None;
    }
    let half_hours = match name.to_ascii_lowercase().as_str() {
        "gmt" | "utc" | "ut" | "z" | "wet" => 0,
        "met" | "cet" | "mez" | "bst" | "west" | "wat" => 2,
        "cest" | "mest" | "mesz" | "eet" | "sast" | "cat" => 4,
        "eest" | "msk" | "eat" => 6,
        "msd" => 8,
        "ist" => 11,
        "jst" | "kst" => 18,
        "aest" => 20,
        "aedt" => 22,
        "nzst" => 24,
        "nzdt" => 26,
        "hkt" | "sgt" | "awst" => 16,
        "ast" | "edt" => -8,
        "adt" | "brt" => -6,
        "est" | "cdt" => -10,
        "cst" | "mdt" => -12,
        "mst" | "pdt" => -14,
        "pst" | "akdt" => -16,
        "akst" => -18,
        "hst" => -20,
        _ => return None,
    };
    if rest.is_empty() { Some(half_hours * 1800) } else { Some(offset(rest).unwrap_or(half_hours * 1800)) }
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to a day of the Gregorian calendar.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    // Years are counted from 1 March, so that the leap day is the last of its year; an era is 400 years.
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `expected` as `DateTime` shows it, without weekday and zone.
    fn check(text: &str, expected: Option<&str>) {
        let found = DateTime::parse(text.as_bytes()).map(|date| date.to_string());
        let found = found.as_deref().and_then(|date| date.get(5..date.len() - 6));
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn dates_of_the_standard_are_read() {
        check(" Tue, 04 Mar 2025 10:40:00 +0100", Some("04 Mar 2025 09:40:00"));
        check("4 Mar 2025 10:40 -0530 (a comment (nested))", Some("04 Mar 2025 16:10:00"));
        check("Tue, 4 Mar 25 10:30 EST (comment)", Some("04 Mar 2025 15:30:00"));
        check("Wed, 11 Feb 98 11:51 CST", Some("11 Feb 1998 17:51:00"));
        check("29 Feb 2024 23:59:60 Z", Some("01 Mar 2024 00:00:00"));
        check("Sat, 1 Jan 00 (a comment)", Some("01 Jan 2000 00:00:00"));
        check("1 Jan 103 00:00:00 GMT", Some("01 Jan 2003 00:00:00"));
        check("Mon,\r\n 4 Mar\r\n\t2025 10:40:00 UT", Some("04 Mar 2025 10:40:00"));
        check("4 Mar 2025 10:40:00 A", Some("04 Mar 2025 10:40:00"));
    }

    #[test]
    fn dates_in_other_forms_are_read() {
        check("Thursday, April 09, 2003 9:00 AM", Some("09 Apr 2003 09:00:00"));
        check("Thursday, April 09, 2003 12:30 PM", Some("09 Apr 2003 12:30:00"));
        check("Thursday, April 09, 2003 12:30:00AM", Some("09 Apr 2003 00:30:00"));
        check("Fri Mar 10 2006 13:40:00 GMT+0100", Some("10 Mar 2006 12:40:00"));
        check("Fri Mar 10 13:40:00 2006", Some("10 Mar 2006 13:40:00"));
        check("Fri Mar 10 13:40:00 CET 2006", Some("10 Mar 2006 12:40:00"));
        check("2003-04-09T09:00:00Z", Some("09 Apr 2003 09:00:00"));
        check("2003-04-09 09:00:00.123 +02:00", Some("09 Apr 2003 07:00:00"));
        check("2003-04-09T09:00:00+02:00", Some("09 Apr 2003 07:00:00"));
        check("9-Apr-03 10:00", Some("09 Apr 2003 10:00:00"));
        check("Wed, 09-Apr-2003 10:00:00 GMT", Some("09 Apr 2003 10:00:00"));
        check("04/09/2003 9:00 PM", Some("09 Apr 2003 21:00:00"));
        check("13/04/2003", Some("13 Apr 2003 00:00:00"));
        check("9.4.2003 10.30", Some("09 Apr 2003 10:30:00"));
        check("9 Apr 2003 10.30.15", Some("09 Apr 2003 10:30:15"));
        check("9 Apr 19103 10:00", Some("09 Apr 2003 10:00:00"));
        check("Tue, 4 Mar 2025 10:40:00 +0100 GMT", Some("04 Mar 2025 09:40:00"));
        check("Tue,4 Mar 2025 10:40:00+0100", Some("04 Mar 2025 09:40:00"));
        check("1 Jan 2003 +9999", Some("01 Jan 2003 00:00:00"));
        check("1 Jan 2003 10:00 Nowhere", Some("01 Jan 2003 10:00:00"));
    }

    #[test]
    fn what_is_no_day_is_no_date() {
        for text in [
            "",
            "tomorrow",
            "tomorrow 99999999999999999999",
            "4 Mar 2025 9223372036854775807:00:00",
            "4 Mar 2025 00:00:9223372036854775807",
            "4 Mar 2025 9223372036854775807AM",
            "99999 Mar 2025 +9223372036854775807:00",
            "31 Feb 2003",
            "1 Feb 3 4",
            "1 Jan 2003 25:00",
            "1 Jan 0000",
            "29 Feb 2023",
            "Jan 2003",
            "1 Jan",
            "1 Jan 2003 10:61",
            "Sat, 31 Feb 2025 25:61:61 +9999",
            "\u{e9}",
            "-",
            "+",
            "::",
            "1:",
            "2003-",
            "1/2",
        ] {
            check(text, None);
        }
    }

    #[test]
    fn every_day_that_is_shown_is_read_again() {
        for days in (-25_567i64..2_932_896).step_by(17) {
            let date = DateTime::from_unix(days * 86_400 + days.rem_euclid(86_400));
            assert_eq!(DateTime::parse(date.to_string().as_bytes()), Some(date), "{date}");
        }
    }
}
