//! Parsers of command-line values: sizes, times, targets and weights, as types with valid values only.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The reason why a value cannot be used, with the expected form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(String);

impl ValueError {
    fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// Reads `500ms`, `10s`, `2m` or `1h`, a year at most; a bare number is seconds.
///
/// # Errors
/// When it has none of these forms.
pub fn duration(text: &str) -> Result<Duration, ValueError> {
    posthaste_units::duration(text).map_err(|error| ValueError(error.to_string()))
}

/// Reads `10240`, `10k`, `1.5m` or `1g` (powers of 1024), in octets.
///
/// # Errors
/// When it has none of these forms.
pub fn octets(text: &str) -> Result<usize, ValueError> {
    let octets = posthaste_units::bytes(text).map_err(|error| ValueError(error.to_string()))?;
    usize::try_from(octets).map_err(|_| ValueError::new(format!("`{text}` is too large")))
}

/// Sizes of messages: one size or range, or several with weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// First and last size in octets, both included, and the weight.
    pub classes: Vec<(usize, usize, u32)>,
}

impl Default for Sizes {
    /// 10 KiB.
    fn default() -> Self {
        Self { classes: vec![(10_240, 10_240, 1)] }
    }
}

impl FromStr for Sizes {
    type Err = ValueError;

    /// `10k`, `1k-100k`, or `2k:70,10k-50k:25,1m:5`.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let class = |part: &str| {
            let (range, weight) = split_weight(part)?;
            let (first, last) = match range.split_once('-') {
                Some((first, last)) => (octets(first)?, octets(last)?),
                None => (octets(range)?, octets(range)?),
            };
            if first <= last {
                Ok((first, last, weight))
            } else {
                Err(ValueError::new(format!("`{range}`: the range ends before it starts")))
            }
        };
        Ok(Self { classes: text.split(',').map(class).collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last, weight)) in self.classes.iter().enumerate() {
            f.write_str(if index > 0 { "," } else { "" })?;
            f.write_str(&size_text(*first))?;
            if last > first {
                write!(f, "-{}", size_text(*last))?;
            }
            if self.classes.len() > 1 {
                write!(f, ":{weight}")?;
            }
        }
        Ok(())
    }
}

/// `10k` for 10240, `1m` for 1048576, otherwise the number.
fn size_text(octets: usize) -> String {
    match octets {
        _ if octets > 0 && octets.is_multiple_of(1 << 20) => format!("{}m", octets >> 20),
        _ if octets > 0 && octets.is_multiple_of(1 << 10) => format!("{}k", octets >> 10),
        _ => octets.to_string(),
    }
}

/// A recipient domain and its weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightedDomain {
    pub name: String,
    pub weight: u32,
}

impl FromStr for WeightedDomain {
    type Err = ValueError;

    /// `example.com` or `example.com:67`.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (name, weight) = split_weight(text)?;
        address_part(name)?;
        Ok(Self { name: name.to_owned(), weight })
    }
}

/// `name:67` is weight 67, `name` weight 1.
fn split_weight(text: &str) -> Result<(&str, u32), ValueError> {
    match text.rsplit_once(':') {
        None => Ok((text, 1)),
        Some((name, weight)) => match weight.parse() {
            Ok(weight) if weight > 0 => Ok((name, weight)),
            _ => Err(ValueError::new(format!("`{text}`: the weight after the colon must be a number from 1"))),
        },
    }
}

/// Checks that `text` can be part of a command line without ending it.
fn address_part(text: &str) -> Result<(), ValueError> {
    if !text.is_empty() && text.bytes().all(|b| b > b' ' && b != 127 && b != b'<' && b != b'>') {
        Ok(())
    } else {
        Err(ValueError::new(format!("`{text}` cannot stand in an address")))
    }
}

/// Parses a mail address. Only octets that would break the command line are refused, so that a server's own checks can
/// be tested.
///
/// # Errors
/// When it is empty or contains blanks, control characters or angle brackets.
pub fn address(text: &str) -> Result<String, ValueError> {
    address_part(text).map(|()| text.to_owned())
}

/// Parses a header field `Name: value`.
///
/// # Errors
/// When there is no name of printable ASCII before a colon, the value contains control characters, or the line is
/// longer than 998 octets (RFC 5322 section 2.1.1).
pub fn header_field(text: &str) -> Result<String, ValueError> {
    let bad = |why: &str| Err(ValueError::new(format!("`{text}`: {why}")));
    let Some((name, value)) = text.split_once(':') else { return bad("write `Name: value`") };
    if name.is_empty() || !name.bytes().all(|b| (33..127).contains(&b)) {
        return bad("a field name is printable ASCII without blanks");
    }
    if value.chars().any(|c| c.is_control() && c != '\t') {
        return bad("a field value has no control characters");
    }
    if text.len() > 998 {
        return bad("a line has at most 998 octets");
    }
    Ok(text.to_owned())
}

/// Messages over one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PerConnection {
    /// All messages of the run: the connection stays open until its end.
    All,
    /// This many messages, then a new connection.
    Count(NonZeroU64),
}

impl FromStr for PerConnection {
    type Err = ValueError;

    /// `1`, `100`, `all`.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "all" => Ok(Self::All),
            _ => match text.parse() {
                Ok(count) => Ok(Self::Count(count)),
                Err(_) => Err(ValueError::new(format!("`{text}`: write a number from 1, or `all`"))),
            },
        }
    }
}

/// The protocol for sending mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Smtp,
    Lmtp,
    /// KumoMTA's injection API: `POST /api/inject/v1`.
    Http,
}

impl From<posthaste_smtp::Protocol> for Protocol {
    fn from(protocol: posthaste_smtp::Protocol) -> Self {
        match protocol {
            posthaste_smtp::Protocol::Smtp => Self::Smtp,
            posthaste_smtp::Protocol::Lmtp => Self::Lmtp,
        }
    }
}

/// Path of the injection API.
pub const INJECT_PATH: &str = "/api/inject/v1";

/// Start of TLS on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsStart {
    Never,
    /// With the connection (`smtps://`).
    AtOnce,
    /// With the command STARTTLS (RFC 3207).
    StartTls,
}

/// A server as named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub protocol: Protocol,
    pub tls: TlsStart,
    pub place: Place,
}

/// Address of a server, by name or path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl FromStr for Target {
    type Err = ValueError;

    /// `HOST:PORT`, `smtp://HOST[:25]`, `smtps://HOST[:465]`, `lmtp://HOST[:24]`, `smtp+unix:PATH`, `lmtp+unix:PATH`,
    /// `http://HOST[:80]`, `https://HOST[:443]`, both also with the path of inject.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        for (scheme, protocol) in [("lmtp+unix:", Protocol::Lmtp), ("smtp+unix:", Protocol::Smtp)] {
            if let Some(path) = text.strip_prefix(scheme).filter(|path| !path.is_empty()) {
                return Ok(Self { protocol, tls: TlsStart::Never, place: Place::Unix(path.into()) });
            }
        }
        let (scheme, rest) = text.split_once("://").unwrap_or(("smtp", text));
        let (protocol, tls, default_port) = match scheme {
            "smtp" => (Protocol::Smtp, TlsStart::Never, 25),
            "smtps" => (Protocol::Smtp, TlsStart::AtOnce, 465),
            "lmtp" => (Protocol::Lmtp, TlsStart::Never, 24),
            "http" => (Protocol::Http, TlsStart::Never, 80),
            "https" => (Protocol::Http, TlsStart::AtOnce, 443),
            _ => {
                return Err(ValueError::new(format!(
                    "`{text}`: write smtp://, smtps://, lmtp://, http:// or https://"
                )));
            }
        };
        let rest = match protocol {
            Protocol::Http => rest.strip_suffix(INJECT_PATH).unwrap_or(rest),
            Protocol::Smtp | Protocol::Lmtp => rest,
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.rsplit_once(':') {
            // An IPv6 address stands in brackets, so its own colons are not taken for the port's.
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| ValueError::new(format!("`{text}`: `{port}` is not a port")))?)
            }
            _ => (rest, default_port),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(ValueError::new(format!("`{text}` names no host")));
        }
        Ok(Self { protocol, tls, place: Place::Tcp { host: host.to_owned(), port } })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.protocol, self.tls) {
            (Protocol::Lmtp, _) => "lmtp",
            (Protocol::Smtp, TlsStart::AtOnce) => "smtps",
            (Protocol::Smtp, _) => "smtp",
            (Protocol::Http, TlsStart::Never) => "http",
            (Protocol::Http, _) => "https",
        };
        match &self.place {
            Place::Unix(path) => write!(f, "{scheme}+unix:{}", path.display()),
            Place::Tcp { host, port } if host.contains(':') => write!(f, "{scheme}://[{host}]:{port}"),
            Place::Tcp { host, port } => write!(f, "{scheme}://{host}:{port}"),
        }
    }
}

/// The reason why a target cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    #[error("cannot find {target}: {source}")]
    Unknown { target: String, source: std::io::Error },
    #[error("{target} is {address}, a public address; only load your own machines: confirm with --allow-public")]
    Public { target: String, address: IpAddr },
}

/// Address of a target after name resolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Target {
    /// Resolves the host and returns its first address. It asks the system's resolver, which may take a while.
    ///
    /// # Errors
    /// When there is no address, or when one of them is neither loopback, link-local nor private and `allow_public` is
    /// not set.
    pub fn resolve(&self, allow_public: bool) -> Result<Address, TargetError> {
        let (host, port) = match &self.place {
            Place::Unix(path) => return Ok(Address::Unix(path.clone())),
            Place::Tcp { host, port } => (host.as_str(), *port),
        };
        let unknown = |source| TargetError::Unknown { target: self.to_string(), source };
        let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(unknown)?.collect();
        if let Some(public) = addresses.iter().find(|address| !is_private(address.ip())).filter(|_| !allow_public) {
            return Err(TargetError::Public { target: self.to_string(), address: public.ip() });
        }
        let none = || unknown(std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address"));
        Ok(Address::Tcp(*addresses.first().ok_or_else(none)?))
    }
}

/// Loopback, link-local and the private networks of RFC 1918 and RFC 4193.
fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("8760h"), Ok(posthaste_units::DURATION_MAX));
        assert!(duration("8761h").is_err_and(|error| error.to_string().contains("too long")));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(octets("10k"), Ok(10_240));
        assert_eq!(octets("1.5M"), Ok(1_572_864));
        for bad in ["", "s", "10x", "-1s", "1e9999s"] {
            assert!(duration(bad).is_err(), "{bad}");
            assert!(octets(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_one_a_range_or_a_mix() {
        let check = |text: &str, classes: &[(usize, usize, u32)]| {
            let sizes: Sizes = text.parse().unwrap();
            assert_eq!(sizes.classes, classes);
            assert_eq!(sizes.to_string(), text);
        };
        check("10k", &[(10_240, 10_240, 1)]);
        check("1k-1m", &[(1024, 1 << 20, 1)]);
        check("2k:70,10k-50k:25,1000:5", &[(2048, 2048, 70), (10_240, 51_200, 25), (1000, 1000, 5)]);
        for bad in ["", "2k-1k", "1k:0", "1k:x", "1k,"] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn targets_are_read_and_shown_alike() {
        let check = |text: &str, shown: &str| assert_eq!(text.parse::<Target>().unwrap().to_string(), shown);
        check("127.0.0.1:2525", "smtp://127.0.0.1:2525");
        check("smtps://mx.example.org", "smtps://mx.example.org:465");
        check("lmtp://[::1]:24/", "lmtp://[::1]:24");
        check("lmtp+unix:/run/lmtp", "lmtp+unix:/run/lmtp");
        check("smtp://[::1]", "smtp://[::1]:25");
        check("http://127.0.0.1:8025/", "http://127.0.0.1:8025");
        check("https://mx.example.org/api/inject/v1", "https://mx.example.org:443");
        check("http://[::1]", "http://[::1]:80");
        for bad in ["", "ftp://x", "http://", "smtp://", ":25", "host:port", "lmtp+unix:"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }

    #[test]
    fn public_targets_are_refused_unless_allowed() {
        let resolve = |text: &str, allow| text.parse::<Target>().unwrap().resolve(allow);
        for ours in ["127.0.0.1:1", "10.1.2.3:1", "192.168.0.1:1", "[::1]:1", "[fd00::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(resolve(ours, false).is_ok(), "{ours}");
        }
        for public in ["192.0.2.1:25", "8.8.8.8:25", "172.32.0.1:25", "[2001:db8::1]:25", "[::ffff:8.8.8.8]:25"] {
            assert!(matches!(resolve(public, false), Err(TargetError::Public { .. })), "{public}");
            assert!(resolve(public, true).is_ok(), "{public}");
        }
    }

    #[test]
    fn what_would_break_a_line_is_refused() {
        assert!(address("a@example.org").is_ok());
        assert!(address("a@example.org>\r\nDATA").is_err());
        assert!("example.org:67".parse::<WeightedDomain>().is_ok_and(|d| d.weight == 67));
        assert!("exa mple".parse::<WeightedDomain>().is_err());
        assert!(header_field("X-Test: yes").is_ok());
        for bad in ["X-Test", ": x", "X Test: y", "X: a\r\nY: b"] {
            assert!(header_field(bad).is_err(), "{bad}");
        }
        assert!("0".parse::<PerConnection>().is_err());
        assert!("1".parse::<PerConnection>().is_ok());
    }
}
