//! Decodes octets to characters: by labels as mail has them, or by a guess for a missing or wrong label.

use std::borrow::Cow;

use encoding_rs::{Encoding, GB18030, UTF_8, UTF_16BE, UTF_16LE};

use super::charset_tables::TABLES;
use super::guess::{by_statistics, count_utf8, has_escapes, mixed};
use super::shifted;

/// A character encoding.
///
/// ```
/// use posthaste_message::mime::Charset;
/// assert_eq!(Charset::for_label(b"cp437").unwrap().decode(b"na\x8bve"), "naïve");
/// assert!(Charset::for_label(b"x-unknown").is_none());
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Charset(Kind);

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Labelled as ASCII. With other octets the label is wrong.
    Ascii,
    Standard(&'static Encoding),
    /// The upper half of a code page.
    Table(&'static str),
    Utf7,
    /// All ISO-2022 encodings of mail: JP with its extensions, KR, CN.
    Iso2022,
    Hz,
    /// Byte order by its mark; without one by a guess, else big-endian (RFC 2781 section 4.3).
    Utf16,
    Utf32,
}

/// Octets in which an HTML document may name its charset.
const META_BYTES_MAX: usize = 2048;

impl Charset {
    /// UTF-8.
    pub const UTF_8: Self = Self(Kind::Standard(UTF_8));

    /// The charset of a MIME label, ignoring case and punctuation. `None` for meaningless labels (`x-unknown`) and
    /// unknown ones.
    pub fn for_label(label: &[u8]) -> Option<Self> {
        let label = label.trim_ascii();
        if label.len() > 60 {
            return None;
        }
        let bare: String =
            label.iter().filter(|b| b.is_ascii_alphanumeric()).map(|b| char::from(b.to_ascii_lowercase())).collect();
        let kind = match bare.as_str() {
            "usascii" | "ascii" | "ansix341968" | "ansix341986" | "iso646us" | "us" | "iso646irv1991" | "isoir6"
            | "ibm367" | "cp367" | "csascii" | "646" => Kind::Ascii,
            "utf7" | "unicode11utf7" | "xunicode20utf7" | "csunicode11utf7" | "cp65000" => Kind::Utf7,
            "iso2022kr" | "csiso2022kr" | "iso2022cn" | "iso2022cnext" | "iso2022jp" | "csiso2022jp" | "iso2022jp1"
            | "iso2022jp2" | "iso2022jp3" | "iso2022jp2004" | "iso2022jpext" | "csiso2022jp2" | "iso2022jpms"
            | "cp50220" | "cp50221" | "cp50222" | "xwindowsiso2022jp" | "jis" => Kind::Iso2022,
            "hzgb2312" | "hz" | "hzgb" => Kind::Hz,
            "utf16" | "csutf16" | "ucs2" | "iso10646ucs2" | "unicode" | "csunicode" => Kind::Utf16,
            "utf32" | "utf32le" | "utf32be" | "ucs4" | "iso10646ucs4" => Kind::Utf32,
            "utf16be" => Kind::Standard(UTF_16BE),
            "utf16le" => Kind::Standard(UTF_16LE),
            "gb18030" | "gb2312" | "gbk" | "cp936" | "ms936" | "euccn" | "xeuccn" | "windows936" | "gb23121980"
            | "csgb2312" => Kind::Standard(GB18030),
            _ => Self::standard(label, &bare)?,
        };
        Some(Self(kind))
    }

    fn standard(label: &[u8], bare: &str) -> Option<Kind> {
        let dashed: Vec<u8> = label.iter().map(|&byte| if byte == b'_' { b'-' } else { byte }).collect();
        let named = Encoding::for_label_no_replacement(label);
        if let Some(encoding) = named.or_else(|| Encoding::for_label_no_replacement(&dashed)) {
            return (encoding.name() != "x-user-defined").then_some(Kind::Standard(encoding));
        }
        if let Some((_, table)) = TABLES.iter().find(|(labels, _)| labels.contains(&bare)) {
            return Some(Kind::Table(table));
        }
        let known = match bare {
            "cp932" | "ms932" | "windows932" | "xmscp932" | "sjis" | "xsjis" | "shiftjisx0213" | "cswindows31j"
            | "cp943" | "sjiswin" => "shift_jis",
            "cp949" | "uhc" | "ms949" | "windows949" | "xwindows949" | "ksc5601" | "ksx1001" | "ksc56011987"
            | "ks5601" | "johab" | "kseuc" | "ksc5601ms" => "euc-kr",
            "cp950" | "ms950" | "windows950" | "xwindows950" | "big5eten" | "big5hkscs" | "big5hk" => "big5",
            "eucjpms" | "cp51932" | "ujis" | "eucjisx0213" | "cp20932" => "euc-jp",
            "eucgb" | "gb" | "chinesesimplified" => "gb18030",
            "cp65001" | "unicodeutf8" | "utf8mb4" | "unicode20utf8" | "xunicode20utf8" | "utf8mac" | "utf" => "utf-8",
            "ansi"
            | "western"
            | "latin"
            | "latin1"
            | "westeuropean"
            | "isolatin1"
            | "iso88591"
            | "88591"
            | "is88591"
            | "iso8859"
            | "cp819"
            | "isoir100"
            | "cp1252"
            | "windowslatin1"
            | "iso88591windows30latin1" => "windows-1252",
            "win1250" | "ms1250" | "w1250" | "1250" => "windows-1250",
            "win1251" | "ms1251" | "w1251" | "1251" | "win" | "windowscyrillic" => "windows-1251",
            "win1252" | "ms1252" | "w1252" | "1252" => "windows-1252",
            "win1253" | "ms1253" | "1253" => "windows-1253",
            "win1254" | "ms1254" | "1254" => "windows-1254",
            "win1255" | "ms1255" | "1255" => "windows-1255",
            "win1256" | "ms1256" | "1256" => "windows-1256",
            "win1257" | "ms1257" | "1257" => "windows-1257",
            "win1258" | "ms1258" | "1258" => "windows-1258",
            "cp874" | "tis620" | "ms874" | "win874" | "thai" => "windows-874",
            "koi8r" | "koi" | "koi8" | "cskoi8r" | "koi8c" => "koi8-r",
            "koi8u" | "koi8ru" => "koi8-u",
            "cp866" | "866" | "ibm866" | "dos866" | "alt" | "cp866u" => "ibm866",
            "cp10000" | "macroman" | "macos" | "applemac" | "mac" => "macintosh",
            "cp10007" | "maccyrillic" | "macukrainian" | "xmaccyrillic" => "x-mac-cyrillic",
            "cp28591" => "windows-1252",
            "cp28592" | "latin2" | "isolatin2" => "iso-8859-2",
            "cp28595" | "cyrillic" => "iso-8859-5",
            "cp28605" | "latin9" | "latin0" | "isolatin9" => "iso-8859-15",
            _ => return Self::repaired(bare),
        };
        Encoding::for_label_no_replacement(known.as_bytes()).map(Kind::Standard)
    }

    /// A known name in a variant: `iso_8859_15`, `windows1250`, `x-cp1251`, `ISO8859-2-Windows-Latin-2`.
    fn repaired(bare: &str) -> Option<Kind> {
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let bare = bare.trim_start_matches('x').trim_start_matches("cs");
        let label = if let Some((_, number)) = bare.split_once("iso8859") {
            format!("iso-8859-{}", &number[..digits(number).min(2)])
        } else if let Some(number) = bare.strip_prefix("windows").or_else(|| bare.strip_prefix("cp")) {
            format!("windows-{}", &number[..digits(number)])
        } else {
            return None;
        };
        Encoding::for_label_no_replacement(label.as_bytes()).map(Kind::Standard)
    }

    /// Decodes octets; invalid ones become U+FFFD. A byte order mark overrides the label and is not part of the text.
    pub fn decode(self, bytes: &[u8]) -> Cow<'_, str> {
        match self.0 {
            Kind::Ascii => guess(bytes),
            Kind::Standard(encoding) => encoding.decode(bytes).0,
            Kind::Table(table) => match ascii(bytes) {
                Some(text) => Cow::Borrowed(text),
                None => {
                    let table: Vec<char> = table.chars().collect();
                    let char_of = |&byte: &u8| match byte {
                        0..128 => char::from(byte),
                        _ => table.get(usize::from(byte) - 128).copied().unwrap_or('\u{fffd}'),
                    };
                    Cow::Owned(bytes.iter().map(char_of).collect())
                }
            },
            Kind::Utf7 => Cow::Owned(shifted::utf7(bytes)),
            // These encodings have no 8-bit octets.
            Kind::Iso2022 | Kind::Hz if !bytes.is_ascii() => guess(bytes),
            Kind::Iso2022 => Cow::Owned(shifted::iso_2022(bytes)),
            Kind::Hz => Cow::Owned(shifted::hz(bytes)),
            Kind::Utf16 => {
                let even_zeros = bytes.iter().step_by(2).filter(|&&byte| byte == 0).count();
                let odd_zeros = bytes.iter().skip(1).step_by(2).filter(|&&byte| byte == 0).count();
                let encoding = if odd_zeros > even_zeros { UTF_16LE } else { UTF_16BE };
                encoding.decode(bytes).0
            }
            Kind::Utf32 => Cow::Owned(utf32(bytes)),
        }
    }

    /// True if the label is plainly wrong: 8-bit octets in a 7-bit charset, or "UTF-8" without one valid character
    /// beyond ASCII.
    fn is_belied_by(self, bytes: &[u8]) -> bool {
        match self.0 {
            Kind::Ascii | Kind::Iso2022 | Kind::Hz => !bytes.is_ascii(),
            Kind::Standard(encoding) if encoding == UTF_8 => {
                std::str::from_utf8(bytes).is_err() && count_utf8(bytes).0 == 0
            }
            _ => false,
        }
    }

    /// True if texts may end within a shift, so that pieces cannot be joined before decoding.
    pub(super) fn is_stateful(self) -> bool {
        matches!(self.0, Kind::Utf7 | Kind::Iso2022 | Kind::Hz)
    }

    /// Decodes unlabelled octets beyond ASCII; `None` if they are invalid in this charset.
    fn decode_exactly(self, bytes: &[u8]) -> Option<Cow<'_, str>> {
        match self.0 {
            Kind::Standard(encoding) if encoding.is_ascii_compatible() => {
                encoding.decode_without_bom_handling_and_without_replacement(bytes)
            }
            Kind::Table(_) => Some(self.decode(bytes)),
            _ => None,
        }
    }
}

/// Decodes the text of a body part: by its label; if that is missing, unknown or plainly wrong, by the HTML document's
/// own declaration; else by a guess.
pub fn decode_body<'a>(bytes: &'a [u8], label: Option<&[u8]>, is_html: bool) -> Cow<'a, str> {
    let says_itself = || if is_html && std::str::from_utf8(bytes).is_err() { meta_charset(bytes) } else { None };
    let fits = |charset: &Charset| !charset.is_belied_by(bytes);
    match label.and_then(Charset::for_label).filter(fits).or_else(|| says_itself().filter(fits)) {
        Some(charset) => charset.decode(bytes),
        None => guess(bytes),
    }
}

/// Decodes octets of a header outside encoded words: UTF-8, else `fallback` (the body's charset), else windows-1252.
pub(super) fn decode_header<'a>(bytes: &'a [u8], fallback: Option<Charset>) -> Cow<'a, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if has_escapes(bytes) => Charset::ISO_2022.decode_if(bytes, text),
        Ok(text) => Cow::Borrowed(text),
        Err(_) => {
            fallback.and_then(|charset| charset.decode_exactly(bytes)).unwrap_or_else(|| Cow::Owned(mixed(bytes)))
        }
    }
}

impl Charset {
    /// All ISO-2022 encodings of mail.
    pub(super) const ISO_2022: Self = Self(Kind::Iso2022);
    /// UTF-16 in the order of its mark.
    pub(super) const UTF_16: Self = Self(Kind::Utf16);

    pub(super) fn decode_if<'a>(self, bytes: &'a [u8], otherwise: &'a str) -> Cow<'a, str> {
        if bytes.is_ascii() { self.decode(bytes) } else { Cow::Borrowed(otherwise) }
    }
}

/// The charset declared by an HTML document: `<meta charset=...>` or `content="text/html; charset=..."`.
fn meta_charset(bytes: &[u8]) -> Option<Charset> {
    let head = bytes[..bytes.len().min(META_BYTES_MAX)].to_ascii_lowercase();
    let at = memchr::memmem::find(&head, b"charset=")? + 8;
    let value = head[at..].trim_ascii_start();
    let value = value.strip_prefix(b"\"").or_else(|| value.strip_prefix(b"'")).unwrap_or(value);
    let end = value.iter().position(|byte| !byte.is_ascii_graphic() || b"\"'>;/".contains(byte)).unwrap_or(value.len());
    // It was readable as ASCII, so it is not UTF-16, whatever it declares.
    Charset::for_label(&value[..end]).filter(|charset| !matches!(charset.0, Kind::Utf16 | Kind::Utf32))
}

fn utf32(bytes: &[u8]) -> String {
    let is_little = match bytes {
        [0xff, 0xfe, 0, 0, ..] => true,
        [0, 0, 0xfe, 0xff, ..] => false,
        _ => bytes.chunks_exact(4).filter(|unit| unit[3] == 0).count() > bytes.len() / 8,
    };
    let unit = |unit: &[u8]| {
        let unit: [u8; 4] = unit.try_into().unwrap_or([0xff; 4]);
        char::from_u32(if is_little { u32::from_le_bytes(unit) } else { u32::from_be_bytes(unit) })
    };
    let text: String = bytes.chunks(4).map(|octets| unit(octets).unwrap_or('\u{fffd}')).collect();
    text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text)
}

fn ascii(bytes: &[u8]) -> Option<&str> {
    if bytes.is_ascii() { std::str::from_utf8(bytes).ok() } else { None }
}

/// Decodes unlabelled text: UTF-8 if valid, ISO-2022 by its escapes, else by statistics.
pub(super) fn guess(bytes: &[u8]) -> Cow<'_, str> {
    if let [0xff, 0xfe, ..] | [0xfe, 0xff, ..] = bytes {
        return Charset::UTF_16.decode(bytes);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        return if has_escapes(bytes) { Charset::ISO_2022.decode_if(bytes, text) } else { Cow::Borrowed(text) };
    }
    by_statistics(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(label: &str, bytes: &[u8], expected: &str) {
        let charset = Charset::for_label(label.as_bytes()).unwrap_or_else(|| panic!("{label} is not known"));
        assert_eq!(charset.decode(bytes), expected, "{label}");
    }

    #[test]
    fn labels_of_mail_are_known() {
        for label in
            ["latin-1", "ISO_8859-1", "iso8859_1", "Latin1", "cp1252", "win-1252", "8859-1", "ANSI", "windows1252"]
        {
            check(label, b"caf\xe9", "café");
        }
        for label in ["win-1251", "cp-1251", "x-cp1251", "windows1251", "cp1251"] {
            check(label, b"\xcf\xf0\xe8", "При");
        }
        for label in ["koi8r", "KOI8-R", "koi-8-r", "koi8_r"] {
            check(label, b"\xf0\xd2\xc9", "При");
        }
        for label in ["cp932", "MS932", "shift-jis", "sjis", "x-sjis", "windows-31j"] {
            check(label, b"\x93\xfa\x96{", "日本");
        }
        for label in ["cp949", "uhc", "ks_c_5601-1987", "euc_kr", "KSC5601"] {
            check(label, b"\xc7\xd1\xb1\xdb", "한글");
        }
        for label in ["cp950", "big5", "Big5-HKSCS"] {
            check(label, b"\xa4\xa4\xa4\xe5", "中文");
        }
        for label in ["gb2312", "cp936", "gbk", "GB_2312-80", "gb18030"] {
            check(label, b"\xd6\xd0\xce\xc4", "中文");
        }
        for label in ["utf8", "UTF_8", "unicode-1-1-utf-8", "cp65001"] {
            check(label, "é".as_bytes(), "é");
        }
        check("cp437", b"\x81\xe1", "üß");
        check("IBM850", b"\x9b\xd5", "øı");
        check("cp858", b"\xd5", "€");
        check("cp852", b"\xa5\x86", "ąć");
        check("cp866", b"\x8f", "П");
        check("x-mac-ce", b"\x8b", "č");
        check("iso-8859-15", b"\xa4", "€");
        check("tis-620", b"\xa1", "ก");
        for label in ["x-unknown", "unknown-8bit", "", "default", "none", "_autodetect", "\u{e9}", &"x".repeat(1000)] {
            assert!(Charset::for_label(label.as_bytes()).is_none(), "{label}");
        }
    }

    #[test]
    fn every_table_is_whole() {
        for (labels, table) in TABLES {
            assert_eq!(table.chars().count(), 128, "{labels:?}");
            assert!(Charset::for_label(labels[0].as_bytes()).is_some());
        }
    }

    #[test]
    fn wide_units_go_by_their_mark_or_their_zeros() {
        check("utf-16", b"\xff\xfea\0\xe9\0", "aé");
        check("utf-16", b"\xfe\xff\0a\0\xe9", "aé");
        check("utf-16", b"a\0b\0", "ab");
        check("utf-16", b"\0a\0b", "ab");
        check("utf-16le", b"a\0", "a");
        check("utf-32", b"a\0\0\0\xe9\0\0\0", "aé");
        check("utf-32be", b"\0\0\0a\xff", "a\u{fffd}");
    }

    #[test]
    fn bodies_without_a_usable_label_are_guessed() {
        let check = |bytes: &[u8], label: Option<&str>, expected: &str| {
            assert_eq!(decode_body(bytes, label.map(str::as_bytes), false), expected, "{label:?}");
        };
        check("schöne Grüße".as_bytes(), None, "schöne Grüße");
        check(b"sch\xf6ne Gr\xfc\xdfe aus M\xfcnchen", None, "schöne Grüße aus München");
        check(b"sch\xf6ne Gr\xfc\xdfe", Some("us-ascii"), "schöne Grüße");
        check(b"sch\xf6ne Gr\xfc\xdfe", Some("x-unknown"), "schöne Grüße");
        check(b"sch\xf6ne Gr\xfc\xdfe", Some("utf-8"), "schöne Grüße");
        check(b"caf\xc3\xa9 und caf\xe9", None, "café und café");
        check(b"caf\xc3\xa9 und caf\xe9", Some("utf-8"), "café und caf\u{fffd}");
        check("caf\u{e9}".as_bytes(), Some("us-ascii"), "café");
        check(b"\x1b$BF|K\\\x1b(B", None, "日本");
        check(b"\x1b$BF|K\\\x1b(B", Some("us-ascii"), "日本");
        check(b"\xef\xbb\xbfbom", None, "bom");
        check(b"\xef\xbb\xbf\xc3\xa9", Some("iso-8859-1"), "é");
        let russian = b"\xf0\xd2\xc9\xd7\xc5\xd4, \xdc\xd4\xcf \xd0\xc9\xd3\xd8\xcd\xcf \xce\xc1 \xd2\xd5\xd3\xd3\xcb\xcf\xcd \xd1\xda\xd9\xcb\xc5";
        check(russian, None, "Привет, это письмо на русском языке");
        let html = b"<html><meta http-equiv=content-type content='text/html; charset=windows-1250'><p>\x9ei\x9eka";
        assert!(decode_body(html, None, true).ends_with("žižka"));
    }

    #[test]
    fn headers_fall_back_to_the_charset_of_the_body() {
        let latin2 = Charset::for_label(b"iso-8859-2");
        assert_eq!(decode_header(b"\xb9koda", latin2), "škoda");
        assert_eq!(decode_header("škoda".as_bytes(), latin2), "škoda");
        assert_eq!(decode_header(b"J\xfcrgen", None), "Jürgen");
        assert_eq!(decode_header(b"J\xfcrgen", Some(Charset::UTF_8)), "Jürgen");
        assert_eq!(decode_header(b"J\xfcrgen", Charset::for_label(b"utf-16")), "Jürgen");
        assert_eq!(decode_header(b"\x1b$BF|K\\\x1b(B", None), "日本");
    }
}
