//! Mailbox paths: relative, checked once, and then safe to hand to the kernel.

use std::fmt;

/// Maximum bytes of a component on Linux file systems.
pub const COMPONENT_BYTES_MAX: usize = 255;
/// Maximum bytes of a whole path; far below `PATH_MAX`, so that `new/<name>` still fits.
pub const PATH_BYTES_MAX: usize = 2048;

/// A checked path below a mail root, such as `example.org/ann/Maildir`.
///
/// Every component is non-empty, at most 255 bytes, not `.` or `..`, and free of `/`, NUL and control characters. Build
/// it from the server's own decision on the place of a user's mail. An address from the network is looked up first and
/// never becomes a path by itself.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MailboxPath(Box<str>);

/// The rule that a string breaks as a mailbox path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// No components, or an empty one (`a//b`, a leading or trailing `/`).
    #[error("a component of the mailbox path is empty")]
    Empty,
    /// `.` or `..`.
    #[error("a component of the mailbox path is `.` or `..`")]
    Dots,
    /// A `/` inside a component, a NUL, or another control character.
    #[error("a component of the mailbox path holds a slash or a control character")]
    Character,
    /// A component above 255 bytes, or more than 2048 bytes in all.
    #[error("the mailbox path is too long")]
    TooLong,
}

impl MailboxPath {
    /// Checks a path whose components are separated by `/`.
    ///
    /// # Errors
    /// [`PathError`] names the broken rule.
    pub fn parse(path: &str) -> Result<Self, PathError> {
        Self::from_components(path.split('/'))
    }

    /// Joins and checks components. A `/` inside one is an error, so a user name cannot add a level.
    ///
    /// # Errors
    /// [`PathError`] names the broken rule.
    pub fn from_components<'a>(components: impl IntoIterator<Item = &'a str>) -> Result<Self, PathError> {
        let mut joined = String::new();
        for component in components {
            check_component(component)?;
            if !joined.is_empty() {
                joined.push('/');
            }
            joined.push_str(component);
        }
        if joined.is_empty() {
            return Err(PathError::Empty);
        }
        if joined.len() > PATH_BYTES_MAX {
            return Err(PathError::TooLong);
        }
        Ok(Self(joined.into_boxed_str()))
    }

    /// This path with one more component.
    ///
    /// # Errors
    /// [`PathError`] names the broken rule.
    pub fn join(&self, component: &str) -> Result<Self, PathError> {
        Self::from_components(self.components().chain([component]))
    }

    /// The path as text, components separated by `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The components, at least one.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }
}

/// Checks one component by the rules that mailbox paths, file names and folder names share.
pub(crate) fn check_component(component: &str) -> Result<(), PathError> {
    if component.is_empty() {
        return Err(PathError::Empty);
    }
    if component == "." || component == ".." {
        return Err(PathError::Dots);
    }
    if component.chars().any(|c| c == '/' || c.is_control()) {
        return Err(PathError::Character);
    }
    if component.len() > COMPONENT_BYTES_MAX {
        return Err(PathError::TooLong);
    }
    Ok(())
}

impl AsRef<str> for MailboxPath {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for MailboxPath {
    type Err = PathError;
    fn from_str(path: &str) -> Result<Self, PathError> {
        Self::parse(path)
    }
}

impl fmt::Display for MailboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for MailboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_root_or_hide_characters_are_refused() {
        let check = |path: &str, expected: Result<(), PathError>| {
            assert_eq!(MailboxPath::parse(path).map(|_| ()), expected, "{path:?}");
        };
        check("example.org/ann/Maildir", Ok(()));
        check("müller/.Sub.Folder", Ok(()));
        check("", Err(PathError::Empty));
        check("/etc", Err(PathError::Empty));
        check("a//b", Err(PathError::Empty));
        check("a/", Err(PathError::Empty));
        check("..", Err(PathError::Dots));
        check("a/../b", Err(PathError::Dots));
        check("a/./b", Err(PathError::Dots));
        check("a\0b", Err(PathError::Character));
        check("a\nb", Err(PathError::Character));
        check("a\u{85}b", Err(PathError::Character));
        check(&"x".repeat(255), Ok(()));
        check(&"x".repeat(256), Err(PathError::TooLong));
        check(&"xxx/".repeat(600).repeat(2)[..2399], Err(PathError::TooLong));
    }

    #[test]
    fn a_slash_inside_a_component_adds_no_level() {
        assert_eq!(MailboxPath::from_components(["example.org", "a/b"]), Err(PathError::Character));
        let path = MailboxPath::parse("a").expect("valid");
        assert_eq!(path.join("b").expect("valid").as_str(), "a/b");
        assert_eq!(path.join(".."), Err(PathError::Dots));
    }
}
