//! The credential of a request, and the checks against other web sites.
//!
//! A browser sends requests that its user does not know of: to a name that an attacker's DNS points here, or from a
//! page of another site. It sends `Authorization: Bearer` only when our own page has the token, so such requests need
//! no check of their names.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST, HeaderMap, ORIGIN};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode, Version};

/// The credential of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Credential {
    /// No credential.
    None,
    /// A token or a session, or a malformed one.
    Token(String),
    /// A browser's cookie.
    Cookie(String),
}

/// Why a request is refused before routing; see [`status`](Self::status).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GuardRefusal {
    #[error("the request needs one Host")]
    NoHost,
    #[error("the request's target and its Host name different hosts")]
    TwoHosts,
    #[error("this server is not a proxy: it takes no CONNECT")]
    NoProxy,
    #[error("more than one Authorization header or session, or an unreadable one")]
    Malformed,
    #[error("this server does not have that name; add it to `names` in [http]")]
    OtherHost,
    #[error("requests from pages of other sites are refused")]
    OtherOrigin,
    #[error("Basic authentication is not accepted from browsers")]
    BasicFromBrowser,
    #[error("a change with a cookie needs the headers Origin, Content-Type: application/json and X-Posthaste: 1")]
    NotOurPage,
    #[error("a request without a token needs Content-Type: application/json and must not come from a browser")]
    NotAProgram,
}

impl GuardRefusal {
    pub fn status(self) -> StatusCode {
        match self {
            Self::NoHost | Self::TwoHosts | Self::NoProxy | Self::Malformed => StatusCode::BAD_REQUEST,
            Self::OtherHost => StatusCode::MISDIRECTED_REQUEST,
            Self::OtherOrigin | Self::BasicFromBrowser | Self::NotOurPage | Self::NotAProgram => StatusCode::FORBIDDEN,
        }
    }
}

/// Host names under which browsers may reach the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostNames(HashSet<String>);

impl HostNames {
    /// Accepts these names, given without ports, and `localhost`.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().map(|name| name.to_ascii_lowercase()).chain(["localhost".to_owned()]).collect())
    }

    /// True if a browser may use this `Host`. `is_loopback`: only this machine can reach the listener, so loopback
    /// addresses are accepted, too: an attacker cannot choose them.
    fn allow(&self, host: &str, is_loopback: bool) -> bool {
        let literal = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let is_own_address = || literal.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
        self.0.contains(host.strip_suffix('.').unwrap_or(host)) || (is_loopback && is_own_address())
    }
}

/// Checks a request. `is_exempt`: the answer contains no secrets, such as the health status.
///
/// # Errors
/// See [`GuardRefusal`].
pub(crate) fn check(
    parts: &Parts,
    names: &HostNames,
    is_loopback: bool,
    is_exempt: bool,
) -> Result<Credential, GuardRefusal> {
    if parts.method == Method::CONNECT {
        return Err(GuardRefusal::NoProxy);
    }
    let credential = credential(&parts.headers)?;
    let is_bound = !matches!(credential, Credential::Token(_)) && !is_exempt;
    let host = host(parts)?;
    if !is_bound {
        return Ok(credential);
    }
    let host = host.filter(|host| names.allow(&host.name, is_loopback)).ok_or(GuardRefusal::OtherHost)?;
    for origin in parts.headers.get_all(ORIGIN) {
        if !origin.to_str().is_ok_and(|origin| is_same(origin, &host)) {
            return Err(GuardRefusal::OtherOrigin);
        }
    }
    if matches!(credential, Credential::Cookie(_)) {
        check_page(parts)?;
    }
    Ok(credential)
}

/// Checks a request with a cookie: browsers add cookies to requests from other sites, too.
fn check_page(parts: &Parts) -> Result<(), GuardRefusal> {
    let is =
        |name: &str, wanted: &str| parts.headers.get(name).is_some_and(|value| value.as_bytes() == wanted.as_bytes());
    // A page's own requests are `same-origin`, an address that was typed is `none`.
    let is_own = !parts.headers.contains_key(FETCH_SITE) || is(FETCH_SITE, "same-origin") || is(FETCH_SITE, "none");
    let is_read = [Method::GET, Method::HEAD].contains(&parts.method);
    // A link of another host of the same domain that a person follows: the site that has it cannot read the answer.
    let is_followed_link = is_read && is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document");
    if !is_own && !is_followed_link {
        return Err(GuardRefusal::OtherOrigin);
    }
    if is_read {
        return Ok(());
    }
    let is_ours = parts.headers.contains_key(ORIGIN) && is("x-posthaste", "1") && is_json(&parts.headers);
    if is_ours { Ok(()) } else { Err(GuardRefusal::NotOurPage) }
}

/// Checks a request that only its client's network authorises: any site could make a browser there send it. `Host` was
/// already checked.
pub(crate) fn check_program(headers: &HeaderMap) -> Result<(), GuardRefusal> {
    let is_of_browser = |name: &str| name == ORIGIN.as_str() || name.starts_with("sec-fetch-");
    let is_of_program = is_json(headers) && !headers.keys().any(|name| is_of_browser(name.as_str()));
    if is_of_program { Ok(()) } else { Err(GuardRefusal::NotAProgram) }
}

/// True if the request declares a JSON body.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    content_type.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

/// Host and port of a request, in lower case. An empty port counts as none (RFC 3986 section 3.2.3).
#[derive(Debug, Clone, PartialEq, Eq)]
struct HostAndPort {
    name: String,
    port: Option<u16>,
}

impl HostAndPort {
    fn parse(text: &str) -> Option<Self> {
        let (name, port) = match text.rsplit_once(':') {
            // An IPv6 address stands in brackets; without a port its last colon is inside of them.
            Some((name, "")) => (name, None),
            Some((name, port)) if !port.ends_with(']') => (name, Some(port.parse().ok()?)),
            _ => (text, None),
        };
        let is_name =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        let is_literal = || name.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
        (is_name || is_literal().is_some()).then(|| Self { name: name.to_ascii_lowercase(), port })
    }
}

/// The host of a request; `None` if HTTP/1.0 names none. The host of the target and the field `Host` must agree (RFC
/// 9112 section 3.2.2).
fn host(parts: &Parts) -> Result<Option<HostAndPort>, GuardRefusal> {
    let mut fields = parts.headers.get_all(HOST).iter();
    let (field, more) = (fields.next(), fields.next());
    let field = field.map(|value| value.to_str().ok().and_then(HostAndPort::parse).ok_or(GuardRefusal::NoHost));
    let field = field.transpose()?;
    let in_target = parts.uri.authority().map(|authority| HostAndPort::parse(authority.as_str()));
    match (field, in_target) {
        _ if more.is_some() => Err(GuardRefusal::NoHost),
        (Some(field), Some(in_target)) if in_target.as_ref() != Some(&field) => Err(GuardRefusal::TwoHosts),
        (None, None | Some(None)) if parts.version > Version::HTTP_10 => Err(GuardRefusal::NoHost),
        (None, in_target) => Ok(in_target.flatten()),
        (field, _) => Ok(field),
    }
}

/// The host name of a request, in lower case; empty without one.
pub(crate) fn host_name(parts: &Parts) -> String {
    let named = host(parts).ok().flatten().map(|host| host.name);
    named.map_or_else(String::new, |name| name.strip_suffix('.').unwrap_or(&name).to_owned())
}

/// True if an origin equals the host (RFC 6454), as for our own page.
fn is_same(origin: &str, host: &HostAndPort) -> bool {
    let (rest, usual) = match (origin.strip_prefix("http://"), origin.strip_prefix("https://")) {
        (Some(rest), _) => (rest, 80),
        (_, Some(rest)) => (rest, 443),
        _ => return false,
    };
    HostAndPort::parse(rest)
        .is_some_and(|origin| origin.name == host.name && origin.port.unwrap_or(usual) == host.port.unwrap_or(usual))
}

fn credential(headers: &HeaderMap) -> Result<Credential, GuardRefusal> {
    // It tells that a browser asks: the checks for browsers apply, whatever else the request has.
    let mut cookies = headers.get_all(COOKIE).iter().flat_map(|field| sessions_in(field.as_bytes()));
    if let Some(cookie) = cookies.next() {
        let cookie = std::str::from_utf8(cookie).ok().filter(|_| cookies.next().is_none());
        return cookie.map(|cookie| Credential::Cookie(cookie.to_owned())).ok_or(GuardRefusal::Malformed);
    }
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    let Some(field) = fields.next() else { return Ok(Credential::None) };
    if fields.next().is_some() {
        return Err(GuardRefusal::Malformed);
    }
    let field = field.to_str().map_err(|_| GuardRefusal::Malformed)?;
    let (scheme, value) = field.split_once(' ').ok_or(GuardRefusal::Malformed)?;
    let value = value.trim_start_matches(' ');
    if scheme.eq_ignore_ascii_case("bearer") {
        return Ok(Credential::Token(value.to_owned()));
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(GuardRefusal::Malformed);
    }
    // A browser that has a password for this server adds it to requests from anywhere.
    if headers.contains_key(ORIGIN) || headers.contains_key(FETCH_SITE) {
        return Err(GuardRefusal::BasicFromBrowser);
    }
    let pair = STANDARD.decode(value).ok().and_then(|octets| String::from_utf8(octets).ok());
    let pair = pair.ok_or(GuardRefusal::Malformed)?;
    let (_, password) = pair.split_once(':').ok_or(GuardRefusal::Malformed)?;
    Ok(Credential::Token(password.to_owned()))
}

/// Values of the session cookie. Cookies of other programs on the host may contain any octets.
fn sessions_in(field: &[u8]) -> impl Iterator<Item = &[u8]> {
    field.split(|&octet| octet == b';').filter_map(|pair| pair.trim_ascii().strip_prefix(SESSION))
}

const SESSION: &[u8] = b"__Host-posthaste=";
const FETCH_SITE: &str = "sec-fetch-site";

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn parts(target: &str, fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn names() -> HostNames {
        HostNames::new(["MX.example.org".to_owned(), "page.example.net".to_owned()])
    }

    fn ask(target: &str, is_loopback: bool, fields: &[(&str, &str)]) -> Result<Credential, GuardRefusal> {
        check(&parts(target, fields), &names(), is_loopback, false)
    }

    #[test]
    fn a_request_without_a_token_names_this_server() {
        use GuardRefusal::{NoHost, OtherHost, TwoHosts};
        let check = |host: &str, is_loopback, expected: Result<(), GuardRefusal>| {
            assert_eq!(ask("/", is_loopback, &[("host", host)]).map(drop), expected, "{host} {is_loopback}");
        };
        for host in [
            "mx.example.org",
            "mx.EXAMPLE.org.",
            "mx.example.org:1",
            "page.example.net",
            "localhost:8025",
            "localhost:",
            "LOCALHOST",
        ] {
            check(host, false, Ok(()));
        }
        for host in ["127.0.0.1:8025", "127.9.9.9", "[::1]:8025", "[::ffff:127.0.0.1]"] {
            check(host, true, Ok(()));
            check(host, false, Err(OtherHost));
        }
        for host in
            ["evil.example", "192.0.2.1", "mx.example.org.evil.example", "0.0.0.0", "[::]", "127.0.0.1.evil.example"]
        {
            check(host, true, Err(OtherHost));
        }
        for host in ["", "a b", "mx.example.org:x", "mx.example.org:99999", "mx.example.org@evil.example", "[::1", "é"]
        {
            check(host, true, Err(NoHost));
        }
        assert_eq!(ask("/", true, &[]), Err(NoHost));
        assert_eq!(ask("/", true, &[("host", "localhost"), ("host", "localhost")]), Err(NoHost));
        assert_eq!(ask("http://evil.example/", true, &[("host", "localhost")]), Err(TwoHosts));
        assert_eq!(ask("http://evil.example/", true, &[("host", "evil.example")]), Err(OtherHost));
        assert_eq!(ask("http://LocalHost/", true, &[("host", "localhost")]).map(drop), Ok(()));
    }

    #[test]
    fn a_request_to_a_proxy_is_told_that_there_is_none() {
        for (target, host) in [("evil.example:443", "evil.example:443"), ("localhost:8025", "localhost:8025")] {
            let request = Request::builder().method(Method::CONNECT).uri(target).header("host", host);
            let parts = request.body(()).unwrap().into_parts().0;
            let refused = check(&parts, &names(), true, false).unwrap_err();
            assert_eq!((refused, refused.status()), (GuardRefusal::NoProxy, StatusCode::BAD_REQUEST));
        }
        let shown = [("host", "localhost"), ("authorization", "Bearer pht_1")];
        assert_eq!(ask("http://evil.example/", true, &shown), Err(GuardRefusal::TwoHosts), "also with a token");
    }

    #[test]
    fn a_token_or_an_exempt_path_may_come_under_any_name() {
        let token = [("host", "evil.example"), ("origin", "http://evil.example"), ("authorization", "Bearer pht_1")];
        assert_eq!(ask("/", false, &token), Ok(Credential::Token("pht_1".to_owned())));
        let parts = parts("/health/live", &[("host", "evil.example")]);
        assert_eq!(check(&parts, &names(), false, true), Ok(Credential::None));
    }

    #[test]
    fn a_cookie_makes_a_token_not_count() {
        let fields =
            [("host", "evil.example"), ("authorization", "Bearer pht_1"), ("cookie", "a=b; __Host-posthaste=x")];
        assert_eq!(ask("/", false, &fields), Err(GuardRefusal::OtherHost));
        let fields =
            [("host", "localhost"), ("authorization", "Bearer pht_1"), ("cookie", "a=b; __Host-posthaste=x ;c")];
        assert_eq!(ask("/", false, &fields), Ok(Credential::Cookie("x".to_owned())));
        for cookie in ["other=1", "other=\u{e9}", "x__Host-posthaste=1"] {
            let fields = [("host", "localhost"), ("authorization", "Bearer pht_1"), ("cookie", cookie)];
            assert_eq!(ask("/", false, &fields), Ok(Credential::Token("pht_1".to_owned())));
        }
        let fields =
            [("host", "evil.example"), ("cookie", "\u{e9}; __Host-posthaste=x"), ("authorization", "Bearer x")];
        assert_eq!(ask("/", false, &fields), Err(GuardRefusal::OtherHost));
        let fields = [("host", "localhost"), ("cookie", "__Host-posthaste=x; __Host-posthaste=y")];
        assert_eq!(ask("/", false, &fields), Err(GuardRefusal::Malformed));
    }

    #[test]
    fn a_change_with_a_cookie_comes_from_our_page() {
        let check = |method: Method, more: &[(&'static str, &'static str)], expected: Result<(), GuardRefusal>| {
            let mut request = Request::builder().method(&method).uri("/api/control/v1");
            for (name, value) in [&[("host", "localhost"), ("cookie", "__Host-posthaste=x")], more].concat() {
                request = request.header(name, value);
            }
            let parts = request.body(()).unwrap().into_parts().0;
            assert_eq!(super::check(&parts, &names(), false, false).map(drop), expected, "{method} {more:?}");
        };
        let (origin, json, ours) =
            (("origin", "https://localhost"), ("content-type", "application/json"), ("x-posthaste", "1"));
        check(Method::GET, &[], Ok(()));
        check(Method::POST, &[origin, json, ours], Ok(()));
        check(Method::POST, &[origin, json, ours, ("sec-fetch-site", "same-origin")], Ok(()));
        for missing in [[origin, json], [origin, ours], [json, ours]] {
            check(Method::POST, &missing, Err(GuardRefusal::NotOurPage));
            check(Method::DELETE, &missing, Err(GuardRefusal::NotOurPage));
        }
        check(Method::POST, &[origin, ours, ("content-type", "text/plain")], Err(GuardRefusal::NotOurPage));
        for site in ["cross-site", "same-site", ""] {
            check(Method::GET, &[("sec-fetch-site", site)], Err(GuardRefusal::OtherOrigin));
            check(Method::POST, &[origin, json, ours, ("sec-fetch-site", site)], Err(GuardRefusal::OtherOrigin));
            let (mode, frame) = (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe"));
            check(Method::GET, &[("sec-fetch-site", site), mode, frame], Err(GuardRefusal::OtherOrigin));
            let link = [("sec-fetch-site", site), mode, ("sec-fetch-dest", "document")];
            check(Method::GET, &link, Ok(()));
            check(Method::POST, &[link.to_vec(), vec![origin, json, ours]].concat(), Err(GuardRefusal::OtherOrigin));
        }
        check(Method::POST, &[("origin", "https://evil.example"), json, ours], Err(GuardRefusal::OtherOrigin));
    }

    #[test]
    fn an_origin_is_that_of_the_host() {
        let check = |host: &str, origin: &str, is_same: bool| {
            let answer = ask("/", true, &[("host", host), ("origin", origin)]);
            let expected = if is_same { Ok(Credential::None) } else { Err(GuardRefusal::OtherOrigin) };
            assert_eq!(answer, expected, "{host} {origin}");
        };
        check("127.0.0.1:8025", "http://127.0.0.1:8025", true);
        check("[::1]:8025", "http://[::1]:8025", true);
        check("mx.example.org", "https://MX.example.org", true);
        check("mx.example.org", "https://mx.example.org:443", true);
        check("mx.example.org:80", "http://mx.example.org", true);
        for origin in [
            "http://127.0.0.1:8026",
            "http://localhost:8025",
            "null",
            "",
            "http://evil.example",
            "file://",
            "127.0.0.1:8025",
        ] {
            check("127.0.0.1:8025", origin, false);
        }
    }

    #[test]
    fn basic_takes_the_token_as_password_and_no_browser() {
        let basic = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
        let with = |authorization: &str, more: &[(&str, &str)]| {
            ask("/", true, &[&[("host", "localhost"), ("authorization", authorization)], more].concat())
        };
        assert_eq!(with(&basic("any:pht_1"), &[]), Ok(Credential::Token("pht_1".to_owned())));
        assert_eq!(with(&basic(":a:b"), &[]), Ok(Credential::Token("a:b".to_owned())));
        for (name, value) in [("origin", "http://localhost"), ("sec-fetch-site", "same-origin")] {
            assert_eq!(with(&basic("any:pht_1"), &[(name, value)]), Err(GuardRefusal::BasicFromBrowser));
        }
        for wrong in [&*basic("no-colon"), "Basic ???", "Digest x", "Bearer", "pht_1"] {
            assert_eq!(with(wrong, &[]), Err(GuardRefusal::Malformed), "{wrong}");
        }
        assert_eq!(with("Bearer a", &[("authorization", "Bearer b")]), Err(GuardRefusal::Malformed));
    }
}
