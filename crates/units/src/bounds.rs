//! Minimum and maximum of the values of a section.

use crate::quantities::show_bytes;
use crate::words::Problem;

/// Returns the first of `values` that is out of bounds. Each is a key of `table`, its value, its minimum and its
/// maximum; [`u64::MAX`] means none.
///
/// # Errors
/// The place of the value, and its bounds, in the unit that the key's name ends in.
pub fn check_bounds(table: &str, values: &[(&str, u64, u64, u64)]) -> Result<(), Problem> {
    for &(name, value, least, most) in values {
        if !(least..=most).contains(&value) {
            let message = match most {
                u64::MAX => format!("must be at least {}", shown(name, least)),
                _ => format!("must be between {} and {}", shown(name, least), shown(name, most)),
            };
            return Err(Problem::new([table.into(), name.into()], message));
        }
    }
    Ok(())
}

/// Seconds of a year: longer than any useful wait, and far from the range of a clock.
pub const A_YEAR: u64 = 365 * 86_400;

/// The value with the unit that the key's name ends in.
fn shown(name: &str, value: u64) -> String {
    match name {
        _ if name.ends_with("_bytes") => show_bytes(value),
        _ if name.ends_with("_secs") && value > 0 && value.is_multiple_of(86_400) => format!("{} days", value / 86_400),
        _ if name.ends_with("_secs") => format!("{value} seconds"),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_out_of_bounds_is_told_with_its_unit() {
        let check = |key: &str, value, least, most| check_bounds("limits", &[(key, value, least, most)]);
        check("hops", 1, 1, u64::MAX).unwrap();
        check("hops", 9, 1, 9).unwrap();
        let problem = check("hops", 0, 1, u64::MAX).unwrap_err();
        assert_eq!(problem, Problem::new(["limits".into(), "hops".into()], "must be at least 1"));
        for (key, expected) in [
            ("file_bytes", "must be between 60 bytes and 31536000 bytes"),
            ("idle_secs", "must be between 60 seconds and 365 days"),
            ("files", "must be between 60 and 31536000"),
        ] {
            let said = check(key, 1, 60, A_YEAR).unwrap_err().message;
            assert_eq!(said, expected);
        }
    }
}
