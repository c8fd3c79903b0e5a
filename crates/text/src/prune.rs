//! Removes text that nobody searches for and that would fill the index: armour and encoded data.

use memchr::memchr_iter;

/// A line of at least this many bytes in one unbroken run of the base64 or uuencode alphabet is data, not text.
const ENCODED_LINE_BYTES_MIN: usize = 60;

/// Appends `text` without ASCII-armoured blocks (PGP signatures, keys and messages, certificates) and without lines of
/// encoded data (base64, binary patches). Everything else stays, including quoted text, which may be all that is left
/// of the quoted message.
pub fn prune_into(text: &str, out: &mut String) {
    let bytes = text.as_bytes();
    // What stays is copied many lines at a time: from `kept` to where the line begins that does not.
    let mut kept = 0;
    let mut start = 0;
    let mut armour = false;
    let ends = memchr_iter(b'\n', bytes).map(|at| at + 1).chain((!text.ends_with('\n')).then_some(text.len()));
    for end in ends {
        let line = &bytes[start..end];
        if (armour || line.len() >= ENCODED_LINE_BYTES_MIN || line.starts_with(b"-----"))
            && leaves_out(&text[start..end], &mut armour)
        {
            out.push_str(&text[kept..start]);
            kept = end;
        }
        start = end;
    }
    out.push_str(&text[kept..]);
}

/// `armour`: true inside an armoured block.
fn leaves_out(line: &str, armour: &mut bool) -> bool {
    let bare = line.trim_end();
    let begins = bare.starts_with("-----BEGIN ");
    if bare.ends_with("-----") && (begins || bare.starts_with("-----END ")) {
        // A signed message's text stands between "BEGIN PGP SIGNED MESSAGE" and "BEGIN PGP SIGNATURE".
        *armour = begins && !bare.contains("SIGNED MESSAGE");
        return true;
    }
    // Armour that was never closed ends where lines stop looking like it.
    let is_left_out = *armour && is_armour_line(bare) || is_encoded(bare);
    *armour &= is_left_out;
    is_left_out
}

/// True for data, a header such as `Version: GnuPG v2`, or a blank line.
fn is_armour_line(line: &str) -> bool {
    let no_space = !line.contains(' ');
    let header =
        line.split_once(": ").is_some_and(|(key, _)| key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'));
    line.is_empty() || header || no_space && line.bytes().all(is_base64)
}

fn is_encoded(line: &str) -> bool {
    if line.len() < ENCODED_LINE_BYTES_MIN {
        return false;
    }
    let mut seen = 0u8;
    for byte in line.bytes() {
        match byte {
            b'a'..=b'z' => seen |= 1,
            b'A'..=b'Z' => seen |= 2,
            b'0'..=b'9' => seen |= 4,
            // The alphabets of base64 and of git's base 85.
            b'+'
            | b'/'
            | b'='
            | b'!'
            | b'#'..=b'&'
            | b'('
            | b')'
            | b'*'
            | b'-'
            | b';'..=b'@'
            | b'^'..=b'`'
            | b'{'..=b'~' => {}
            _ => return false,
        }
    }
    // Long identifiers, rulers and addresses have not all of lower case, upper case and digits; data nearly always has.
    seen == 7 && !line.contains("://") && !line.contains('@')
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pruned(text: &str) -> String {
        let mut out = String::new();
        prune_into(text, &mut out);
        out
    }

    #[test]
    fn signatures_and_encoded_lines_go_and_text_stays() {
        let signed = "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA1\n\nHello\n-----BEGIN PGP SIGNATURE-----\nVersion: GnuPG v2\n\n\
                      iQEcBAEBAgAGBQJ\n=abcd\n-----END PGP SIGNATURE-----\nafter\n";
        assert_eq!(pruned(signed), "Hash: SHA1\n\nHello\nafter\n");
        let data = format!("{}\n", "aB3/".repeat(15));
        assert_eq!(pruned(&format!("one\n{data}{data}two")), "one\ntwo");
        let link = "https://example.org/AbC123/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
        let long_line = format!("{}\n", "word ".repeat(40));
        assert_eq!(pruned(&long_line), long_line);
        assert_eq!(pruned(link), link);
    }

    #[test]
    fn armour_that_is_never_closed_hides_no_text() {
        assert_eq!(pruned("-----BEGIN PGP SIGNATURE-----\niQEc\nthen words\nmore"), "then words\nmore");
        assert_eq!(pruned("----- Original Message -----\nwords"), "----- Original Message -----\nwords");
    }
}
