//! HTML to text, for searching and for reading in a terminal: everything that a browser shows, without executing
//! anything.
//!
//! No tree is built. Input may be truncated anywhere and nested to any depth. Each byte is read once, and the output
//! exceeds the input by at most a line end for each tag.

use std::collections::HashSet;
use std::sync::LazyLock;

use memchr::memchr2;

/// Converts an HTML document to text. Block elements get lines of their own, cells are separated, entities decoded,
/// `alt` texts kept. Left out are `head` (except the title), `style`, `script`, `template` and comments.
pub fn html_to_text(html: &str) -> String {
    let mut text = Text { out: String::with_capacity(html.len() / 2), space: false, keep_spaces: 0 };
    let mut rest = html;
    while let Some(at) = memchr2(b'<', b'&', rest.as_bytes()) {
        text.push(&rest[..at]);
        rest = if rest.as_bytes()[at] == b'&' { entity(&rest[at..], &mut text) } else { tag(&rest[at..], &mut text) };
    }
    text.push(rest);
    text.out.truncate(text.out.trim_end().len());
    text.out
}

struct Text {
    out: String,
    /// True after white space, which is written before the next word.
    space: bool,
    /// Depth of `pre` elements.
    keep_spaces: u32,
}

impl Text {
    fn push(&mut self, piece: &str) {
        if self.keep_spaces > 0 {
            self.out.push_str(piece);
            return;
        }
        let mut rest = piece;
        while !rest.is_empty() {
            let word = rest.trim_ascii_start();
            self.space |= word.len() < rest.len();
            let end = word.bytes().position(|octet| octet.is_ascii_whitespace()).unwrap_or(word.len());
            if end > 0 {
                self.begin_word();
                self.out.push_str(&word[..end]);
            }
            rest = &word[end..];
        }
    }

    fn push_char(&mut self, c: char) {
        self.begin_word();
        self.out.push(c);
    }

    fn begin_word(&mut self) {
        if std::mem::take(&mut self.space) && !self.out.is_empty() && !self.out.ends_with('\n') {
            self.out.push(' ');
        }
    }

    /// Ends the line, unless it is empty.
    fn line(&mut self) {
        self.space = false;
        if !self.out.is_empty() && !self.out.ends_with('\n') {
            self.out.push('\n');
        }
    }
}

/// Decodes a character reference; text that only looks like one stays.
fn entity<'a>(rest: &'a str, text: &mut Text) -> &'a str {
    match reference(rest, false) {
        Some((decoded, len)) => {
            match &*decoded {
                "\u{a0}" => text.space = true,
                decoded => decoded.chars().for_each(|c| text.push_char(c)),
            }
            &rest[len..]
        }
        None => {
            text.push_char('&');
            &rest[1..]
        }
    }
}

/// The value of an attribute with its references decoded.
fn attribute_text(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut rest = value;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (decoded, len) = reference(rest, true).unwrap_or_else(|| ("&".to_owned(), 1));
        out.push_str(&decoded);
        rest = &rest[len..];
    }
    out + rest
}

/// Maximum length of a named reference.
const NAME_BYTES_MAX: usize = 32;
/// Maximum digits of a numeric reference: more cannot be a character.
const DIGITS_MAX: usize = 10;

/// Decodes the character reference at the start of `rest`; returns its text and length (HTML standard, sections
/// 13.2.5.72 to 13.2.5.80). `None` if there is no reference.
fn reference(rest: &str, is_attribute: bool) -> Option<(String, usize)> {
    let bytes = rest.as_bytes();
    if bytes.get(1) == Some(&b'#') {
        let is_hex = matches!(bytes.get(2), Some(b'x' | b'X'));
        let from = if is_hex { 3 } else { 2 };
        let is_digit = |byte: &&u8| if is_hex { byte.is_ascii_hexdigit() } else { byte.is_ascii_digit() };
        let end = from + bytes[from.min(bytes.len())..].iter().take_while(is_digit).count();
        let digits = rest.get(from..end).filter(|digits| !digits.is_empty())?;
        return Some((
            numbered(digits, if is_hex { 16 } else { 10 }),
            end + usize::from(bytes.get(end) == Some(&b';')),
        ));
    }
    let run = bytes[1..].iter().take(NAME_BYTES_MAX).take_while(|byte| byte.is_ascii_alphanumeric()).count();
    let end = 1 + run;
    if bytes.get(end) == Some(&b';')
        && let Some(decoded) = named(&rest[1..end])
    {
        return Some((decoded, end + 1));
    }
    let end = (2..=run.min(BARE_BYTES_MAX)).rev().map(|len| 1 + len).find(|&end| BARE.contains(&rest[1..end]))?;
    // `?a=b&copy=1` is not a reference.
    let goes_on = bytes.get(end).is_some_and(|byte| *byte == b'=' || byte.is_ascii_alphanumeric());
    if is_attribute && goes_on {
        return None;
    }
    Some((named(&rest[1..end])?, end))
}

fn numbered(digits: &str, radix: u32) -> String {
    let digits = digits.trim_start_matches('0');
    // Zero, too.
    let code = Some(digits)
        .filter(|digits| digits.len() <= DIGITS_MAX)
        .and_then(|digits| u32::from_str_radix(digits, radix).ok());
    match code {
        // What Windows wrote there is not what the numbers mean (HTML standard, numeric character reference end state).
        Some(code @ 0x80..0xa0) => posthaste_message::mime::Charset::for_label(b"cp1252")
            .map(|cp1252| cp1252.decode(&[code as u8]).into_owned())
            .unwrap_or_default(),
        code => code.and_then(char::from_u32).unwrap_or('\u{fffd}').to_string(),
    }
}

/// Looks up a named reference, given without `&` and `;`.
fn named(name: &str) -> Option<String> {
    let at = ENTITIES.binary_search_by_key(&name, |(name, _)| name).ok()?;
    ENTITIES[at].1.split(' ').map(|code| u32::from_str_radix(code, 16).ok().and_then(char::from_u32)).collect()
}

/// The named references of the HTML standard that end in a semicolon, sorted: a line for each, with its code points in hexadecimal.
static ENTITIES: LazyLock<Vec<(&str, &str)>> =
    LazyLock::new(|| include_str!("entities.txt").lines().filter_map(|line| line.split_once(' ')).collect());

/// The named references that need no semicolon.
static BARE: LazyLock<HashSet<&str>> = LazyLock::new(|| BARE_NAMES.split_ascii_whitespace().collect());
const BARE_BYTES_MAX: usize = 6;
const BARE_NAMES: &str = "AElig AMP Aacute Acirc Agrave Aring Atilde Auml COPY Ccedil ETH Eacute Ecirc Egrave Euml GT Iacute Icirc Igrave Iuml LT Ntilde \
    Oacute Ocirc Ograve Oslash Otilde Ouml QUOT REG THORN Uacute Ucirc Ugrave Uuml Yacute aacute acirc acute aelig agrave amp aring \
    atilde auml brvbar ccedil cedil cent copy curren deg divide eacute ecirc egrave eth euml frac12 frac14 frac34 gt iacute icirc \
    iexcl igrave iquest iuml laquo lt macr micro middot nbsp not ntilde oacute ocirc ograve ordf ordm oslash otilde ouml para plusmn \
    pound quot raquo reg sect shy sup1 sup2 sup3 szlig thorn times uacute ucirc ugrave uml uuml yacute yen yuml";

/// Processes one tag, comment or declaration and returns the text after it.
fn tag<'a>(rest: &'a str, text: &mut Text) -> &'a str {
    if let Some(comment) = rest.strip_prefix("<!--") {
        return after_comment(comment);
    }
    let inner = &rest[1..];
    let (closing, inner) = inner.strip_prefix('/').map_or((false, inner), |inner| (true, inner));
    match inner.bytes().next() {
        Some(byte) if byte.is_ascii_alphabetic() => {}
        // `<!doctype>`, `<?xml ?>`, `</ p>`: a bogus comment, up to the first `>` (HTML standard, sections 13.2.5.6, 13.2.5.7 and 13.2.5.41).
        Some(byte) if closing || matches!(byte, b'!' | b'?') => {
            return inner.find('>').map_or("", |end| &inner[end + 1..]);
        }
        _ => {
            // A lone `<`: as text, like browsers do.
            text.push_char('<');
            return &rest[1..];
        }
    }
    let name_len = inner.bytes().position(|b| !b.is_ascii_alphanumeric()).unwrap_or(inner.len());
    let (name, attributes) = inner.split_at(name_len);
    let end = tag_end(attributes);
    let after = attributes.get(end + 1..).unwrap_or("");
    let name = name.to_ascii_lowercase();
    match name.as_str() {
        "style" | "script" | "template" | "noembed" if !closing => return skip_element(after, &name),
        "br" | "p" | "div" | "tr" | "li" | "ul" | "ol" | "table" | "blockquote" | "h1" | "h2" | "h3" | "h4" | "h5"
        | "h6" | "hr" | "dt" | "title" | "section" | "article" | "header" | "footer" | "head" | "body" | "center"
        | "option" | "optgroup" | "select" | "address" | "aside" | "caption" | "dd" | "details" | "dl" | "fieldset"
        | "figcaption" | "figure" | "form" | "legend" | "main" | "nav" | "summary" | "tbody" | "tfoot" | "thead"
        | "textarea" => text.line(),
        "td" | "th" | "button" | "input" | "label" => text.space = true,
        "pre" => {
            text.line();
            text.keep_spaces =
                if closing { text.keep_spaces.saturating_sub(1) } else { text.keep_spaces.saturating_add(1) };
        }
        "img" | "area" if !closing => {
            if let Some(alt) =
                attribute(&attributes[..end.min(attributes.len())], "alt").filter(|alt| !alt.trim().is_empty())
            {
                text.space = true;
                text.push(&attribute_text(alt));
                text.space = true;
            }
        }
        _ => {}
    }
    after
}

/// Returns the text after a comment (HTML standard, sections 13.2.5.43 to 13.2.5.52). It ends with `-->` or `--!>`, or
/// with `>` or `->` right at its start. Returns an empty text if it is never closed.
fn after_comment(comment: &str) -> &str {
    if let Some(after) = comment.strip_prefix('>').or_else(|| comment.strip_prefix("->")) {
        return after;
    }
    let mut from = comment;
    while let Some(at) = from.find("--") {
        let end = &from[at + 2..];
        if let Some(after) = end.strip_prefix('>').or_else(|| end.strip_prefix("!>")) {
            return after;
        }
        from = &from[at + 1..];
    }
    ""
}

/// Position of a tag's `>`, ignoring those in quotes; the whole length without one.
fn tag_end(attributes: &str) -> usize {
    let mut quote = None;
    let mut after_equals = false;
    for (at, byte) in attributes.bytes().enumerate() {
        match (quote, byte) {
            (None, b'>') => return at,
            // Quotes count only where a value can begin, so that a stray one does not swallow the document.
            (None, b'"' | b'\'') if after_equals => quote = Some(byte),
            (Some(open), _) if open == byte => quote = None,
            _ => {}
        }
        after_equals = byte == b'=' || (after_equals && byte.is_ascii_whitespace());
    }
    // An unclosed quote: take the first `>` after all.
    attributes.find('>').unwrap_or(attributes.len())
}

/// Returns the text after `</name>`, or an empty one if the element is never closed.
fn skip_element<'a>(rest: &'a str, name: &str) -> &'a str {
    let mut from = rest;
    while let Some(at) = from.find("</") {
        let candidate = &from[at + 2..];
        if candidate.get(..name.len()).is_some_and(|tag| tag.eq_ignore_ascii_case(name)) {
            return candidate.find('>').map_or("", |end| &candidate[end + 1..]);
        }
        from = candidate;
    }
    ""
}

/// The value of an attribute.
fn attribute<'a>(attributes: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = attributes;
    loop {
        let equals = rest.find('=')?;
        let key = rest[..equals].trim_end().rsplit(|c: char| c.is_ascii_whitespace()).next()?;
        let value = rest[equals + 1..].trim_start();
        let (value, after) = match value.chars().next()? {
            quote @ ('"' | '\'') => value[1..].split_once(quote)?,
            _ => value.split_at(value.find(|c: char| c.is_ascii_whitespace()).unwrap_or(value.len())),
        };
        if key.eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(html: &str, expected: &str) {
        assert_eq!(html_to_text(html), expected, "{html:?}");
    }

    #[test]
    fn references_need_no_semicolon_where_html_5_says_so() {
        check(
            "<p>caf&eacute au lait, M&uumlller, R&ampD, &#233t&#233, &lt;x&gt, a&nbspb</p>",
            "café au lait, Müller, R&D, été, <x>, a b",
        );
        check("cou&#112le &#83in&#103 &copy2009 &amp chips &lt5", "couple Sing ©2009 & chips <5");
        check("&notit; &notin; &notin &hellip &#xe9g &#XE9;", "¬it; ∉ ¬in &hellip ég é");
        check("&# &#; &#x; &#xg &; &", "&# &#; &#x; &#xg &; &");
        check("&#0; &#00000000000065; &#99999999999; &#xd800;", "\u{fffd} A \u{fffd} \u{fffd}");
        check("&AMP &COPY &sup2 &frac12x &acute; &macr", "& © ² ½x ´ ¯");
        assert_eq!(BARE.len(), 106);
        assert!(BARE.iter().all(|name| named(name).is_some() && name.len() <= BARE_BYTES_MAX));
        // Each is looked at once.
        assert_eq!(html_to_text(&"&".repeat(1_000_000)).len(), 1_000_000);
        html_to_text(&format!("&#{}", "9".repeat(1_000_000)));
    }

    #[test]
    fn what_a_browser_shows_is_what_is_found() {
        check("<p>One <b>t</b>wo</p><p>three", "One two\nthree");
        check("<style type=\"text/css\">p { x: y }</style>a<script src=x>bad()</script >b", "ab");
        check("<td>left</td><td>right</td>", "left right");
        check("<select><option>one<option>two</option></select>three", "one\ntwo\nthree");
        check(
            "&#150; &#x93;x&#0; &NotEqualTilde; &zwnj;&Aacute;",
            "\u{2013} \u{201c}x\u{fffd} \u{2242}\u{338} \u{200c}\u{c1}",
        );
        check("a<!-- hidden --> b <!-- open", "a b");
        check("Stra&szlig;e &lt;x&gt; &#228;&#xe4; &nosuch; AT&T &", "Straße <x> ää &nosuch; AT&T &");
        check("<img src=a alt='a > picture'>", "a > picture");
        check("<img alt=\"America&#39;s caf&eacute; bin&hellip;\">", "America's café bin…");
        check("<img alt='?a=1&copy=2&lt&reg'>", "?a=1&copy=2<®");
        check("x<br/>y\n\n  z", "x\ny z");
        check("<pre>a\n  b</pre>c", "a\n  b\nc");
        check("1 < 2 and <", "1 < 2 and <");
        check("<title>T</title><body>x", "T\nx");
        check("<a href=\"unclosed>text</a> more", "text more");
        check("", "");
    }

    #[test]
    fn what_is_neither_tag_nor_comment_ends_at_its_bracket() {
        check("<table><tr><td>price</td></tr></ TBODY></table>", "price");
        check("a</ p title=\"b>c\">d</>e</3>f</", "ac\">defg".replace("fg", "f</").as_str());
        check("<?xml version='1.0'?>a<!doctype html \"x\">b<![if !mso]>c<![endif]>d<!>e<?>f", "abcdef");
        check("a<!-->b<!--->c<!-- x --!>d<!-- y -- > z --->e<!----->f", "abcdef");
        // Each is looked at once.
        html_to_text(&format!("<!--{}", "-".repeat(1_000_000)));
        html_to_text(&"</ ".repeat(300_000));
    }
}
