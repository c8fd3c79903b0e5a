//! The resolver against a DNS server on loopback.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use posthaste_dns::{Attempt, DnsError, IpStrategy, MailDestination, Resolver, Settings};
use posthaste_dns_stub::{Kind, Server, Zone};
use posthaste_random::Random;

fn settings(server: &Server) -> Settings {
    Settings { servers: vec![server.address()], timeout_secs: 5, ..Settings::default() }
}

fn resolver(server: &Server) -> Resolver {
    Resolver::new(&settings(server)).unwrap()
}

fn ipv4(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, last)
}

fn ipv6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last)
}

/// `preference name` of each host.
fn hosts(destination: &MailDestination) -> Vec<String> {
    destination.site.hosts().iter().map(|host| format!("{} {}", host.preference, host.name)).collect()
}

#[tokio::test]
async fn texts_are_joined_cached_and_told_from_their_absence() {
    let long = "v=DKIM1; k=rsa; p=".to_owned() + &"A".repeat(600);
    let zone = Zone::default()
        .txt("example.org", "v=spf1 -all")
        .txt("example.org", "other")
        .txt("2611r._domainkey.example.org", &long)
        .cname("alias.example.org", "example.org")
        .a("host.example.org", ipv4(1))
        .fails("broken.example.org");
    let server = Server::start(zone);
    let resolver = resolver(&server);
    let texts = async |name: &str| resolver.texts(name).await.map(|texts| texts.to_vec());
    assert_eq!(texts("Example.ORG.").await.unwrap(), ["v=spf1 -all", "other"]);
    assert_eq!(texts("alias.example.org").await.unwrap(), ["v=spf1 -all", "other"]);
    assert_eq!(texts("2611r._domainkey.example.org").await.unwrap(), [long]);
    assert_eq!(texts("host.example.org").await.unwrap(), [""; 0]);
    assert_eq!(texts("no.example.org").await, Err(DnsError::NoSuchDomain("no.example.org".into())));
    assert!(matches!(texts("broken.example.org").await, Err(DnsError::Unanswered { .. })));
    assert!(matches!(texts("[192.0.2.1]").await, Err(DnsError::NotADomain(_))));
    texts("example.org").await.unwrap();
    assert_eq!(server.asked("example.org", Kind::Txt), 1, "from the cache");
}

/// The names of the hosts of one attempt in their order, and how it ends.
async fn walk(resolver: &Resolver, destination: Arc<MailDestination>, seed: u64) -> (Vec<String>, Option<DnsError>) {
    walk_at(resolver, destination, 25, seed).await
}

/// [`walk`] to hosts at a port.
async fn walk_at(
    resolver: &Resolver,
    destination: Arc<MailDestination>,
    port: u16,
    seed: u64,
) -> (Vec<String>, Option<DnsError>) {
    let mut attempt = Attempt::new(destination, port, &mut Random::new(seed));
    let mut names = Vec::new();
    loop {
        match attempt.next(resolver).await {
            Ok(Some((host, _))) => names.push(host.name.to_string()),
            Ok(None) => return (names, None),
            Err(error) => return (names, Some(error)),
        }
    }
}

fn status(error: &DnsError) -> (&'static str, bool) {
    (error.status(), error.is_final())
}

/// The clock of the caches goes on by so much. The sockets are not waited for meanwhile.
async fn advance(secs: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(secs)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn mx_hosts_are_the_site_and_addresses_are_asked_in_turn() {
    let zone = Zone::default().mx("one.example", 20, "MX2.example").mx("one.example", 10, "mx1.example.");
    let zone = zone.mx("two.example", 10, "mx1.example").mx("two.example", 20, "mx2.example");
    let zone = zone.mx("three.example", 10, "mx1.example");
    let server = Server::start(zone.a("mx1.example", ipv4(1)).a("mx2.example", ipv4(2)).aaaa("mx1.example", ipv6(1)));
    let resolver = resolver(&server);
    let one = resolver.destination("One.example.").await.unwrap();
    assert_eq!(
        (one.domain.as_str(), one.implicit, hosts(&one)),
        ("one.example", false, vec!["10 mx1.example".into(), "20 mx2.example".into()])
    );
    assert_eq!(one.site, resolver.destination("two.example").await.unwrap().site);
    assert_ne!(one.site, resolver.destination("three.example").await.unwrap().site);
    assert_eq!(server.questions().len(), 3);

    let mut attempt = Attempt::new(one, 25, &mut Random::new(1));
    let (host, addresses) = attempt.next(&resolver).await.unwrap().unwrap();
    assert_eq!((&*host.name, addresses.all()), ("mx1.example", &[IpAddr::V6(ipv6(1)), IpAddr::V4(ipv4(1))][..]));
    assert_eq!((server.asked("mx1.example", Kind::A), server.asked("mx1.example", Kind::Aaaa)), (1, 1));
    assert_eq!(server.asked("mx2.example", Kind::A), 0);
    let (host, addresses) = attempt.next(&resolver).await.unwrap().unwrap();
    assert_eq!((&*host.name, addresses.all()), ("mx2.example", &[IpAddr::V4(ipv4(2))][..]));
    assert_eq!(attempt.next(&resolver).await, Ok(None));
}

#[tokio::test]
async fn without_mx_the_domain_is_its_own_host() {
    let server = Server::start(Zone::default().a("plain.example", ipv4(1)).cname("alias.example", "plain.example"));
    let resolver = resolver(&server);
    for domain in ["plain.example", "alias.example"] {
        let destination = resolver.destination(domain).await.unwrap();
        assert_eq!((destination.implicit, hosts(&destination)), (true, vec![format!("0 {domain}")]));
        assert_eq!(resolver.addresses(domain).await.unwrap().all(), [IpAddr::V4(ipv4(1))], "{domain}");
    }
}

#[tokio::test]
async fn each_failure_has_its_status() {
    let zone = Zone::default().null_mx("null.example").fails("broken.example");
    let zone = zone.null_mx("notnull.example").mx("notnull.example", 5, "mx.example").a("mx.example", ipv4(1));
    let zone = zone.mx("dangling.example", 5, "nowhere.example").mx("half.example", 5, "nowhere.example");
    let zone = zone.mx("half.example", 6, "broken.example").mx("noaddress.example", 1, "dangling.example");
    let zone =
        zone.mx("onlyroot.example", 1, ".").mx("onlyroot.example", 2, ".").cname("gone.example", "nowhere.example");
    let server = Server::start(zone);
    let resolver = resolver(&server);
    for (domain, expected) in [
        ("nowhere.example", ("5.1.2", true)),
        ("gone.example", ("5.1.2", true)),
        ("null.example", ("5.1.10", true)),
        ("broken.example", ("4.4.3", false)),
        ("onlyroot.example", ("5.4.4", true)),
        ("a..example", ("5.1.2", true)),
        ("[192.0.2]", ("5.1.2", true)),
    ] {
        let error = resolver.destination(domain).await.unwrap_err();
        assert_eq!(status(&error), expected, "{domain}: {error}");
        assert!(error.to_string().contains(domain), "{error}");
    }
    for (domain, expected) in [
        ("dangling.example", ("5.4.4", true)),
        ("noaddress.example", ("5.4.4", true)),
        ("half.example", ("4.4.3", false)),
    ] {
        let destination = resolver.destination(domain).await.unwrap();
        let (names, error) = walk(&resolver, destination, 1).await;
        assert_eq!((names.len(), error.as_ref().map(status)), (0, Some(expected)), "{domain}: {error:?}");
    }
    // The root among other hosts is not a null MX.
    let destination = resolver.destination("notnull.example").await.unwrap();
    assert_eq!(walk(&resolver, destination, 1).await, (vec!["mx.example".to_owned()], None));
    let error = resolver.destination("a\r\nb.example").await.unwrap_err();
    assert_eq!(error.to_string(), "`ab.example` is not a domain");
}

#[tokio::test]
async fn a_host_that_fails_is_skipped_if_another_has_an_address() {
    let zone = Zone::default().mx("a.example", 1, "broken.example").mx("a.example", 2, "mx.example");
    let zone = zone.fails("broken.example").a("mx.example", ipv4(1)).fails_for("mx.example", Kind::Aaaa);
    let server = Server::start(zone);
    let resolver = resolver(&server);
    let destination = resolver.destination("a.example").await.unwrap();
    assert_eq!(walk(&resolver, destination, 1).await, (vec!["mx.example".to_owned()], None));
}

#[tokio::test]
async fn a_silent_server_is_a_temporary_failure_in_time() {
    let server = Server::start(Zone::default().is_silent("slow.example"));
    let resolver = Resolver::new(&Settings { timeout_secs: 1, ..settings(&server) }).unwrap();
    let error = resolver.destination("slow.example").await.unwrap_err();
    assert_eq!(
        (status(&error), error.to_string().as_str()),
        (("4.4.3", false), "DNS has no answer for slow.example: timeout")
    );
    assert!(server.asked("slow.example", Kind::Mx) > 1);
}

#[tokio::test]
async fn a_thousand_hosts_come_over_tcp_and_the_best_are_kept() {
    let mut zone = Zone::default().mx("forced.example", 1, "mx.example").is_truncated("forced.example");
    for number in 0..1000 {
        zone = zone.mx("many.example", number, &format!("mx{number}.example"));
    }
    let server = Server::start(zone);
    let resolver = resolver(&server);
    assert_eq!(hosts(&resolver.destination("forced.example").await.unwrap()), ["1 mx.example"]);
    let many = resolver.destination("many.example").await.unwrap();
    assert_eq!(hosts(&many), (0..32).map(|number| format!("{number} mx{number}.example")).collect::<Vec<_>>());
    assert!(server.questions().iter().any(|asked| asked.name == "many.example" && asked.over_tcp));
}

#[tokio::test]
async fn hosts_of_our_own_preference_and_worse_are_dropped() {
    let zone = Zone::default().mx("backup.example", 10, "best.example").mx("backup.example", 20, "US.example");
    let zone = zone.mx("backup.example", 20, "same.example").mx("backup.example", 30, "worse.example");
    let zone = zone.mx("ours.example", 10, "us.example").mx("ours.example", 20, "best.example");
    let zone = zone.mx("hidden.example", 10, "best.example").mx("hidden.example", 20, "same.example");
    let zone = zone.mx("hidden.example", 20, "alias.example").mx("hidden.example", 30, "worse.example");
    let zone = zone.mx("allours.example", 10, "alias.example").mx("allours.example", 10, "same.example");
    let zone = zone.mx("unsure.example", 10, "broken.example").mx("unsure.example", 20, "alias.example");
    let zone =
        zone.fails("broken.example").aaaa("alias.example", ipv6(9)).a("us.example", ipv4(9)).a("best.example", ipv4(1));
    let server = Server::start(zone.a("same.example", ipv4(2)).a("worse.example", ipv4(3)).a("alias.example", ipv4(8)));
    let resolver = resolver(&server)
        .with_own(["us.EXAMPLE."], [(ipv4(9), 25).into(), (ipv6(9), 25).into(), (Ipv6Addr::LOCALHOST, 25).into()]);

    let destination = resolver.destination("backup.example").await.unwrap();
    assert_eq!(hosts(&destination), ["10 best.example"]);
    assert_eq!(walk(&resolver, destination, 1).await, (vec!["best.example".to_owned()], None));
    for domain in ["ours.example", "us.example"] {
        let error = resolver.destination(domain).await.unwrap_err();
        assert_eq!((&error, status(&error)), (&DnsError::Loop(domain.to_owned()), ("5.4.6", true)));
    }
    // By address, over IPv6 alone: in any order of the hosts with the same preference.
    for seed in 0..20 {
        let destination = resolver.destination("hidden.example").await.unwrap();
        assert_eq!(walk(&resolver, destination, seed).await, (vec!["best.example".to_owned()], None), "seed {seed}");
        let destination = resolver.destination("allours.example").await.unwrap();
        let expected = DnsError::Loop("allours.example".to_owned());
        assert_eq!(walk(&resolver, destination, seed).await, (vec![], Some(expected)), "seed {seed}");
    }
    let destination = resolver.destination("unsure.example").await.unwrap();
    assert_eq!(walk(&resolver, destination, 1).await.1.as_ref().map(status), Some(("4.4.3", false)));
    for literal in ["[192.0.2.9]", "[IPv6:::1]"] {
        let destination = resolver.destination(literal).await.unwrap();
        assert_eq!(walk(&resolver, destination, 1).await.1.as_ref().map(status), Some(("5.4.6", true)), "{literal}");
    }
    // Another server listens at another port of the address.
    let destination = resolver.destination("[192.0.2.9]").await.unwrap();
    assert_eq!(walk_at(&resolver, destination, 26, 1).await, (vec!["[192.0.2.9]".to_owned()], None));
}

#[tokio::test]
async fn a_listener_without_address_has_all_but_a_configured_host() {
    let zone = Zone::default().mx("there.example", 10, "mx.example").a("mx.example", Ipv4Addr::LOCALHOST);
    let server = Server::start(zone);
    let resolver = resolver(&server).with_own(["us.example"], [(Ipv4Addr::UNSPECIFIED, 25).into()]);
    for domain in ["there.example", "mx.example", "[127.0.0.1]", "[127.0.0.77]", "[IPv6:::ffff:127.0.0.1]"] {
        let destination = resolver.destination(domain).await.unwrap();
        let at = async |port| walk_at(&resolver, destination.clone(), port, 1).await;
        assert_eq!(at(25).await, (vec![], Some(DnsError::Loop(domain.replace("IPv6:::ffff:", "")))), "{domain}");
        assert_eq!((at(26).await.0.len(), at(26).await.1), (1, None), "{domain}");
    }
    let fixed = resolver.fixed("[127.0.0.1]").unwrap();
    assert_eq!(walk(&resolver, fixed, 1).await, (vec!["[127.0.0.1]".to_owned()], None));
}

#[tokio::test]
async fn address_literals_are_not_asked_for() {
    let server = Server::start(Zone::default());
    let resolver = Resolver::new(&Settings { ip: IpStrategy::Ipv4Only, ..settings(&server) }).unwrap();
    let destination = resolver.destination("[192.0.2.1]").await.unwrap();
    assert_eq!(hosts(&destination), ["0 [192.0.2.1]"]);
    assert_eq!(resolver.addresses(&destination.site.hosts()[0].name).await.unwrap().all(), [IpAddr::V4(ipv4(1))]);
    let destination = resolver.destination("[IPv6:2001:DB8::1]").await.unwrap();
    assert_eq!(hosts(&destination), ["0 [IPv6:2001:db8::1]"]);
    let error = walk(&resolver, destination, 1).await.1.unwrap();
    assert_eq!(status(&error), ("5.4.4", true));
    assert_eq!(server.questions(), []);
}

#[tokio::test]
async fn only_the_families_of_the_strategy_are_asked_for() {
    let server = Server::start(Zone::default().a("mx.example", ipv4(1)).aaaa("mx.example", ipv6(1)));
    for (ip, a, aaaa) in [(IpStrategy::Ipv4Only, 1, 0), (IpStrategy::Ipv6Only, 1, 1), (IpStrategy::Ipv4First, 2, 2)] {
        let resolver = Resolver::new(&Settings { ip, ..settings(&server) }).unwrap();
        let addresses = resolver.addresses("mx.example").await.unwrap();
        assert!(addresses.all()[0].is_ipv4() == (ip != IpStrategy::Ipv6Only));
        assert_eq!((server.asked("mx.example", Kind::A), server.asked("mx.example", Kind::Aaaa)), (a, aaaa), "{ip:?}");
    }
}

#[tokio::test]
async fn the_resolver_is_asked_in_a_labels() {
    let server = Server::start(Zone::default().mx("xn--bcher-kva.example", 1, "mx.example"));
    let resolver = resolver(&server);
    for domain in ["Bücher.example", "BU\u{308}CHER.example", "xn--bcher-kva.example", "XN--BCHER-KVA.EXAMPLE."] {
        assert_eq!(resolver.destination(domain).await.unwrap().domain, "xn--bcher-kva.example", "{domain}");
    }
    assert_eq!(server.asked("xn--bcher-kva.example", Kind::Mx), 1);
    assert_eq!(server.questions().len(), 1);
}

#[tokio::test]
async fn hostile_names_are_no_hosts() {
    let zone = Zone::default().mx_labels("evil.example", 1, &[b"a\r\nb", b"example"]);
    let zone = zone.mx_labels("evil.example", 2, &[b"a.b", b"example"]).mx_labels("evil.example", 3, &[b"\xff\xfe"]);
    let zone = zone.mx_labels("evil.example", 3, &[b"a b"]).mx_labels("evil.example", 3, &[b"[127.0.0.1]"]);
    let zone = zone.mx_labels("allevil.example", 1, &[b"\0"]).mx("evil.example", 4, "evil.example");
    let zone =
        zone.a("evil.example", ipv4(1)).a("evil.example", Ipv4Addr::UNSPECIFIED).mx("zero.example", 1, "zero.example");
    let server =
        Server::start(zone.a("zero.example", Ipv4Addr::UNSPECIFIED).a("zero.example", Ipv4Addr::new(224, 0, 0, 1)));
    let resolver = resolver(&server);
    // An MX that is the domain itself is asked for its addresses.
    let destination = resolver.destination("evil.example").await.unwrap();
    assert_eq!(hosts(&destination), ["4 evil.example"]);
    assert_eq!(resolver.addresses("evil.example").await.unwrap().all(), [IpAddr::V4(ipv4(1))]);
    assert_eq!(status(&resolver.destination("allevil.example").await.unwrap_err()), ("5.4.4", true));
    let destination = resolver.destination("zero.example").await.unwrap();
    assert_eq!(walk(&resolver, destination, 1).await.1.as_ref().map(status), Some(("5.4.4", true)));
}

#[tokio::test]
async fn records_that_do_not_belong_to_the_answer_are_ignored() {
    let zone = Zone::default().mx("a.example", 10, "mx.example").stray_mx("a.example", "b.example", 1, "evil.example");
    let zone = zone.stray_mx("foreign.example", "b.example", 1, "evil.example").malformed_mx("malformed.example");
    let server = Server::start(zone.mx("b.example", 10, "mx.example"));
    let resolver = resolver(&server);
    assert_eq!(hosts(&resolver.destination("a.example").await.unwrap()), ["10 mx.example"]);
    assert_eq!(hosts(&resolver.destination("b.example").await.unwrap()), ["10 mx.example"]);
    assert!(resolver.destination("foreign.example").await.is_err());
    assert_eq!(status(&resolver.destination("malformed.example").await.unwrap_err()), ("4.4.3", false));
}

#[tokio::test]
async fn cname_chains_are_followed_and_loops_end() {
    let mut zone = Zone::default().cname("domain.example", "target.example").mx("target.example", 1, "mx.example");
    zone = zone.ttl(60).cname("mx.example", "host.example").ttl(3600).a("host.example", ipv4(1));
    zone = zone.cname("a.example", "b.example").cname("b.example", "a.example").cname("self.example", "self.example");
    let server = Server::start(zone);
    let resolver = resolver(&server);
    let destination = resolver.destination("domain.example").await.unwrap();
    assert_eq!(hosts(&destination), ["1 mx.example"]);
    let addresses = resolver.addresses("mx.example").await.unwrap();
    assert_eq!(addresses.all(), [IpAddr::V4(ipv4(1))]);
    // The least TTL of the chain counts.
    assert!(addresses.valid_until() <= tokio::time::Instant::now() + Duration::from_secs(60));
    for domain in ["a.example", "self.example"] {
        let before = server.questions().len();
        if let Ok(destination) = resolver.destination(domain).await {
            let (names, error) = walk(&resolver, destination, 1).await;
            assert_eq!((names.len(), error.is_some()), (0, true), "{domain}");
        }
        assert!(server.questions().len() - before <= 30, "{domain}: {} questions", server.questions().len() - before);
    }
}

#[tokio::test]
async fn answers_are_cached_until_their_ttl_within_bounds() {
    let zone = Zone::default().mx("hour.example", 1, "mx.example").ttl(1).mx("second.example", 1, "mx.example");
    let zone =
        zone.ttl(1_000_000).mx("weeks.example", 1, "mx.example").fails("broken.example").a("mx.example", ipv4(1));
    let server = Server::start(zone);
    let resolver = resolver(&server);
    for (domain, secs) in [
        ("hour.example", 3600),
        ("second.example", 30),
        ("weeks.example", 86_400),
        ("nowhere.example", 900),
        ("broken.example", 30),
    ] {
        let first = resolver.destination(domain).await;
        let asked = server.asked(domain, Kind::Mx);
        advance(secs - 2).await;
        assert_eq!(resolver.destination(domain).await, first);
        assert_eq!(server.asked(domain, Kind::Mx), asked, "{domain}");
        advance(3).await;
        let again = resolver.destination(domain).await;
        assert_eq!(again.is_ok(), first.is_ok());
        assert!(server.asked(domain, Kind::Mx) > asked, "{domain}");
    }
    // Hosts, and that one has no IPv6 address, which is a negative answer.
    resolver.addresses("mx.example").await.unwrap();
    advance(898).await;
    resolver.addresses("mx.example").await.unwrap();
    assert_eq!((server.asked("mx.example", Kind::A), server.asked("mx.example", Kind::Aaaa)), (1, 1));
    advance(3).await;
    resolver.addresses("mx.example").await.unwrap();
    assert_eq!((server.asked("mx.example", Kind::A), server.asked("mx.example", Kind::Aaaa)), (2, 2));
}

#[tokio::test]
async fn a_new_list_is_a_new_site_after_its_ttl() {
    let server = Server::start(Zone::default().mx("a.example", 1, "old.example"));
    let resolver = resolver(&server);
    let old = resolver.destination("a.example").await.unwrap();
    server.change(Zone::default().mx("a.example", 1, "new.example"));
    assert_eq!(resolver.destination("a.example").await.unwrap(), old);
    advance(3601).await;
    assert!(old.valid_until <= tokio::time::Instant::now());
    let new = resolver.destination("a.example").await.unwrap();
    assert!(new.site != old.site && hosts(&new) == ["1 new.example"]);
}

#[tokio::test]
async fn a_thousand_callers_make_one_query() {
    let server = Server::start(Zone::default().mx("a.example", 1, "mx.example").a("mx.example", ipv4(1)));
    server.hold();
    let resolver = Arc::new(resolver(&server));
    let callers: Vec<_> = (0..1000)
        .map(|_| {
            let resolver = Arc::clone(&resolver);
            tokio::spawn(async move {
                let destination = resolver.destination("a.example").await.unwrap();
                walk(&resolver, destination, 1).await
            })
        })
        .collect();
    // All have been polled once before this task goes on, so all wait for the answer.
    tokio::task::yield_now().await;
    server.release();
    for caller in callers {
        assert_eq!(caller.await.unwrap().0, ["mx.example"]);
    }
    let questions = server.questions();
    assert_eq!(questions.len(), 3, "{questions:?}");
}

#[tokio::test]
async fn many_domains_share_a_bounded_number_of_questions() {
    let mut zone = Zone::default();
    for number in 0..300 {
        zone = zone.mx(&format!("d{number}.example"), 1, "mx.example");
    }
    let server = Server::start(zone.a("marker.example", ipv4(1)));
    server.hold();
    let resolver = Arc::new(Resolver::new(&Settings { questions_max: 2, ..settings(&server) }).unwrap());
    let callers: Vec<_> = (0..300)
        .map(|number| {
            let resolver = Arc::clone(&resolver);
            tokio::spawn(async move { resolver.destination(&format!("d{number}.example")).await.map(drop) })
        })
        .collect();
    while server.questions().len() < 2 {
        tokio::task::yield_now().await;
    }
    // Behind all that was sent before; the server takes questions in their order.
    let marker = b"\0\0\x01\0\0\x01\0\0\0\0\0\0\x06marker\x07example\0\0\x01\0\x01";
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap().send_to(marker, server.address()).unwrap();
    while server.asked("marker.example", Kind::A) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.questions().len(), 3);
    server.release();
    for caller in callers {
        assert_eq!(caller.await.unwrap(), Ok(()));
    }
}

#[tokio::test]
async fn fixed_hosts_replace_dns() {
    let server = Server::start(Zone::default().mx("a.example", 1, "mx.example"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "192.0.2.7 mx.example b.example\n").unwrap();
    let hosts_of = [("B.example".to_owned(), vec![IpAddr::V4(ipv4(8))])].into();
    let with_hosts = Settings { hosts_file: Some(file.path().to_owned()), hosts: hosts_of, ..settings(&server) };
    let resolver = Resolver::new(&with_hosts).unwrap();
    for (domain, host, address) in [("a.example", "1 mx.example", 7), ("b.example", "0 b.example", 8)] {
        let destination = resolver.destination(domain).await.unwrap();
        assert_eq!(hosts(&destination), [host]);
        let found = resolver.addresses(&destination.site.hosts()[0].name).await.unwrap();
        assert_eq!(found.all(), [IpAddr::V4(ipv4(address))]);
    }
    assert_eq!(server.questions().len(), 1);
    let missing = Settings { hosts_file: Some("/nonexistent/hosts".into()), ..settings(&server) };
    assert!(Resolver::new(&missing).unwrap_err().to_string().starts_with("/nonexistent/hosts: "));
}
