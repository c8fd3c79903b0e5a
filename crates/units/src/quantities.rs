//! Sizes and times as people write them.

use std::fmt;
use std::time::Duration;

/// A count with its noun: `1 message`, `2 messages`, `0 messages`. The plural adds an `s`.
///
/// ```
/// assert_eq!(posthaste_units::count(1, "message"), "1 message");
/// ```
pub fn count<N: fmt::Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    format!("{number} {noun}{}", if number == N::from(1) { "" } else { "s" })
}

/// The reason why a value cannot be read, with the expected form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnitError(String);

/// Parses a number of octets: `10240`, `10k`, `10 MB`, `1.5GiB`, in any case. Units are powers of 1024, as usual in
/// mail servers.
///
/// # Errors
/// When it has another form, or exceeds 2^64-1.
///
/// ```
/// assert_eq!(posthaste_units::bytes("10 MiB").unwrap(), 10 << 20);
/// ```
pub fn bytes(text: &str) -> Result<u64, UnitError> {
    let bad = || UnitError(format!("`{text}` is not a size; write 10240, 10k, 10M or 1.5 GiB"));
    let (number, unit) = split(text.trim()).ok_or_else(bad)?;
    let unit = match unit.to_ascii_lowercase().as_str() {
        "" | "b" | "bytes" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(bad()),
    };
    let large = || UnitError(format!("`{text}` is too large"));
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit).ok_or_else(large);
    }
    let octets = (number.parse::<f64>().map_err(|_| bad())? * unit as f64).round();
    // Both have the same form as floating point numbers; the first is the largest that is exact.
    if octets < 2_f64.powi(64) { Ok(octets as u64) } else { Err(large()) }
}

/// Parses a time: `500ms`, `10s`, `2m`, `1.5h`, `7 days`, or several in a row as in `1h30m`; a bare number is seconds.
///
/// # Errors
/// When it has another form, or exceeds a year: adding several such times to an `Instant` cannot overflow.
///
/// ```
/// assert_eq!(posthaste_units::duration("1m 30s").unwrap().as_secs(), 90);
/// ```
pub fn duration(text: &str) -> Result<Duration, UnitError> {
    let bad = || UnitError(format!("`{text}` is not a time; write 500ms, 10s, 2m or 1h"));
    let mut rest = text.trim();
    let mut seconds = 0.0;
    loop {
        let digits = digits_of(rest);
        let number: f64 = rest[..digits].parse().map_err(|_| bad())?;
        rest = rest[digits..].trim_start();
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = rest[..letters].to_ascii_lowercase();
        rest = rest[letters..].trim_start();
        seconds += number
            * match unit.as_str() {
                "ms" => 1e-3,
                "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
                "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
                "h" | "hour" | "hours" => 3600.0,
                "d" | "day" | "days" => 86_400.0,
                "w" | "week" | "weeks" => 7.0 * 86_400.0,
                // Alone only: what it stands for in a row would have to be guessed.
                "" if rest.is_empty() && seconds == 0.0 => 1.0,
                _ => return Err(bad()),
            };
        if rest.is_empty() {
            break;
        }
    }
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if time <= DURATION_MAX => Ok(time),
        Ok(_) => Err(UnitError(format!("`{text}` is too long; the maximum is a year, 365d"))),
        Err(_) => Err(bad()),
    }
}

/// The longest time that [`duration`] accepts: 365 days.
pub const DURATION_MAX: Duration = Duration::from_secs(365 * 86_400);

/// Formats a number of octets in the largest unit without a fraction: `10 MiB`, `10240001 bytes`.
pub fn show_bytes(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(bits, _)| bytes > 0 && bytes.is_multiple_of(1 << bits)) {
        Some((bits, unit)) => format!("{} {unit}", bytes >> bits),
        None => format!("{bytes} bytes"),
    }
}

/// Formats a number of bytes approximately, in units of 1000 with one decimal: `312 bytes`, `4.2 KB` or `1.8 GB`.
pub fn about_bytes(bytes: u64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")];
    let number = bytes as f64;
    // What would be rounded to 1000.0 of a unit is 1.0 of the next.
    match units.iter().find(|(unit, _)| number >= unit * 0.999_95 && bytes >= 1000) {
        Some((unit, name)) => format!("{:.1} {name}", number / unit),
        None => count(bytes, "byte"),
    }
}

/// Splits a number from its unit.
fn split(text: &str) -> Option<(&str, &str)> {
    let (number, unit) = text.split_at(digits_of(text));
    (!number.is_empty()).then(|| (number, unit.trim_start()))
}

fn digits_of(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let good = [
            ("0", 0),
            ("10240", 10_240),
            ("10k", 10_240),
            (" 10 KB ", 10_240),
            ("10M", 10 << 20),
            ("10 MiB", 10 << 20),
            ("1.5g", 3 << 29),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, octets) in good {
            assert_eq!(bytes(text), Ok(octets), "{text}");
        }
        for bad in ["", "M", "10X", "-1", "1e3", "1.2.3k", "10 M M", "٣k"] {
            assert!(bytes(bad).unwrap_err().to_string().contains("is not a size"), "{bad}");
        }
        for large in ["18446744073709551616", "16777216T", "99999999999999999999.5k"] {
            assert!(bytes(large).is_err(), "{large}");
        }
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        let good = [
            ("30", 30_000),
            ("1.5", 1_500),
            ("500ms", 500),
            ("30 s", 30_000),
            ("5m", 300_000),
            ("5 Minutes", 300_000),
            ("1h30m", 5_400_000),
            ("2 days 1 h", 176_400_000),
        ];
        for (text, millis) in good {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(duration("365d"), Ok(DURATION_MAX));
        assert!(duration("366d").unwrap_err().to_string().contains("too long"));
        for bad in ["", "m", "5x", "-1s", "1h30", "1 2", "5m,"] {
            assert!(duration(bad).unwrap_err().to_string().contains("is not a time"), "{bad}");
        }
    }

    #[test]
    fn sizes_are_shown_exactly_or_about() {
        let shown = [0, 1000, 1024, 10 << 20, (10 << 20) + 1024].map(show_bytes);
        assert_eq!(shown, ["0 bytes", "1000 bytes", "1 KiB", "10 MiB", "10241 KiB"]);
        let about = [0, 1, 999, 1000, 4_249, 999_949, 999_950, 1_800_000_000, u64::MAX].map(about_bytes);
        let expected =
            ["0 bytes", "1 byte", "999 bytes", "1.0 KB", "4.2 KB", "999.9 KB", "1.0 MB", "1.8 GB", "18446744.1 TB"];
        assert_eq!(about, expected);
    }
}
