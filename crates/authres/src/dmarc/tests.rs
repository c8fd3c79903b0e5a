use std::sync::atomic::Ordering;

use super::{AlignedDomain, AuthorPolicy, DmarcRecord, DmarcResult, DmarcVerdict, Method, Policy};
use crate::zone::{Zone, now};

fn judged(zone: &Zone, author: &str, identities: &[AlignedDomain<'_>]) -> DmarcVerdict {
    now(async {
        match AuthorPolicy::look_up(zone, author).await {
            Ok(policy) => policy.judge(zone, identities).await,
            Err(_) => DmarcVerdict::unanswered(author),
        }
    })
}

fn verdict(zone: &[&str], author: &str, spf: Option<&str>, dkim: &[&str]) -> (DmarcResult, Policy, String) {
    let identity = |method| move |domain| AlignedDomain { domain, method, is_open: false };
    let dkim = dkim.iter().copied().map(identity(Method::Dkim));
    let identities: Vec<AlignedDomain<'_>> = spf.into_iter().map(identity(Method::Spf)).chain(dkim).collect();
    let found = judged(&Zone::new(zone), author, &identities);
    (found.result, found.policy, found.organization)
}

fn result(zone: &[&str], author: &str, spf: Option<&str>, dkim: &[&str]) -> DmarcResult {
    verdict(zone, author, spf, dkim).0
}

const REJECT: &str = "_dmarc.example.org TXT v=DMARC1; p=reject";

#[test]
fn records_are_read_and_unknown_tags_ignored() {
    let policy = |text: &str| DmarcRecord::parse(text).map(|record| record.policy);
    assert_eq!(policy("v=DMARC1; p=reject"), Some(Policy::Reject));
    assert_eq!(policy("v = DMARC1 ;P= Quarantine; pct=0; rf=x; ri=y; foo=bar; junk;"), Some(Policy::Quarantine));
    assert_eq!(policy("v=DMARC1; rua=mailto:x@example.org"), Some(Policy::None));
    assert_eq!(policy("v=DMARC1; p=wrong; rua=mailto:x@example.org"), Some(Policy::None));
    assert_eq!(policy("v=DMARC1; p=reject; sp=wrong; rua=MAILTO:x@example.org"), Some(Policy::None));
    for bad in [
        "",
        "p=reject",
        "p=reject; v=DMARC1",
        "v=DMARC2; p=reject",
        "v=dmarc1; p=reject",
        "v=DMARC1; p=wrong",
        "v=DMARC1; p=reject; np=wrong",
    ] {
        assert_eq!(policy(bad), None, "{bad}");
    }
    let bare = DmarcRecord::parse("v=DMARC1; sp=reject; psd=y").unwrap();
    assert_eq!((bare.policy, bare.below, bare.is_public_suffix), (Policy::None, Some(Policy::Reject), Some(true)));
    assert_eq!(policy("v=DMARC1"), Some(Policy::None));
    let all = DmarcRecord::parse("v=DMARC1; p=none; sp=quarantine; np=reject; psd=n; t=y; adkim=s; aspf=s").unwrap();
    assert_eq!(
        (all.below, all.missing, all.is_public_suffix),
        (Some(Policy::Quarantine), Some(Policy::Reject), Some(false))
    );
    assert!(all.is_test && all.is_dkim_strict && all.is_spf_strict);
}

#[test]
fn relaxed_alignment_is_by_organisation_strict_by_domain() {
    let relaxed = [REJECT];
    assert_eq!(result(&relaxed, "example.org", Some("example.org"), &[]), DmarcResult::Pass);
    assert_eq!(result(&relaxed, "example.org", Some("mx.example.org"), &[]), DmarcResult::Pass);
    assert_eq!(result(&relaxed, "a.example.org", None, &["b.example.org"]), DmarcResult::Pass);
    assert_eq!(result(&relaxed, "example.org", Some("example.net"), &["badexample.org", "org"]), DmarcResult::Fail);
    assert_eq!(result(&relaxed, "example.org", None, &[]), DmarcResult::Fail);
    let strict = ["_dmarc.example.org TXT v=DMARC1; p=reject; adkim=s; aspf=s"];
    assert_eq!(result(&strict, "example.org", Some("mx.example.org"), &["mx.example.org"]), DmarcResult::Fail);
    assert_eq!(result(&strict, "example.org", Some("mx.example.org"), &["example.org"]), DmarcResult::Pass);
}

#[test]
fn a_subdomain_with_its_own_organisation_is_not_aligned() {
    let zone = [REJECT, "_dmarc.free.example.org TXT v=DMARC1; p=none; psd=n"];
    assert_eq!(result(&zone, "example.org", None, &["user.free.example.org"]), DmarcResult::Fail);
    assert_eq!(result(&zone, "free.example.org", None, &["user.free.example.org"]), DmarcResult::Pass);
}

#[test]
fn without_a_policy_nothing_is_asked_for() {
    assert_eq!(verdict(&[], "a.example.org", None, &[]), (DmarcResult::None, Policy::None, "a.example.org".into()));
    let two = [REJECT, "_dmarc.example.org TXT v=DMARC1; p=none"];
    assert_eq!(result(&two, "example.org", None, &[]), DmarcResult::None, "of two records none counts");
}

#[test]
fn the_tree_walk_finds_the_organisation() {
    let organization = |zone: &[&str], author: &str| verdict(zone, author, None, &[]).2;
    let zone = ["_dmarc.example.org TXT v=DMARC1; p=none", "_dmarc.a.example.org TXT v=DMARC1; p=none"];
    assert_eq!(organization(&zone, "x.a.example.org"), "example.org", "the fewest labels");
    let zone = [zone[0], "_dmarc.a.example.org TXT v=DMARC1; p=none; psd=n"];
    assert_eq!(organization(&zone, "x.a.example.org"), "a.example.org");
    let zone = ["_dmarc.co.example TXT v=DMARC1; p=reject; psd=y"];
    assert_eq!(organization(&zone, "x.a.co.example"), "a.co.example");
    assert_eq!(organization(&zone, "co.example"), "co.example");
    assert_eq!(verdict(&zone, "x.a.co.example", None, &[]).1, Policy::Reject, "of the public suffix");
}

#[test]
fn a_long_name_is_asked_for_with_eight_questions() {
    let author = "a.b.c.d.e.f.g.h.i.j.example.org";
    let zone = Zone::new(&["_dmarc.g.h.i.j.example.org TXT v=DMARC1; p=quarantine"]);
    let found = judged(&zone, author, &[]);
    assert_eq!((found.policy, found.organization.as_str()), (Policy::Quarantine, "g.h.i.j.example.org"));
    assert_eq!(zone.asked.load(Ordering::Relaxed), 8);
}

#[test]
fn sp_and_np_are_for_domains_below() {
    let record = "_dmarc.example.org TXT v=DMARC1; p=none; sp=quarantine; np=reject";
    let zone = [record, "there.example.org A 192.0.2.1", "empty.example.org X x"];
    let policy = |author: &str| verdict(&zone, author, None, &[]).1;
    assert_eq!(policy("example.org"), Policy::None);
    assert_eq!(policy("there.example.org"), Policy::Quarantine);
    assert_eq!(policy("empty.example.org"), Policy::Quarantine, "a name without an address exists");
    assert_eq!(policy("missing.example.org"), Policy::Reject);
    let only_sp = ["_dmarc.example.org TXT v=DMARC1; p=none; sp=reject"];
    assert_eq!(verdict(&only_sp, "missing.example.org", None, &[]).1, Policy::Reject);
}

#[test]
fn a_domain_that_tests_is_treated_one_step_milder() {
    for (published, applied) in [("reject", Policy::Quarantine), ("quarantine", Policy::None), ("none", Policy::None)] {
        let zone = [&*format!("_dmarc.example.org TXT v=DMARC1; p={published}; t=y")];
        assert_eq!(verdict(&zone, "example.org", None, &[]).1, applied, "{published}");
    }
}

#[test]
fn without_an_answer_it_is_a_temporary_error() {
    let late = ["_dmarc.example.org TIMEOUT x"];
    assert_eq!(result(&late, "example.org", Some("example.org"), &[]), DmarcResult::TempError);
    assert_eq!(result(&late, "a.example.org", None, &[]), DmarcResult::TempError);
    let other = [REJECT, "_dmarc.b.example.org TIMEOUT x"];
    assert_eq!(result(&other, "example.org", None, &["b.example.org"]), DmarcResult::TempError);
    assert_eq!(result(&other, "example.org", Some("example.org"), &["b.example.org"]), DmarcResult::Pass);
}

#[test]
fn an_aligned_domain_without_an_answer_leaves_it_open() {
    let relaxed = Zone::new(&[REJECT]);
    let strict = Zone::new(&["_dmarc.example.org TXT v=DMARC1; p=reject; adkim=s; aspf=s"]);
    let passed = AlignedDomain { domain: "example.org", method: Method::Dkim, is_open: false };
    for method in [Method::Spf, Method::Dkim] {
        let open = |domain| AlignedDomain { domain, method, is_open: true };
        for (zone, identities, expected) in [
            (&relaxed, &[open("example.org")][..], DmarcResult::TempError),
            (&relaxed, &[open("mx.example.org")], DmarcResult::TempError),
            (&strict, &[open("example.org")], DmarcResult::TempError),
            (&strict, &[open("mx.example.org")], DmarcResult::Fail),
            (&relaxed, &[open("example.net")], DmarcResult::Fail),
            (&relaxed, &[open("example.org"), passed], DmarcResult::Pass),
        ] {
            let found = judged(zone, "example.org", identities);
            assert_eq!((found.result, found.policy), (expected, Policy::Reject), "{identities:?}");
        }
    }
}
