//! Reads answers of an HTTP server to injection, in pieces and within limits.

use serde::Deserialize;

use super::super::failure::{Cause, Failure, Stage};

/// A whole answer.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    pub status: u16,
    /// Recipients that it counts as successes.
    pub accepted: u64,
    /// A line for each recipient that is refused.
    errors: Vec<String>,
    /// The server's reason for a failure of the whole request.
    pub text: String,
    /// True if the connection ends after it.
    pub closes: bool,
}

/// The octets are not an answer, or one in an unsupported form.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoAnswer(&'static str);

/// Reads answers one after the other.
#[derive(Debug, Default)]
pub(super) struct AnswerReader {
    head: Vec<u8>,
    /// Set once the head is complete.
    begun: Option<Head>,
    body: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Head {
    status: u16,
    length: usize,
    closes: bool,
}

/// Maximum octets of an answer's fields.
const HEAD_OCTETS_MAX: usize = 16 << 10;
/// Maximum octets of a body: a line for each of 10,000 recipients, twice.
const BODY_OCTETS_MAX: usize = 16 << 20;
/// Maximum characters kept of a text.
const TEXT_CHARS_MAX: usize = 200;

/// KumoMTA's answer, and the one that rejects a whole request.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Told {
    success_count: u64,
    errors: Vec<String>,
    error: Option<String>,
}

impl AnswerReader {
    /// Consumes the start of `input`; returns the octets, and the answer that ends there.
    pub fn take(&mut self, input: &[u8]) -> Result<(usize, Option<Answer>), NoAnswer> {
        let mut taken = 0;
        if self.begun.is_none() {
            let known = self.head.len();
            self.head.extend_from_slice(input);
            let Some(end) = memchr::memmem::find(&self.head, b"\r\n\r\n").map(|at| at + 4) else {
                if self.head.len() > HEAD_OCTETS_MAX {
                    return Err(NoAnswer("a head without an end"));
                }
                return Ok((input.len(), None));
            };
            taken = end - known;
            self.head.truncate(end);
            let head = Head::read(&self.head)?;
            self.head.clear();
            if head.status / 100 == 1 {
                // Only an announcement: the answer comes after it (RFC 9110 section 15.2).
                return Ok((taken, None));
            }
            self.begun = Some(head);
        }
        let head = self.begun.expect("set above");
        let rest = &input[taken..];
        let of_body = rest.len().min(head.length - self.body.len());
        self.body.extend_from_slice(&rest[..of_body]);
        taken += of_body;
        if self.body.len() < head.length {
            return Ok((taken, None));
        }
        self.begun = None;
        let answer = Answer::new(head, &self.body);
        self.body.clear();
        Ok((taken, Some(answer?)))
    }
}

impl Head {
    fn read(octets: &[u8]) -> Result<Self, NoAnswer> {
        let text = std::str::from_utf8(octets).map_err(|_| NoAnswer("a head that is not text"))?;
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
        let status = status.filter(|status| (100..600).contains(status)).ok_or(NoAnswer("no status of HTTP/1"))?;
        let mut head = Self { status, length: 0, closes: first.starts_with("HTTP/1.0") };
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                head.length = value.parse().map_err(|_| NoAnswer("a length that is not a number"))?;
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                return Err(NoAnswer("an answer without its length"));
            } else if name.eq_ignore_ascii_case("connection") {
                head.closes |= value.eq_ignore_ascii_case("close");
            }
        }
        if head.length > BODY_OCTETS_MAX { Err(NoAnswer("an answer that is too long")) } else { Ok(head) }
    }
}

impl Answer {
    fn new(head: Head, body: &[u8]) -> Result<Self, NoAnswer> {
        let told: Option<Told> = serde_json::from_slice(body).ok();
        if told.is_none() && head.status == 200 {
            return Err(NoAnswer("200 without the counts of inject"));
        }
        let as_text = || String::from_utf8_lossy(body).trim().to_owned();
        let told = told.unwrap_or_default();
        let text: String = told.error.unwrap_or_else(as_text).chars().take(TEXT_CHARS_MAX).collect();
        let accepted = if head.status == 200 { told.success_count } else { 0 };
        Ok(Self { status: head.status, accepted, errors: told.errors, text, closes: head.closes })
    }

    /// Each recipient that is refused, by the code of its line: `ann@example.org: 550 5.1.1 No such user`.
    pub fn refusals(&self) -> Vec<Failure> {
        let refusal = |line: &String| {
            let reply = line.split_once(": ").map(|(_, reply)| reply).unwrap_or_default();
            let code = reply.get(..3).and_then(|code| code.parse().ok()).filter(|code| (400..600).contains(code));
            let (stage, code) = code.map_or((Stage::Http, self.status), |code| (Stage::Rcpt, code));
            Failure::new(stage, Cause::Reply(code), line.chars().take(TEXT_CHARS_MAX).collect::<String>())
        };
        self.errors.iter().map(refusal).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(octets: &[u8], step: usize) -> Result<Vec<Answer>, NoAnswer> {
        let (mut reader, mut answers, mut at) = (AnswerReader::default(), Vec::new(), 0);
        while at < octets.len() {
            let (taken, answer) = reader.take(&octets[at..octets.len().min(at + step)])?;
            answers.extend(answer);
            at += taken;
        }
        Ok(answers)
    }

    fn told() -> Vec<u8> {
        let body = br#"{"success_count":2,"fail_count":1,"errors":["a@x: 550 5.1.1 no"]}"#;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    }

    #[test]
    fn answers_are_read_however_they_are_cut() {
        let later =
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Later\r\ncontent-length: 16\r\n\r\n{\"error\":\"full\"}";
        let octets = [&told()[..], later].concat();
        for step in 1..octets.len() {
            let answers = read(&octets, step).expect("answers");
            let short: Vec<_> = answers.iter().map(|a| (a.status, a.accepted, a.closes, a.text.as_str())).collect();
            assert_eq!((short[0].0, short[0].1, short[0].2, answers.len()), (200, 2, true, 2), "steps of {step}");
            assert_eq!(short[1], (503, 0, false, "full"));
            assert_eq!(answers[0].refusals()[0].class.to_string(), "rcpt 550");
        }
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let long = [b"HTTP/1.1 200 OK\r\nX: ".as_slice(), &[b'x'; HEAD_OCTETS_MAX]].concat();
        for bad in [
            b"220 mx ESMTP\r\n\r\n".as_slice(),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            b"HTTP/1.1 \xff00 OK\r\n\r\n",
            &long,
        ] {
            assert!(read(bad, 64).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    proptest::proptest! {
        #[test]
        fn damaged_answers_never_panic(at in 0..90_usize, octet: u8, step in 1..40_usize) {
            let mut octets = told();
            let at = at.min(octets.len() - 1);
            octets[at] = octet;
            let _ = read(&octets, step);
        }
    }
}
