//! HTTP answers, all with the same headers.

use hyper::body::Bytes;
use hyper::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::json;

use crate::body::{AnswerBody, BodyReadError};
use crate::scope::Scope;

pub(crate) type Answer = Response<AnswerBody>;

/// Content-Security-Policy: the page's own files and API only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

const HEADERS: [(&str, &str); 7] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), microphone=(), geolocation=(), clipboard-read=()"),
    ("cache-control", "no-store"),
];

/// An answer with the headers that all answers have.
pub(crate) fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(AnswerBody::from(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// The type of an answer in JSON.
pub(crate) const JSON: &str = "application/json";

/// An answer with a value as JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    let text = serde_json::to_vec(value).expect("an answer has a JSON form");
    answer(status, JSON, text)
}

/// A refusal, with its reason.
pub(crate) fn refused(status: StatusCode, why: &str) -> Answer {
    json(status, &json!({ "error": why }))
}

/// A refusal of a token without a scope.
pub(crate) fn no_scope(scope: Scope) -> Answer {
    refused(StatusCode::FORBIDDEN, &format!("the token has no scope {scope}"))
}

/// A temporary refusal, with Retry-After in seconds.
pub(crate) fn later(status: StatusCode, why: &str, secs: u16) -> Answer {
    with_retry(refused(status, why), Some(secs))
}

/// Adds Retry-After, if any, in seconds.
pub(crate) fn with_retry(mut answer: Answer, secs: Option<u16>) -> Answer {
    if let Some(secs) = secs {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(secs));
    }
    answer
}

/// A bare word as plain text.
pub(crate) fn word(status: StatusCode, word: &str) -> Answer {
    answer(status, "text/plain; charset=utf-8", format!("{word}\n"))
}

/// An immutable file: its name contains its hash.
pub(crate) fn lasting(content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = answer(StatusCode::OK, content_type, body);
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    answer
}

/// Refuses a method that the path does not allow.
pub(crate) fn other_method(allowed: &'static str) -> Answer {
    let mut answer = refused(StatusCode::METHOD_NOT_ALLOWED, &format!("this path accepts only: {allowed}"));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

/// Marks an answer as the last of its connection.
pub(crate) fn last(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// Encodes an answer as HTTP/1.1 octets, for connections that hyper does not serve.
pub(crate) fn octets(answer: Answer) -> Vec<u8> {
    let (parts, body) = answer.into_parts();
    let body = body.into_octets();
    let mut out = format!("HTTP/1.1 {}\r\n", parts.status).into_bytes();
    for (name, value) in &parts.headers {
        out.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    out.extend(format!("content-length: {}\r\n\r\n", body.len()).into_bytes());
    out.extend(body);
    out
}

/// The answer to a body that could not be read completely.
pub(crate) fn unread(error: BodyReadError) -> Answer {
    let status = match error {
        BodyReadError::NoRoom => {
            return later(StatusCode::SERVICE_UNAVAILABLE, &error.to_string(), RETRY_SECS);
        }
        BodyReadError::TooLarge(_) | BodyReadError::TooLargeUnpacked => StatusCode::PAYLOAD_TOO_LARGE,
        BodyReadError::TimedOut => StatusCode::REQUEST_TIMEOUT,
        BodyReadError::Broken | BodyReadError::NotPacked => StatusCode::BAD_REQUEST,
    };
    refused(status, &error.to_string())
}

/// Refusal of a body that is not declared as JSON.
pub(crate) const JSON_ONLY: &str = "Content-Type: application/json is needed";
/// Time after which a client may try again.
pub(crate) const RETRY_SECS: u16 = 5;
