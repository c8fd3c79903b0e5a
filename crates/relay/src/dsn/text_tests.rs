use super::text::{folded, one_line, worded};

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
    assert_eq!(worded("one\n\ntwo\r\n"), "one\r\n\r\ntwo\r\n");
}
