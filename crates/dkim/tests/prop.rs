//! Any message that was signed verifies, however it was cut and whatever relays do to its white space; and nothing else verifies.

use std::sync::LazyLock;

use posthaste_dkim::{Algorithm, DkimResult, Draft, KeyFile, KeyRecord, Signer, Verifier, generate};
use proptest::prelude::*;

use crate::verifier::{self, verify};

/// One of each kind: to make one of RSA takes long.
static SIGNERS: LazyLock<[Signer; 2]> = LazyLock::new(|| {
    [Algorithm::Rsa, Algorithm::Ed25519]
        .map(|algorithm| Signer::new("xn--bcher-kva.example", "2611", generate(algorithm).unwrap()).unwrap())
});

/// The message with its signature in front, fields and body given in pieces.
fn signed(signer: &Signer, fields: &[String], body: &[u8], piece: usize) -> Vec<u8> {
    let mut draft = Draft::default();
    fields.iter().for_each(|field| draft.field(field.as_bytes()));
    body.chunks(piece).for_each(|part| draft.body(part));
    let signature = signer.sign(&draft, 1_795_000_000, Some(1_795_600_000)).unwrap();
    for line in signature.trim_end().split("\r\n") {
        assert!(line.len() <= 78, "{line}");
    }
    let mut message = signature.into_bytes();
    fields.iter().for_each(|field| message.extend_from_slice(field.as_bytes()));
    message.extend_from_slice(b"\r\n");
    message.extend_from_slice(body);
    message
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "From",
        "to",
        "CC",
        "Subject",
        "Date",
        "Message-ID",
        "Reply-To",
        "Sender",
        "Content-Type",
        "List-Id",
        "References",
        "X-Other",
        "Received",
        "Feedback-ID",
    ])
}

fn field() -> impl Strategy<Value = String> {
    let value = prop::collection::vec(
        prop::sample::select(vec!["a", " ", "  ", "\t", "\r\n ", "\r\n\t", "b@c", ";", "=", ":", "\u{fc}"]),
        1..20,
    );
    (name(), value).prop_map(|(name, value)| {
        let value = value.concat();
        // A line of a field has text (RFC 5322 section 2.2.3).
        let lines: Vec<&str> = value.split("\r\n").filter(|line| !line.trim().is_empty()).collect();
        let value = lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join("\r\n\t ");
        format!("{name}: {value}\r\n")
    })
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        &b"word"[..],
        b" ",
        b"  ",
        b"\t",
        b"\r\n",
        b"\r\n\r\n",
        b" \r\n",
        b"\xff",
        b".",
        b"--b",
        b"=20",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_signed_message_verifies(fields in prop::collection::vec(field(), 0..12), body in body(), piece in 1usize..50, which in 0usize..2) {
        let signer = &SIGNERS[which];
        let message = signed(signer, &fields, &body, piece);
        prop_assert_eq!(verify(&message, &KeyRecord::of(signer.key())), Ok(()));
        // The two verifiers share nothing.
        let (header, _) = verifier::split(&message);
        let signature = header.len() - fields.iter().map(String::len).sum::<usize>();
        let mut ours = Verifier::default();
        ours.field(&header[..signature]);
        fields.iter().for_each(|field| ours.field(field.as_bytes()));
        ours.begin_body(None);
        body.chunks(piece).for_each(|part| ours.body(part));
        let claim = ours.finish(1_795_000_001).remove(0);
        prop_assert_eq!(claim.key_name(), Some("2611._domainkey.xn--bcher-kva.example".to_owned()));
        let verified = claim.verify(Some(&[KeyRecord::of(signer.key()).to_string()]));
        prop_assert_eq!((verified.result, verified.why), (DkimResult::Pass, ""));
    }

    #[test]
    fn white_space_may_change_on_the_way(fields in prop::collection::vec(field(), 0..8), body in body(), which in 0usize..2) {
        let signer = &SIGNERS[which];
        let message = signed(signer, &fields, &body, 7);
        let (header, body) = verifier::split(&message);
        let mut changed: Vec<u8> = Vec::new();
        for line in String::from_utf8_lossy(header).split_inclusive("\r\n") {
            // Folded anew, and blanks at the ends of lines.
            changed.extend_from_slice(line.trim_end().replace(' ', "\r\n \t").as_bytes());
            changed.extend_from_slice(b" \r\n");
        }
        changed.extend_from_slice(b"\r\n");
        changed.extend_from_slice(body);
        changed.extend_from_slice(b"\r\n\r\n");
        // The first line of the signature keeps its name.
        prop_assert_eq!(verify(&changed, &KeyRecord::of(signer.key())), Ok(()));
    }

    #[test]
    fn no_field_of_the_list_can_be_added_and_none_changed(fields in prop::collection::vec(field(), 1..8), body in body(), which in 0usize..2) {
        let signer = &SIGNERS[which];
        let record = KeyRecord::of(signer.key());
        let message = signed(signer, &fields, &body, 9);
        for name in ["From", "To", "Cc", "Subject", "Date", "Message-ID", "Reply-To"] {
            let mut other = format!("{name}: eve@example.net\r\n").into_bytes();
            other.extend_from_slice(&message);
            prop_assert!(verify(&other, &record).is_err(), "{} in front", name);
        }
        let mut longer = message.clone();
        longer.extend_from_slice(b"more");
        prop_assert!(verify(&longer, &record).is_err());
        let key = generate(Algorithm::Ed25519).unwrap();
        prop_assert!(verify(&message, &KeyRecord::of(&key)).is_err(), "another key");
    }

    #[test]
    fn no_text_makes_the_readers_panic(text in "\\PC*", cut in any::<prop::sample::Index>()) {
        let record = KeyRecord::of(SIGNERS[1].key()).to_string();
        let cut = cut.index(record.len());
        for text in [&text, &format!("{}{text}{}", &record[..cut], &record[cut..])] {
            if let Ok(read) = KeyRecord::parse(text) {
                prop_assert_eq!(KeyRecord::parse(&read.to_string()), Ok(read));
            }
            let _ = KeyFile::parse(text);
            let _ = KeyFile::parse(&format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----"));
        }
    }
}

#[test]
fn a_record_holds_the_key_that_signs() {
    for signer in &*SIGNERS {
        let record = KeyRecord::of(signer.key());
        assert_eq!(KeyRecord::parse(&record.to_string()), Ok(record.clone()));
        assert!(record.to_string().len() < 450, "it fits into a small answer");
    }
}

#[test]
fn a_signature_of_a_long_name_and_of_many_fields_is_folded() {
    let domain = format!("{}.example", vec!["a".repeat(60); 3].join("."));
    let signer = Signer::new(&domain, "2611e", generate(Algorithm::Ed25519).unwrap()).unwrap();
    let mut draft = Draft::default();
    (0..150).for_each(|_| draft.field(b"To: a@example.org\r\n"));
    let signature = signer.sign(&draft, 1, None).unwrap();
    let long: Vec<&str> = signature.split("\r\n").filter(|line| line.len() > 78).collect();
    assert_eq!(long, [format!("\td={domain};")]);
    assert!(!signature.contains("l=") && !signature.contains("x="), "{signature}");
}
