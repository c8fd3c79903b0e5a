//! Browser sessions: begun by a link or a token, ended by a logout.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{HeaderValue, SET_COOKIE};
use hyper::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::answer::{self, Answer, JSON_ONLY, unread};
use crate::arrival::Arrival;
use crate::authentication::{authenticate, whose, wrong};
use crate::body;
use crate::guard::{Credential, is_json};
use crate::shared::{Shared, unix_secs};
use crate::token::{Secret, Token};
use crate::view::ServerView;

/// The request for a session.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Login {
    /// The part of a link after `#k=`.
    Link(String),
    /// A token, or the first password.
    Token(String),
}

/// Lifetime in seconds of a session opened by a token; a link has its own.
const SESSION_SECS: u64 = 12 * 3600;
const LOGIN_BYTES_MAX: u64 = 4 << 10;
const COOKIE: &str = "__Host-posthaste";

/// Begins a session. Over TLS the browser keeps it in a cookie that scripts cannot read. Plain loopback has no such
/// cookies, so the page keeps it.
pub(crate) async fn begin<V: ServerView>(
    shared: &Arc<Shared<V>>,
    arrival: &Arrival,
    headers: &HeaderMap,
    incoming: Incoming,
) -> Answer {
    if !is_json(headers) {
        return answer::last(answer::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, JSON_ONLY));
    }
    let body = match body::read(incoming, LOGIN_BYTES_MAX, &shared.room).await {
        Ok(body) => body,
        Err(error) => return answer::last(unread(error)),
    };
    // An error of the parser could repeat a secret.
    let Ok(login) = serde_json::from_slice(&body.octets) else {
        return answer::refused(StatusCode::BAD_REQUEST, "the body is {\"link\": …} or {\"token\": …}");
    };
    let now = unix_secs();
    let (secret, token, secs) = match login {
        Login::Link(key) => match shared.links.take(&key) {
            Some(link) => {
                let (secret, token) = shared.sessions.begin_of_link(&link, now).await;
                (secret, token, link.session_secs)
            }
            None => {
                let why = "this link was used, or is older than 10 minutes: `posthaste page` prints another";
                return wrong(shared, arrival.client(headers), &key, why).await;
            }
        },
        // Otherwise whoever has one session could begin others that outlive it.
        Login::Token(presented) if shared.sessions.find(&presented, now).await.is_some() => {
            return wrong(shared, arrival.client(headers), &presented, "a session cannot be used as a token").await;
        }
        Login::Token(presented) => match authenticate(shared, Credential::Token(presented), arrival, headers).await {
            Ok(token) => {
                let secs = token.until().map_or(SESSION_SECS, |until| until.saturating_sub(now).min(SESSION_SECS));
                (shared.sessions.begin_of_token(token.hash(), now + secs, now).await, token, secs)
            }
            Err(answer) => return answer,
        },
    };
    begun(&secret, &token, secs, arrival)
}

fn begun(secret: &Secret, token: &Token, secs: u64, arrival: &Arrival) -> Answer {
    let mut owner = whose(token);
    if arrival.takes_cookies() {
        return with_cookie(answer::json(StatusCode::OK, &owner), secret.reveal(), secs);
    }
    owner["session"] = json!(secret.reveal());
    answer::json(StatusCode::OK, &owner)
}

/// Ends the session of a request, if it has one.
pub(crate) async fn end<V: ServerView>(shared: &Shared<V>, credential: &Credential) -> Answer {
    if let Credential::Token(presented) | Credential::Cookie(presented) = credential {
        shared.sessions.end(presented).await;
    }
    with_cookie(answer::json(StatusCode::OK, &json!({})), "", 0)
}

fn with_cookie(mut answer: Answer, secret: &str, secs: u64) -> Answer {
    let cookie = format!("{COOKIE}={secret}; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age={secs}");
    let cookie = HeaderValue::from_str(&cookie).expect("a secret is visible ASCII");
    answer.headers_mut().insert(SET_COOKIE, cookie);
    answer
}
