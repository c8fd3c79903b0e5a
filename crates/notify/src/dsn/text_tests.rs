use posthaste_random::Random;

use super::text::{folded, header_field, one_line, quoted_printable};

#[test]
fn a_text_stays_on_its_line() {
    assert_eq!(one_line("a\r\nBcc: x\0\u{1b}[2J", true), "a Bcc: x [2J");
    assert_eq!(one_line("  ö \u{202e}x  ", true), "ö x");
    assert_eq!(one_line("ö\u{85}x", false), "? x");
    assert_eq!(one_line(&"é".repeat(2000), true).len(), 1000);
}

#[test]
fn lines_are_folded_at_blanks_and_where_they_must() {
    let words = vec!["word"; 60].join(" ");
    let text = folded(&words, " ");
    assert!(text.ends_with("word\r\n") && text.lines().count() > 3, "{text}");
    assert!(text.lines().all(|line| line.len() <= 77), "{text}");
    assert_eq!(text.replace("\r\n ", " ").trim_end(), words);
    let long = folded(&format!("X: {}", "ö".repeat(1000)), " ");
    assert!(long.lines().all(|line| line.len() <= 902), "{long}");
    assert_eq!(long.replace("\r\n ", "").replace(' ', "").trim_end(), format!("X:{}", "ö".repeat(1000)));
    assert_eq!(folded("    short", "    "), "    short\r\n");
}

#[test]
fn other_letters_in_a_field_are_encoded_words() {
    assert_eq!(header_field("Subject", "plain"), "Subject: plain\r\n");
    assert_eq!(header_field("Subject", "Grüße"), "Subject: =?utf-8?B?R3LDvMOfZQ==?=\r\n");
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let letters = ["ä", "漢", "x", " ", "😀"];
        let value: String = (0..1 + random.below(300)).map(|_| letters[random.below(5) as usize]).collect();
        let value = one_line(&value, true);
        let field = header_field("Subject", &value) + "\r\n";
        assert!(field.is_ascii() && field.lines().all(|line| line.len() <= 86), "seed {seed}: {field}");
        let message = posthaste_message::mime::Message::parse(field.as_bytes())
            .root()
            .header()
            .first("Subject")
            .unwrap()
            .text(None)
            .into_owned();
        assert_eq!(message.trim(), value, "seed {seed}");
    }
}

#[test]
fn a_text_is_read_back_from_quoted_printable() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let letters = ["ä", "漢", "x", " ", "=", "\r\n", ".", "word "];
        let text: String =
            (0..random.below(400)).map(|_| letters[random.below(8) as usize]).collect::<String>() + "\r\n";
        let encoded = quoted_printable(&text);
        assert!(encoded.is_ascii() && encoded.lines().all(|line| line.len() <= 76), "seed {seed}: {encoded}");
        let message = format!(
            "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n{encoded}"
        );
        let message = posthaste_message::mime::Message::parse(message.as_bytes());
        assert_eq!(message.root().text().replace("\r\n", "\n"), text.replace("\r\n", "\n"), "seed {seed}");
    }
}
