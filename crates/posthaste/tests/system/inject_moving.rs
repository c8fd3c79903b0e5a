//! The requests of docs/kumomta-inject.md with their documented answers, and compressed bodies.

use std::io::Write;

use serde_json::{Value, json};

use crate::http::{CONFIG, page_of, token};
use crate::inject::{JSON, request, status, to, try_ask, try_ask_octets};
use crate::support::{ANYBODY, Server};

const PAGE: &str = include_str!("../../../../docs/kumomta-inject.md");

/// The number of a request, the request, the status and the answer.
fn documented() -> Vec<(usize, Value, u16, Value)> {
    let block = |text: &str| {
        let (_, rest) = text.split_once("```json\n").expect("a block");
        let (block, rest) = rest.split_once("```").expect("its end");
        (serde_json::from_str(block).unwrap_or_else(|error| panic!("{error}: {block}")), rest.to_owned())
    };
    let sections = PAGE.split("\n## ").skip(1);
    let read = |section: &str| {
        let number = section.split_once('.').expect("a number").0.parse().expect("a number");
        let (request, rest) = block(section);
        let (_, rest) = rest.split_once("Answer: ").expect("an answer");
        let status = rest[..3].parse().expect("a status");
        (number, request, status, block(rest).0)
    };
    sections.map(read).collect()
}

#[test]
fn documented_requests_of_kumomta_have_their_answers() {
    let dir = tempfile::tempdir().unwrap();
    let known = ANYBODY.replace("\"any\"", "[\"ann\", \"bob\"]");
    let server = Server::start(dir.path(), &format!("{known}{CONFIG}"));
    let (address, secret) = (page_of(&server), token(dir.path(), "shop", "inject"));
    let all = documented();
    assert_eq!(all.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), (1..=12).collect::<Vec<_>>());
    let mut successes = 0;
    for (number, mail, expected, answer) in all {
        let (head, found) = try_ask(address, &request(&secret, JSON, &mail.to_string())).unwrap();
        assert_eq!((status(&head), &found), (expected, &answer), "request {number}");
        successes += found["success_count"].as_u64().unwrap_or(0) as usize;
    }
    let (to_ann, to_bob) = (10, 3);
    assert_eq!(successes, to_ann + to_bob);
    let texts: Vec<String> =
        server.wait_for_mail("example.org", "ann", to_ann).iter().map(|found| found.text()).collect();
    let of = |subject: &str| {
        let line = format!("\nSubject: {subject}\n");
        texts.iter().find(|text| text.contains(&line)).unwrap_or_else(|| panic!("no {subject}: {texts:?}"))
    };
    assert!(of("Hello Ann").contains("\nTo: \"Ann\" <ann@example.org>\n") && of("Hello Ann").contains("number is 7."));
    assert!(of("From The Shop").contains("\n- a book\n- a lamp\n"));
    assert!(of("braces").ends_with("These stay: {{ name }}\n"));
    assert!(of("traced").contains("(Posthaste, by HTTP from [127.0.0.1])\n"), "{}", of("traced"));
    assert!(texts.iter().filter(|text| text.contains("127.0.0.1")).count() == 1, "only where it is asked for");
    server.wait_for_mail("example.org", "bob", to_bob);
    server.stop();
}

#[test]
fn bodies_come_compressed_and_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &format!("{ANYBODY}{CONFIG}"));
    let (address, secret) = (page_of(&server), token(dir.path(), "shop", "inject"));
    let mail = to(&["ann@example.org"], "Subject: packed\n\nx\n").to_string();
    let gzip = |text: &str| {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all(text.as_bytes()).unwrap();
        packer.finish().unwrap()
    };
    let zstd =
        |text: &str| ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
    let ask = |coding: &str, more: &str, body: &[u8]| {
        let fields = format!("{JSON}{more}Content-Encoding: {coding}\r\n");
        let head = request(&secret, &format!("{fields}Content-Length: {}\r\n", body.len()), "");
        let head = head.replace("Content-Length: 0\r\n", "");
        let (head, answer) = try_ask_octets(address, &[head.as_bytes(), body].concat()).unwrap();
        (status(&head), head.contains("idempotent-replayed"), answer)
    };
    assert_eq!(ask("gzip", "", &gzip(&mail)).0, 200);
    assert_eq!(ask("ZSTD", "", &zstd(&mail)).0, 200);
    assert_eq!(ask("identity", "", mail.as_bytes()).0, 200);
    // The key is of the body that is in it.
    let key = "Idempotency-Key: packed\r\n";
    assert!(!ask("gzip", key, &gzip(&mail)).1);
    assert!(ask("zstd", key, &zstd(&mail)).1);
    let bomb = gzip(&format!("{}{mail}", " ".repeat(10 << 20)));
    let (status, _, answer) = ask("gzip", "", &bomb);
    assert!(status == 413 && answer["error"].as_str().unwrap().contains("100 times"), "{answer}");
    assert_eq!(ask("zstd", "", &zstd(&" ".repeat(10 << 20))).0, 413);
    let half = gzip(&mail);
    for (coding, body) in [("gzip", &half[..half.len() / 2]), ("zstd", &half[..]), ("gzip", b"")] {
        let (status, _, answer) = ask(coding, "", body);
        let why = answer["error"].as_str().unwrap();
        assert!(status == 400 && why.contains("a window of at most 8 MiB"), "{coding}: {status} {why}");
    }
    for coding in ["br", "gzip, gzip", "deflate", ""] {
        assert_eq!(ask(coding, "", b"x").0, 415, "{coding}");
    }
    server.wait_for_mail("example.org", "ann", 4);
    let json = json!(null);
    assert_eq!(ask("gzip", "", &gzip(&json.to_string())).0, 400);
    server.stop();
}
