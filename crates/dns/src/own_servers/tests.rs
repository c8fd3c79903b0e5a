use std::net::Ipv4Addr;

use posthaste_dns_stub::{Kind, Server, Zone};

use super::*;
use crate::{RecordSource, Settings};

const TOP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const OWN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn resolver(cache: &Server) -> Resolver {
    Resolver::new(&Settings { servers: vec![cache.address()], timeout_secs: 60, ..Settings::default() }).unwrap()
}

/// A caching resolver's knowledge: the top-level domain's server, and an old text.
fn cache() -> Zone {
    let zone = Zone::default().ns("org", "ns.org.example").a("ns.org.example", TOP);
    zone.txt("example.org", "old").a("ns.elsewhere.example", OWN)
}

fn top() -> Zone {
    Zone::default().delegate("example.org", "ns.example.org", Some(OWN))
}

/// The texts of `name` at the domain's own servers.
async fn texts(top: Zone, own: Zone, name: &str) -> Result<Vec<String>, DnsError> {
    let (cache, [top, _own]) = (Server::start(cache()), Server::start_beside([(TOP, top), (OWN, own)]));
    let resolver = resolver(&cache);
    let servers = OwnServers::new(&resolver, top.address().port());
    RecordSource::OwnServers(&servers).texts(name).await
}

fn why(found: Result<Vec<String>, DnsError>) -> String {
    found.unwrap_err().to_string()
}

#[tokio::test]
async fn a_delegation_is_followed_and_no_cache_is_asked_for_the_name() {
    let (cache, [top, own]) = (
        Server::start(cache()),
        Server::start_beside([(TOP, top()), (OWN, Zone::default().txt("example.org", "new"))]),
    );
    let resolver = resolver(&cache);
    let servers = OwnServers::new(&resolver, top.address().port());
    let source = RecordSource::OwnServers(&servers);
    assert_eq!(source.texts("example.org").await.unwrap(), ["new"]);
    assert_eq!(source.texts("none.example.org").await.unwrap(), [""; 0]);
    assert_eq!(servers.servers_of("a.example.org"), ["ns.example.org"]);
    assert_eq!(cache.asked("example.org", Kind::Txt) + cache.asked("none.example.org", Kind::Txt), 0);
    assert_eq!((top.asked("example.org", Kind::Txt), own.asked("none.example.org", Kind::Txt)), (1, 1));
    assert!(!servers.is_cut_off());
}

#[tokio::test]
async fn servers_without_glue_are_looked_up() {
    let top = Zone::default().delegate("example.org", "ns.elsewhere.example", None);
    assert_eq!(texts(top, Zone::default().txt("example.org", "new"), "example.org").await.unwrap(), ["new"]);
    let top = Zone::default().delegate("example.org", "ns.nowhere.example", None);
    let why = why(texts(top, Zone::default(), "example.org").await);
    assert!(why.contains("no server of example.org has an address: ns.nowhere.example"), "{why}");
}

#[tokio::test]
async fn an_alias_leads_into_another_zone() {
    let top = top().delegate("other.org", "ns.other.org", Some(OWN));
    let own = Zone::default().cname("k._domainkey.example.org", "k.other.org").txt("k.other.org", "key");
    assert_eq!(texts(top, own, "k._domainkey.example.org").await.unwrap(), ["key"]);
}

#[tokio::test]
async fn what_udp_truncates_comes_by_tcp() {
    let long = "x".repeat(3000);
    let own = || Zone::default().txt("example.org", &long).txt("b.example.org", "b").is_truncated("b.example.org");
    assert_eq!(texts(top(), own(), "example.org").await.unwrap(), [long.as_str()]);
    assert_eq!(texts(top(), own(), "b.example.org").await.unwrap(), ["b"]);
}

#[tokio::test]
async fn loops_of_aliases_and_delegations_end() {
    let own = Zone::default().cname("a.example.org", "b.example.org").cname("b.example.org", "a.example.org");
    let found = why(texts(top(), own, "a.example.org").await);
    assert!(found.contains("more than 8 aliases in a row"), "{found}");
    // A server that sends everybody back to where they came from is lame.
    let own = Zone::default().delegate("example.org", "ns.example.org", Some(OWN));
    let found = why(texts(top(), own, "example.org").await);
    assert!(found.ends_with("ns.example.org (127.0.0.2): it does not answer for example.org"), "{found}");
    let own = Zone::default().delegate("org", "ns.org.example", Some(TOP));
    let found = why(texts(top(), own, "example.org").await);
    assert!(found.contains("it does not answer for example.org"), "{found}");
    let own = Zone::default().txt("example.org", "of a cache").is_foreign();
    let found = why(texts(top(), own, "example.org").await);
    assert!(found.contains("it does not answer for example.org"), "{found}");
}

#[tokio::test]
async fn one_lame_server_among_two_does_no_harm() {
    // The second is asked after the first, and both answer at the same port.
    let top = Zone::default().delegate("example.org", "lame.example.org", Some(TOP));
    let top = top.delegate("example.org", "ns.example.org", Some(OWN));
    let own = Zone::default().txt("example.org", "new");
    assert_eq!(texts(top, own, "example.org").await.unwrap(), ["new"]);
}

#[tokio::test]
async fn octets_that_are_no_answer_are_an_error() {
    let mut hostile: Vec<Vec<u8>> = vec![vec![], vec![0x84], vec![0xff; 10], vec![0xff; 4000]];
    // A response whose counts promise more than there is, and one whose name points to itself.
    hostile.push([&[0x84, 0, 0, 1, 0xff, 0xff, 0, 0, 0, 0][..], b"\x07example\x03org\0\0\x10\0\x01"].concat());
    hostile.push(vec![0x84, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 16, 0, 1]);
    for octets in hostile {
        let own = Zone::default().raw("example.org", &octets);
        let why = why(texts(top(), own, "example.org").await);
        assert!(why.contains("cannot be read"), "{octets:?}: {why}");
    }
    // Truncated by UDP, and again by TCP.
    let question = b"\x07example\x03org\0\0\x10\0\x01";
    let truncated = [&[0x86, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], question].concat();
    let found = texts(top(), Zone::default().raw("example.org", &truncated), "example.org").await;
    assert!(found.is_ok_and(|texts| texts.is_empty()), "TCP has the last word");
}

#[tokio::test]
async fn an_answer_to_another_question_does_not_count() {
    let other = [&[0x84, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"\x07example\x03net\0\0\x10\0\x01"].concat();
    let why = why(texts(top(), Zone::default().raw("example.org", &other), "example.org").await);
    assert!(why.contains("cannot be read"), "{why}");
}

#[tokio::test]
async fn where_nobody_answers_at_the_port_all_is_cut_off_at_once() {
    let cache = Server::start(cache());
    let resolver = resolver(&cache);
    // Nobody listens there, and nobody else can: it takes datagrams of one peer alone.
    let held = std::net::UdpSocket::bind((TOP, 0)).unwrap();
    held.connect((TOP, 9)).unwrap();
    let port = held.local_addr().unwrap().port();
    let servers = OwnServers::new(&resolver, port);
    let source = RecordSource::OwnServers(&servers);
    source.texts("example.org").await.unwrap_err();
    assert!(servers.is_cut_off());
    let why = source.texts("example.org").await.unwrap_err().to_string();
    assert!(why.contains("port 53 of other hosts does not answer"), "{why}");
}
