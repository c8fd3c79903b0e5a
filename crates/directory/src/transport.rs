//! Destinations other than Maildirs: a program, a file, an LMTP server.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use posthaste_message::address::is_domain;

/// A destination other than a Maildir. Two are equal if their text is equal.
#[derive(Debug, Clone)]
pub struct Transport {
    text: Arc<str>,
    kind: TransportKind,
}

/// The kind of a [`Transport`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportKind {
    /// A program that gets the message on its standard input: its absolute path, then its arguments. No shell reads them.
    Program(Vec<String>),
    /// A file in mbox format, which the message is appended to.
    File(PathBuf),
    /// An LMTP server on a UNIX socket.
    LmtpUnix(PathBuf),
    /// An LMTP server on this host (a name or an IP address) and port.
    LmtpTcp(String, u16),
}

impl Transport {
    /// Parses `|/program argument …`, `/file`, `lmtp:unix:/socket` or `lmtp:host:port`. `None`: none of these, so it is
    /// an address.
    ///
    /// # Errors
    /// Describes the mistake.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        let kind = if let Some(command) = text.strip_prefix('|') {
            program(command)
        } else if text.starts_with('/') {
            path(text).map(TransportKind::File)
        } else {
            next_hop(text.strip_prefix("lmtp:")?)
        };
        let is_too_long = text.len() > TEXT_BYTES_MAX;
        let checked = match kind {
            Ok(_) if is_too_long => Err(format!("has more than {TEXT_BYTES_MAX} bytes")),
            Ok(_) if text.chars().any(char::is_control) => Err("has control characters".to_owned()),
            kind => kind,
        };
        Some(checked.map(|kind| Self { text: text.into(), kind }))
    }

    /// The text in the configuration, which identifies the transport.
    pub fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// The parsed kind of the transport.
    pub fn kind(&self) -> &TransportKind {
        &self.kind
    }

    /// True if the transport uses the rights of the server's user: it runs a program, or writes a file.
    pub fn acts_here(&self) -> bool {
        matches!(self.kind, TransportKind::Program(_) | TransportKind::File(_))
    }
}

impl PartialEq for Transport {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Transport {}

impl Hash for Transport {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TransportKind {
    /// Its kind: `program`, `file` or `lmtp`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Program(_) => "program",
            Self::File(_) => "file",
            Self::LmtpUnix(_) | Self::LmtpTcp(..) => "lmtp",
        }
    }
}

fn program(command: &str) -> Result<TransportKind, String> {
    let arguments = arguments(command)?;
    match arguments.first() {
        Some(first) => path(first).map(|_| TransportKind::Program(arguments)),
        None => Err("after `|` comes the path of a program".to_owned()),
    }
}

/// Splits at blanks, except within double quotes. There is no other syntax.
fn arguments(command: &str) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    let mut current = None::<String>;
    let mut is_quoted = false;
    for c in command.chars() {
        match c {
            '"' => {
                is_quoted = !is_quoted;
                current.get_or_insert_default();
            }
            ' ' | '\t' if !is_quoted => all.extend(current.take()),
            c => current.get_or_insert_default().push(c),
        }
    }
    if is_quoted {
        return Err("a quote is not closed".to_owned());
    }
    all.extend(current);
    Ok(all)
}

/// An absolute path in normal form, as locks and queues compare its text.
fn path(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let is_plain = path.is_absolute()
        && path.components().all(|component| matches!(component, Component::RootDir | Component::Normal(_)))
        && path.components().collect::<PathBuf>().as_os_str() == path.as_os_str()
        && path.file_name().is_some();
    if is_plain {
        Ok(path.to_owned())
    } else {
        Err(format!("`{text}` is not an absolute path without `.`, `..` and `//`"))
    }
}

fn next_hop(text: &str) -> Result<TransportKind, String> {
    const EXAMPLES: &str = "write lmtp:unix:/run/dovecot/lmtp or lmtp:host:port, such as lmtp:127.0.0.1:24";
    if let Some(socket) = text.strip_prefix("unix:") {
        let path = path(socket)?;
        return if socket.len() <= UNIX_PATH_MAX {
            Ok(TransportKind::LmtpUnix(path))
        } else {
            Err(format!("a socket's path has at most {UNIX_PATH_MAX} bytes"))
        };
    }
    let (host, port) = text.rsplit_once(':').ok_or(EXAMPLES)?;
    let port =
        port.parse().ok().filter(|port| *port > 0).ok_or_else(|| format!("`{port}` is not a port; {EXAMPLES}"))?;
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_host = match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_domain(host) && host.is_ascii() || host.parse::<std::net::Ipv4Addr>().is_ok(),
    };
    if is_host {
        Ok(TransportKind::LmtpTcp(bare.unwrap_or(host).to_owned(), port))
    } else {
        Err(format!("`{host}` is neither a host name nor an IP address; {EXAMPLES}"))
    }
}

const TEXT_BYTES_MAX: usize = 1000;
/// `sun_path` of Linux, its final NUL left out.
const UNIX_PATH_MAX: usize = 107;

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> TransportKind {
        Transport::parse(text).expect("a transport").expect(text).kind
    }

    #[test]
    fn each_kind_is_read() {
        let program = |arguments: &[&str]| TransportKind::Program(arguments.iter().map(|&a| a.to_owned()).collect());
        assert_eq!(kind("|/usr/bin/list"), program(&["/usr/bin/list"]));
        assert_eq!(
            kind("|/a/b  -x \"two words\" $HOME;ls \"\""),
            program(&["/a/b", "-x", "two words", "$HOME;ls", ""])
        );
        assert_eq!(kind("|\"/a dir/b\""), program(&["/a dir/b"]));
        assert_eq!(kind("/var/mail/all"), TransportKind::File("/var/mail/all".into()));
        assert_eq!(kind("lmtp:unix:/run/lmtp"), TransportKind::LmtpUnix("/run/lmtp".into()));
        assert_eq!(kind("lmtp:mail.example:24"), TransportKind::LmtpTcp("mail.example".to_owned(), 24));
        assert_eq!(kind("lmtp:127.0.0.1:2003"), TransportKind::LmtpTcp("127.0.0.1".to_owned(), 2003));
        assert_eq!(kind("lmtp:[::1]:24"), TransportKind::LmtpTcp("::1".to_owned(), 24));
        for address in ["ann", "ann@example.org", "lmtp", "a|b", "lmtp@example.org"] {
            assert!(Transport::parse(address).is_none(), "{address}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let said = |text: &str| Transport::parse(text).expect("a transport").expect_err(text);
        for (text, expected) in [
            ("|", "after `|`"),
            ("|list", "`list` is not an absolute path"),
            ("|/a/../b", "`/a/../b` is not an absolute path"),
            ("|/a \"b", "a quote is not closed"),
            ("|/a b\nc", "has control characters"),
            ("/", "`/` is not"),
            ("/a/", "`/a/` is not"),
            ("/a//b", "`/a//b` is not"),
            ("/a/./b", "`/a/./b` is not"),
            ("lmtp:/run/x", "write lmtp:unix:"),
            ("lmtp:unix:x", "`x` is not an absolute path"),
            ("lmtp:host:x", "`x` is not a port"),
            ("lmtp:host:0", "`0` is not a port"),
            ("lmtp:::1:24", "`::1` is neither"),
            ("lmtp::24", "`` is neither"),
        ] {
            assert!(said(text).starts_with(expected), "{text}: {}", said(text));
        }
        assert!(said(&format!("/{}", "a".repeat(1000))).contains("more than 1000 bytes"));
        assert!(said(&format!("lmtp:unix:/{}", "a".repeat(107))).contains("at most 107"));
    }
}
