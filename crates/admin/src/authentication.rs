//! The token of a request, and the refusal of a wrong one.

use std::sync::Arc;

use hyper::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use crate::ClientAddress;
use crate::answer::{self, Answer, RETRY_SECS};
use crate::arrival::Arrival;
use crate::guard::Credential;
use crate::shared::{Shared, unix_secs};
use crate::token::{SESSION_PREFIX, Token};
use crate::token_bounds::TokenBounds;
use crate::view::{Guess, ServerView};

/// The token of a request.
///
/// # Errors
/// The refusal, delayed like that of a wrong password.
pub(crate) async fn authenticate<V: ServerView>(
    shared: &Arc<Shared<V>>,
    credential: Credential,
    arrival: &Arrival,
    headers: &HeaderMap,
) -> Result<Arc<Token>, Answer> {
    let (presented, is_session) = match credential {
        // No `WWW-Authenticate: Basic`: a browser would keep what is typed, and send it with requests of other sites.
        Credential::None => {
            let why = if arrival.is_of_unlisted_proxy(headers) {
                "a token is needed: the request came through a proxy that is not in the listener's `proxies`"
            } else {
                "a token is needed: Authorization: Bearer pht_…"
            };
            return Err(answer::refused(StatusCode::UNAUTHORIZED, why));
        }
        Credential::Cookie(presented) => (presented, true),
        Credential::Token(presented) => {
            let is_session = presented.starts_with(SESSION_PREFIX);
            (presented, is_session)
        }
    };
    let found = if is_session {
        shared.of_session(&presented, arrival.is_loopback).await
    } else {
        match shared.tokens.find(&presented, unix_secs()).await {
            Ok(None) if arrival.is_loopback => Ok(shared.of_password(&presented).await),
            known => known,
        }
    };
    match found {
        Ok(Some(token)) if !token.bounds().allows(arrival.known_client(headers)) => {
            Err(answer::refused(StatusCode::FORBIDDEN, "this token is not for clients of this network"))
        }
        Ok(Some(token)) => shared.take_request(token).map_err(|refusal| *refusal),
        Err(_) => Err(answer::later(StatusCode::SERVICE_UNAVAILABLE, "the file of tokens cannot be read", RETRY_SECS)),
        // Pages that are still open ask on when a session ends: no guess.
        Ok(None) if is_session => Err(answer::refused(StatusCode::UNAUTHORIZED, "this session has ended")),
        Ok(None) => Err(wrong(shared, arrival.client(headers), &presented, NOT_VALID).await),
    }
}

impl<V> Shared<V> {
    /// Counts a request of a token.
    ///
    /// # Errors
    /// The refusal of a request beyond the rate.
    pub fn take_request(&self, token: Arc<Token>) -> Result<Arc<Token>, Box<Answer>> {
        match self.rates.take(token.hash()) {
            Ok(()) => Ok(token),
            Err(secs) => {
                let why = "this token makes too many requests";
                Err(answer::later(StatusCode::TOO_MANY_REQUESTS, why, secs).into())
            }
        }
    }
}

/// The answer to a wrong token or link, which counts for its client.
pub(crate) async fn wrong<V: ServerView>(
    shared: &Shared<V>,
    client: ClientAddress,
    presented: &str,
    why: &str,
) -> Answer {
    match shared.view.wrong_token(client, presented).await {
        Guess::Wrong => answer::refused(StatusCode::UNAUTHORIZED, why),
        Guess::Busy => answer::later(StatusCode::SERVICE_UNAVAILABLE, "tokens cannot be checked now", RETRY_SECS),
        Guess::TooMany => {
            let why = "too many wrong tokens from this address";
            answer::later(StatusCode::TOO_MANY_REQUESTS, why, GUESS_RETRY_SECS)
        }
    }
}

/// JSON with name, scopes, expiry and bounds of a token.
pub(crate) fn whose(token: &Token) -> Value {
    let scopes: Vec<&str> = token.scopes().iter().map(|scope| scope.name()).collect();
    let TokenBounds { tenant, sender_domains, networks } = token.bounds();
    let networks: Vec<String> = networks.iter().map(ToString::to_string).collect();
    json!({
        "name": token.name(), "scopes": scopes, "until": token.until(), "tenant": tenant, "sender_domains": sender_domains, "networks": networks,
    })
}

const NOT_VALID: &str = "this token is not valid: `posthaste token list` on the server shows the valid ones";
/// Retry-After in seconds: as long as wrong passwords count.
const GUESS_RETRY_SECS: u16 = 600;
