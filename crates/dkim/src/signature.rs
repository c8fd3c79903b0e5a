//! The field `DKIM-Signature` (RFC 6376 section 3.5).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::canon::relaxed_field;
use crate::draft::{Draft, DraftError};
use crate::key::{KeyError, SigningKey};
use crate::names::{is_domain, is_selector};

/// A key with the name of its record.
#[derive(Debug)]
pub struct Signer {
    domain: String,
    selector: String,
    key: SigningKey,
}

/// Why a message was not signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// The message.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// The key.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl Signer {
    /// Signs as `domain` with the key that is published under `selector`. `None`: one of them is not in lower-case
    /// A-labels.
    pub fn new(domain: &str, selector: &str, key: SigningKey) -> Option<Self> {
        let is_named = is_domain(domain) && is_selector(selector);
        is_named.then(|| Self { domain: domain.to_owned(), selector: selector.to_owned(), key })
    }

    /// The domain that signs, `d=`.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The selector, `s=`.
    pub fn selector(&self) -> &str {
        &self.selector
    }

    /// The key.
    pub fn key(&self) -> &SigningKey {
        &self.key
    }

    /// The complete field for a signature made at `at` and valid until `expires`, if given; both in seconds since 1970.
    /// Lines have 78 columns, unless a name is longer, and end with CRLF.
    ///
    /// # Errors
    /// See [`SignError`].
    pub fn sign(&self, draft: &Draft, at: u64, expires: Option<u64>) -> Result<String, SignError> {
        draft.check()?;
        let mut field = Folded::new("DKIM-Signature: v=1;");
        let Self { domain, selector, key } = self;
        field.tag(&format!("a={};", key.algorithm().signature_name()));
        field.tag("c=relaxed/relaxed;");
        field.tag(&format!("d={domain};"));
        field.tag(&format!("s={selector};"));
        field.tag(&format!("t={at};"));
        if let Some(expires) = expires {
            field.tag(&format!("x={expires};"));
        }
        let names = draft.names();
        for (index, name) in names.iter().enumerate() {
            let end = if index + 1 < names.len() { ':' } else { ';' };
            match index {
                0 => field.tag(&format!("h={name}{end}")),
                _ => field.part(&format!("{name}{end}")),
            }
        }
        field.tag(&format!("bh={};", STANDARD.encode(draft.body_hash().as_ref())));
        field.tag("b=");
        let mut data = draft.header();
        data.extend_from_slice(&relaxed_field(field.text.as_bytes()));
        field.octets(&STANDARD.encode(key.sign(&data)?));
        field.text.push_str("\r\n");
        Ok(field.text)
    }
}

/// A field whose lines are folded.
struct Folded {
    text: String,
    column: usize,
}

impl Folded {
    fn new(text: &str) -> Self {
        Self { text: text.to_owned(), column: text.len() }
    }

    /// Adds a tag, a blank before it.
    fn tag(&mut self, text: &str) {
        if self.column + 1 + text.len() > COLUMNS_MAX {
            self.fold()
        } else {
            self.text.push(' ');
            self.column += 1;
        }
        self.add(text);
    }

    /// Adds a part of a tag, on a new line if it does not fit.
    fn part(&mut self, text: &str) {
        if self.column + text.len() > COLUMNS_MAX {
            self.fold();
        }
        self.add(text);
    }

    /// Adds a text that may be folded anywhere.
    fn octets(&mut self, mut text: &str) {
        while !text.is_empty() {
            if self.column >= COLUMNS_MAX {
                self.fold();
            }
            let (now, later) = text.split_at(text.len().min(COLUMNS_MAX - self.column));
            self.add(now);
            text = later;
        }
    }

    fn fold(&mut self) {
        self.text.push_str("\r\n\t");
        // A tab counts as one octet (RFC 5322 section 2.1.1).
        self.column = 1;
    }

    fn add(&mut self, text: &str) {
        self.text.push_str(text);
        self.column += text.len();
    }
}

/// RFC 5322 section 2.1.1.
const COLUMNS_MAX: usize = 78;
