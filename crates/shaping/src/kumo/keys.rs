//! Keys of KumoMTA that have no equivalent here, and the form of suffixes.

/// Keys left out of the result: `section: key: reason`.
pub(super) struct Ignored(pub Vec<String>);

impl Ignored {
    pub fn push(&mut self, section: &str, key: &str, why: &str) {
        self.0.push(format!("[{section}] {key}: {why}"));
    }
}

/// A suffix of domains, with a leading dot.
pub(super) fn suffix(name: &str) -> String {
    format!(".{}", name.trim_start_matches('.'))
}
