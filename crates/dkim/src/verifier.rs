//! A message in transit: keeps only what the verification of its signatures needs.

use std::borrow::Cow;

use crate::canon::{BodyHasher, name_of};
use crate::claim::Claim;
use crate::draft::HEADER_BYTES_MAX;
use crate::header_fields::HeaderFields;
use crate::received::{ReceivedSignature, domain_of};
use crate::simple::SimpleBodyHasher;

/// Maximum signatures that are verified; others are ignored.
pub const SIGNATURES_MAX: usize = 5;
/// Maximum fields of a header; beyond it no signature counts.
pub const HEADER_FIELDS_MAX: usize = 1000;

/// Takes the fields of a header, [`begin_body`](Self::begin_body), then the body in pieces. Keeps the header, up to [`HEADER_BYTES_MAX`] octets, and two hashes at most.
#[derive(Default)]
pub struct Verifier {
    fields: HeaderFields,
    bytes: usize,
    is_too_large: bool,
    /// Indexes of signature fields, with their parsed content.
    signatures: Vec<Found>,
    relaxed: Option<BodyHasher>,
    simple: Option<SimpleBodyHasher>,
}

struct Found {
    at: usize,
    domain: String,
    read: Result<ReceivedSignature, &'static str>,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier").field("fields", &self.fields.len()).finish_non_exhaustive()
    }
}

impl Verifier {
    /// Takes the next field of the header, all of its lines.
    pub fn field(&mut self, field: &[u8]) {
        self.bytes += field.len();
        self.is_too_large |= self.bytes > HEADER_BYTES_MAX || self.fields.len() == HEADER_FIELDS_MAX;
        if !self.is_too_large {
            self.fields.push(field);
        } else if let Some(domain) = self.signature_domain(field).filter(|_| self.fields.len() < 2 * HEADER_FIELDS_MAX)
        {
            // It is known that there is one, and whose.
            self.fields.push(format!("DKIM-Signature: d={domain}").as_bytes());
        }
    }

    /// Notes a field that is too large: no signature counts.
    pub fn field_too_large(&mut self) {
        self.is_too_large = true;
    }

    /// Ends the header and selects the signatures. Those of `author`, the domain of From, and of related domains come
    /// first.
    pub fn begin_body(&mut self, author: Option<&str>) {
        let domains =
            self.fields.iter().enumerate().filter_map(|(at, field)| Some((at, self.signature_domain(field)?)));
        let mut found: Vec<(usize, String)> = domains.collect();
        let is_of_author =
            |domain: &str| author.is_some_and(|author| is_below(author, domain) || is_below(domain, author));
        found.sort_by_key(|(_, domain)| !is_of_author(domain));
        found.truncate(SIGNATURES_MAX);
        let read = |(at, domain): (usize, String)| {
            let read = if self.is_too_large {
                Err("the header is too large")
            } else {
                ReceivedSignature::parse(&value_of(self.fields.at(at)))
            };
            Found { at, domain, read }
        };
        self.signatures = found.into_iter().map(read).collect();
        for signature in self.signatures.iter().filter_map(|found| found.read.as_ref().ok()) {
            if signature.is_body_relaxed {
                _ = self.relaxed.get_or_insert_with(BodyHasher::default)
            } else {
                _ = self.simple.get_or_insert_with(SimpleBodyHasher::new)
            }
        }
        if self.signatures.is_empty() || self.is_too_large {
            self.fields = HeaderFields::default();
        }
    }

    /// Takes the next octets of the body, which begins after the empty line.
    pub fn body(&mut self, piece: &[u8]) {
        if let Some(hasher) = &mut self.relaxed {
            hasher.push(piece);
        }
        if let Some(hasher) = &mut self.simple {
            hasher.push(piece);
        }
    }

    /// The signatures of the whole message at `now`, in seconds since 1970.
    pub fn finish(self, now: u64) -> Vec<Claim> {
        let relaxed = self.relaxed.map(BodyHasher::finish_counted);
        let simple = self.simple.map(SimpleBodyHasher::finish);
        let fields = self.fields;
        let claim = |found: Found| {
            let signature = match found.read {
                Ok(signature) => signature,
                Err(why) => return Claim::unread(&found.domain, why),
            };
            let body = if signature.is_body_relaxed { relaxed } else { simple };
            let (hash, bytes) = body.expect("begin_body has made it");
            let failed = match () {
                () if signature.body_bytes.is_some_and(|signed| signed != bytes) => {
                    Some("it leaves a part of the body unsigned")
                }
                () if signature.body_hash != hash.as_ref() => Some("the body has changed"),
                () if signature.expires.is_some_and(|expires| expires < now) => Some("it has expired"),
                () => None,
            };
            match failed {
                Some(why) => Claim::failed(signature, why),
                None => Claim::open(signature, &fields, found.at),
            }
        };
        self.signatures.into_iter().map(claim).collect()
    }

    fn signature_domain(&self, field: &[u8]) -> Option<String> {
        // Without a domain it is nobody's, and says nothing.
        is_named(field, "dkim-signature").then(|| domain_of(&value_of(field)))?
    }
}

/// True for a field of this name, in any case.
fn is_named(field: &[u8], name: &str) -> bool {
    name_of(field).eq_ignore_ascii_case(name.as_bytes())
}

fn value_of(field: &[u8]) -> Cow<'_, str> {
    let colon = field.iter().position(|octet| *octet == b':').map_or(field.len(), |colon| colon + 1);
    String::from_utf8_lossy(&field[colon..])
}

fn is_below(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}
