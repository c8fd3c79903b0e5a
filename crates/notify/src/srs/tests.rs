use posthaste_random::Random;

use super::*;

/// 2020-01-01 00:01:00 UTC.
const DAY: i64 = 1_577_836_860;

fn at(days: i64) -> DateTime {
    DateTime::from_unix(DAY + days * 86_400)
}

fn srs(secrets: &[&str]) -> Srs {
    Srs::new(&Secrets::new(secrets).unwrap())
}

fn forward(srs: &Srs, sender: &str) -> Result<String, ForwardError> {
    let sender = ReversePath::parse(&format!("<{sender}>")).unwrap();
    let ours = |domain: &AddressDomain| domain.to_string() == "example.com";
    srs.forward(&sender, "example.com", at(0), ours).map(|path| path.to_string().trim_matches(['<', '>']).to_owned())
}

fn reverse(srs: &Srs, recipient: &str, days: i64) -> Result<String, ReverseError> {
    srs.reverse(&Address::parse(recipient).unwrap(), at(days)).map(|address| address.to_string())
}

#[test]
fn addresses_are_those_of_other_implementations() {
    // Values of PostSRSd, as tested in several projects.
    let srs = srs(&["tops3cr3t"]);
    for (sender, expected) in [
        ("test@otherdomain.com", "SRS0=vmyz=2W=otherdomain.com=test@example.com"),
        ("SRS0=opaque+string@otherdomain.com", "SRS1=chaI=otherdomain.com==opaque+string@example.com"),
        (
            "SRS1=X=thirddomain.com==opaque+string@otherdomain.com",
            "SRS1=JIBX=thirddomain.com==opaque+string@example.com",
        ),
    ] {
        assert_eq!(forward(&srs, sender).as_deref(), Ok(expected));
    }
    for (recipient, expected) in [
        ("SRS0=XjO9=2V=otherdomain.com=test@example.com", "test@otherdomain.com"),
        ("SRS1=JIBX=thirddomain.com==opaque+string@example.com", "SRS0=opaque+string@thirddomain.com"),
    ] {
        assert_eq!(reverse(&srs, recipient, 0).as_deref(), Ok(expected));
    }
}

#[test]
fn only_foreign_senders_are_rewritten() {
    let srs = srs(&["tops3cr3t"]);
    for sender in ["", "ann@example.com", "cron"] {
        assert_eq!(forward(&srs, sender).as_deref(), Ok(sender));
    }
}

#[test]
fn any_sender_comes_back_whatever_the_case() {
    let srs = srs(&["tops3cr3t"]);
    let mut short = 0;
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let mut text = |alphabet: &str, longest| {
            let chars: Vec<char> = alphabet.chars().collect();
            let length = 1 + random.below(longest);
            (0..length).map(|_| chars[random.below(chars.len() as u64) as usize]).collect::<String>()
        };
        let local = quoted(&text("abcXYZ019=+-._ @\"\\<>ü", 24)).to_string();
        let sender = format!("{local}@{}.{}", text("abcX9", 12), text("abc", 3));
        let rewritten = match forward(&srs, &sender) {
            Err(ForwardError::TooLong) => continue,
            rewritten => rewritten.unwrap_or_else(|error| panic!("seed {seed}, {sender}: {error}")),
        };
        short += 1;
        assert_eq!(reverse(&srs, &rewritten, 0).as_deref(), Ok(&*sender), "seed {seed}");
        for changed in [rewritten.to_ascii_lowercase(), rewritten.to_ascii_uppercase()] {
            let back = reverse(&srs, &changed, 0).unwrap_or_else(|error| panic!("seed {seed}, {changed}: {error}"));
            assert!(back.eq_ignore_ascii_case(&sender), "seed {seed}: {back}");
        }
        // By a second and a third forwarder it comes back to the first.
        let first = rewritten.replace("@example.com", "@f.org");
        if let Ok(second) = forward(&srs, &first) {
            assert_eq!(reverse(&srs, &second, 0).as_deref(), Ok(&*first), "seed {seed}");
            let third = forward(&srs, &second.replace("@example.com", "@g.org")).unwrap();
            assert_eq!(reverse(&srs, &third, 0).as_deref(), Ok(&*first), "seed {seed}");
        }
    }
    assert!(short > 1000, "{short}");
}

#[test]
fn no_character_can_be_changed() {
    let srs = srs(&["tops3cr3t"]);
    for sender in ["test@otherdomain.com", "SRS0=opaque+string@otherdomain.com"] {
        let rewritten = forward(&srs, sender).unwrap();
        let local = rewritten.strip_suffix("@example.com").unwrap();
        // The separator after the tag may be any of three.
        for at in (0..local.len()).filter(|at| *at != TAG_BYTES) {
            let mut changed = local.as_bytes().to_vec();
            changed[at] = if changed[at] == b'z' { b'y' } else { b'z' };
            let changed = format!("{}@example.com", String::from_utf8(changed).unwrap());
            assert!(reverse(&srs, &changed, 0).is_err(), "{changed}");
        }
    }
}

#[test]
fn addresses_expire() {
    let srs = srs(&["tops3cr3t"]).with_age_days_max(10);
    let rewritten = forward(&srs, "a@b.org").unwrap();
    for (days, expected) in [(-2, false), (-1, true), (0, true), (10, true), (11, false), (1022, false), (1024, true)] {
        let expected = if expected { Ok("a@b.org") } else { Err(&ReverseError::Expired) };
        assert_eq!(reverse(&srs, &rewritten, days).as_deref(), expected, "{days}");
    }
}

#[test]
fn old_secrets_verify_and_do_not_sign() {
    let [old, new, both] = [&["the old one"][..], &["the new one"], &["the new one", "the old one"]].map(srs);
    let of_old = forward(&old, "a@b.org").unwrap();
    assert_eq!(reverse(&both, &of_old, 0).as_deref(), Ok("a@b.org"));
    assert_eq!(reverse(&new, &of_old, 0), Err(ReverseError::Forged));
    assert_eq!(forward(&both, "a@b.org"), forward(&new, "a@b.org"));
}

#[test]
fn long_hashes_do_not_take_short_ones() {
    let short = srs(&["tops3cr3t"]);
    let long = srs(&["tops3cr3t"]).with_hash_chars(8);
    let of_short = forward(&short, "a@b.org").unwrap();
    let of_long = forward(&long, "a@b.org").unwrap();
    assert_eq!(of_long.len(), of_short.len() + 4);
    assert_eq!(reverse(&long, &of_short, 0), Err(ReverseError::Forged));
    assert_eq!(reverse(&short, &of_long, 0).as_deref(), Ok("a@b.org"));
}

#[test]
fn hostile_addresses_are_refused() {
    use ReverseError::{Forged, Incomplete, NotSrs};
    let srs = srs(&["tops3cr3t"]);
    for (recipient, expected) in [
        ("ann@example.com", NotSrs),
        ("SRS0@example.com", NotSrs),
        ("SRS0x=a=b=c=d@example.com", NotSrs),
        ("srsä=a=b@example.com", NotSrs),
        ("SRS0=@example.com", Incomplete),
        ("SRS0=a=b=c@example.com", Incomplete),
        ("SRS0=a==c=d@example.com", Incomplete),
        ("SRS0==AA=c=d@example.com", Incomplete),
        ("SRS0=a=b=c=d@example.com", Forged),
        ("SRS0=ää=b=c=d@example.com", Forged),
        ("\"SRS0=a=b=c=d@x>\"@example.com", Forged),
        ("SRS1=a=b@example.com", Incomplete),
        ("SRS1=a=b=c@example.com", Incomplete),
        ("SRS1=a=b==@example.com", Incomplete),
        ("SRS1=aaaa=b==c@example.com", Forged),
    ] {
        assert_eq!(reverse(&srs, recipient, 0), Err(expected), "{recipient}");
    }
    let long = format!("{}@other.example", "a".repeat(50));
    assert_eq!(forward(&srs, &long), Err(ForwardError::TooLong));
    assert_eq!(forward(&srs, "a@[x:a=b]"), Err(ForwardError::Unsuitable));
    assert!(forward(&srs, "a@[192.0.2.1]").is_ok_and(|path| reverse(&srs, &path, 0).as_deref() == Ok("a@[192.0.2.1]")));
    let sender = ReversePath::parse("<a@b.org>").unwrap();
    assert_eq!(srs.forward(&sender, "x>\r\ny", at(0), |_| false), Err(ForwardError::Unsuitable));
}
