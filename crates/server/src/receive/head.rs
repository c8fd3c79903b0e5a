//! Reads the header of an arriving message: facts for the log, and fields to remove or change before it is stored.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_directory::names::folded_domain;
use posthaste_dkim::{Draft, Verifier};
use posthaste_intake::PieceFilter;
use posthaste_message::rewrite::AddressMap;
use posthaste_message::{Edit, HeaderEditor, HeaderScan, RawField, Summary, authserv_id, squeezed_authserv_id};

use crate::receive::author::Author;
use crate::receive::tenants::{LabelFields, Labels, name_in};

/// Processes all of an arriving message.
pub(crate) struct Head {
    scan: HeaderScan,
    /// `None` without a rule.
    edits: Option<Box<Edits>>,
    hops_max: usize,
    heard: (Summary, HeaderFacts),
}

/// Why a header is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HeaderRefusal {
    /// Too many Received fields.
    Loop { hops: usize },
    /// A field that should name a tenant or a campaign.
    NoName { field: Arc<str> },
    /// The first line continues a field, and would continue one that this server writes above it.
    Folded,
}

/// Rules for a header, by sender of the message.
#[derive(Debug, Default, Clone)]
pub(crate) struct HeaderRules {
    /// Fields that name a tenant, a campaign and a pool are removed.
    pub fields: LabelFields,
    /// The fields' values are used.
    pub reads_labels: bool,
    /// Map for addresses in the header.
    pub canonical: Option<Arc<AddressMap>>,
    /// Blind copies are removed; the author and missing fields are noted.
    pub is_submission: bool,
    /// The data for a signature are collected, and the author is noted.
    pub may_sign: bool,
    /// The whole message is passed to a verifier of signatures, and the author is noted.
    pub verifies: bool,
    /// Authentication-Results fields with these service names are removed as forged: only this server writes them.
    pub foreign_results: Option<Arc<[Arc<str>]>>,
}

struct Edits {
    editor: HeaderEditor,
    rules: HeaderRules,
    facts: HeaderFacts,
}

/// Labels from a header.
#[derive(Debug, Default)]
pub(crate) struct HeaderFacts {
    pub labels: Labels,
    /// Name of a label field with an invalid value.
    pub invalid: Option<Arc<str>>,
    /// Author of a submission, and of a message that may be signed.
    pub author: Author,
    /// A submission has a Date.
    pub has_date: bool,
    /// Draft of the signature of a message that may be signed.
    pub draft: Option<Box<Draft>>,
    /// Verifier of the message's signatures, if it is checked.
    pub verifier: Option<Box<Verifier>>,
    /// True for a message that begins with a blank.
    begins_folded: bool,
}

impl HeaderRules {
    fn has_any(&self) -> bool {
        let LabelFields { tenant, campaign, pool } = &self.fields;
        let has_fields = tenant.is_some() || campaign.is_some() || pool.is_some();
        let is_seen = self.is_submission || self.may_sign || self.verifies;
        has_fields || is_seen || self.canonical.is_some() || self.foreign_results.is_some()
    }
}

impl Head {
    /// A message of `hops_max` hops is refused.
    pub fn new(scan: HeaderScan, hops_max: usize, rules: HeaderRules) -> Self {
        let draft = rules.may_sign.then(Box::default);
        let verifier = rules.verifies.then(Box::default);
        let facts = HeaderFacts { draft, verifier, ..HeaderFacts::default() };
        let edits = rules.has_any().then(|| Box::new(Edits { editor: HeaderEditor::default(), rules, facts }));
        Self { scan, edits, hops_max, heard: Default::default() }
    }

    /// The findings, once the whole message was read.
    pub fn heard(self) -> (Summary, HeaderFacts) {
        self.heard
    }
}

impl PieceFilter for Head {
    type Refusal = HeaderRefusal;

    fn push(&mut self, piece: Bytes) -> Bytes {
        let piece = match self.edits.as_deref_mut() {
            Some(edits) if !edits.editor.is_over() => edits.push(piece),
            Some(edits) => {
                edits.facts.body(&piece);
                piece
            }
            None => piece,
        };
        self.scan.push(&piece);
        piece
    }

    fn end(&mut self) -> Result<Option<Bytes>, HeaderRefusal> {
        let mut rest = Vec::new();
        let facts = match self.edits.take() {
            Some(mut edits) => {
                if !edits.editor.is_over() {
                    edits.editor.finish(&mut rest, &mut |field| edits.rules.edit(field, &mut edits.facts));
                    edits.facts.end_header();
                    self.scan.push(&rest);
                }
                edits.facts
            }
            None => HeaderFacts::default(),
        };
        let summary = std::mem::take(&mut self.scan).finish();
        match &facts.invalid {
            _ if summary.hops >= self.hops_max => return Err(HeaderRefusal::Loop { hops: summary.hops }),
            _ if facts.begins_folded => return Err(HeaderRefusal::Folded),
            Some(field) => return Err(HeaderRefusal::NoName { field: field.clone() }),
            None => {}
        }
        self.heard = (summary, facts);
        Ok((!rest.is_empty()).then(|| rest.into()))
    }
}

impl Edits {
    fn push(&mut self, piece: Bytes) -> Bytes {
        let mut out = Vec::with_capacity(piece.len().min(HEADER_BYTES_USUAL));
        let taken = self.editor.push(&piece, &mut out, &mut |field| self.rules.edit(field, &mut self.facts));
        if self.editor.is_over() {
            self.facts.end_header();
        }
        self.facts.body(&piece[taken..]);
        match &piece[taken..] {
            // Most headers stay as they are, and their bodies are not copied.
            _ if out == piece[..taken] => piece,
            [] => out.into(),
            _ if out.is_empty() => piece.slice(taken..),
            rest => {
                out.extend_from_slice(rest);
                out.into()
            }
        }
    }
}

impl HeaderFacts {
    /// A received field, before removals and changes.
    fn arrived(&mut self, field: &RawField<'_>) {
        let Some(verifier) = &mut self.verifier else { return };
        // Only the first line can be no part of the field above it.
        self.begins_folded |= matches!(field.bytes, [b' ' | b'\t', ..]);
        if field.is_whole { verifier.field(field.bytes) } else { verifier.field_too_large() }
    }

    fn end_header(&mut self) {
        if let Some(verifier) = &mut self.verifier {
            verifier.begin_body(self.author.domain().as_deref());
        }
    }

    /// Octets that follow the header.
    fn body(&mut self, piece: &[u8]) {
        if let Some(verifier) = &mut self.verifier {
            verifier.body(piece);
        }
        if let Some(draft) = &mut self.draft {
            draft.body(piece);
        }
    }

    /// A stored field; only the name of one that is too large.
    fn stored(&mut self, field: &RawField<'_>) {
        let Some(draft) = &mut self.draft else { return };
        if field.is_whole {
            draft.field(field.bytes);
        } else if posthaste_dkim::is_signed(field.name) {
            draft.field_too_large();
        }
    }
}

impl HeaderRules {
    fn edit(&self, field: &RawField<'_>, facts: &mut HeaderFacts) -> Edit {
        facts.arrived(field);
        if let Some((name, label)) = self.label(field, &mut facts.labels) {
            // The first counts.
            if self.reads_labels && label.is_none() {
                *label = if field.is_whole { name_in(field.value()) } else { None };
                if label.is_none() {
                    facts.invalid = facts.invalid.take().or_else(|| Some(name.clone()));
                }
            }
            return Edit::Remove;
        }
        if self.is_submission {
            if field.is("Bcc") || field.is("Resent-Bcc") {
                return Edit::Remove;
            }
            // An empty one is as good as none, and a second one must not stand beside it.
            if (field.is("Date") || field.is("Message-ID")) && field.value().trim_ascii().is_empty() {
                return Edit::Remove;
            }
            facts.has_date |= field.is("Date");
        }
        if self.is_submission || self.may_sign || self.verifies {
            facts.author.note(field);
        }
        if let Some(services) = &self.foreign_results
            && field.is("Authentication-Results")
            && is_of(field.value(), services)
        {
            return Edit::Remove;
        }
        // Verifiers that cannot read such a field fail all of a signature. MIME fields keep each octet.
        let tight = if self.may_sign && !is_mime(field.name) { field.without_space_before_colon() } else { None };
        let field = RawField { bytes: tight.as_deref().unwrap_or(field.bytes), ..*field };
        match self.canonical.as_ref().and_then(|map| map.field(&field)) {
            Some(other) => {
                facts.stored(&RawField { bytes: &other, ..field });
                Edit::Replace(other)
            }
            None => {
                facts.stored(&field);
                tight.map_or(Edit::Keep, Edit::Replace)
            }
        }
    }

    /// The name of a field that is a label, and the label.
    fn label<'a>(&self, field: &RawField<'_>, labels: &'a mut Labels) -> Option<(&Arc<str>, &'a mut Option<Arc<str>>)> {
        let LabelFields { tenant, campaign, pool } = &self.fields;
        let all = [(tenant, &mut labels.tenant), (campaign, &mut labels.campaign), (pool, &mut labels.pool)];
        all.into_iter().find_map(|(name, label)| Some((name.as_ref().filter(|name| field.is(name))?, label)))
    }
}

fn is_mime(name: &[u8]) -> bool {
    let begins = |prefix: &[u8]| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    begins(b"MIME-") || begins(b"Content-")
}

/// True if a reader may take the results for those of one of `services`; also without an authserv-id.
fn is_of(results: &[u8], services: &[Arc<str>]) -> bool {
    let is_one = |id: &str| services.iter().any(|service| **service == *id);
    authserv_id(results).is_none_or(|id| folded_domain(&id).is_none_or(|id| is_one(&id))) || {
        let squeezed = squeezed_authserv_id(results);
        let name = squeezed.trim_end_matches(|sign: char| sign.is_ascii_digit()).trim_end_matches('/');
        [name, &squeezed].into_iter().any(|name| folded_domain(name).is_some_and(|name| is_one(&name)))
    }
}

/// Usual maximum of a header; more octets cost a second allocation.
const HEADER_BYTES_USUAL: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> LabelFields {
        LabelFields {
            tenant: Some("X-Tenant".into()),
            campaign: Some("X-Campaign".into()),
            pool: Some("X-Pool".into()),
        }
    }

    /// The stored form of a message that comes in pieces, and its labels.
    fn stored(
        message: &[u8],
        piece: usize,
        fields: Option<LabelFields>,
    ) -> Result<(Vec<u8>, Summary, HeaderFacts), HeaderRefusal> {
        let rules = HeaderRules { fields: fields.unwrap_or_default(), reads_labels: true, ..HeaderRules::default() };
        treated(message, piece, rules)
    }

    fn treated(
        message: &[u8],
        piece: usize,
        rules: HeaderRules,
    ) -> Result<(Vec<u8>, Summary, HeaderFacts), HeaderRefusal> {
        let (mut head, mut out) = (Head::new(HeaderScan::default(), 50, rules), Vec::new());
        message.chunks(piece).for_each(|part| out.extend(head.push(Bytes::copy_from_slice(part))));
        out.extend(head.end()?.unwrap_or_default());
        let (summary, said) = head.heard();
        Ok((out, summary, said))
    }

    #[test]
    fn labels_are_read_and_taken_out_however_a_message_is_cut() {
        let message = b"Received: x\r\nx-tenant: a\r\nMessage-ID: <1@x>\r\nX-Tenant: b\r\nX-Campaign:\r\n c\r\nX-POOL: p\r\n\r\nX-Tenant: d\r\n";
        for piece in 1..=message.len() {
            let (out, summary, said) = stored(message, piece, Some(fields())).unwrap();
            assert_eq!(out, b"Received: x\r\nMessage-ID: <1@x>\r\n\r\nX-Tenant: d\r\n", "{piece}");
            assert_eq!((summary.hops, summary.message_id.as_deref()), (1, Some("<1@x>")));
            assert_eq!((said.labels.tenant.as_deref(), said.labels.campaign.as_deref()), (Some("a"), Some("c")));
            assert_eq!(said.labels.pool.as_deref(), Some("p"));
            assert_eq!(said.invalid, None);
            assert_eq!(stored(message, piece, None).unwrap().0, message, "nothing is taken from others");
        }
    }

    #[test]
    fn a_label_that_is_no_name_is_told() {
        let refused = |field: &str| HeaderRefusal::NoName { field: field.into() };
        for value in ["", " a b", &" x".repeat(100_000)] {
            let stored = stored(format!("X-Tenant:{value}\r\n\r\n").as_bytes(), 1000, Some(fields()));
            assert_eq!(stored.unwrap_err(), refused("X-Tenant"));
        }
        assert_eq!(stored(b"X-Campaign: cut off", 3, Some(fields())).unwrap_err(), refused("X-Campaign"));
    }

    #[test]
    fn a_message_of_50_hops_is_in_a_loop() {
        let of = |hops: usize| stored(&b"Received: x\r\n".repeat(hops), 100, None);
        assert!(of(49).is_ok());
        assert_eq!(of(50).unwrap_err(), HeaderRefusal::Loop { hops: 50 });
    }

    #[test]
    fn blind_copies_and_labels_leave_a_submission() {
        let rules = HeaderRules { fields: fields(), is_submission: true, ..HeaderRules::default() };
        let message = b"From: a@x\r\nBcc: b@x,\r\n c@x\r\nX-Tenant: not read\r\nRESENT-bcc : d@x\r\nBcc-Note: e\r\n\r\nBcc: text\r\n";
        for piece in 1..=message.len() {
            let (out, _, facts) = treated(message, piece, rules.clone()).unwrap();
            assert_eq!(out, b"From: a@x\r\nBcc-Note: e\r\n\r\nBcc: text\r\n", "{piece}");
            assert!(facts.labels == Labels::default() && !facts.has_date);
        }
        assert!(treated(b"date: now\r\n\r\n", 1, rules).unwrap().2.has_date);
    }

    #[test]
    fn fields_of_a_message_to_sign_have_no_space_before_the_colon() {
        let message = b"From : a@x\r\nTo\t:\r\n b@x\r\nX-Note : c\r\nContent-Type : text/plain\r\nSubject: d\r\n\r\nTo : text\r\n";
        let expected =
            b"From: a@x\r\nTo:\r\n b@x\r\nX-Note: c\r\nContent-Type : text/plain\r\nSubject: d\r\n\r\nTo : text\r\n";
        let signing = HeaderRules { may_sign: true, is_submission: true, ..HeaderRules::default() };
        for piece in 1..=message.len() {
            let (out, _, facts) = treated(message, piece, signing.clone()).unwrap();
            assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string(), "{piece}");
            assert!(facts.author.signing().is_some() && facts.draft.is_some());
            let others = HeaderRules { may_sign: false, ..signing.clone() };
            assert_eq!(treated(message, piece, others).unwrap().0, message, "{piece}");
        }
    }

    #[test]
    fn signed_and_encrypted_parts_stay_octet_for_octet() {
        let rules = HeaderRules {
            is_submission: true,
            foreign_results: Some(["mx.example".into()].into()),
            ..HeaderRules::default()
        };
        let head = "From: a@x\r\nMIME-Version: 1.0\r\n";
        let inner = "Bcc: inner@x\r\nAuthentication-Results: mx.example; dkim=pass\r\nX-Tenant: x\r\n";
        for body in [
            format!(
                "Content-Type: multipart/signed; micalg=pgp-sha512;\r\n\tprotocol=\"application/pgp-signature\";\r\n boundary=b\r\n\r\n--b\r\n{inner}\r\n text  \r\n\r\n\r\n--b--\r\n"
            ),
            format!(
                "Content-Type: application/pkcs7-mime;  smime-type=enveloped-data\r\nContent-Transfer-Encoding:base64\r\n\r\nMIAG\r\n{inner}"
            ),
            format!("Content-Type: message/rfc822\r\n\r\n{inner}\r\nbare\nand\rends\r\n"),
        ] {
            for piece in [1, 7, 1000] {
                let message = format!("{head}Bcc: b@x\r\nAuthentication-Results: mx.example; spf=pass\r\n{body}");
                let (out, ..) = treated(message.as_bytes(), piece, rules.clone()).unwrap();
                assert_eq!(String::from_utf8(out).unwrap(), format!("{head}{body}"));
            }
        }
    }

    #[test]
    fn forged_results_of_this_server_go_and_those_of_others_stay() {
        let rules = HeaderRules {
            foreign_results: Some(["mx.xn--bcher-kva.example".into(), "old.example".into()].into()),
            ..HeaderRules::default()
        };
        let check = |field: &str, goes: bool| {
            let message = format!("{field}\r\nSubject: x\r\n\r\n{field}\r\n");
            for piece in [1, 2, 7, 100_000] {
                let (out, ..) = treated(message.as_bytes(), piece, rules.clone()).unwrap();
                let expected = if goes { &message[field.len() + 2..] } else { &message };
                assert!(out == expected.as_bytes(), "{field:.100} in pieces of {piece}");
            }
        };
        for of_ours in [
            "Authentication-Results: mx.xn--bcher-kva.example; dkim=pass",
            "Authentication-Results: mx.b\u{fc}cher.example; dkim=pass",
            "Authentication-Results: MX.B\u{dc}CHER.EXAMPLE; dkim=pass",
            "Authentication-Results: Mx.Xn--BCher-KVA.Example; dkim=pass",
            "Authentication-Results: mx.xn--bcher-kva.example.; dkim=pass",
            "Authentication-Results:mx.xn--bcher-kva.example;dkim=pass",
            "Authentication-Results:\tmx.xn--bcher-kva.example\t; dkim=pass",
            "Authentication-Results: \r\n \r\n\tmx.xn--bcher-kva.example; dkim=pass",
            "Authentication-Results\t: mx.xn--bcher-kva.example; dkim=pass",
            "aUTHENTICATION-rESULTS: mx.xn--bcher-kva.example; dkim=pass",
            "Authentication-Results: \"mx.xn--bcher-kva.example\"; dkim=pass",
            "Authentication-Results: \"\\m\\x.xn--bcher-kva.example\"; dkim=pass",
            "Authentication-Results: \"mx.xn--bcher-\r\n kva.example\"; dkim=pass",
            "Authentication-Results: mx.\"xn--bcher-kva\".example; dkim=pass",
            "Authentication-Results: mx . xn--bcher-kva . example; dkim=pass",
            "Authentication-Results: mx(a).xn--bcher-kva(b).example; dkim=pass",
            "Authentication-Results: (other.example; dkim=pass) mx.xn--bcher-kva.example; dkim=pass",
            "Authentication-Results: (\\) mx.other.example) mx.xn--bcher-kva.example; dkim=pass",
            "Authentication-Results: (a)(b) mx.xn--bcher-kva.example (c) 1 (d); dkim=pass",
            "Authentication-Results: mx.xn--bcher-kva.example 99999; dkim=pass",
            "Authentication-Results: mx.xn--bcher-kva.example / 1; dkim=pass",
            "Authentication-Results: mx.xn--bcher-kva.example; none",
            "Authentication-Results: mx.xn--bcher-kva.example (other.example); dkim=pass",
            "Authentication-Results: \"old.example\" 1; dkim=pass",
            "Authentication-Results: old.example\r\n ; dkim=pass",
            "Authentication-Results: \u{b}old.example; dkim=pass",
            "Authentication-Results: old\\.example; dkim=pass",
            "Authentication-Results: \"\"; dkim=pass",
            "Authentication-Results: mx.xn--bcher-kva.example\"x\"; dkim=pass",
            "authentication-RESULTS : MX.XN--BCHER-KVA.EXAMPLE 1; spf=pass",
            "Authentication-Results:\r\n\t(c (d)) mx.B\u{dc}CHER.example.\r\n ; dmarc=pass",
            "Authentication-Results: \"mx.b\u{fc}cher\\.example\"(x); dkim=pass",
            "Authentication-Results: mx.b\u{fc}cher.example",
            "Authentication-Results:mx.b\u{fc}cher.example/1; dkim=pass",
            "Authentication-Results: old.example; dkim=pass",
            "AUTHENTICATION-RESULTS: Old.Example. 2; dkim=pass",
            // Of nobody, so a reader may take them for anybody's.
            "Authentication-Results: ; dkim=pass",
            "Authentication-Results: (mx.example; dkim=pass",
            "Authentication-Results:",
        ] {
            check(of_ours, true);
        }
        check(&format!("Authentication-Results: ({}) mx; dkim=pass", "x".repeat(100_000)), true);
        for of_others in [
            "Authentication-Results: other.example; dkim=pass",
            "Authentication-Results: mx.b\u{fc}cher.example.net; dkim=pass",
            "Authentication-Results: other.example (mx.b\u{fc}cher.example); dkim=pass",
            "ARC-Authentication-Results: i=1; mx.b\u{fc}cher.example; dkim=pass",
            "X-Authentication-Results: mx.b\u{fc}cher.example; dkim=pass",
        ] {
            check(of_others, false);
        }
    }

    #[test]
    fn empty_fields_of_a_submission_are_as_good_as_none() {
        let rules = HeaderRules { is_submission: true, ..HeaderRules::default() };
        let message = b"Date: \r\n \t\r\nFrom: ann@x.example\r\nmessage-id:\r\nSubject:\r\n\r\nbody";
        for piece in [1, 7, 1000] {
            let (out, summary, facts) = treated(message, piece, rules.clone()).unwrap();
            assert_eq!(out.as_slice(), b"From: ann@x.example\r\nSubject:\r\n\r\nbody".as_slice());
            assert!(!facts.has_date && summary.message_id.is_none());
        }
    }

    #[test]
    fn who_answers_for_a_message_is_read_strictly() {
        let rules = HeaderRules { is_submission: true, ..HeaderRules::default() };
        let check = |header: &str, name: &str, expected: Option<&str>| {
            for piece in [1, 7, 1000] {
                let (_, _, facts) = treated(format!("{header}\r\n").as_bytes(), piece, rules.clone()).unwrap();
                let (found, address) = facts.author.answerable();
                assert_eq!((found, address.map(ToString::to_string).as_deref()), (name, expected), "{header:?}");
            }
        };
        check("From: Ann <ann@x.example>\r\n", "From", Some("ann@x.example"));
        check("Subject: x\r\n", "From", None);
        check("From: ann@x.example, bob@x.example\r\n", "From", None);
        check("From: us: ann@x.example;\r\n", "From", None);
        check("From: ann@x.example\r\nfrom: ann@x.example\r\n", "From", None);
        let resent =
            "Resent-Date: now\r\nResent-From: bob@x.example\r\nResent-From: eve@x.example\r\nFrom: ann@x.example\r\n";
        check(resent, "Resent-From", Some("bob@x.example"));
        check("Resent-To: x@x.example\r\nFrom: ann@x.example\r\n", "Resent-From", None);
        check("Resent-From: bob@x.example\r\n", "From", None);
        check("Resent-From: bob@x.example\r\nFrom: ann@x.example\r\nFrom: eve@x.example\r\n", "From", None);
        check("Resent-From: bob@x.example\r\nFrom: a@x.example, b@x.example\r\n", "Resent-From", Some("bob@x.example"));
        check("Resent-Note: x\r\nFrom: ann@x.example\r\n", "From", Some("ann@x.example"));
    }
}
