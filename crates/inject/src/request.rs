//! The request: one message, whole, and who gets it.

use posthaste_smtp::{ForwardPath, ReversePath};
use serde::Deserialize;

/// A message to inject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectRequest {
    /// The envelope's sender, checked.
    pub sender: ReversePath,
    /// Recipients, checked, each once.
    pub recipients: Vec<ForwardPath>,
    /// The message (RFC 5322). Its lines end all in CRLF or all in LF.
    pub content: Vec<u8>,
    /// Octets of it with CRLF at the end of each line.
    pub wire_bytes: u64,
}

/// Why a request is refused, with what is wrong by its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRequest(String);

/// Recipients of a request.
pub const RECIPIENTS_MAX: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestBody {
    envelope_sender: String,
    recipients: Vec<RecipientBody>,
    content: Content,
    /// KumoMTA's promise to be quick before it is safe. Taken, and of no effect: 200 means durable.
    #[serde(default, rename = "deferred_generation")]
    _deferred_generation: bool,
    #[serde(default, rename = "deferred_spool")]
    _deferred_spool: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipientBody {
    email: String,
}

/// The builder form is an object.
#[derive(Deserialize)]
#[serde(untagged, expecting = "`content` is one text here: the whole message")]
enum Content {
    Raw(String),
}

impl InjectRequest {
    /// Reads a request, as JSON.
    ///
    /// # Errors
    /// It is no JSON, has a key that is not taken, or something in it cannot be sent as mail.
    pub fn parse(body: &[u8]) -> Result<Self, InvalidRequest> {
        let body: RequestBody = serde_json::from_slice(body).map_err(|error| InvalidRequest(error.to_string()))?;
        let Content::Raw(content) = body.content;
        if body.recipients.is_empty() || body.recipients.len() > RECIPIENTS_MAX {
            return Err(InvalidRequest(format!("recipients: 1 to {RECIPIENTS_MAX}")));
        }
        let sender = ReversePath::parse(&format!("<{}>", body.envelope_sender));
        let sender = sender.map_err(|error| InvalidRequest(format!("envelope_sender: {error}")))?;
        let mut recipients: Vec<ForwardPath> = Vec::new();
        for (index, RecipientBody { email }) in body.recipients.iter().enumerate() {
            let wrong = |why: String| InvalidRequest(format!("recipients[{index}].email: {why}"));
            let path = ForwardPath::parse(&format!("<{email}>")).map_err(|error| wrong(error.to_string()))?;
            if path.address().is_none() {
                return Err(wrong("an address has a domain".to_owned()));
            }
            recipients.push(path);
        }
        let mut seen = std::collections::HashSet::new();
        recipients.retain(|path| seen.insert(path.to_string()));
        let content = content.into_bytes();
        let bare = bare_newlines(&content).map_err(|why| InvalidRequest(format!("content: {why}")))?;
        let wire_bytes = content.len() as u64 + bare;
        Ok(Self { sender, recipients, content, wire_bytes })
    }
}

/// The number of lines that end in LF alone: all or none. Text that two servers might read as different messages is refused.
fn bare_newlines(content: &[u8]) -> Result<u64, &'static str> {
    let (mut crlf, mut lf, mut before) = (0, 0, 0);
    for (at, &octet) in content.iter().enumerate() {
        match octet {
            0 => return Err("NUL is in it"),
            b'\r' if content.get(at + 1) != Some(&b'\n') => return Err("a bare CR is in it"),
            b'\n' if before == b'\r' => crlf += 1,
            b'\n' => lf += 1,
            _ => {}
        }
        before = octet;
    }
    if crlf > 0 && lf > 0 { Err("some lines end in CRLF and some in LF") } else { Ok(lf) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<InjectRequest, String> {
        InjectRequest::parse(json.as_bytes()).map_err(|error| error.to_string())
    }

    fn with(recipients: &str, content: &str, more: &str) -> Result<InjectRequest, String> {
        parse(&format!(
            r#"{{"envelope_sender":"shop@example.org","recipients":{recipients},"content":{content}{more}}}"#
        ))
    }

    const ANN: &str = r#"[{"email":"ann@example.org"}]"#;

    #[test]
    fn a_raw_message_is_taken() {
        let request = with(ANN, r#""Subject: x\n\nhello\n""#, "").unwrap();
        assert_eq!(request.sender.to_string(), "<shop@example.org>");
        assert_eq!(request.recipients.iter().map(ToString::to_string).collect::<Vec<_>>(), ["<ann@example.org>"]);
        assert_eq!((&*request.content, request.wire_bytes), (&b"Subject: x\n\nhello\n"[..], 21));
        assert_eq!(with(ANN, r#""a\r\n\r\nb\r\n""#, "").unwrap().wire_bytes, 8);
        let twice = r#"[{"email":"ann@example.org"},{"email":"ann@example.org"}]"#;
        assert_eq!(with(twice, "\"\"", "").unwrap().recipients.len(), 1);
        assert!(with(ANN, "\"\"", r#","deferred_spool":true,"deferred_generation":false"#).is_ok());
        assert!(parse(&format!(r#"{{"envelope_sender":"","recipients":{ANN},"content":""}}"#)).is_ok());
    }

    #[test]
    fn keys_that_are_not_taken_are_named() {
        let check = |answer: Result<InjectRequest, String>, expected: &str| {
            let why = answer.unwrap_err();
            assert!(why.contains(expected), "{why}");
        };
        check(with(ANN, "\"\"", r#","substitutions":{}"#), "`substitutions`");
        check(with(ANN, "\"\"", r#","trace_headers":{}"#), "`trace_headers`");
        check(with(ANN, "\"\"", r#","template_dialect":"Jinja""#), "`template_dialect`");
        check(with(r#"[{"email":"ann@example.org","name":"Ann"}]"#, "\"\"", ""), "`name`");
        check(with(ANN, r#"{"text_body":"x"}"#, ""), "`content` is one text here");
        check(with(ANN, "\"\"", r#","content":"""#), "duplicate field `content`");
        check(parse("{}"), "missing field `envelope_sender`");
        check(parse("[]"), "invalid");
        check(parse(""), "EOF");
        check(parse(&"[".repeat(100_000)), "");
        check(parse(&format!(r#"{{"envelope_sender":{}"#, "[".repeat(100_000))), "");
    }

    #[test]
    fn what_is_no_mail_is_refused() {
        let check = |recipients: &str, content: &str, expected: &str| {
            let why = with(recipients, content, "").unwrap_err();
            assert!(why.contains(expected), "{recipients} {content}: {why}");
        };
        check("[]", "\"\"", "recipients: 1 to 1000");
        check(&format!("[{}]", vec![r#"{"email":"a@b.example"}"#; 1001].join(",")), "\"\"", "recipients: 1 to 1000");
        for email in
            ["", "ann", "postmaster", "a b@example.org", "a@b.example> SIZE=1", "a@b.example\\r\\nRCPT", "@b.example"]
        {
            check(&format!(r#"[{{"email":"{email}"}}]"#), "\"\"", "recipients[0].email: ");
        }
        let sender = parse(&format!(r#"{{"envelope_sender":"a@b> SIZE=3","recipients":{ANN},"content":""}}"#));
        assert!(sender.unwrap_err().contains("envelope_sender: "));
        check(ANN, r#""a\u0000b""#, "NUL");
        check(ANN, r#""a\rb""#, "bare CR");
        check(ANN, r#""a\r\nb\n""#, "some lines end in CRLF and some in LF");
        check(ANN, r#""a\r""#, "bare CR");
    }
}
