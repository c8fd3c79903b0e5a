//! A verifier for tests, written from the standard (RFC 6376 section 6.1) and apart from the code that signs: it has the whole message, and works on text.

use std::collections::HashMap;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ED25519, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use posthaste_dkim::{Algorithm, KeyRecord};

/// Header and body, which may be missing with the empty line.
pub fn split(message: &[u8]) -> (&[u8], &[u8]) {
    match message.windows(4).position(|window| window == b"\r\n\r\n") {
        Some(end) => (&message[..end + 2], &message[end + 4..]),
        None => (message, b""),
    }
}

/// Checks the first signature of a message.
pub fn verify(message: &[u8], record: &KeyRecord) -> Result<(), String> {
    let (header, body) = split(message);
    let fields = fields(header);
    let at = fields.iter().position(|(name, _)| name == b"dkim-signature").ok_or("no signature")?;
    let signature = String::from_utf8(fields[at].1.clone()).map_err(|_| "text")?;
    let value = signature.split_once(':').ok_or("no value")?.1;
    let compact = |text: &str| text.split_ascii_whitespace().collect::<String>();
    let tags: HashMap<String, String> = value
        .split(';')
        .filter_map(|tag| tag.split_once('='))
        .map(|(name, value)| (compact(name), compact(value)))
        .collect();
    if tags["v"] != "1" || tags["c"] != "relaxed/relaxed" || tags.contains_key("l") {
        return Err("tags".into());
    }
    if STANDARD.decode(&tags["bh"]).map_err(|_| "bh")? != digest(&SHA256, &relaxed_body(body)).as_ref() {
        return Err("the body has changed".into());
    }
    // Of each name the last that was not taken yet.
    let mut left: Vec<Option<&(Vec<u8>, Vec<u8>)>> =
        fields.iter().enumerate().map(|(index, field)| (index != at).then_some(field)).collect();
    let mut data = Vec::new();
    for name in tags["h"].to_ascii_lowercase().split(':') {
        let found = left.iter().rposition(|field| field.is_some_and(|(of, _)| of == name.as_bytes()));
        if let Some((_, field)) = found.and_then(|index| left[index].take()) {
            data.extend_from_slice(&relaxed_field(field));
            data.extend_from_slice(b"\r\n");
        }
    }
    let start = signature.rfind("b=").ok_or("no b")?;
    data.extend_from_slice(&relaxed_field(&signature.as_bytes()[..start + 2]));
    let octets = STANDARD.decode(&tags["b"]).map_err(|_| "b")?;
    let checked = match (&*tags["a"], record.algorithm) {
        ("rsa-sha256", Algorithm::Rsa) => {
            // RSAPublicKey within SubjectPublicKeyInfo of a key with 2048 bits.
            UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &record.public[24..]).verify(&data, &octets)
        }
        ("ed25519-sha256", Algorithm::Ed25519) => {
            UnparsedPublicKey::new(&ED25519, &record.public).verify(digest(&SHA256, &data).as_ref(), &octets)
        }
        _ => return Err("another kind of key".into()),
    };
    checked.map_err(|_| "the signature is wrong".into())
}

/// Lower-case names, and the fields with their line ends.
fn fields(header: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut fields: Vec<Vec<u8>> = Vec::new();
    for line in header.split_inclusive(|octet| *octet == b'\n') {
        match fields.last_mut().filter(|_| line[0] == b' ' || line[0] == b'\t') {
            Some(field) => field.extend_from_slice(line),
            None => fields.push(line.to_vec()),
        }
    }
    let name =
        |field: &[u8]| field.split(|octet| *octet == b':').next().unwrap_or(field).trim_ascii().to_ascii_lowercase();
    fields.into_iter().map(|field| (name(&field), field)).collect()
}

fn relaxed_field(field: &[u8]) -> Vec<u8> {
    let colon = field.iter().position(|octet| *octet == b':').unwrap();
    let mut value: Vec<u8> = Vec::new();
    for octet in field[colon + 1..].iter().filter(|octet| !b"\r\n".contains(octet)) {
        let octet = if *octet == b'\t' { b' ' } else { *octet };
        if octet != b' ' || value.last() != Some(&b' ') {
            value.push(octet);
        }
    }
    [&field[..colon].trim_ascii().to_ascii_lowercase()[..], b":", value.trim_ascii()].concat()
}

fn relaxed_body(body: &[u8]) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = Vec::new();
    // Each octet is a letter of Latin-1.
    let text: String = body.iter().map(|octet| char::from(*octet)).collect();
    for line in text.split("\r\n") {
        let mut out = String::new();
        for letter in line.chars().map(|letter| if letter == '\t' { ' ' } else { letter }) {
            if letter != ' ' || !out.ends_with(' ') {
                out.push(letter);
            }
        }
        lines.push(out.trim_end_matches(' ').chars().map(|letter| letter as u8).collect());
    }
    while lines.last().is_some_and(Vec::is_empty) {
        lines.pop();
    }
    lines.iter().flat_map(|line| [line, &b"\r\n"[..]].concat()).collect()
}
