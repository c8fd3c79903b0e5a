//! Names of additional header fields that the user wants indexed.

/// Maximum headers of one index: each costs a field in every segment.
pub const HEADERS_MAX: usize = 64;
/// Maximum octets of a name.
const NAME_BYTES_MAX: usize = 100;

/// Stands for all header fields that are neither named nor indexed by default, except trace fields.
pub const OTHER_HEADERS: &str = "*";

/// Names of header fields, in the given order and spelling. Of names that differ in case only, the first.
#[derive(Debug, Clone, Default)]
pub struct HeaderNames(Vec<String>);

impl HeaderNames {
    /// Collects names; of those that differ in case only, the first counts.
    pub fn of(names: Vec<impl Into<String>>) -> Self {
        let mut all = Self::default();
        names.into_iter().for_each(|name| all.add(name.into()));
        all
    }

    fn add(&mut self, name: String) {
        if self.known_as(&name).is_none() {
            self.0.push(name);
        }
    }

    /// The spelling of this header, given in any case, in the set; `None` if it is not a member.
    pub fn known_as(&self, name: &str) -> Option<&str> {
        self.iter().find(|known| known.eq_ignore_ascii_case(name))
    }

    /// The names.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// True if there are no names.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Ignores order and case.
impl PartialEq for HeaderNames {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.iter().all(|name| other.known_as(name).is_some())
    }
}

impl Eq for HeaderNames {}

/// Writes the names separated by commas.
impl std::fmt::Display for HeaderNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

/// Validates a header's name: letters, digits, `-`, `_` and `.`, of limited length. [`OTHER_HEADERS`] is also valid.
///
/// # Errors
/// The mistake, in words.
pub fn check_header_name(name: &str) -> Result<(), String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name == OTHER_HEADERS {
        return Ok(());
    }
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_fine) {
        return Err(format!("`{name}` is not a header name; write it as in X-Spam-Score, without a colon"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_case_nor_order_makes_another_header() {
        let names = HeaderNames::of(vec!["X-Spam-Score", "List-Id", "x-spam-score"]);
        assert_eq!(names.to_string(), "X-Spam-Score, List-Id");
        assert_eq!(names.known_as("LIST-ID"), Some("List-Id"));
        assert_eq!(names, HeaderNames::of(vec!["list-id", "x-spam-score"]));
        assert_ne!(names, HeaderNames::of(vec!["list-id"]));
        assert!(check_header_name("X-A.b_1").is_ok() && check_header_name("*").is_ok());
        for bad in ["", "X-A:", "a b", "é", &"x".repeat(101)] {
            assert!(check_header_name(bad).is_err(), "{bad}");
        }
    }
}
