//! The routes, each with its scope.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method, Request, StatusCode};
use serde_json::json;
use tokio::task::spawn_blocking;

use crate::answer::{self, Answer, JSON_ONLY, RETRY_SECS, unread};
use crate::arrival::Arrival;
use crate::ask;
use crate::authentication::{authenticate, whose};
use crate::body::{self, ReadBody};
use crate::guard::{self, Credential, is_json};
use crate::live;
use crate::login;
use crate::metrics::{self, Work};
use crate::openapi;
use crate::scope::Scope;
use crate::shared::{Shared, unix_secs};
use crate::token::Token;
use crate::unpack::{ContentCoding, unpack};
use crate::view::{InjectCall, Readiness, ServerView};

/// The right that a route needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// No token needed; allowed under any host name.
    Health,
    /// No token needed, but the request must come from our own page.
    Open,
    /// Any valid token.
    AnyToken,
    /// Any token with this scope.
    Scope(Scope),
}

/// The action of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Live,
    Ready,
    Index,
    Login,
    Logout,
    Token,
    OpenApi,
    Now,
    Rates,
    Drain,
    Queue,
    Ask,
    System,
    Log,
    Events,
    Metrics,
    Inject,
}

struct Route {
    method: Method,
    path: &'static str,
    access: Access,
    action: Action,
}

impl Route {
    /// HTTP methods that the path allows.
    fn allowed(&self) -> &'static str {
        match self.action {
            Action::Login | Action::Logout => "POST, DELETE",
            _ if self.method == Method::POST => "POST",
            _ => "GET, HEAD",
        }
    }
}

const ROUTES: [Route; 17] = [
    Route { method: Method::GET, path: "/health/live", access: Access::Health, action: Action::Live },
    Route { method: Method::GET, path: "/health/ready", access: Access::Health, action: Action::Ready },
    Route { method: Method::GET, path: "/", access: Access::Open, action: Action::Index },
    Route { method: Method::POST, path: "/api/session/v1", access: Access::Open, action: Action::Login },
    Route { method: Method::DELETE, path: "/api/session/v1", access: Access::Open, action: Action::Logout },
    Route { method: Method::GET, path: "/api/token/v1", access: Access::AnyToken, action: Action::Token },
    Route { method: Method::GET, path: "/api/openapi.json", access: Access::AnyToken, action: Action::OpenApi },
    Route { method: Method::GET, path: "/api/now/v1", access: Access::Scope(Scope::ServerRead), action: Action::Now },
    Route {
        method: Method::GET,
        path: "/api/queue/v1",
        access: Access::Scope(Scope::QueueRead),
        action: Action::Queue,
    },
    Route {
        method: Method::GET,
        path: "/api/rates/v1",
        access: Access::Scope(Scope::ServerRead),
        action: Action::Rates,
    },
    Route { method: Method::POST, path: "/api/control/v1", access: Access::AnyToken, action: Action::Ask },
    Route {
        method: Method::GET,
        path: "/api/system/v1",
        access: Access::Scope(Scope::ServerRead),
        action: Action::System,
    },
    Route { method: Method::GET, path: "/api/log/v1", access: Access::Scope(Scope::ServerRead), action: Action::Log },
    Route {
        method: Method::GET,
        path: "/api/events/v1",
        access: Access::Scope(Scope::EventsRead),
        action: Action::Events,
    },
    Route {
        method: Method::POST,
        path: "/api/drain/v1",
        access: Access::Scope(Scope::ServerDrain),
        action: Action::Drain,
    },
    Route { method: Method::GET, path: "/metrics", access: Access::Scope(Scope::Metrics), action: Action::Metrics },
    Route { method: Method::POST, path: INJECT_PATH, access: Access::Scope(Scope::Inject), action: Action::Inject },
];

/// Path for injected mail. Idempotency keys belong to this path.
pub const INJECT_PATH: &str = "/api/inject/v1";
const IDEMPOTENCY_KEY: &str = "idempotency-key";
const KEY_BYTES_MAX: usize = 255;
const ASSETS: &str = "/assets/";
/// Path prefixes of public files, for clients without a token.
const PUBLIC: [&str; 2] = ["/.well-known/", "/mail/config-v1.1.xml"];

/// Answers one request.
pub(crate) async fn serve<V: ServerView>(
    shared: &Arc<Shared<V>>,
    arrival: &Arrival,
    request: Request<Incoming>,
) -> Answer {
    let (parts, incoming) = request.into_parts();
    let path = parts.uri.path();
    let of_path = || ROUTES.iter().filter(|route| route.path == path);
    let is_public = PUBLIC.iter().any(|public| path.starts_with(public));
    let is_exempt = is_public || of_path().any(|route| route.access == Access::Health);
    if arrival.is_draining() && path != "/health/live" {
        return match path {
            "/health/ready" => answer::word(StatusCode::SERVICE_UNAVAILABLE, "draining"),
            _ => answer::later(StatusCode::SERVICE_UNAVAILABLE, "draining", RETRY_SECS),
        };
    }
    let checked = guard::check(&parts, &shared.names(), arrival.is_loopback, is_exempt);
    let credential = match checked {
        Ok(credential) => credential,
        Err(refusal) => return answer::refused(refusal.status(), &refusal.to_string()),
    };
    // HEAD is GET without its body, which hyper leaves out.
    let method = if parts.method == Method::HEAD { &Method::GET } else { &parts.method };
    if is_public {
        return match shared.view.public_file(&guard::host_name(&parts), path) {
            Some(_) if *method != Method::GET => answer::other_method("GET, HEAD"),
            Some(file) => answer::answer(StatusCode::OK, file.content_type, file.text),
            None => not_found(),
        };
    }
    if arrival.is_public && !is_exempt {
        return answer::refused(StatusCode::FORBIDDEN, "not without TLS");
    }
    if let Some(name) = path.strip_prefix(ASSETS) {
        return match shared.page.file(name) {
            Some(_) if *method != Method::GET => answer::other_method("GET, HEAD"),
            Some(file) => answer::lasting(file.content_type, file.octets.clone()),
            None => not_found(),
        };
    }
    let Some(route) = of_path().find(|route| route.method == *method) else {
        return of_path().next().map_or_else(not_found, |route| answer::other_method(route.allowed()));
    };
    let token = match route.access {
        Access::Health | Access::Open => None,
        Access::AnyToken | Access::Scope(_) => {
            match token_of(shared, arrival, route.action, credential.clone(), &parts.headers).await {
                Ok(token) => Some(token),
                Err(answer) => return answer,
            }
        }
    };
    if let (Access::Scope(scope), Some(token)) = (&route.access, &token)
        && !token.scopes().contains(scope)
    {
        return answer::no_scope(*scope);
    }
    act(shared, arrival, Granted { action: route.action, token, credential, headers: &parts.headers, incoming }).await
}

/// A permitted request.
struct Granted<'a> {
    action: Action,
    token: Option<Arc<Token>>,
    credential: Credential,
    headers: &'a HeaderMap,
    incoming: Incoming,
}

async fn act<V: ServerView>(shared: &Arc<Shared<V>>, arrival: &Arrival, granted: Granted<'_>) -> Answer {
    let Granted { action, token, credential, headers, incoming } = granted;
    match action {
        Action::Live => answer::word(StatusCode::OK, "live"),
        Action::Ready => ready(shared),
        Action::Index => answer::answer(StatusCode::OK, "text/html; charset=utf-8", shared.page.index.clone()),
        Action::Login => login::begin(shared, arrival, headers, incoming).await,
        Action::Logout => login::end(shared, &credential).await,
        Action::Token => token.map_or_else(not_found, |token| answer::json(StatusCode::OK, &whose(&token))),
        Action::OpenApi => answer::answer(StatusCode::OK, answer::JSON, openapi::DOCUMENT),
        Action::Now => now(shared).await,
        Action::Rates => answer::json(StatusCode::OK, &shared.history.all()),
        Action::Drain => token.map_or_else(not_found, |token| drain(shared, &token)),
        Action::Queue => queue(shared, token.as_deref().and_then(Token::tenant)).await,
        Action::Ask => match token {
            Some(token) => ask::ask(shared, &token, headers, incoming).await,
            None => not_found(),
        },
        Action::System => system(shared).await,
        Action::Log => log(shared).await,
        Action::Events => match token {
            Some(token) => live::follow(shared, arrival, &token, credential).await,
            None => not_found(),
        },
        Action::Metrics => metrics(shared).await,
        Action::Inject => match token {
            Some(token) => inject(shared, arrival, &token, headers, incoming).await,
            None => not_found(),
        },
    }
}

fn not_found() -> Answer {
    answer::refused(StatusCode::NOT_FOUND, "there is no such path")
}

/// The token of a request for an action. Clients of some networks need none to inject mail.
///
/// # Errors
/// See [`authenticate`] and [`of_program`].
async fn token_of<V: ServerView>(
    shared: &Arc<Shared<V>>,
    arrival: &Arrival,
    action: Action,
    credential: Credential,
    headers: &HeaderMap,
) -> Result<Arc<Token>, Answer> {
    if let (Action::Inject, Credential::None) = (action, &credential)
        && let Some(token) = arrival.of_network(headers)
    {
        return of_program(shared, token, headers).map_err(|refusal| *refusal);
    }
    authenticate(shared, credential, arrival, headers).await
}

/// The token of a client that is authorised by its network.
///
/// # Errors
/// The answer to a request that a browser may have sent, or that is beyond the rate.
fn of_program<V: ServerView>(
    shared: &Shared<V>,
    token: Arc<Token>,
    headers: &HeaderMap,
) -> Result<Arc<Token>, Box<Answer>> {
    guard::check_program(headers).map_err(|refusal| answer::refused(refusal.status(), &refusal.to_string()))?;
    shared.take_request(token)
}

fn ready<V: ServerView>(shared: &Arc<Shared<V>>) -> Answer {
    match shared.view.readiness() {
        Readiness::Ready => answer::word(StatusCode::OK, "ready"),
        Readiness::NotReady(why) => answer::word(StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

async fn now<V: ServerView>(shared: &Arc<Shared<V>>) -> Answer {
    match shared.status().await {
        Some(status) => {
            let accept = shared.view.distributions().into_iter().find(|of| of.name == metrics::ACCEPT);
            let accept = accept.map(|of| json!({ "bounds_us": of.read.bounds, "counts": of.read.counts }));
            let (time, rates) = (unix_secs(), shared.history.rates());
            let body = json!({ "time": time, "rates": rates, "accept": accept, "server": &*status });
            answer::json(StatusCode::OK, &body)
        }
        None => no_look(),
    }
}

/// Starts a drain of the server, once.
fn drain<V: ServerView>(shared: &Shared<V>, token: &Token) -> Answer {
    if !shared.is_drained.swap(true, Ordering::Relaxed) {
        shared.view.drain(token);
    }
    answer::last(answer::json(StatusCode::ACCEPTED, &json!({ "draining": true })))
}

async fn system<V: ServerView>(shared: &Arc<Shared<V>>) -> Answer {
    let looking = Arc::clone(shared);
    let Ok(mut system) = spawn_blocking(move || looking.view.system()).await else { return no_look() };
    let Ok(tokens) = shared.tokens.all().await else { return no_look() };
    system["tokens"] = tokens.iter().map(|token| whose(token)).collect();
    answer::json(StatusCode::OK, &system)
}

/// Answers with the last lines of the log, the newest last.
async fn log<V: ServerView>(shared: &Arc<Shared<V>>) -> Answer {
    answer::json(StatusCode::OK, &json!({ "lines": shared.view.log_lines() }))
}

async fn metrics<V: ServerView>(shared: &Arc<Shared<V>>) -> Answer {
    let (status, queue) = (shared.status().await, shared.queue_for_scrape().await);
    let work = Work { counters: shared.view.counters(), distributions: shared.view.distributions() };
    let text = metrics::text(&shared.view.readiness(), &work, status.as_deref(), queue.as_deref());
    answer::answer(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
}

async fn queue<V: ServerView>(shared: &Arc<Shared<V>>, tenant: Option<&str>) -> Answer {
    match shared.queue(tenant).await {
        Some(queue) => answer::json(StatusCode::OK, &*queue),
        None => no_look(),
    }
}

/// Injects mail. The request's fields are checked before its body is read.
async fn inject<V: ServerView>(
    shared: &Arc<Shared<V>>,
    arrival: &Arrival,
    token: &Token,
    headers: &HeaderMap,
    incoming: Incoming,
) -> Answer {
    if !is_json(headers) {
        return answer::last(answer::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, JSON_ONLY));
    }
    let key = match idempotency_key(headers) {
        Ok(key) => key,
        Err(why) => return answer::last(answer::refused(StatusCode::BAD_REQUEST, why)),
    };
    let Ok(coding) = ContentCoding::of(headers) else {
        let why = "Content-Encoding: gzip and zstd are taken";
        return answer::last(answer::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    };
    let read = body::read(incoming, BODY_BYTES_MAX, &shared.room).await;
    let read = match (read, coding) {
        (Ok(body), Some(coding)) => unpack(coding, body, &shared.room).await,
        (read, _) => read,
    };
    let ReadBody { octets: body, share } = match read {
        Ok(body) => body,
        Err(error) => return answer::last(unread(error)),
    };
    let reply = shared.view.inject(InjectCall { token, client: arrival.client(headers), key, body, share }).await;
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = answer::with_retry(answer::answer(status, answer::JSON, reply.body), reply.retry_secs);
    if reply.is_replayed {
        answer.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
    answer
}

/// The idempotency key of a request.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, &'static str> {
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let is_key =
        |key: &&str| (1..=KEY_BYTES_MAX).contains(&key.len()) && key.bytes().all(|octet| octet.is_ascii_graphic());
    let key = key.to_str().ok().filter(is_key).filter(|_| keys.next().is_none());
    key.map(Some).ok_or("Idempotency-Key: one, of 1 to 255 visible characters of ASCII")
}

/// The answer when the server's state cannot be read in time, as when a disk hangs.
fn no_look() -> Answer {
    answer::later(StatusCode::SERVICE_UNAVAILABLE, "the server does not say how it is: see its log", RETRY_SECS)
}

/// Maximum octets of an injection request's body, as received.
const BODY_BYTES_MAX: u64 = 64 << 20;
#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn each_route_is_documented_and_each_documented_route_exists() {
        let document: Value = serde_json::from_str(openapi::DOCUMENT).unwrap();
        let routes: BTreeSet<_> =
            ROUTES.iter().map(|route| (route.path.to_owned(), route.method.as_str().to_lowercase())).collect();
        let mut documented = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                documented.insert((path.clone(), method.clone()));
                let route = ROUTES.iter().find(|route| route.path == path).unwrap();
                let is_open = operation["security"].as_array().is_some_and(Vec::is_empty);
                assert_eq!(is_open, matches!(route.access, Access::Health | Access::Open), "{method} {path}");
                if let Access::Scope(scope) = route.access {
                    assert_eq!(operation["description"], format!("Scope: `{scope}`."), "{method} {path}");
                }
            }
        }
        assert_eq!(documented, routes);
    }
}
