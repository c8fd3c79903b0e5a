use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Question, SpfResult, Verdict, check};
use crate::zone::{Zone, now};
use crate::{Dns, NoAnswer};

fn verdict(zone: &Zone, ip: &str, helo: &str, sender: &str) -> Verdict {
    now(check(zone, &Question { ip: ip.parse().unwrap(), helo, sender }))
}

fn result(zone: &[&str]) -> SpfResult {
    verdict(&Zone::new(zone), "192.0.2.1", "mx.example", "ann@x.example").result
}

#[test]
fn the_first_match_decides() {
    use SpfResult::*;
    for (record, expected) in [
        ("ip4:192.0.2.0/24 -all", Pass),
        ("ip4:198.51.100.0/24 -all", Fail),
        ("ip4:198.51.100.0/24 ~all", SoftFail),
        ("ip4:198.51.100.0/24", Neutral),
        ("?ip4:192.0.2.1 -all", Neutral),
        ("a:y.example -all", Pass),
        ("mx:y.example -all", Pass),
        ("ptr:y.example -all", Pass),
        ("exists:%{ir}.list.example -all", Pass),
        ("include:soft.example -all", Fail),
        ("redirect=soft.example", SoftFail),
        ("include:none.example -all", PermError),
        ("redirect=none.example", PermError),
        ("a:late.example -all", TempError),
        ("-all typo", PermError),
    ] {
        let zone = [
            &format!("x.example TXT v=spf1 {record}"),
            "y.example A 192.0.2.1",
            "y.example MX y.example",
            "192.0.2.1 PTR y.example",
            "1.2.0.192.list.example A 127.0.0.2",
            "soft.example TXT v=spf1 ~all",
            "late.example TIMEOUT",
        ];
        assert_eq!(result(&zone), expected, "{record}");
    }
}

#[test]
fn without_one_policy_there_is_no_verdict() {
    assert_eq!(result(&[]), SpfResult::None);
    assert_eq!(result(&["x.example TXT v=spf10"]), SpfResult::None);
    assert_eq!(result(&["x.example TXT v=spf1", "x.example TXT v=spf1"]), SpfResult::PermError);
    assert_eq!(result(&["x.example TIMEOUT"]), SpfResult::TempError);
}

#[test]
fn helo_is_checked_when_the_sender_is_empty() {
    let zone = Zone::new(&["mx.example TXT v=spf1 ip4:192.0.2.1 -all"]);
    let found = verdict(&zone, "::ffff:192.0.2.1", "MX.example", "");
    assert_eq!((found.result, found.domain.as_str(), found.is_of_sender), (SpfResult::Pass, "mx.example", false));
    for helo in ["[192.0.2.1]", "localhost", "", "a..b"] {
        assert_eq!(verdict(&zone, "192.0.2.1", helo, "").result, SpfResult::None, "{helo}");
    }
}

#[test]
fn a_domain_that_sends_nothing_is_known() {
    for (record, expected) in [
        ("v=spf1 -all", true),
        ("V=spf1  -ALL ", true),
        ("v=spf1 ~all", false),
        ("v=spf1 a -all", false),
        ("v=spf1 -all -all", false),
        ("v=spf1", false),
    ] {
        let zone = Zone::new(&[format!("x.example TXT {record}")]);
        assert_eq!(verdict(&zone, "192.0.2.1", "h", "a@x.example").sends_nothing, expected, "{record}");
    }
    let zone = Zone::new(&["x.example TXT v=spf1 redirect=y.example", "y.example TXT v=spf1 -all"]);
    let found = verdict(&zone, "192.0.2.1", "h", "a@x.example");
    assert_eq!((found.result, found.sends_nothing), (SpfResult::Fail, false), "only the domain's own policy counts");
}

#[test]
fn spf_stops_at_ten_terms() {
    let record = |terms: usize| format!("x.example TXT v=spf1{} -all", " a:y.example".repeat(terms));
    let y = "y.example A 198.51.100.1";
    assert_eq!(result(&[&record(10), y]), SpfResult::Fail);
    assert_eq!(result(&[&record(11), y]), SpfResult::PermError);
    assert_eq!(result(&["x.example TXT v=spf1 include:x.example -all"]), SpfResult::PermError);
    assert_eq!(result(&["x.example TXT v=spf1 redirect=x.example"]), SpfResult::PermError);
}

#[test]
fn spf_stops_after_two_void_answers() {
    assert_eq!(result(&["x.example TXT v=spf1 a:a.example a:b.example -all"]), SpfResult::Fail);
    assert_eq!(result(&["x.example TXT v=spf1 a:a.example a:b.example a:c.example -all"]), SpfResult::PermError);
}

#[test]
fn spf_takes_ten_hosts_of_an_mx_and_ten_names_of_an_address() {
    let mut zone = vec!["x.example TXT v=spf1 mx -all".to_owned()];
    for number in 0..10 {
        zone.push(format!("x.example MX mx{number}.example"));
        zone.push(format!("mx{number}.example A 198.51.100.{number}"));
    }
    let of = |zone: &[String]| verdict(&Zone::new(zone), "192.0.2.1", "h.example", "a@x.example").result;
    assert_eq!(of(&zone), SpfResult::Fail);
    zone.push("x.example MX mx10.example".to_owned());
    assert_eq!(of(&zone), SpfResult::PermError);

    let names = |before: usize| {
        let mut zone = vec!["x.example TXT v=spf1 ptr -all".to_owned(), "good.x.example A 192.0.2.1".to_owned()];
        zone.extend((0..before).map(|number| format!("192.0.2.1 PTR n{number}.example")));
        zone.push("192.0.2.1 PTR good.x.example".to_owned());
        zone
    };
    assert_eq!(of(&names(9)), SpfResult::Pass);
    assert_eq!(of(&names(10)), SpfResult::Fail, "the eleventh name is not looked at");
}

#[test]
fn questions_of_one_check_are_bounded() {
    let mut zone = vec!["x.example TXT v=spf1".to_owned() + &" mx:m.example".repeat(10) + " -all"];
    for number in 0..10 {
        zone.push(format!("m.example MX mx{number}.example"));
        zone.push(format!("mx{number}.example A 198.51.100.{number}"));
    }
    let zone = Zone::new(&zone);
    assert_eq!(verdict(&zone, "192.0.2.1", "h", "a@x.example").result, SpfResult::Fail);
    assert_eq!(zone.asked.load(Ordering::Relaxed), 1 + 10 + 100);
}

/// A zone whose questions are as large as those of a resolver.
struct Large(Zone);

impl Dns for Large {
    async fn texts(&self, name: &str) -> Result<Arc<[String]>, NoAnswer> {
        let state = [0_u8; 64 << 10];
        let answer = self.0.texts(name).await;
        black_box(&state);
        answer
    }

    async fn addresses(&self, name: &str, is_ipv6: bool) -> Result<Vec<IpAddr>, NoAnswer> {
        self.0.addresses(name, is_ipv6).await
    }

    async fn mail_hosts(&self, name: &str) -> Result<Vec<String>, NoAnswer> {
        self.0.mail_hosts(name).await
    }

    async fn names(&self, address: IpAddr) -> Result<Vec<String>, NoAnswer> {
        self.0.names(address).await
    }
}

/// The result on a thread with a small stack; an overflow would abort the tests.
fn result_on_a_small_stack(zone: Vec<String>) -> SpfResult {
    let evaluation = move || {
        let question = Question { ip: "192.0.2.1".parse().unwrap(), helo: "h", sender: "ann@n0.example" };
        now(check(&Large(Zone::new(&zone)), &question)).result
    };
    std::thread::Builder::new().stack_size(1536 << 10).spawn(evaluation).unwrap().join().unwrap()
}

#[test]
fn policies_of_strangers_nest_without_the_stack() {
    let chain = |links: usize, term: &str| {
        let link = |number| format!("n{number}.example TXT v=spf1 {term}n{}.example", number + 1);
        let mut zone: Vec<String> = (0..links).map(link).collect();
        zone.push(format!("n{links}.example TXT v=spf1 +all"));
        result_on_a_small_stack(zone)
    };
    for term in ["include:", "redirect=", "?ip4:192.0.2.2 +include:"] {
        assert_eq!(chain(10, term), SpfResult::Pass, "{term}");
        assert_eq!(chain(11, term), SpfResult::PermError, "{term}");
    }
    for own in ["include:n0.example", "redirect=n0.example", "include:n0.example redirect=n0.example"] {
        assert_eq!(
            result_on_a_small_stack(vec![format!("n0.example TXT v=spf1 {own}")]),
            SpfResult::PermError,
            "{own}"
        );
    }
}

#[test]
fn an_include_that_does_not_match_goes_on_with_the_next_term() {
    let zone = [
        "x.example TXT v=spf1 include:a.example ~include:b.example -all",
        "a.example TXT v=spf1 include:soft.example include:soft.example -all",
        "b.example TXT v=spf1 -ip4:198.51.100.1 include:soft.example redirect=c.example",
        "c.example TXT v=spf1 ip4:192.0.2.1",
        "soft.example TXT v=spf1 ~all",
    ];
    assert_eq!(result(&zone), SpfResult::SoftFail);
}
