//! The control socket's requests over HTTP, each with its scope.

use std::sync::{Arc, Mutex, PoisonError};

use hyper::StatusCode;
use hyper::body::Incoming;
use posthaste_control::{NotOfTenant, Request, SentRequest};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::answer::{self, Answer, JSON_ONLY, RETRY_SECS, unread};
use crate::body;
use crate::guard::is_json;
use crate::scope::Scope;
use crate::shared::Shared;
use crate::token::Token;
use crate::view::{AskRefusal, ServerView};

/// Maximum octets of a request, as at the socket.
const ASK_BYTES_MAX: u64 = 64 << 10;
/// Maximum octets of an answer's lines. The rest is left out, and `more` is set.
const LINES_BYTES_MAX: usize = 8 << 20;
/// Recipients in a list, unless the request asks for fewer.
const LIST_MAX: u64 = 1000;
const TURN_PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// The scope of a request. `None`: allowed on the socket only.
pub(crate) fn scope_of(request: &Request) -> Option<Scope> {
    match request {
        Request::List { .. }
        | Request::Summary { .. }
        | Request::Count { .. }
        | Request::Suspensions { .. }
        | Request::Diversions { .. }
        | Request::Explain { .. } => Some(Scope::QueueRead),
        Request::Act { .. } | Request::Suspend { .. } | Request::Resume { .. } => Some(Scope::QueueWrite),
        Request::Divert { .. } | Request::Undivert { .. } => Some(Scope::Route),
        Request::Suppressions { .. } | Request::Suppress { .. } | Request::Unsuppress { .. } => {
            Some(Scope::Suppression)
        }
        Request::Cat { .. }
        | Request::Mail { .. }
        | Request::File { .. }
        | Request::Subjects { .. }
        | Request::Search { .. } => Some(Scope::MailRead),
        Request::Find { .. } => Some(Scope::EventsRead),
        Request::Logins { .. } => Some(Scope::Accounts),
        Request::Domains {} | Request::Records { .. } => Some(Scope::ServerRead),
        Request::Export { .. }
        | Request::Import { .. }
        | Request::Trace { .. }
        | Request::Page { .. }
        | Request::Acme { .. }
        | Request::Cluster { .. }
        | Request::Account { .. }
        | Request::Reload {}
        | Request::ForgetMailbox { .. }
        | Request::ForgetGuesses { .. } => None,
    }
}

/// Answers one request: `lines`, and `end`, the last line.
pub(crate) async fn ask<V: ServerView>(
    shared: &Arc<Shared<V>>,
    token: &Arc<Token>,
    headers: &hyper::HeaderMap,
    incoming: Incoming,
) -> Answer {
    if !is_json(headers) {
        return answer::last(answer::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, JSON_ONLY));
    }
    let body = match body::read(incoming, ASK_BYTES_MAX, &shared.room).await {
        Ok(body) => body,
        Err(error) => return answer::last(unread(error)),
    };
    let mut request = match serde_json::from_slice(&body.octets) {
        Ok(SentRequest(request)) => request,
        Err(error) => return answer::refused(StatusCode::BAD_REQUEST, &format!("not a request: {error}")),
    };
    match scope_of(&request) {
        None => return answer::refused(StatusCode::FORBIDDEN, "this is answered at the control socket alone"),
        Some(scope) if !token.scopes().contains(&scope) => return answer::no_scope(scope),
        Some(_) => {}
    }
    if let Some(tenant) = token.tenant() {
        request = match request.of_tenant(tenant) {
            Ok(request) => request,
            Err(why) => return answer::refused(StatusCode::FORBIDDEN, not_of(why)),
        };
    }
    if let Request::List { limit, .. } = &mut request {
        *limit = Some(limit.unwrap_or(LIST_MAX).min(LIST_MAX));
    }
    let Ok(Ok(turn)) = timeout(TURN_PATIENCE, Arc::clone(&shared.asks).acquire_owned()).await else {
        return answer::later(StatusCode::SERVICE_UNAVAILABLE, "too many requests are worked on", RETRY_SECS);
    };
    let (shared, token) = (Arc::clone(shared), Arc::clone(token));
    let work = move || {
        // Also if the client leaves meanwhile.
        let _turn = turn;
        let lines = Mutex::new(Lines::default());
        let take = |line: Value| lines.lock().unwrap_or_else(PoisonError::into_inner).take(&line);
        let end = shared.view.ask(&request, &token, &take);
        (lines.into_inner().unwrap_or_else(PoisonError::into_inner), end)
    };
    // Fails only by a panic, which the log has.
    let Ok((lines, end)) = spawn_blocking(work).await else {
        return answer::refused(StatusCode::INTERNAL_SERVER_ERROR, "this is a bug: see the server's log");
    };
    match end {
        Ok(end) => answer::answer(StatusCode::OK, answer::JSON, lines.with_end(&end)),
        Err(AskRefusal::Unknown(why)) => answer::refused(StatusCode::NOT_FOUND, &why),
        Err(AskRefusal::Refused(why)) => answer::refused(StatusCode::UNPROCESSABLE_ENTITY, &why),
        Err(AskRefusal::Changed { expected, now }) => {
            let error = format!("{expected} recipients were selected, now there are {now}: nothing was done");
            answer::json(StatusCode::CONFLICT, &json!({ "error": error, "now": now }))
        }
    }
}

/// Refuses a request from a tenant's token. The text reveals nothing about other tenants.
fn not_of(why: NotOfTenant) -> &'static str {
    match why {
        NotOfTenant::Other => "this token is of another tenant",
        NotOfTenant::WholeServer => "this is about the whole server, and the token is of one tenant",
    }
}

/// Lines of an answer as JSON, up to a bound.
#[derive(Default)]
struct Lines {
    text: String,
    has_more: bool,
}

impl Lines {
    fn take(&mut self, line: &Value) -> bool {
        let line = line.to_string();
        if self.text.len() + line.len() > LINES_BYTES_MAX {
            self.has_more = true;
            return false;
        }
        if !self.text.is_empty() {
            self.text.push(',');
        }
        self.text += &line;
        true
    }

    fn with_end(self, end: &Value) -> String {
        let Self { text, has_more } = self;
        format!("{{\"lines\":[{text}],\"more\":{has_more},\"end\":{end}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_has_the_scope_of_its_part() {
        let check = |text: &str, expected: Option<Scope>| {
            assert_eq!(scope_of(&serde_json::from_str(text).unwrap()), expected, "{text}");
        };
        check(r#"{"ask":"list"}"#, Some(Scope::QueueRead));
        check(r#"{"ask":"count","of":{},"action":"delete"}"#, Some(Scope::QueueRead));
        check(r#"{"ask":"act","of":{},"action":"delete"}"#, Some(Scope::QueueWrite));
        check(r#"{"ask":"suspend","scope":{"domain":"a.example"},"secs":null}"#, Some(Scope::QueueWrite));
        check(r#"{"ask":"divert","scope":{"domain":"a.example"},"to":"b.example","secs":null}"#, Some(Scope::Route));
        check(r#"{"ask":"cat","message":"1"}"#, Some(Scope::MailRead));
        check(r#"{"ask":"find"}"#, Some(Scope::EventsRead));
        check(r#"{"ask":"search","query":"x"}"#, Some(Scope::MailRead));
        check(r#"{"ask":"logins"}"#, Some(Scope::Accounts));
        check(r#"{"ask":"domains"}"#, Some(Scope::ServerRead));
        check(r#"{"ask":"records","domain":"a.example"}"#, Some(Scope::ServerRead));
        check(r#"{"ask":"page","secs":1}"#, None);
        check(r#"{"ask":"export","of":{}}"#, None);
        check(r#"{"ask":"trace","inbound":true,"outbound":true}"#, None);
    }

    #[test]
    fn lines_are_bounded_and_the_answer_says_so() {
        let mut lines = Lines::default();
        assert!(lines.take(&json!({ "a": 1 })) && lines.take(&json!(2)));
        assert!(!lines.take(&json!("x".repeat(LINES_BYTES_MAX))));
        assert_eq!(lines.with_end(&json!({ "done": 2 })), r#"{"lines":[{"a":1},2],"more":true,"end":{"done":2}}"#);
    }
}
