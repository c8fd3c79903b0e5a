//! Edits the fields of a header in a stream: keeps, removes or replaces them within bounded memory.

use memchr::memchr;

/// One field, folded lines included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawField<'a> {
    /// Octets before the colon, without white space before it; the whole line if there is no colon.
    pub name: &'a [u8],
    /// All octets, the last line end included; only the first ones of a field larger than [`FIELD_BYTES_MAX`].
    pub bytes: &'a [u8],
    /// True if `bytes` is the whole field.
    pub is_whole: bool,
}

impl RawField<'_> {
    /// True if the field has this name, in any case.
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }

    /// The field without white space before its colon, which readers must accept and writers must not make (RFC 5322
    /// section 4.5). `None`: there is no such space, or this is not a whole field.
    pub fn without_space_before_colon(&self) -> Option<Vec<u8>> {
        let colon = self.bytes.iter().position(|octet| *octet == b':').filter(|colon| *colon > self.name.len())?;
        let is_name = !self.name.is_empty() && self.name.iter().all(u8::is_ascii_graphic);
        let is_space = self.bytes[self.name.len()..colon].iter().all(u8::is_ascii_whitespace);
        (self.is_whole && is_name && is_space).then(|| [self.name, &self.bytes[colon..]].concat())
    }

    /// The octets after the colon; empty without one.
    pub fn value(&self) -> &[u8] {
        self.bytes.iter().position(|octet| *octet == b':').map_or(&[], |colon| &self.bytes[colon + 1..])
    }
}

/// The action on a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Keep it, octet for octet.
    Keep,
    /// Remove it.
    Remove,
    /// Replace it by these octets, line end included. A field that is not whole stays.
    Replace(Vec<u8>),
}

/// Edits a header in pieces, however it is cut. Leaves the body alone.
///
/// ```
/// use posthaste_message::{Edit, HeaderEditor};
///
/// let mut editor = HeaderEditor::default();
/// let mut out = Vec::new();
/// let taken = editor.push(b"X-Tenant: a\r\n b\r\nTo: c\r\n\r\nbody", &mut out, &mut |field| match field.is("x-tenant") {
///     true => Edit::Remove,
///     false => Edit::Keep,
/// });
/// assert_eq!((out.as_slice(), taken, editor.is_over()), (&b"To: c\r\n\r\n"[..], 26, true));
/// ```
#[derive(Debug, Default)]
pub struct HeaderEditor {
    /// Octets of the field, or of the line that may end the header.
    held: Vec<u8>,
    at: At,
}

/// Position of the next octet.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum At {
    /// The next octet starts a line.
    #[default]
    Start,
    /// After a CR that began the line.
    StartCr,
    /// In a line being held.
    Held,
    /// In a field too large to hold, in or after a line of it: it is removed, or kept.
    Large {
        is_removed: bool,
        is_start: bool,
    },
    Over,
}

impl HeaderEditor {
    /// True if the header has ended.
    pub fn is_over(&self) -> bool {
        self.at == At::Over
    }

    /// Takes octets; appends the remains of complete fields to `out`. Returns how many octets belong to the header:
    /// fewer than given only if it has ended.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>, edit: &mut dyn FnMut(&RawField<'_>) -> Edit) -> usize {
        let mut index = 0;
        while let Some(&octet) = piece.get(index) {
            if self.at == At::Start && !matches!(octet, b' ' | b'\t' | b'\r' | b'\n') {
                self.end_field(self.held.len(), out, edit);
                // Most headers come whole: their fields need no look at each octet.
                if let Some(len) = whole_field_len(&piece[index..]) {
                    edit_field(&piece[index..index + len], out, edit);
                    index += len;
                    continue;
                }
            }
            index += 1;
            match (self.at, octet) {
                (At::Over, _) => return index - 1,
                // The blank line.
                (At::Start | At::StartCr, b'\n') => {
                    let blank = if self.at == At::StartCr { 1 } else { 0 };
                    let field = self.held.len() - blank;
                    self.end_field(field, out, edit);
                    out.append(&mut self.held);
                    out.push(octet);
                    self.at = At::Over;
                    continue;
                }
                (At::Start, b'\r') => self.at = At::StartCr,
                // Continues the field (RFC 5322 section 2.2.3), or begins one.
                (At::Start | At::StartCr, _) => self.at = At::Held,
                (At::Large { is_start: true, .. }, octet) if !matches!(octet, b' ' | b'\t') => {
                    // A blank line, or another field.
                    self.at = match octet {
                        b'\n' => At::Over,
                        b'\r' => At::StartCr,
                        _ => At::Held,
                    };
                    if self.at == At::Over {
                        out.push(octet);
                        continue;
                    }
                }
                (At::Large { is_removed, .. }, octet) => {
                    self.at = At::Large { is_removed, is_start: octet == b'\n' };
                    if !is_removed {
                        out.push(octet);
                    }
                    continue;
                }
                (At::Held, _) => {}
            }
            self.held.push(octet);
            if octet == b'\n' {
                self.at = At::Start;
            }
            if self.held.len() >= FIELD_BYTES_MAX {
                self.end_held(octet == b'\n', out, edit);
            }
        }
        piece.len()
    }

    /// Ends the message: edits the held octets as the last field.
    pub fn finish(&mut self, out: &mut Vec<u8>, edit: &mut dyn FnMut(&RawField<'_>) -> Edit) {
        self.end_field(self.held.len(), out, edit);
        self.at = At::Over;
    }

    /// Edits the field in the first `len` held octets.
    fn end_field(&mut self, len: usize, out: &mut Vec<u8>, edit: &mut dyn FnMut(&RawField<'_>) -> Edit) {
        if len > 0 {
            edit_field(&self.held[..len], out, edit);
            self.held.drain(..len);
        }
    }

    /// Stops holding this field.
    fn end_held(&mut self, is_start: bool, out: &mut Vec<u8>, edit: &mut dyn FnMut(&RawField<'_>) -> Edit) {
        let is_removed = edit(&field_of(&self.held, false)) == Edit::Remove;
        if !is_removed {
            out.extend_from_slice(&self.held);
        }
        self.held.clear();
        self.at = At::Large { is_removed, is_start };
    }
}

fn edit_field(bytes: &[u8], out: &mut Vec<u8>, edit: &mut dyn FnMut(&RawField<'_>) -> Edit) {
    match edit(&field_of(bytes, true)) {
        Edit::Keep => out.extend_from_slice(bytes),
        Edit::Remove => {}
        Edit::Replace(other) => out.extend_from_slice(&other),
    }
}

/// Length of the field at the start of `piece`, if its end is visible.
fn whole_field_len(piece: &[u8]) -> Option<usize> {
    let mut len = 0;
    loop {
        len += memchr(b'\n', &piece[len..])? + 1;
        match piece.get(len)? {
            b' ' | b'\t' => {}
            // A lone CR belongs to the field.
            b'\r' if *piece.get(len + 1)? != b'\n' => {}
            _ => return Some(len).filter(|&len| len < FIELD_BYTES_MAX),
        }
    }
}

fn field_of(bytes: &[u8], is_whole: bool) -> RawField<'_> {
    let end = bytes.iter().position(|octet| matches!(octet, b':' | b'\n')).unwrap_or(bytes.len());
    RawField { name: bytes[..end].trim_ascii_end(), bytes, is_whole }
}

/// Largest field that is held as a whole.
pub const FIELD_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(message: &[u8], piece: usize, edit: &mut dyn FnMut(&RawField<'_>) -> Edit) -> Vec<u8> {
        let (mut editor, mut out) = (HeaderEditor::default(), Vec::new());
        for part in message.chunks(piece) {
            let taken = editor.push(part, &mut out, edit);
            assert!(taken == part.len() || editor.is_over());
            assert!(editor.held.len() <= FIELD_BYTES_MAX);
            out.extend_from_slice(&part[taken..]);
        }
        editor.finish(&mut out, edit);
        out
    }

    fn check(message: &[u8], expected: &[u8]) {
        for piece in 1..=message.len() {
            let kept = edited(message, piece, &mut |_| Edit::Keep);
            assert_eq!(kept, message, "pieces of {piece}");
            let found = edited(message, piece, &mut |field| match () {
                () if field.is("X-Tenant") => Edit::Remove,
                () if field.is("To") => Edit::Replace(b"To: other\r\n".to_vec()),
                () => Edit::Keep,
            });
            let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
            assert_eq!(text(&found), text(expected), "{:?} in pieces of {piece}", text(message));
        }
    }

    #[test]
    fn fields_go_and_change_however_they_are_cut() {
        check(
            b"X-Tenant: a\r\nSubject: x\r\n y\r\nx-tenant : b\r\n\tc\r\nTo: d\r\n\r\nX-Tenant: body\r\n",
            b"Subject: x\r\n y\r\nTo: other\r\n\r\nX-Tenant: body\r\n",
        );
        check(b"\r\nX-Tenant: body\r\n", b"\r\nX-Tenant: body\r\n");
        check(b"\nX-Tenant: body\r\n", b"\nX-Tenant: body\r\n");
        check(b"a: b\nX-Tenant: c\n\nTo: x\n", b"a: b\n\nTo: x\n");
        check(b"X-Tenant: cut off", b"");
        check(b"a: b\r\n\rX-Tenant: no field\r\nTo: c\r\n\r\n", b"a: b\r\n\rX-Tenant: no field\r\nTo: other\r\n\r\n");
        check(b"no field\r\nX-Tenant\r\nX-Tenants: a\r\n\r\n", b"no field\r\nX-Tenants: a\r\n\r\n");
        check(b" X-Tenant: a fold of nothing\r\nX-Tenant: a\r\n\r\n", b" X-Tenant: a fold of nothing\r\n\r\n");
    }

    #[test]
    fn a_field_that_is_too_large_goes_or_stays_and_is_not_held() {
        for (name, is_removed) in [("X-Tenant", true), ("Subject", false), ("To", false)] {
            let large = format!("{name}: {}\r\n more\r\n", "x".repeat(3 * FIELD_BYTES_MAX));
            for rest in ["\r\nbody", "\nbody", "Date: x\r\n\r\nbody", ""] {
                for piece in [1, 7, 4096, 1 << 20] {
                    let message = format!("a: b\r\n{large}{rest}");
                    let expected = format!("a: b\r\n{}{rest}", if is_removed { "" } else { &large });
                    let mut parts = 0;
                    let found = edited(message.as_bytes(), piece, &mut |field| {
                        parts += usize::from(!field.is_whole);
                        if field.is("X-Tenant") {
                            Edit::Remove
                        } else if field.is("To") {
                            Edit::Replace(b"To: other\r\n".to_vec())
                        } else {
                            Edit::Keep
                        }
                    });
                    assert!(found == expected.as_bytes(), "{name}, {rest:?}, pieces of {piece}");
                    assert_eq!(parts, 1);
                }
            }
        }
    }

    #[test]
    fn a_value_stands_behind_the_first_colon() {
        let field = field_of(b"X-A : b: c\r\n", true);
        assert_eq!((field.name, field.value()), (&b"X-A"[..], &b" b: c\r\n"[..]));
        assert_eq!(field_of(b"no colon\r\n", true).value(), b"");
    }

    #[test]
    fn white_space_before_a_colon_is_left_out() {
        let check = |field: &[u8], expected: Option<&[u8]>| {
            let found = field_of(field, true).without_space_before_colon();
            assert_eq!(found.as_deref(), expected, "{}", field.escape_ascii());
            assert_eq!(field_of(field, false).without_space_before_colon(), None);
        };
        check(b"To : a: b\r\n", Some(b"To: a: b\r\n"));
        check(b"To \t:\r\n a\r\n", Some(b"To:\r\n a\r\n"));
        check(b"To\r\n : a\r\n", Some(b"To: a\r\n"));
        for same in
            [&b"To: a : b\r\n"[..], b"To \r\n", b" : a\r\n", b": a\r\n", b"no field : a\r\n", b"To\r\n a: b\r\n", b""]
        {
            check(same, None);
        }
    }
}
