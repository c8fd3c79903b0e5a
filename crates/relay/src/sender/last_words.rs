//! The last reply or failure of each host of a site, for display.

use std::fmt;
use std::sync::Arc;

/// Replies and failures from one try of all hosts.
#[derive(Debug, Default)]
pub(super) struct LastWords(Vec<(Arc<str>, String)>);

impl LastWords {
    /// `words` names the host.
    pub fn put(&mut self, host: &Arc<str>, mut words: String) {
        words.truncate(words.floor_char_boundary(BYTES_MAX));
        self.0.retain(|(other, _)| other != host);
        if self.0.len() == HOSTS_MAX {
            self.0.remove(0);
        }
        self.0.push((host.clone(), words));
    }
}

impl fmt::Display for LastWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("it has no host");
        }
        let each = BYTES_MAX / self.0.len();
        for (at, (_, words)) in self.0.iter().enumerate() {
            let separator = if at > 0 { "; " } else { "" };
            write!(f, "{separator}{}", &words[..words.floor_char_boundary(each)])?;
        }
        Ok(())
    }
}

/// Hosts whose last words are kept.
const HOSTS_MAX: usize = 8;
/// Maximum bytes of all texts together.
const BYTES_MAX: usize = 900;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_its_last_words_within_a_bound() {
        let mut words = LastWords::default();
        assert_eq!(words.to_string(), "it has no host");
        let hosts: Vec<Arc<str>> = (0..20).map(|number| format!("mx{number}").into()).collect();
        words.put(&hosts[0], "mx0: 421 one".to_owned());
        words.put(&hosts[1], "mx1: timed out".to_owned());
        words.put(&hosts[0], "mx0: 421 two".to_owned());
        assert_eq!(words.to_string(), "mx1: timed out; mx0: 421 two");
        hosts.iter().for_each(|host| words.put(host, format!("{host}: {}", "é".repeat(5000))));
        let text = words.to_string();
        assert!(text.len() <= 1000 && hosts[12..].iter().all(|host| text.contains(&format!("{host}: "))), "{text}");
    }
}
