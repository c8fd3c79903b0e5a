//! Signatures of dkimpy (`tests/dkimpy`: one message, signed in each form) verify, and what has changed on the way does not.

use std::path::Path;

use posthaste_dkim::{Algorithm, Draft, HEADER_FIELDS_MAX, KeyRecord, Signer, Verification, Verifier, generate};

const NOW: u64 = 1_795_000_000;

fn fields(header: &[u8]) -> Vec<Vec<u8>> {
    let mut fields: Vec<Vec<u8>> = Vec::new();
    for line in header.split_inclusive(|octet| *octet == b'\n') {
        match fields.last_mut().filter(|_| matches!(line[0], b' ' | b'\t')) {
            Some(field) => field.extend_from_slice(line),
            None => fields.push(line.to_vec()),
        }
    }
    fields
}

/// Verifies a message whose body comes in pieces.
fn verify_in(message: &[u8], piece: usize, now: u64, texts: impl Fn(&str) -> Option<Vec<String>>) -> Vec<Verification> {
    let end = message.windows(4).position(|window| window == b"\r\n\r\n").expect("a body");
    let mut verifier = Verifier::default();
    fields(&message[..end + 2]).iter().for_each(|field| verifier.field(field));
    verifier.begin_body(Some("example.org"));
    message[end + 4..].chunks(piece).for_each(|part| verifier.body(part));
    let claims = verifier.finish(now);
    claims
        .into_iter()
        .map(|claim| {
            let texts = claim.key_name().and_then(|name| texts(&name));
            claim.verify(texts.as_deref())
        })
        .collect()
}

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dkimpy")
}

fn record_of(name: &str) -> Option<Vec<String>> {
    let records = std::fs::read_to_string(folder().join("records.txt")).unwrap();
    let selector = name.strip_suffix("._domainkey.example.org")?;
    let mut found = records.lines().filter_map(|line| line.split_once(' ')).filter(|(of, _)| *of == selector);
    Some(found.next().map(|(_, text)| vec!["another text".to_owned(), text.to_owned()]).unwrap_or_default())
}

fn message(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

/// `result why` of the only signature.
fn result(message: &[u8]) -> String {
    let found = verify_in(message, 1000, NOW, record_of);
    assert_eq!(found.len(), 1, "{found:?}");
    format!("{} {}", found[0].result.name(), found[0].why).trim_end().to_owned()
}

#[test]
fn signatures_of_dkimpy_verify_however_the_body_is_cut() {
    for name in [
        "rsa-simple-simple",
        "rsa-simple-relaxed",
        "rsa-relaxed-simple",
        "rsa-relaxed-relaxed",
        "rsa-length",
        "rsa-empty-body",
        "rsa-1024",
        "rsa-4096",
        "ed25519",
    ] {
        let message = message(&format!("{name}.eml"));
        for piece in [1, 2, 3, 7, 1000] {
            let found = verify_in(&message, piece, NOW, record_of);
            assert_eq!((found[0].result.name(), found[0].why), ("pass", ""), "{name} in pieces of {piece}");
            assert_eq!((found[0].domain.as_str(), found[0].signature_start.len()), ("example.org", 8));
        }
    }
}

#[test]
fn sha1_and_short_keys_do_not_count() {
    assert_eq!(result(&message("rsa-sha1.eml")), "permerror it is made with SHA-1");
    assert_eq!(result(&message("rsa-768.eml")), "permerror its key has less than 1024 or more than 4096 bits");
}

#[test]
fn a_changed_message_fails() {
    let original = message("rsa-relaxed-simple.eml");
    let changed = |from: &str, to: &str| {
        let text = String::from_utf8(original.clone()).unwrap();
        assert!(text.contains(from), "{from}");
        result(text.replacen(from, to, 1).as_bytes())
    };
    assert_eq!(changed("two  blanks", "two blanks"), "pass", "relaxed");
    assert_eq!(changed("two  blanks", "three blanks"), "fail the header has changed");
    assert_eq!(changed("Received: from a", "Received: from c"), "pass", "it is not signed");
    assert_eq!(changed("From: Ann", "From: Eve <eve@example.org>\r\nFrom: Ann"), "fail the header has changed");
    assert_eq!(changed("A  line", "A line"), "fail the body has changed");
    assert_eq!(changed("last\r\n", "last\r\nmore\r\n"), "fail the body has changed");
    assert_eq!(changed("h=from : from", "h=date : date"), "fail it leaves From unsigned");
    assert_eq!(changed("s=r2048", "s=none"), "permerror there is no key");
    assert_eq!(changed("s=r2048", "s=ed"), "permerror its key is of another kind");
    assert_eq!(changed("s=r2048", "s=r1024"), "fail the header has changed");
}

#[test]
fn a_length_that_leaves_octets_unsigned_fails() {
    let mut longer = message("rsa-length.eml");
    assert_eq!(result(&longer), "pass");
    longer.extend_from_slice(b"and an advertisement\r\n");
    assert_eq!(result(&longer), "fail it leaves a part of the body unsigned");
}

#[test]
fn without_an_answer_or_a_key_that_counts_there_is_no_pass() {
    let message = message("ed25519.eml");
    let with = |texts: Option<&str>| {
        let texts = texts.map(|text| vec![text.to_owned()]);
        let found = verify_in(&message, 100, NOW, |_| texts.clone());
        format!("{} {}", found[0].result.name(), found[0].why)
    };
    assert_eq!(with(None), "temperror DNS has no answer");
    assert_eq!(with(Some("v=DKIM1; k=ed25519; p=")), "permerror its key is revoked");
    assert_eq!(with(Some("v=DKIM1; k=ed25519; p=AQID")), "permerror its key does not have 32 octets");
    assert_eq!(with(Some("v=spf1 -all")), "permerror there is no key");
    assert_eq!(with(Some("k=rsa; p=AQID")), "permerror its key is of another kind");
}

/// A signer of `domain`, its record, and its signature of `message`.
fn signature(domain: &str, expires: Option<u64>, message: &str) -> (String, String) {
    let signer = Signer::new(domain, "s", generate(Algorithm::Ed25519).unwrap()).unwrap();
    let (header, body) = message.split_once("\r\n\r\n").unwrap();
    let mut draft = Draft::default();
    fields(format!("{header}\r\n").as_bytes()).iter().for_each(|field| draft.field(field));
    draft.body(body.as_bytes());
    (signer.sign(&draft, NOW, expires).unwrap(), KeyRecord::of(signer.key()).to_string())
}

#[test]
fn an_expired_signature_fails() {
    let message = "From: ann@example.org\r\n\r\nbody\r\n";
    let (field, record) = signature("example.org", Some(NOW + 10), message);
    let at = |now| {
        let found = verify_in(format!("{field}{message}").as_bytes(), 3, now, |_| Some(vec![record.clone()]));
        (found[0].result.name(), found[0].why)
    };
    assert_eq!(at(NOW + 10), ("pass", ""));
    assert_eq!(at(NOW + 11), ("fail", "it has expired"));
}

#[test]
fn five_signatures_are_looked_at_and_those_of_the_author_first() {
    let message = "From: ann@example.org\r\n\r\nbody\r\n";
    let mut text = String::new();
    let mut records = std::collections::HashMap::new();
    for number in 0..8 {
        let domain = if number == 7 { "example.org".to_owned() } else { format!("list{number}.example") };
        let (field, record) = signature(&domain, None, message);
        text += &field;
        records.insert(format!("s._domainkey.{domain}"), vec![record]);
    }
    text += message;
    let found = verify_in(text.as_bytes(), 10, NOW, |name| records.get(name).cloned());
    let domains: Vec<&str> = found.iter().map(|one| one.domain.as_str()).collect();
    assert_eq!(domains, ["example.org", "list0.example", "list1.example", "list2.example", "list3.example"]);
    assert!(found.iter().all(|one| one.result.name() == "pass"), "{found:?}");
}

#[test]
fn a_header_beyond_its_bounds_has_no_pass() {
    let message = "From: ann@example.org\r\n\r\nbody\r\n";
    let (field, record) = signature("example.org", None, message);
    for more in ["X: y\r\n".repeat(HEADER_FIELDS_MAX), format!("X: {}\r\n", "x".repeat(300 << 10))] {
        for text in [format!("{field}{more}{message}"), format!("{more}{field}{message}")] {
            let found = verify_in(text.as_bytes(), 10, NOW, |_| Some(vec![record.clone()]));
            assert_eq!((found[0].result.name(), found[0].why), ("permerror", "the header is too large"));
        }
    }
}
