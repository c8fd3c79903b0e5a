//! Dates and times as people write them. Each stands for a span, from its first second to before its last.

use std::ops::Range;

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Span, ToSpan, Zoned};

/// Parses a point or span of time in the time zone of `now`. `None` if it is not a date.
///
/// - Absolute: `2024`, `2024-05`, `2024-05-03`, `20240503`, with `T14`, `T14:30`, `T14:30:05` or a time after a blank.
/// - Seconds since 1970: `@seconds`.
/// - Named: `now`, `today`, `yesterday`, weekdays (the last one before today), `this week`, `last month` and the like.
/// - Relative, to the second: `3d`, `2weeks`, `5 months ago`. Units are `s M h d w m y` as in mu, or written out.
pub(super) fn stretch(text: &str, now: &Zoned) -> Option<Range<i64>> {
    let text = text.trim().replace('_', " ");
    if let Some(seconds) = text.strip_prefix('@') {
        let at: i64 = seconds.parse().ok()?;
        return Some(at..at.checked_add(1)?);
    }
    named(&text.to_ascii_lowercase(), now).or_else(|| relative(&text, now)).or_else(|| absolute(&text, now.time_zone()))
}

fn named(text: &str, now: &Zoned) -> Option<Range<i64>> {
    let today = now.date();
    let zone = now.time_zone();
    let from =
        |start: Date, length: Span| Some(midnight(start, zone)?..midnight(start.checked_add(length).ok()?, zone)?);
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    match words.as_slice() {
        ["now"] => Some(now.timestamp().as_second()..now.timestamp().as_second() + 1),
        ["today"] => from(today, 1.day()),
        ["yesterday"] => from(today.yesterday().ok()?, 1.day()),
        [which @ ("this" | "last"), unit] => {
            let back = i64::from(*which == "last");
            let monday = today.checked_sub(i64::from(today.weekday().to_monday_zero_offset()).days()).ok()?;
            match *unit {
                "week" => from(monday.checked_sub(back.weeks()).ok()?, 1.week()),
                "month" => from(today.first_of_month().checked_sub(back.months()).ok()?, 1.month()),
                "year" => from(today.first_of_year().checked_sub(back.years()).ok()?, 1.year()),
                _ => None,
            }
        }
        [day] => {
            let names = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
            let offset = names.iter().position(|name| day == name || *day == &name[..3])?;
            let ago = (i64::from(today.weekday().to_monday_zero_offset()) - offset as i64 - 1).rem_euclid(7) + 1;
            from(today.checked_sub(ago.days()).ok()?, 1.day())
        }
        _ => None,
    }
}

fn relative(text: &str, now: &Zoned) -> Option<Range<i64>> {
    let text = text.strip_suffix(" ago").unwrap_or(text).trim();
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let count: i64 = text[..digits].parse().ok()?;
    let span = match text[digits..].trim() {
        "s" | "second" | "seconds" | "sec" => Span::new().try_seconds(count),
        "M" | "minute" | "minutes" | "min" => Span::new().try_minutes(count),
        "h" | "H" | "hour" | "hours" => Span::new().try_hours(count),
        "d" | "D" | "day" | "days" => Span::new().try_days(count),
        "w" | "W" | "week" | "weeks" => Span::new().try_weeks(count),
        "m" | "month" | "months" => Span::new().try_months(count),
        "y" | "Y" | "year" | "years" => Span::new().try_years(count),
        _ => return None,
    };
    let at = now.checked_sub(span.ok()?).ok()?.timestamp().as_second();
    Some(at..at + 1)
}

fn absolute(text: &str, zone: &TimeZone) -> Option<Range<i64>> {
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, Some(time.trim())),
        None => (text, None),
    };
    let (date, unit) = date_of(date)?;
    let Some(time) = time else {
        return Some(midnight(date, zone)?..midnight(date.checked_add(unit).ok()?, zone)?);
    };
    // A time belongs to a day.
    if unit.get_days() != 1 {
        return None;
    }
    let parts: Vec<i8> = time.split(':').map(two_digits).collect::<Option<_>>()?;
    let (time, length) = match parts[..] {
        [hour] => (Time::new(hour, 0, 0, 0), 1.hour()),
        [hour, minute] => (Time::new(hour, minute, 0, 0), 1.minute()),
        [hour, minute, second] => (Time::new(hour, minute, second, 0), 1.second()),
        _ => return None,
    };
    let start = date.to_datetime(time.ok()?).to_zoned(zone.clone()).ok()?;
    let end = start.checked_add(length).ok()?;
    Some(start.timestamp().as_second()..end.timestamp().as_second())
}

fn two_digits(text: &str) -> Option<i8> {
    (text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// A date and its length: a year, a month or a day.
fn date_of(text: &str) -> Option<(Date, Span)> {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let shape_fits = match text.len() {
        4 | 6 | 8 if digits.len() == text.len() => true,
        7 | 10 => text
            .char_indices()
            .all(|(at, c)| matches!(at, 4 | 7) == (c == '-' || c == '/') && (c.is_ascii_digit() || at >= 4)),
        _ => false,
    };
    if !shape_fits || !matches!(digits.len(), 4 | 6 | 8) {
        return None;
    }
    let year: i16 = digits[..4].parse().ok()?;
    let month = digits.get(4..6).map(two_digits);
    let day = digits.get(6..8).map(two_digits);
    let date = Date::new(year, month.unwrap_or(Some(1))?, day.unwrap_or(Some(1))?).ok()?;
    let unit = match (month, day) {
        (None, _) => 1.year(),
        (Some(_), None) => 1.month(),
        _ => 1.day(),
    };
    Some((date, unit))
}

fn midnight(date: Date, zone: &TimeZone) -> Option<i64> {
    date.to_zoned(zone.clone()).ok().map(|zoned| zoned.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    /// A Wednesday.
    fn now() -> Zoned {
        "2025-03-05T12:30:00+01:00[+01:00]".parse().unwrap()
    }

    fn check(text: &str, from: &str, to: &str) {
        let second = |text: &str| text.parse::<Timestamp>().unwrap().as_second();
        assert_eq!(stretch(text, &now()), Some(second(from)..second(to)), "{text}");
    }

    #[test]
    fn texts_stand_for_stretches() {
        check("2024", "2023-12-31T23:00:00Z", "2024-12-31T23:00:00Z");
        check("2024-02", "2024-01-31T23:00:00Z", "2024-02-29T23:00:00Z");
        check("2024-02-29", "2024-02-28T23:00:00Z", "2024-02-29T23:00:00Z");
        check("20240229", "2024-02-28T23:00:00Z", "2024-02-29T23:00:00Z");
        check("2024-02-29T14:30", "2024-02-29T13:30:00Z", "2024-02-29T13:31:00Z");
        check("2024-02-29_14", "2024-02-29T13:00:00Z", "2024-02-29T14:00:00Z");
        check("@1700000000", "2023-11-14T22:13:20Z", "2023-11-14T22:13:21Z");
        // Words and distances count back from now.
        check("today", "2025-03-04T23:00:00Z", "2025-03-05T23:00:00Z");
        check("yesterday", "2025-03-03T23:00:00Z", "2025-03-04T23:00:00Z");
        check("monday", "2025-03-02T23:00:00Z", "2025-03-03T23:00:00Z");
        check("wed", "2025-02-25T23:00:00Z", "2025-02-26T23:00:00Z");
        check("this_week", "2025-03-02T23:00:00Z", "2025-03-09T23:00:00Z");
        check("last month", "2025-01-31T23:00:00Z", "2025-02-28T23:00:00Z");
        check("now", "2025-03-05T11:30:00Z", "2025-03-05T11:30:01Z");
        check("3d", "2025-03-02T11:30:00Z", "2025-03-02T11:30:01Z");
        check("1m", "2025-02-05T11:30:00Z", "2025-02-05T11:30:01Z");
        check("90M", "2025-03-05T10:00:00Z", "2025-03-05T10:00:01Z");
        check("2weeks", "2025-02-19T11:30:00Z", "2025-02-19T11:30:01Z");
        check("5 months ago", "2024-10-05T11:30:00Z", "2024-10-05T11:30:01Z");
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in [
            "",
            "x",
            "2024-13",
            "2024-02-30",
            "20-24",
            "2024T10",
            "2024-02-29T25",
            "3",
            "3x",
            "99999999999999999999d",
            "@x",
            "9999999999d",
            "é",
        ] {
            assert_eq!(stretch(text, &now()), None, "{text}");
        }
    }
}
