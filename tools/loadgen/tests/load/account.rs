//! The account against a server that loses, duplicates, alters, or lies.

use posthaste_loadgen::account::{Account, Copies, Finding, account};
use posthaste_loadgen::load::Outcome;
use posthaste_loadgen::report::{About, PlanSummary, Report};
use posthaste_smtp::Reply;
use posthaste_smtp::server::Protocol;

use crate::support::{TestServer, Treat, errors, go};

fn look(server: &TestServer, outcome: &Outcome) -> Account {
    account(&outcome.ledger, &server.stores(), &[], None).expect("the store can be read")
}

fn counts(account: &Account) -> [usize; 4] {
    [&account.lost, &account.duplicated, &account.altered, &account.unexpected].map(Vec::len)
}

#[test]
fn an_honest_server_has_a_clean_account() {
    let server = TestServer::start(|_| Treat::Keep);
    let outcome = go(server.plan(500));
    let account = look(&server, &outcome);
    assert!(account.is_clean(), "{}", account.to_text(5));
    assert_eq!((account.acked, account.expected, account.found, account.unstamped), (500, 500, 500, 0));
    assert_eq!((outcome.total.acked, outcome.total.failed), (500, 0));
}

#[test]
fn a_server_that_loses_duplicates_and_alters_is_caught() {
    let server = TestServer::start(|number| match number {
        10 | 20 | 30 => Treat::Lose,
        40 | 50 => Treat::Twice,
        60 => Treat::Alter,
        70 => Treat::RefuseAndKeep(Reply::new(554, "5.3.0", "no")),
        _ => Treat::Keep,
    });
    let outcome = go(server.plan(200));
    let account = look(&server, &outcome);
    assert_eq!(counts(&account), [3, 2, 1, 1], "{}", account.to_text(5));
    assert_eq!((account.acked, outcome.total.acked), (199, 199));
    let altered: &Finding = &account.altered[0];
    let place = std::fs::read(&altered.places[0]).expect("the altered copy lies where the account says");
    let number = altered.id.split_once('.').unwrap().1;
    assert!(String::from_utf8_lossy(&place).contains(&format!(".{number} ")), "{altered:?}");
    assert_eq!(errors(&outcome), [("body 554", 1)]);
}

#[test]
fn a_copy_too_many_for_one_does_not_hide_that_another_has_none() {
    let server = TestServer::start(|number| if number == 7 { Treat::TwiceForOneOnly } else { Treat::Keep });
    let mut plan = server.plan(50);
    plan.recipients_per_message = 3;
    let outcome = go(plan);
    let account = look(&server, &outcome);
    assert_eq!((account.expected, account.found), (150, 150), "the numbers of copies balance");
    assert_eq!(counts(&account), [1, 1, 0, 0], "{}", account.to_text(5));
    let (lost, duplicated) = (&account.lost[0], &account.duplicated[0]);
    assert_eq!((&lost.id, lost.found, duplicated.found), (&duplicated.id, 2, 3), "{}", account.to_text(5));
}

#[test]
fn each_accepted_recipient_has_a_copy_in_lmtp() {
    let no = || Reply::new(452, "4.2.2", "full");
    let server = TestServer::with(
        Protocol::Lmtp,
        move |number| match number {
            5 => Treat::Each(vec![Reply::ok("a"), no(), Reply::ok("c")]),
            _ => Treat::Keep,
        },
        |_| Ok(()),
        None,
    );
    let mut plan = server.plan(50);
    plan.recipients_per_message = 3;
    let outcome = go(plan);
    let found = look(&server, &outcome);
    assert!(found.is_clean(), "{}", found.to_text(5));
    assert_eq!((found.acked, found.expected, outcome.total.copies), (50, 149, 149));
    assert_eq!(errors(&outcome), [("body 452", 1)]);
    let one = account(&outcome.ledger, &server.stores(), &[], Some(Copies::PerMessage)).unwrap();
    assert_eq!(one.duplicated.len(), 50, "a store that should keep one copy of each keeps several");
}

#[test]
fn a_refused_recipient_is_owed_nothing() {
    let gate =
        |path: &str| if path.contains("user1@") { Err(Reply::new(550, "5.1.1", "no such user")) } else { Ok(()) };
    let server = TestServer::with(Protocol::Smtp, |_| Treat::Keep, gate, None);
    let mut plan = server.plan(100);
    plan.recipients_per_message = 10;
    let outcome = go(plan);
    let account = look(&server, &outcome);
    assert!(account.is_clean(), "{}", account.to_text(5));
    assert_eq!((outcome.total.acked, outcome.total.copies), (100, 900));
    assert_eq!(errors(&outcome), [("rcpt 550", 100)]);
}

#[test]
fn a_report_is_good_only_if_everything_is_there() {
    let report = |treat: Treat| {
        let server = TestServer::start(move |number| if number == 3 { treat.clone() } else { Treat::Keep });
        let plan = server.plan(20);
        let about = About {
            title: None,
            command: Vec::new(),
            started: std::time::SystemTime::now(),
            plan: PlanSummary::new(&plan, "1k-4k".into()),
            notes: Vec::new(),
        };
        let outcome = go(plan);
        Report::new(about, &outcome, Some(look(&server, &outcome)))
    };
    assert!(report(Treat::Keep).is_good());
    for bad in [Treat::Lose, Treat::Twice, Treat::Alter, Treat::Refuse(Reply::new(451, "4.3.0", "later"))] {
        assert!(!report(bad.clone()).is_good(), "{bad:?}");
    }
    let report = report(Treat::Lose);
    let read: Report = serde_json::from_str(&report.to_json()).expect("its own JSON can be read");
    assert_eq!(read, report);
}
