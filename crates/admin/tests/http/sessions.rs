//! Sessions of browsers, and what a page asks.

use std::sync::atomic::Ordering;

use posthaste_admin::Scope;

use crate::world::{World, status};

/// The field of a request with the session of this answer.
fn session(answer: &str) -> String {
    let begin = answer.find("\"session\":\"").unwrap_or_else(|| panic!("no session: {answer}")) + 11;
    format!("Authorization: Bearer {}\r\n", &answer[begin..begin + 44])
}

#[test]
fn a_link_opens_one_session_until_it_is_left() {
    let world = World::new();
    let link = world.api.links().make(vec![Scope::QueueRead], 60);
    let begun = world.log_in("link", link.reveal());
    assert!(status(&begun) == 200 && begun.contains("\"scopes\":[\"queue:read\"]"), "{begun}");
    assert!(!begun.contains("set-cookie"), "{begun}");
    let field = session(&begun);
    assert_eq!(status(&world.get("/api/queue/v1", &field)), 200);
    assert_eq!(status(&world.get("/api/now/v1", &field)), 403);
    let again = world.log_in("link", link.reveal());
    assert!(status(&again) == 401 && again.contains("posthaste page"), "{again}");
    assert_eq!(world.guesses.load(Ordering::Relaxed), 1, "it counts as a wrong token");
    let left = world.raw(
        format!("DELETE /api/session/v1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{field}\r\n").as_bytes(),
    );
    assert_eq!(status(&left), 200);
    for _ in 0..3 {
        assert_eq!(status(&world.get("/api/queue/v1", &field)), 401);
    }
    assert_eq!(world.guesses.load(Ordering::Relaxed), 1, "a page that is still open does not guess");
    for body in ["", "{}", "{\"link\":1}", "{\"link\":\"a\",\"token\":\"b\"}", "[]"] {
        let answer = world.send("POST", "/api/session/v1", "Content-Type: application/json\r\n", body);
        assert_eq!(status(&answer), 400, "{body}: {answer}");
    }
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    assert_eq!(status(&world.send("POST", "/api/session/v1", form, "link=a")), 415);
    let evil = "Content-Type: application/json\r\nOrigin: http://evil.example\r\n";
    assert_eq!(status(&world.send("POST", "/api/session/v1", evil, "{\"link\":\"a\"}")), 403);
}

#[test]
fn requests_of_the_socket_come_by_http_with_their_scope() {
    let world = World::new();
    let ask = |body: &str| {
        let fields = format!("Content-Type: application/json\r\n{}", world.bearer());
        let answer = world.send("POST", "/api/control/v1", &fields, body);
        (status(&answer), answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    };
    let listed = r#"{"lines":[{"limit":1000,"token":"q"}],"more":false,"end":{"done":1}}"#.to_owned();
    assert_eq!(ask(r#"{"ask":"list"}"#), (200, listed.clone()));
    assert_eq!(ask(r#"{"ask":"list","limit":5}"#).1, listed.replace("1000", "5"));
    assert_eq!(ask(r#"{"ask":"suspensions"}"#), (422, r#"{"error":"not here"}"#.to_owned()));
    assert_eq!(ask(r#"{"ask":"act","of":{},"action":"hold","expect":9}"#).0, 403);
    assert_eq!(ask(r#"{"ask":"page","secs":1}"#).0, 403);
    assert_eq!(ask(r#"{"ask":"list","off":1}"#).0, 400);
    assert_eq!(ask(&" ".repeat(70_000)).0, 413);
    assert_eq!(status(&world.send("POST", "/api/control/v1", &world.bearer(), "{}")), 415);
    let field = "Authorization: Bearer kelp-orbit\r\nContent-Type: application/json\r\n";
    let changed = world.send("POST", "/api/control/v1", field, r#"{"ask":"act","of":{},"action":"hold","expect":9}"#);
    assert!(status(&changed) == 409 && changed.contains("\"now\":7"), "{changed}");
    let system = world.get("/api/system/v1", field);
    assert!(system.contains("\"version\":\"1\"") && system.contains("\"name\":\"q\""), "{system}");
    assert!(world.get("/api/log/v1", field).ends_with("{\"lines\":[\"a line\"]}"));
    assert_eq!(status(&world.get("/api/events/v1", field)), 404, "there is no event log");
}

#[test]
fn a_session_ends_with_its_token() {
    let world = World::new();
    let field = session(&world.log_in("token", world.secret.reveal()));
    assert_eq!(status(&world.get("/api/queue/v1", &field)), 200);
    // It begins no other one, which would outlive it.
    let key = field.trim_end().strip_prefix("Authorization: Bearer ").unwrap();
    assert_eq!(status(&world.log_in("token", key)), 401);
    world.tokens.remove("q").unwrap();
    assert_eq!(status(&world.get("/api/queue/v1", &field)), 401);
    let field = session(&world.log_in("token", "kelp-orbit"));
    let whose = world.get("/api/token/v1", &field);
    assert!(whose.contains("first-password"), "{whose}");
}

#[test]
fn over_a_network_the_session_is_a_cookie() {
    let world = World::at(false);
    let begun = world.log_in("token", world.secret.reveal());
    let cookie = begun.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap_or_else(|| panic!("{begun}"));
    let (pair, rest) = cookie.split_once("; ").unwrap();
    assert_eq!(rest, "Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=43200");
    assert!(pair.starts_with("__Host-posthaste=phs_") && !begun.contains("\"session\""), "{begun}");
    let get = |fields: &str| {
        let head = "GET /api/queue/v1 HTTP/1.1\r\nConnection: close\r\n";
        status(&world.raw(format!("{head}Cookie: {pair}\r\n{fields}\r\n").as_bytes()))
    };
    assert_eq!(get("Host: mx.example.org\r\n"), 200);
    assert_eq!(get("Host: evil.example\r\n"), 421, "DNS that points here");
    assert_eq!(get("Host: mx.example.org\r\nOrigin: https://evil.example\r\n"), 403);
    assert_eq!(get("Host: mx.example.org\r\nSec-Fetch-Site: cross-site\r\n"), 403);
    let both = format!("Host: evil.example\r\n{}", world.bearer());
    assert_eq!(get(&both), 421, "a request with both counts as the cookie's");
    let leave =
        |fields: &str| status(&world.send("DELETE", "/api/session/v1", &format!("Cookie: {pair}\r\n{fields}"), ""));
    let (origin, ours) = ("Origin: https://mx.example.org\r\n", "X-Posthaste: 1\r\n");
    let json = "Content-Type: application/json\r\n";
    for fields in [String::new(), format!("{ours}{json}"), format!("{origin}{json}"), format!("{origin}{ours}")] {
        assert_eq!(leave(&fields), 403, "{fields}");
    }
    assert_eq!(get("Host: mx.example.org\r\n"), 200);
    assert_eq!(leave(&format!("{origin}{ours}{json}")), 200);
    assert_eq!(get("Host: mx.example.org\r\n"), 401);
}
