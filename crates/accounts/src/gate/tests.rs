use posthaste_directory::Domain;
use tokio::time::sleep;

use super::*;
use crate::account_guesses::ACCOUNT_FAILURES_MAX;
use crate::guesses::{FAILURES_MAX, GUESSES_FOR, IN_FLIGHT_MAX, PREFIX_FAILURES_MAX};
use crate::known::KNOWN_FOR;

/// `ann@example.org` with the password `password` and a cheap hash.
fn logins(directory: &Directory) -> Logins {
    logins_with(directory, "password")
}

fn logins_with(directory: &Directory, password: &str) -> Logins {
    logins_named(directory, &["ann".to_owned()], password)
}

/// Logins with the same password.
fn logins_named(directory: &Directory, names: &[String], password: &str) -> Logins {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("passwords");
    let params = argon2::Params::new(64, 1, 1, None).unwrap();
    let hash = argon2::PasswordHasher::hash_password(&argon2::Argon2::from(params), password.as_bytes()).unwrap();
    let lines: String = names.iter().map(|name| format!("{name}:{hash}\n")).collect();
    std::fs::write(&file, lines).unwrap();
    Logins::load(&file, directory).unwrap()
}

fn directory() -> Directory {
    Directory::new(&[Domain::open_to_any("example.org")], "Maildir").unwrap()
}

/// The client's network, as the listeners pass it: for IPv6 the /64.
fn network(ip: &str) -> Option<IpAddr> {
    Some(match ip.parse().unwrap() {
        IpAddr::V6(ip) => std::net::Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    })
}

fn claim(user: &str, password: &str) -> PasswordClaim {
    PasswordClaim { user: user.to_owned(), password: password.to_owned(), acts_for: None }
}

struct Rig {
    gate: LoginGate,
    logins: Logins,
    directory: Directory,
}

impl Rig {
    fn new() -> Self {
        let directory = directory();
        Self { gate: LoginGate::default(), logins: logins(&directory), directory }
    }

    async fn check(&self, ip: &str, user: &str, password: &str) -> Result<String, LoginFailure> {
        self.check_at(LoginUse::Sending, ip, user, password).await
    }

    async fn check_at(&self, purpose: LoginUse, ip: &str, user: &str, password: &str) -> Result<String, LoginFailure> {
        let origin = LoginOrigin { purpose, network: network(ip) };
        let checked = self.gate.check(&self.logins, &self.directory, origin, claim(user, password)).await;
        checked.map(|login| login.name)
    }

    /// Like [`check`](Self::check), for a password that is not remembered.
    async fn check_anew(&self, ip: &str, user: &str, password: &str) -> Result<String, LoginFailure> {
        self.gate.remembered.clear();
        self.check(ip, user, password).await
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_right_password_lets_in_and_only_as_oneself() {
    let rig = Rig::new();
    let ann = Ok("ann@example.org".to_owned());
    assert_eq!(rig.check("192.0.2.1", "Ann@Example.org", "password").await, ann);
    assert_eq!(rig.check("192.0.2.1", "ann", "password").await, ann);
    assert_eq!(rig.check("192.0.2.1", "ann", "Password").await, Err(LoginFailure::Wrong("wrong password")));
    // The password of the hash that is checked for names that nobody has.
    assert_eq!(rig.check("192.0.2.1", "bob", "password").await, Err(LoginFailure::Wrong("no such login")));
    assert_eq!(rig.check("192.0.2.1", "ann", &"x".repeat(5000)).await, Err(LoginFailure::Wrong("wrong password")));
    let acts_for = |acts_for: &str| PasswordClaim { acts_for: Some(acts_for.to_owned()), ..claim("ann", "password") };
    let origin = LoginOrigin { purpose: LoginUse::Sending, network: network("192.0.2.1") };
    let itself = rig.gate.check(&rig.logins, &rig.directory, origin, acts_for("ANN@example.org")).await;
    assert_eq!(itself.map(|login| login.name), ann);
    for _ in 0..2 {
        let other = rig.gate.check(&rig.logins, &rig.directory, origin, acts_for("bob")).await;
        assert_eq!(other, Err(LoginFailure::Wrong("this login may act only for itself")));
    }
    // What is wrong about that is not the password.
    assert_eq!(rig.check("192.0.2.1", "ann", "password").await, ann);
    let nobody = Logins::default();
    let none = rig.gate.check(&nobody, &rig.directory, origin, claim("ann", "password")).await;
    assert_eq!(none, Err(LoginFailure::Wrong("no such login")));
}

#[tokio::test(start_paused = true)]
async fn who_guesses_is_turned_away_for_a_while_and_others_are_not() {
    let rig = Rig::new();
    for guess in 0..FAILURES_MAX {
        let begun = Instant::now();
        let answer = rig.check("2001:db8::1", "ann", &format!("guess {guess}")).await;
        assert_eq!(answer, Err(LoginFailure::Wrong("wrong password")));
        assert!(begun.elapsed() >= FAILURE_DELAY);
    }
    // From all of its network, even with the right one.
    assert_eq!(rig.check("2001:db8::2", "ann", "password").await, Err(LoginFailure::Blocked));
    rig.check("2001:db8:0:1::1", "ann", "password").await.unwrap();
    sleep(GUESSES_FOR - Duration::from_secs(2)).await;
    assert_eq!(rig.check("2001:db8::1", "ann", "password").await, Err(LoginFailure::Blocked));
    sleep(Duration::from_secs(2)).await;
    rig.check("2001:db8::1", "ann", "password").await.unwrap();
    assert!(rig.gate.guesses.is_empty(), "nothing is kept of those that know the password");
}

#[tokio::test(start_paused = true)]
async fn guesses_from_many_networks_of_a_48_are_turned_away() {
    let rig = Rig::new();
    let peer = |network: u32| format!("2001:db8:1:{network:x}::1");
    rig.check(&peer(2000), "ann", "password").await.unwrap();
    for network in 0..PREFIX_FAILURES_MAX {
        let wrong = Err(LoginFailure::Wrong("wrong password"));
        // What the client before has said twice counts once.
        for network in [network.saturating_sub(1), network] {
            assert_eq!(rig.check(&peer(network), "ann", "guess").await, wrong);
        }
    }
    assert_eq!(rig.check(&peer(1000), "ann", "password").await, Err(LoginFailure::Blocked));
    rig.check(&peer(2000), "ann", "password").await.expect("it has logged in before");
    rig.check("2001:db8:2::1", "ann", "password").await.unwrap();
    sleep(GUESSES_FOR).await;
    rig.check(&peer(1000), "ann", "password").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn guesses_from_networks_with_a_login_count_for_their_48() {
    let rig = Rig::new();
    let peer = |network: u32| format!("2001:db8:1:{network:x}::1");
    let networks = PREFIX_FAILURES_MAX / FAILURES_MAX;
    for network in 0..networks {
        rig.check(&peer(network), "ann", "password").await.unwrap();
    }
    for network in 0..networks {
        for guess in 0..FAILURES_MAX {
            let answer = rig.check(&peer(network), "ann", &guess.to_string()).await;
            assert_eq!(answer, Err(LoginFailure::Wrong("wrong password")));
        }
    }
    assert_eq!(rig.check(&peer(1000), "ann", "password").await, Err(LoginFailure::Blocked));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_known_takes_whatever_check_is_free() {
    let rig = Rig::new();
    let check = async || timeout(FAILURE_DELAY, rig.check_anew("192.0.2.1", "ann", "password")).await;
    check().await.unwrap().unwrap();
    let reserved = Arc::clone(&rig.gate.lanes[0].reserved.running).acquire_owned().await.unwrap();
    check().await.expect("one of everybody's is free").unwrap();
    drop(reserved);
    let _all = Arc::clone(&rig.gate.lanes[0].everybody.running).acquire_many_owned(CHECKS_MAX as u32).await.unwrap();
    check().await.expect("the reserved one is free").unwrap();
    let _reserved = Arc::clone(&rig.gate.lanes[0].reserved.running).acquire_owned().await.unwrap();
    assert_eq!(rig.check_anew("192.0.2.1", "ann", "password").await, Err(LoginFailure::Busy));
}

#[tokio::test(start_paused = true)]
async fn an_old_password_counts_once_and_this_machine_is_exempt() {
    let rig = Rig::new();
    for _ in 0..3 * FAILURES_MAX {
        rig.check("192.0.2.1", "ann", "of last year").await.unwrap_err();
    }
    rig.check("192.0.2.1", "ann", "password").await.unwrap();
    for guess in 0..3 * FAILURES_MAX {
        rig.check("127.0.0.1", "ann", &guess.to_string()).await.unwrap_err();
    }
    rig.check("127.0.0.1", "ann", "password").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_recent_wrong_password_is_not_checked_again() {
    let mut rig = Rig::new();
    rig.check("192.0.2.1", "ann", "next year's").await.unwrap_err();
    // Every check waits.
    let all = Arc::clone(&rig.gate.lanes[0].everybody.running).acquire_many_owned(CHECKS_MAX as u32).await.unwrap();
    let wrong = Err(LoginFailure::Wrong("wrong password"));
    assert_eq!(rig.check("192.0.2.1", "ann", "next year's").await, wrong);
    assert_eq!(rig.check("192.0.2.2", "ann", "next year's").await, Err(LoginFailure::Busy), "another client");
    drop(all);
    rig.logins = logins_with(&rig.directory, "next year's");
    assert_eq!(rig.check("192.0.2.1", "ann", "next year's").await.as_deref(), Ok("ann@example.org"));
}

#[tokio::test(start_paused = true)]
async fn how_long_a_check_takes_does_not_show() {
    let rig = Rig::new();
    for (wait, answered) in [(0, 1000), (300, 1000), (999, 1000), (1000, 2000), (1700, 2000)] {
        let all = Arc::clone(&rig.gate.lanes[0].everybody.running).acquire_many_owned(CHECKS_MAX as u32).await.unwrap();
        let begun = Instant::now();
        let end = async {
            sleep(Duration::from_millis(wait)).await;
            drop(all);
        };
        let password = wait.to_string();
        let (answer, ()) = tokio::join!(rig.check("192.0.2.1", "ann", &password), end);
        answer.unwrap_err();
        assert_eq!(begun.elapsed().as_millis(), answered, "after {wait} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_that_wait_are_bounded_for_each_client_and_for_all() {
    let rig = Arc::new(Rig::new());
    // Every check waits.
    let all = Arc::clone(&rig.gate.lanes[0].everybody.running).acquire_many_owned(CHECKS_MAX as u32).await.unwrap();
    let attempt = |ip: String| {
        let rig = Arc::clone(&rig);
        tokio::spawn(async move { rig.check(&ip, "ann", "password").await })
    };
    let mut waiting = Vec::new();
    for client in 0..PLACES_MAX as u32 / IN_FLIGHT_MAX {
        for _ in 0..IN_FLIGHT_MAX {
            waiting.push(attempt(format!("192.0.2.{client}")));
        }
    }
    while rig.gate.lanes[0].everybody.places.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(rig.check("192.0.2.0", "ann", "password").await, Err(LoginFailure::Busy), "too many of one client");
    assert_eq!(rig.check("192.0.2.99", "ann", "password").await, Err(LoginFailure::Busy), "too many of all");
    drop(all);
    for waiting in waiting {
        waiting.await.unwrap().unwrap();
    }
    let all = Arc::clone(&rig.gate.lanes[0].everybody.running).acquire_many_owned(CHECKS_MAX as u32).await.unwrap();
    assert_eq!(
        rig.check_anew("192.0.2.98", "ann", "password").await,
        Err(LoginFailure::Busy),
        "its turn does not come"
    );
    drop(all);
    assert_eq!(rig.gate.lanes[0].everybody.places.available_permits(), PLACES_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_flood_does_not_keep_out_a_client_that_has_logged_in_before() {
    let rig = Rig::new();
    rig.check_anew("192.0.2.1", "ann", "password").await.unwrap();
    let flood = rig.gate.lanes[0].everybody.places.try_acquire_many(PLACES_MAX as u32).unwrap();
    assert_eq!(rig.check_anew("192.0.2.2", "ann", "password").await, Err(LoginFailure::Busy));
    for known in ["192.0.2.1", "127.0.0.1"] {
        rig.check_anew(known, "ann", "password").await.unwrap();
    }
    // With more of them than are reserved for, they are as everybody.
    let reserved = rig.gate.lanes[0].reserved.places.try_acquire_many(RESERVED_PLACES_MAX as u32).unwrap();
    assert_eq!(rig.check_anew("192.0.2.1", "ann", "password").await, Err(LoginFailure::Busy));
    drop(flood);
    rig.check_anew("192.0.2.1", "ann", "password").await.unwrap();
    drop(reserved);
    let _flood = rig.gate.lanes[0].everybody.places.try_acquire_many(PLACES_MAX as u32).unwrap();
    sleep(KNOWN_FOR).await;
    assert_eq!(rig.check_anew("192.0.2.1", "ann", "password").await, Err(LoginFailure::Busy), "that was long ago");
}

/// 5,000 clients reconnect at once, as after an outage of the network.
#[tokio::test]
async fn reconnects_of_known_passwords_take_no_check() {
    const CLIENTS: u32 = 5000;
    let directory = directory();
    let names: Vec<String> = (0..CLIENTS).map(|number| format!("user{number}")).collect();
    let logins = logins_named(&directory, &names, "password");
    let rig = Arc::new(Rig { gate: LoginGate::default(), logins, directory });
    let ip = |number: u32| std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).to_string();
    for (number, name) in (0..).zip(&names) {
        rig.check(&ip(number), name, "password").await.unwrap();
    }
    assert_eq!(rig.gate.checks_made(), u64::from(CLIENTS));
    // No check could run.
    let _everybody =
        Arc::clone(&rig.gate.lanes[0].everybody.running).acquire_many_owned(CHECKS_MAX as u32).await.unwrap();
    let _reserved = Arc::clone(&rig.gate.lanes[0].reserved.running).acquire_owned().await.unwrap();
    let clients = (0..CLIENTS).zip(names).map(|(number, name)| {
        // From another network, such as a telephone that leaves the house.
        let (rig, ip) = (Arc::clone(&rig), ip(CLIENTS + number));
        tokio::spawn(async move { rig.check(&ip, &name, "password").await })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap().unwrap();
    }
    assert_eq!(rig.gate.checks_made(), u64::from(CLIENTS));
}

#[tokio::test(start_paused = true)]
async fn clients_of_one_login_wait_for_one_check() {
    let rig = Arc::new(Rig::new());
    let all = Arc::clone(&rig.gate.lanes[0].everybody.running).acquire_many_owned(CHECKS_MAX as u32).await.unwrap();
    let waiting = (0..PLACES_MAX).map(|client| {
        let rig = Arc::clone(&rig);
        tokio::spawn(async move { rig.check(&format!("192.0.2.{client}"), "ann", "password").await })
    });
    let waiting: Vec<_> = waiting.collect();
    while rig.gate.lanes[0].everybody.places.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    drop(all);
    for waiting in waiting {
        waiting.await.unwrap().unwrap();
    }
    assert!(rig.gate.checks_made() <= CHECKS_MAX as u64, "{}", rig.gate.checks_made());
}

#[tokio::test(start_paused = true)]
async fn a_remembered_password_ends_with_its_line() {
    let mut rig = Rig::new();
    rig.check("192.0.2.1", "ann", "password").await.unwrap();
    rig.logins = logins_with(&rig.directory, "next year's");
    assert_eq!(rig.check("192.0.2.1", "ann", "password").await, Err(LoginFailure::Wrong("wrong password")));
    rig.check("192.0.2.1", "ann", "next year's").await.unwrap();
    assert_eq!(rig.gate.checks_made(), 3);
}

#[tokio::test(start_paused = true)]
async fn clients_that_read_take_no_place_of_those_who_send() {
    let rig = Arc::new(Rig::new());
    rig.check("192.0.2.1", "ann", "password").await.unwrap();
    rig.gate.remembered.clear();
    let reading = &rig.gate.lanes[LoginUse::Reading as usize];
    let _checks = Arc::clone(&reading.everybody.running).acquire_owned().await.unwrap();
    let _reserved = Arc::clone(&reading.reserved.running).acquire_owned().await.unwrap();
    // As many as one client may have, and as many as may wait for that purpose.
    let attempt = |ip: String| {
        let rig = Arc::clone(&rig);
        tokio::spawn(async move { rig.check_at(LoginUse::Reading, &ip, "ann", "password").await })
    };
    let waiting: Vec<_> = (0..PLACES_MAX as u32 + RESERVED_PLACES_MAX as u32)
        .map(|client| attempt(format!("192.0.2.{}", 1 + client / IN_FLIGHT_MAX)))
        .collect();
    while reading.everybody.places.available_permits() + reading.reserved.places.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let busy = rig.check_at(LoginUse::Reading, "192.0.2.99", "ann", "password").await;
    assert_eq!(busy, Err(LoginFailure::Busy));
    for ip in ["192.0.2.1", "192.0.2.99"] {
        let check = timeout(FAILURE_DELAY, rig.check_anew(ip, "ann", "password"));
        check.await.expect("checks of the other purpose are free").unwrap();
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Guesses from many networks until the account is slow.
async fn guess_at(rig: &Rig, user: &str) {
    for guess in 0..ACCOUNT_FAILURES_MAX {
        let answer = rig.check(&format!("198.51.100.{guess}"), user, &format!("guess {guess}")).await;
        assert!(matches!(answer, Err(LoginFailure::Wrong(_))), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn guesses_from_everywhere_slow_down_strangers_only() {
    let rig = Rig::new();
    rig.check("192.0.2.1", "ann", "password").await.unwrap();
    guess_at(&rig, "ann").await;
    let begun = Instant::now();
    rig.check("192.0.2.1", "ann", "password").await.expect("somebody has logged in from there");
    rig.check("127.0.0.1", "ann", "password").await.unwrap();
    assert!(begun.elapsed() < FAILURE_DELAY, "{:?}", begun.elapsed());
    // The owner on a journey waits, and is let in.
    rig.check("203.0.113.1", "ann", "password").await.unwrap();
    assert!((ACCOUNT_WAIT..ACCOUNT_WAIT + FAILURE_DELAY).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    let begun = Instant::now();
    rig.check("203.0.113.1", "ann", "password").await.unwrap();
    assert!(begun.elapsed() < FAILURE_DELAY, "known from now on");
    rig.check("203.0.113.2", "ann", "guess").await.unwrap_err();
    assert!(begun.elapsed() >= ACCOUNT_WAIT + FAILURE_DELAY);
    let begun = Instant::now();
    rig.check("203.0.113.2", "bob", "guess").await.unwrap_err();
    assert!(begun.elapsed() < 2 * FAILURE_DELAY, "another account");
}

#[tokio::test(start_paused = true)]
async fn names_that_nobody_has_become_slow_as_well() {
    let rig = Rig::new();
    guess_at(&rig, "bob").await;
    let begun = Instant::now();
    assert_eq!(rig.check("203.0.113.1", "bob", "x").await, Err(LoginFailure::Wrong("no such login")));
    assert!(begun.elapsed() >= ACCOUNT_WAIT + FAILURE_DELAY, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_guess_at_a_slow_account_takes_no_check_before_its_wait() {
    let rig = Rig::new();
    rig.check("192.0.2.1", "ann", "password").await.unwrap();
    guess_at(&rig, "ann").await;
    let checks = rig.gate.checks_made();
    for password in ["password", "guess"] {
        let impatient = timeout(ACCOUNT_WAIT / 2, rig.check("203.0.113.1", "ann", password)).await;
        assert!(impatient.is_err(), "neither a right password nor a wrong one has an answer by then");
    }
    assert_eq!(rig.gate.checks_made(), checks);
}

#[tokio::test(start_paused = true)]
async fn a_program_with_an_old_password_slows_down_nobody() {
    let rig = Rig::new();
    for _ in 0..2 * ACCOUNT_FAILURES_MAX {
        rig.check("127.0.0.1", "ann", "of last year").await.unwrap_err();
    }
    let begun = Instant::now();
    rig.check("203.0.113.1", "ann", "password").await.unwrap();
    assert!(begun.elapsed() < FAILURE_DELAY);
}

#[tokio::test(start_paused = true)]
async fn known_networks_are_kept_by_the_gate() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("known-networks");
    let mut rig = Rig { gate: LoginGate::open(file.clone()).unwrap(), ..Rig::new() };
    rig.check("192.0.2.1", "ann", "password").await.unwrap();
    rig.gate.save().unwrap();
    rig.gate = LoginGate::open(file).unwrap();
    guess_at(&rig, "ann").await;
    let begun = Instant::now();
    rig.check("192.0.2.1", "ann", "password").await.unwrap();
    assert!(begun.elapsed() < FAILURE_DELAY);
}

#[tokio::test(start_paused = true)]
async fn an_operator_sees_who_guesses_and_can_forget_it() {
    let rig = Rig::new();
    rig.check_at(LoginUse::Reading, "198.51.100.1", "ann", "password").await.unwrap();
    for guess in 0..FAILURES_MAX {
        rig.check("2001:db8:1::1", "ann", &guess.to_string()).await.unwrap_err();
    }
    rig.check("192.0.2.1", "nobody", "x").await.unwrap_err();
    assert_eq!(rig.check("2001:db8:1::2", "ann", "password").await, Err(LoginFailure::Blocked));
    let ann = &rig.gate.logins(&rig.logins)[0];
    assert_eq!((&*ann.name, ann.wrong, ann.is_slow, ann.is_remembered), ("ann@example.org", FAILURES_MAX, false, true));
    let last = ann.last_use.unwrap();
    assert_eq!((last.purpose, last.network), (LoginUse::Reading, network("198.51.100.1")));
    let clients: Vec<_> =
        rig.gate.guessing_clients().into_iter().map(|of| (of.network, of.wrong, of.is_turned_away)).collect();
    let expected =
        [("2001:db8:1::/64", FAILURES_MAX, true), ("2001:db8:1::/48", FAILURES_MAX, false), ("192.0.2.1", 1, false)];
    assert_eq!(clients, expected.map(|(network, wrong, is_turned_away)| (network.to_owned(), wrong, is_turned_away)));

    let parse = |text: &str| Guessed::parse(text, &rig.directory);
    assert_eq!(parse("2001:db8:1::/64"), parse("2001:db8:1::"));
    assert_eq!(parse("ann").unwrap(), Guessed::Account("ann@example.org".to_owned()));
    assert_eq!(parse("no name"), None);
    assert!(rig.gate.forget(&parse("2001:db8:1::9").unwrap()) && !rig.gate.forget(&parse("2001:db8:1::9").unwrap()));
    assert!(rig.gate.forget(&parse("Ann").unwrap()) && !rig.gate.forget(&parse("ann").unwrap()));
    assert_eq!(rig.gate.guessing_clients().len(), 1);
    rig.check("2001:db8:1::2", "ann", "password").await.unwrap();
    assert_eq!(rig.gate.logins(&rig.logins)[0].wrong, 0);
    tokio::time::advance(GUESSES_FOR).await;
    assert!(rig.gate.guessing_clients().is_empty(), "guesses of long ago do not count");
}

#[tokio::test(start_paused = true)]
async fn wrong_tokens_keep_nobody_from_reading_mail() {
    let rig = Rig::new();
    let ip = network("192.0.2.1");
    for guess in 0..FAILURES_MAX {
        assert_eq!(rig.gate.wrong_token(ip, &guess.to_string()).await, LoginFailure::Wrong("wrong token"));
    }
    assert_eq!(rig.gate.wrong_token(ip, "more").await, LoginFailure::Blocked);
    rig.check_at(LoginUse::Reading, "192.0.2.1", "ann", "password").await.unwrap();
    let clients = rig.gate.guessing_clients();
    assert!(clients.len() == 1 && clients[0].is_turned_away, "{clients:?}");
    assert!(rig.gate.forget(&Guessed::Client(ip.unwrap())) && rig.gate.guessing_clients().is_empty());
    for guess in 0..FAILURES_MAX {
        rig.check_at(LoginUse::Reading, "192.0.2.1", "ann", &guess.to_string()).await.unwrap_err();
    }
    let blocked = rig.check_at(LoginUse::Reading, "192.0.2.1", "ann", "password").await;
    assert_eq!(blocked.err(), Some(LoginFailure::Blocked));
    assert_eq!(rig.gate.wrong_token(ip, "0").await, LoginFailure::Wrong("wrong token"), "and not the other way round");
}
