//! Names of domains and selectors, as a signature and a path have them: in lower case, A-labels, letters, digits and hyphens.

/// True for a domain in the form of `d=` (RFC 6376 section 3.5). An IP address is none: no top-level domain is a number
/// (RFC 3696 section 2).
pub fn is_domain(text: &str) -> bool {
    let last = text.rsplit('.').next().unwrap_or_default();
    is_labels(text) && text.len() <= 253 && !last.bytes().all(|octet| octet.is_ascii_digit())
}

/// True for a selector (RFC 6376 section 3.1): one label or several.
pub fn is_selector(text: &str) -> bool {
    // The name of its record has `._domainkey.` and a domain as well.
    is_labels(text) && text.len() <= 100
}

fn is_labels(text: &str) -> bool {
    let is_inner = |octet: u8| octet.is_ascii_lowercase() || octet.is_ascii_digit() || octet == b'-';
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(is_inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_in_paths_and_in_signatures() {
        for good in ["example.org", "xn--bcher-kva.example", "a.b.c-d.example", "2611r"] {
            assert!(is_domain(good) && is_selector(good), "{good}");
        }
        let long = format!("{}.example", "a".repeat(64));
        for bad in [
            "",
            ".",
            "..",
            "a..b",
            "../x",
            "a/b",
            "Example.org",
            "a_b.example",
            "-a.example",
            "a-.example",
            "b\u{fc}cher.example",
            "a b",
            "a;b",
            "a.example.",
            &long,
        ] {
            assert!(!is_domain(bad) && !is_selector(bad), "{bad}");
        }
        assert!(!is_domain("192.0.2.1") && !is_domain("2611") && is_selector("2611"));
        assert!(is_domain(&"a".repeat(63)) && !is_domain(&"aa.".repeat(90)));
    }
}
