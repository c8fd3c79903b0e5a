//! The PROXY protocol, versions 1 and 2: a proxy in front of this server names the client of each connection.
//!
//! Specification: <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>. Additional fields (TLVs) of version 2
//! are skipped.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::{RecvFlags, recv};

use crate::Stream;

/// A parsed PROXY header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Client, and the address that it connected to. `None` for the proxy's own connection, such as a health check
    /// (LOCAL), an unknown client (UNKNOWN), or one without an IP address.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// Octets of the header. The client's own data follow.
    pub bytes: usize,
}

/// The reason why a proxy's connection cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// The connection does not begin with a header.
    #[error("no PROXY header at the start of the connection")]
    NoHeader,
    /// The header is malformed.
    #[error("the PROXY header is malformed: {0}")]
    Malformed(&'static str),
    /// It is longer than [`HEADER_BYTES_MAX`], or of version 1 and longer than 107 octets.
    #[error("the PROXY header is too long")]
    TooLong,
    /// The header did not arrive in time.
    #[error("no PROXY header arrived in time")]
    TimedOut,
    /// The connection was closed before the header was complete.
    #[error("the connection ended within the PROXY header")]
    Disconnected,
    /// The connection failed.
    #[error("{0}")]
    Io(io::ErrorKind),
}

/// Octets of a header, its additional fields included.
pub const HEADER_BYTES_MAX: usize = 4096;
const LINE_BYTES_MAX: usize = 107;
const LINE_BEGIN: &[u8] = b"PROXY ";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family, length.
const FIXED_BYTES: usize = 16;

impl ProxyHeader {
    /// Parses the header at the start of `bytes`. `None` while it is incomplete.
    ///
    /// # Errors
    /// The bytes cannot begin a header, whatever follows.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, ProxyError> {
        if begins(bytes, LINE_BEGIN) {
            parse_line(bytes)
        } else if begins(bytes, SIGNATURE) {
            parse_binary(bytes)
        } else {
            Err(ProxyError::NoHeader)
        }
    }
}

impl ProxyHeader {
    /// A header of version 2 for a connection from `source` to `destination`; `None` if they are of different families.
    pub fn encode(source: SocketAddr, destination: SocketAddr) -> Option<Vec<u8>> {
        let (family, addresses) = match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => (0x11, [source.octets(), destination.octets()].concat()),
            (IpAddr::V6(source), IpAddr::V6(destination)) => (0x21, [source.octets(), destination.octets()].concat()),
            _ => return None,
        };
        let ports = [source.port().to_be_bytes(), destination.port().to_be_bytes()].concat();
        let length = (addresses.len() + ports.len()) as u16;
        Some([SIGNATURE, &[0x21, family], &length.to_be_bytes(), &addresses, &ports].concat())
    }
}

/// True if `bytes` agree with `expected` as far as both go.
fn begins(bytes: &[u8], expected: &[u8]) -> bool {
    let both = bytes.len().min(expected.len());
    bytes[..both] == expected[..both]
}

/// Version 1: a line.
fn parse_line(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    let most = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = most.iter().position(|&octet| octet == b'\n') else {
        return if most.len() == LINE_BYTES_MAX { Err(ProxyError::TooLong) } else { Ok(None) };
    };
    let line = most[..end].strip_suffix(b"\r").ok_or(ProxyError::Malformed("a line that does not end in CRLF"))?;
    let line = std::str::from_utf8(line).map_err(|_| ProxyError::Malformed("octets that are not ASCII"))?;
    let mut words = line.split(' ').skip(1);
    let mut next = || words.next().unwrap_or_default();
    let addresses = match next() {
        // What follows is not looked at.
        "UNKNOWN" => return Ok(Some(ProxyHeader { addresses: None, bytes: end + 1 })),
        family @ ("TCP4" | "TCP6") => {
            let source = line_address(family, next())?;
            let destination = line_address(family, next())?;
            let source_port = port(next())?;
            let destination_port = port(next())?;
            ((source, source_port).into(), (destination, destination_port).into())
        }
        _ => return Err(ProxyError::Malformed("neither TCP4 nor TCP6 nor UNKNOWN")),
    };
    match words.next() {
        Some(_) => Err(ProxyError::Malformed("more than two addresses and two ports")),
        None => Ok(Some(ProxyHeader { addresses: Some(addresses), bytes: end + 1 })),
    }
}

fn line_address(family: &str, word: &str) -> Result<IpAddr, ProxyError> {
    let address = match family {
        "TCP4" => word.parse().map(|address: Ipv4Addr| address.into()),
        _ => word.parse().map(|address: Ipv6Addr| address.into()),
    };
    address.map_err(|_| ProxyError::Malformed("an address that is not one of its family"))
}

fn port(word: &str) -> Result<u16, ProxyError> {
    let is_plain = word.bytes().all(|b| b.is_ascii_digit()) && (word == "0" || !word.starts_with('0'));
    word.parse().ok().filter(|_| is_plain).ok_or(ProxyError::Malformed("a port that is not a number up to 65535"))
}

/// Version 2: binary, numbers in network order.
fn parse_binary(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    const LOCAL: u8 = 0x20;
    const PROXY: u8 = 0x21;
    let Some((fixed, rest)) = bytes.split_at_checked(FIXED_BYTES) else { return Ok(None) };
    let command = fixed[12];
    let family = fixed[13];
    if ![LOCAL, PROXY].contains(&command) {
        return Err(ProxyError::Malformed("neither LOCAL nor PROXY of version 2"));
    }
    let length = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    let bytes = FIXED_BYTES + length;
    if bytes > HEADER_BYTES_MAX {
        return Err(ProxyError::TooLong);
    }
    let Some(rest) = rest.get(..length) else { return Ok(None) };
    let addresses = match (command, family) {
        (LOCAL, _) => None,
        // Not told, or a UNIX socket's.
        (_, 0x00 | 0x31) => None,
        (_, 0x11) => Some(binary_addresses::<4>(rest)?),
        (_, 0x21) => Some(binary_addresses::<16>(rest)?),
        _ => return Err(ProxyError::Malformed("a family or transport other than TCP over IPv4 or IPv6")),
    };
    Ok(Some(ProxyHeader { addresses, bytes }))
}

fn binary_addresses<const N: usize>(rest: &[u8]) -> Result<(SocketAddr, SocketAddr), ProxyError>
where
    IpAddr: From<[u8; N]>,
{
    let read = || {
        let (source, rest) = rest.split_first_chunk::<N>()?;
        let (destination, rest) = rest.split_first_chunk::<N>()?;
        let (source_port, rest) = rest.split_first_chunk()?;
        let (destination_port, _) = rest.split_first_chunk()?;
        let at = |address: [u8; N], port: [u8; 2]| SocketAddr::from((IpAddr::from(address), u16::from_be_bytes(port)));
        Some((at(*source, *source_port), at(*destination, *destination_port)))
    };
    read().ok_or(ProxyError::Malformed("shorter than its addresses"))
}

/// Reads the header from a connection, and nothing after it.
pub(crate) async fn take_header(stream: &Stream) -> Result<ProxyHeader, ProxyError> {
    loop {
        let ready = stream.ready_to_read().await.map_err(|error| ProxyError::Io(error.kind()))?;
        let taken = stream.try_read(|socket| {
            let mut buffer = [0; HEADER_BYTES_MAX];
            let (seen, _) = recv(socket, &mut buffer[..], RecvFlags::PEEK)?;
            match ProxyHeader::parse(&buffer[..seen]) {
                // Not before there is more.
                Ok(None) => Err(io::ErrorKind::WouldBlock.into()),
                Ok(Some(header)) => {
                    recv(socket, &mut buffer[..header.bytes], RecvFlags::empty())?;
                    Ok(Ok(header))
                }
                Err(error) => Ok(Err(error)),
            }
        });
        match taken {
            Ok(header) => return header,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(ProxyError::Io(error.kind())),
            Err(_) if ready.is_read_closed() => return Err(ProxyError::Disconnected),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(bytes: &[u8], expected: Result<Option<(&str, &str)>, ProxyError>) {
        let found = ProxyHeader::parse(bytes).map(|header| {
            let header = header.unwrap_or_else(|| panic!("more needed after {}", bytes.escape_ascii()));
            assert_eq!(header.bytes, bytes.len());
            header.addresses
        });
        let expected = expected.map(|both| both.map(|(a, b)| (a.parse().unwrap(), b.parse().unwrap())));
        assert_eq!(found, expected, "{}", bytes.escape_ascii());
    }

    const V4: (&str, &str) = ("192.0.2.7:56324", "198.51.100.1:25");
    const V6: (&str, &str) = ("[2001:db8::7]:1", "[2001:db8::1]:465");

    fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[command, family], &length, rest].concat()
    }

    const V4_BINARY: &[u8] = &[192, 0, 2, 7, 198, 51, 100, 1, 0xdc, 0x04, 0, 25];

    proptest! {
        #[test]
        fn what_is_encoded_is_read(source: SocketAddr, destination: SocketAddr) {
            match ProxyHeader::encode(source, destination) {
                None => prop_assert_ne!(source.is_ipv4(), destination.is_ipv4()),
                Some(bytes) => {
                    let header = ProxyHeader::parse(&bytes).unwrap().unwrap();
                    prop_assert_eq!(header.bytes, bytes.len());
                    let (from, to) = header.addresses.unwrap();
                    // Flow labels and scopes of IPv6 have no place in it.
                    let plain = |address: SocketAddr| (address.ip(), address.port());
                    prop_assert_eq!((plain(from), plain(to)), (plain(source), plain(destination)));
                }
            }
        }
    }

    #[test]
    fn lines() {
        check(b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 25\r\n", Ok(Some(V4)));
        check(b"PROXY TCP6 2001:db8::7 2001:db8::1 1 465\r\n", Ok(Some(V6)));
        check(b"PROXY UNKNOWN\r\n", Ok(None));
        check(b"PROXY UNKNOWN ffff:f...f:ffff x y\r\n", Ok(None));
        for bad in [
            "PROXY TCP4 192.0.2.7 198.51.100.1 56324\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 56324 25 \r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 56324 65536\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 056324 25\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 +1 25\r\n",
            "PROXY TCP4 192.0.2.7  198.51.100.1 1 25\r\n",
            "PROXY TCP4 192.0.2.07 198.51.100.1 1 25\r\n",
            "PROXY TCP4 2001:db8::7 2001:db8::1 1 25\r\n",
            "PROXY TCP6 192.0.2.7 198.51.100.1 1 25\r\n",
            "PROXY UDP4 192.0.2.7 198.51.100.1 1 25\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 1 25\n",
            "PROXY \r\n",
        ] {
            assert!(matches!(ProxyHeader::parse(bad.as_bytes()), Err(ProxyError::Malformed(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_line_has_107_octets_at_most() {
        let line = format!("PROXY UNKNOWN {}\r\n", "x".repeat(91));
        check(line.as_bytes(), Ok(None));
        let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(92));
        assert_eq!(ProxyHeader::parse(long.as_bytes()), Err(ProxyError::TooLong));
        assert_eq!(ProxyHeader::parse(&long.as_bytes()[..106]), Ok(None));
    }

    #[test]
    fn binary_headers() {
        check(&binary(0x21, 0x11, V4_BINARY), Ok(Some(V4)));
        check(&binary(0x21, 0x11, &[V4_BINARY, &[3, 0, 1, 9]].concat()), Ok(Some(V4)));
        let address = |last: u8| [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        check(&binary(0x21, 0x21, &[&address(7)[..], &address(1), &[0, 1, 1, 0xd1]].concat()), Ok(Some(V6)));
        check(&binary(0x20, 0x11, V4_BINARY), Ok(None));
        check(&binary(0x20, 0xff, &[]), Ok(None));
        check(&binary(0x21, 0x00, &[1, 2, 3]), Ok(None));
        check(&binary(0x21, 0x31, &[0; 216]), Ok(None));
        check(&binary(0x20, 0, &[0; HEADER_BYTES_MAX - FIXED_BYTES]), Ok(None));
        assert_eq!(ProxyHeader::parse(&binary(0x20, 0, &[0; HEADER_BYTES_MAX - 15])), Err(ProxyError::TooLong));
        for bad in [
            binary(0x21, 0x11, &V4_BINARY[..11]),
            binary(0x21, 0x21, &[0; 35]),
            binary(0x22, 0x11, V4_BINARY),
            binary(0x11, 0x11, V4_BINARY),
            binary(0x21, 0x12, V4_BINARY),
            binary(0x21, 0x41, V4_BINARY),
        ] {
            assert!(matches!(ProxyHeader::parse(&bad), Err(ProxyError::Malformed(_))), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn what_is_no_header_is_seen_at_its_first_wrong_octet() {
        assert_eq!(ProxyHeader::parse(b""), Ok(None));
        for text in ["E", "EHLO x\r\n", "PROXX", "PROXY\r", "\r\n\r\n\0\r\nQUIX"] {
            assert_eq!(ProxyHeader::parse(text.as_bytes()), Err(ProxyError::NoHeader), "{text:?}");
        }
    }

    fn any_header() -> impl Strategy<Value = Vec<u8>> {
        let line = (any::<IpAddr>(), any::<u16>(), any::<u16>()).prop_map(|(ip, source, destination)| {
            let family = if ip.is_ipv4() { "TCP4" } else { "TCP6" };
            format!("PROXY {family} {ip} {ip} {source} {destination}\r\n").into_bytes()
        });
        let families = prop::sample::select(vec![0x00, 0x11, 0x21, 0x31]);
        let version_2 = (prop::sample::select(vec![0x20, 0x21]), families, prop::collection::vec(any::<u8>(), 36..300))
            .prop_map(|(command, family, rest)| binary(command, family, &rest));
        prop_oneof![line, version_2]
    }

    proptest! {
        #[test]
        fn a_header_is_read_whole_and_no_further(header in any_header(), behind in prop::collection::vec(any::<u8>(), 0..40)) {
            let read = ProxyHeader::parse(&header).unwrap().expect("it is whole");
            prop_assert_eq!(read.bytes, header.len());
            for cut in 0..header.len() {
                prop_assert_eq!(ProxyHeader::parse(&header[..cut]), Ok(None));
            }
            prop_assert_eq!(ProxyHeader::parse(&[&header[..], &behind].concat()), Ok(Some(read)));
        }

        #[test]
        fn an_error_stays_one_whatever_follows(octets in prop::collection::vec(any::<u8>(), 0..60), which in 0..3) {
            let begin: &[u8] = [&b""[..], LINE_BEGIN, SIGNATURE][which as usize];
            let bytes = [begin, &octets].concat();
            let verdicts: Vec<_> = (0..=bytes.len()).map(|cut| ProxyHeader::parse(&bytes[..cut])).collect();
            // More, any number of times, and then the same verdict for good.
            let first = verdicts.iter().position(|verdict| *verdict != Ok(None)).unwrap_or(verdicts.len());
            prop_assert!(verdicts[first..].windows(2).all(|pair| pair[0] == pair[1]));
        }
    }
}
