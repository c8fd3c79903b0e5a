//! Signatures of a complete message, still to be verified with the records of their keys.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::canon::{name_of, push_relaxed_field};
use crate::header_fields::HeaderFields;
use crate::key::Algorithm;
use crate::known_keys::KnownKeys;
use crate::received::{FROM_UNSIGNED, ReceivedSignature, without_signature};
use crate::simple::push_simple_field;

/// The result of a verification (RFC 8601 section 2.7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DkimResult {
    /// The domain answers for the message.
    Pass,
    /// The message has changed, the signature has expired, or it leaves a part unsigned.
    Fail,
    /// DNS did not answer.
    TempError,
    /// The signature or its key is invalid.
    PermError,
}

impl DkimResult {
    /// The word of RFC 8601.
    pub fn name(self) -> &'static str {
        match self {
            DkimResult::Pass => "pass",
            DkimResult::Fail => "fail",
            DkimResult::TempError => "temperror",
            DkimResult::PermError => "permerror",
        }
    }
}

/// The result of one signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verification {
    /// The domain that signs, `d=`, in lower case.
    pub domain: String,
    /// `s=` in lower case; empty if the signature could not be read.
    pub selector: String,
    /// The first 8 letters of `b=`, which identify a signature (RFC 6008).
    pub signature_start: String,
    /// The result.
    pub result: DkimResult,
    /// The reason of a failure; empty for a pass.
    pub why: &'static str,
    /// The domain tests its key, `t=y`.
    pub is_test: bool,
}

impl Verification {
    fn failed(domain: String, selector: String, signature: &[u8], why: &'static str) -> Self {
        // Six octets are eight letters.
        let signature_start = STANDARD.encode(&signature[..signature.len().min(6)]);
        Self { domain, selector, signature_start, result: DkimResult::Fail, why, is_test: false }
    }

    /// True if the signature counts: a message signed with a key under test is treated like an unsigned one (RFC 6376 section 3.6.1).
    pub fn counts(&self) -> bool {
        !self.is_test
    }

    /// True if the signature counts and is valid.
    pub fn is_proof(&self) -> bool {
        self.counts() && self.result == DkimResult::Pass
    }
}

/// One signature of a message.
#[derive(Debug)]
pub struct Claim {
    so_far: Verification,
    /// The key decides these.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    algorithm: Algorithm,
    is_of_subdomain: bool,
    /// The signature itself.
    octets: Vec<u8>,
    /// The octets that are signed.
    data: Vec<u8>,
}

impl Claim {
    pub(crate) fn unread(domain: &str, why: &'static str) -> Self {
        let result = if why == FROM_UNSIGNED { DkimResult::Fail } else { DkimResult::PermError };
        let (selector, signature_start) = (String::new(), String::new());
        let domain = domain.to_owned();
        Self { so_far: Verification { domain, selector, signature_start, result, why, is_test: false }, open: None }
    }

    pub(crate) fn failed(signature: ReceivedSignature, why: &'static str) -> Self {
        let ReceivedSignature { domain, selector, signature, .. } = signature;
        Self { so_far: Verification::failed(domain, selector, &signature, why), open: None }
    }

    /// `at`: the index of the signature in `fields`.
    pub(crate) fn open(signature: ReceivedSignature, fields: &HeaderFields, at: usize) -> Self {
        let push: fn(&[u8], &mut Vec<u8>) =
            if signature.is_header_relaxed { push_relaxed_field } else { push_simple_field };
        let mut data = Vec::with_capacity(fields.bytes());
        // Names of the fields that were not taken yet.
        let mut left: Vec<Option<&[u8]>> = fields.iter().map(|field| Some(name_of(field))).collect();
        left[at] = None;
        for name in signature.names() {
            // Of each name the last (RFC 6376 section 5.4.2).
            let is_it = |found: &Option<&[u8]>| found.is_some_and(|found| found.eq_ignore_ascii_case(name.as_bytes()));
            if let Some(index) = left.iter().rposition(is_it) {
                left[index] = None;
                push(fields.at(index), &mut data);
                data.extend_from_slice(b"\r\n");
            }
        }
        push(&without_signature(fields.at(at)), &mut data);
        let ReceivedSignature { algorithm, is_of_subdomain, domain, selector, signature: octets, .. } = signature;
        let so_far = Verification::failed(domain, selector, &octets, "");
        Self { so_far, open: Some(Open { algorithm, is_of_subdomain, octets, data }) }
    }

    /// The signing domain, as far as it is known.
    pub fn domain(&self) -> &str {
        &self.so_far.domain
    }

    /// The name of the key's TXT record. `None` if the result needs no record.
    pub fn key_name(&self) -> Option<String> {
        self.open.as_ref()?;
        Some(format!("{}._domainkey.{}", self.so_far.selector, self.so_far.domain))
    }

    /// The result with the texts at [`key_name`](Self::key_name); `None`: DNS did not answer.
    pub fn verify(self, texts: Option<&[String]>) -> Verification {
        self.verify_with(texts, &KnownKeys::default())
    }

    /// Like [`verify`](Self::verify), with keys that were read before.
    pub fn verify_with(self, texts: Option<&[String]>, keys: &KnownKeys) -> Verification {
        let Claim { mut so_far, open } = self;
        let Some(Open { algorithm, is_of_subdomain, octets, data }) = open else { return so_far };
        let mut ended = |result, why| {
            so_far.result = result;
            so_far.why = why;
        };
        let Some(texts) = texts else {
            ended(DkimResult::TempError, "DNS has no answer");
            return so_far;
        };
        let Some(read) = texts.iter().find_map(|text| keys.read(text)) else {
            ended(DkimResult::PermError, "there is no key");
            return so_far;
        };
        let record = &read.record;
        match &read.key {
            _ if record.public.is_empty() => ended(DkimResult::PermError, "its key is revoked"),
            _ if record.algorithm != algorithm => ended(DkimResult::PermError, "its key is of another kind"),
            _ if record.is_strict && is_of_subdomain => {
                ended(DkimResult::PermError, "its key is not for hosts below the domain");
            }
            Err(why) => ended(DkimResult::PermError, why),
            Ok(key) if key.verifies(&data, &octets) => ended(DkimResult::Pass, ""),
            Ok(_) => ended(DkimResult::Fail, "the header has changed"),
        }
        so_far.is_test = record.is_test;
        so_far
    }
}
