//! Requests over real sockets, kind and hostile, at the listeners of `posthaste-net`.

mod sessions;
mod world;

use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use posthaste_admin::{AdminApi, HostNames, HttpSettings, Secret, TokenFile};
use posthaste_net::{GateLimits, Listeners};

use world::{Fake, World, serve, status};

/// Far longer than any step takes unless it hangs.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn every_answer_has_the_headers_that_protect_the_page() {
    let world = World::new();
    let bad_host = world.raw(b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    let all = [
        (world.get("/", ""), 200),
        (world.get("/health/live", ""), 200),
        (world.get("/health/ready", ""), 503),
        (world.get("/nowhere", ""), 404),
        (world.get("/assets/nothing.js", ""), 404),
        (world.get("/api/queue/v1", ""), 401),
        (world.get("/api/queue/v1", &world.bearer()), 200),
        (world.get("/api/token/v1", &world.bearer()), 200),
        (world.get("/api/now/v1", &world.bearer()), 403),
        (world.raw(b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), 405),
        (bad_host, 421),
    ];
    for (answer, expected) in &all {
        assert_eq!(status(answer), *expected, "{answer}");
        let head = answer.split("\r\n\r\n").next().unwrap();
        for field in [
            "content-security-policy: default-src 'none'; script-src 'self'; ",
            "; require-trusted-types-for 'script'; trusted-types 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cross-origin-opener-policy: same-origin",
            "cross-origin-resource-policy: same-origin",
            "permissions-policy: camera=()",
            "cache-control: no-store",
        ] {
            assert!(head.contains(field), "{field} is missing: {head}");
        }
        for field in ["access-control-allow", "www-authenticate", "set-cookie"] {
            assert!(!head.contains(field), "{head}");
        }
    }
    assert!(all[2].0.ends_with("full\n"));
    assert!(all[7].0.contains("\"name\":\"q\"") && all[7].0.contains("queue:read"));
    assert!(all[8].0.contains("the token has no scope server:read"));
}

#[test]
fn files_of_the_page_last_and_come_from_here() {
    let world = World::new();
    let index = world.get("/", "");
    assert!(index.contains("content-type: text/html; charset=utf-8"), "{index}");
    let script = index.split('"').find(|word| word.starts_with("/assets/main.")).expect("a script");
    let script = world.get(script, "");
    assert!(
        status(&script) == 200 && script.contains("cache-control: public, max-age=31536000, immutable"),
        "{script}"
    );
    assert!(script.contains("content-type: text/javascript; charset=utf-8"));
    let head = world.raw(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(status(&head) == 200 && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn a_wrong_token_is_counted_and_a_good_one_is_never_refused() {
    let world = World::new();
    let wrong = "Authorization: Bearer pht_0000000000000000000000000000000000000000\r\n";
    assert_eq!(status(&world.get("/api/queue/v1", wrong)), 401);
    let too_many = world.get("/api/queue/v1", wrong);
    assert!(status(&too_many) == 429 && too_many.contains("retry-after: 600"), "{too_many}");
    assert_eq!(status(&world.get("/api/queue/v1", &world.bearer())), 200);
    assert_eq!(world.guesses.load(Ordering::Relaxed), 2);
}

#[test]
fn the_first_password_opens_everything_from_this_machine() {
    let world = World::new();
    let field = "Authorization: Bearer kelp-orbit\r\n";
    let whose = world.get("/api/token/v1", field);
    assert!(status(&whose) == 200 && whose.contains("\"name\":\"first-password\""), "{whose}");
    for path in ["/api/now/v1", "/api/queue/v1"] {
        assert_eq!(status(&world.get(path, field)), 200);
    }
    let metrics = world.get("/metrics", field);
    assert!(metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{metrics}");
    assert!(
        metrics.contains("\nposthaste_ready 0\n") && metrics.contains("\nposthaste_queue_recipients 0\n"),
        "{metrics}"
    );
    assert_eq!(status(&world.get("/metrics", &world.bearer())), 403);
    let far = World::at(false);
    assert_eq!(status(&far.get("/api/token/v1", field)), 401, "not where others can connect");
}

#[test]
fn a_drain_is_asked_for_once() {
    let world = World::new();
    let asked = || world.api.view().drains.load(Ordering::Relaxed);
    assert_eq!((status(&world.send("POST", "/api/drain/v1", &world.bearer(), "")), asked()), (403, 0));
    assert_eq!((status(&world.get("/api/drain/v1", &world.bearer())), asked()), (405, 0));
    for _ in 0..2 {
        let answer = world.send("POST", "/api/drain/v1", "Authorization: Bearer kelp-orbit\r\n", "");
        assert!(status(&answer) == 202 && answer.ends_with("{\"draining\":true}"), "{answer}");
        assert_eq!(asked(), 1);
    }
}

#[test]
fn a_token_has_a_limit_of_requests() {
    let world = World::new();
    for _ in 0..20 {
        assert_eq!(status(&world.get("/api/token/v1", &world.bearer())), 200);
    }
    let refused = world.get("/api/queue/v1", &world.bearer());
    assert!(status(&refused) == 429 && refused.contains("retry-after: 3"), "{refused}");
    let other = format!("Authorization: Bearer {}\r\n", world.injects.reveal());
    assert_eq!(status(&world.get("/api/token/v1", &other)), 200);
    assert_eq!(status(&world.get("/health/live", &world.bearer())), 200);
}

#[test]
fn browsers_and_other_sites_are_kept_out() {
    let world = World::new();
    for fields in [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Authorization: Basic eDp5\r\nOrigin: http://localhost\r\n",
        "Authorization: Basic eDp5\r\nSec-Fetch-Site: same-origin\r\n",
    ] {
        assert_eq!(status(&world.get("/api/queue/v1", fields)), 403, "{fields}");
    }
    let rebound =
        format!("GET /api/queue/v1 HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n{}\r\n", world.bearer());
    assert_eq!(status(&world.raw(rebound.as_bytes())), 200, "who has a token may use any name");
    let health = world.raw(b"GET /health/live HTTP/1.1\r\nHost: 10.0.0.1\r\nConnection: close\r\n\r\n");
    assert!(status(&health) == 200 && health.ends_with("live\n"), "{health}");
}

#[test]
fn requests_that_are_read_in_two_ways_are_refused() {
    let world = World::new();
    let refused: [&[u8]; 12] = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3, 4\r\n\r\nabcd",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: +3\r\n\r\nabc",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\nabc",
        b"GET / HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n",
        b"GET / HTTP/1.1\nHost: localhost\rX: y\r\n\r\n",
        b"GET / HTTP/1.1\nHost: localhost\n\n",
        b"MAIL FROM:<a@example.org>\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    ];
    for request in refused {
        let answer = world.raw(request);
        let text = String::from_utf8_lossy(request);
        assert!(status(&answer) == 400 && answer.matches("HTTP/1.1 ").count() == 1, "{text:?}: {answer}");
        assert!(answer.contains("content-security-policy: ") && answer.contains("{\"error\":\""), "{text:?}: {answer}");
    }
    // Nothing after a refused head is answered, and nothing after invalid chunks.
    let second = "GET / HTTP/1.1\nHost: localhost\n\nGET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let answer = world.raw(format!("GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n{second}").as_bytes());
    assert!(!answer.contains("full"), "{answer}");
    let garbage = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nGET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(world.raw(garbage).matches("HTTP/1.1 ").count(), 1);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let world = World::new();
    let one = "GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let last = "GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answer = world.raw(format!("{}{last}", one.repeat(20)).as_bytes());
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 20, "{answer}");
    assert!(answer.ends_with("full\n"));
}

#[test]
fn heads_are_bounded() {
    let world = World::new();
    let check = |fields: String, expected: &[u16]| {
        let answer = world.get("/", &fields);
        assert!(expected.contains(&status(&answer)), "{answer}");
    };
    check("X: y\r\n".repeat(60), &[200]);
    let many = world.get("/", &"X: y\r\n".repeat(100));
    assert!(status(&many) == 431 && many.contains("content-security-policy: "), "{many}");
    check(format!("X: {}\r\n", "y".repeat(20_000)), &[431]);
    let target = world.get(&format!("/{}", "x".repeat(30_000)), "");
    assert!([414, 431].contains(&status(&target)), "{target}");
}

#[test]
fn a_shutdown_ends_idle_connections_and_those_without_a_request() {
    let mut world = World::new();
    let mut idle = world.connect();
    idle.write_all(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut begin = [0; 12];
    idle.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    let silent = world.connect();
    let mut half = world.connect();
    half.write_all(b"GET /health/live HTTP/1.1\r\nHo").unwrap();
    // Each is served before the shutdown begins.
    let deadline = Instant::now() + LONG;
    while world.listeners.as_ref().unwrap().connections() < 3 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    let listeners = world.listeners.take().unwrap();
    assert!(world.runtime.block_on(listeners.shutdown(LONG)), "one is still open");
    drop((silent, half));
}

#[test]
fn a_drain_ends_idle_connections_and_finishes_requests() {
    let mut world = World::new();
    let mut under_way = world.connect();
    let (secret, json) = (world.injects.reveal(), "Content-Type: application/json\r\nExpect: 100-continue\r\n");
    let head = format!("POST /api/inject/v1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n{json}");
    under_way.write_all(format!("{head}Content-Length: 3\r\n\r\n").as_bytes()).unwrap();
    let mut continues = [0; 25];
    under_way.read_exact(&mut continues).unwrap();
    let mut idle = world.connect();
    idle.write_all(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut begin = [0; 12];
    idle.read_exact(&mut begin).unwrap();
    let listeners = world.listeners.take().unwrap();
    let stopping = world.runtime.spawn(listeners.shutdown(LONG));
    // The idle connection is ended by the drain.
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    under_way.write_all(b"abc").unwrap();
    let mut answer = String::new();
    under_way.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("{\"bytes\":3}") && answer.contains("connection: close"), "{answer}");
    world.runtime.block_on(stopping).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_come_is_not_waited_for() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let data = tempfile::tempdir().unwrap();
    let settings = HttpSettings { names: HostNames::default(), token_rate: "1/second".parse().unwrap() };
    let api = AdminApi::new(Fake::default(), TokenFile::in_directory(data.path()), settings, 0);
    let mut listeners = Listeners::new(GateLimits::default()).unwrap();
    let address = serve(&mut listeners, api, true);
    for begin in ["", "GET / HTTP/1.1\r\nHost: loc"] {
        let mut slow = tokio::net::TcpStream::connect(address).await.unwrap();
        slow.write_all(begin.as_bytes()).await.unwrap();
        let begun = tokio::time::Instant::now();
        let mut answer = String::new();
        slow.read_to_string(&mut answer).await.unwrap();
        assert!(answer.is_empty() || status(&answer) == 408, "{answer}");
        assert!((29..32).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    }
}

#[test]
fn an_injection_is_taken_with_its_scope_and_within_bounds() {
    let world = World::new();
    let post = |secret: &Secret, fields: &str, body: &str| {
        let secret = secret.reveal();
        let head = format!("POST /api/inject/v1 HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer {secret}\r\n");
        world.raw(format!("{head}Connection: close\r\n{fields}\r\n{body}").as_bytes())
    };
    let json = "Content-Type: application/json; charset=utf-8\r\n";
    let taken = post(&world.injects, &format!("{json}Content-Length: 3\r\n"), "abc");
    assert!(status(&taken) == 503 && taken.contains("retry-after: 7") && taken.ends_with("{\"bytes\":3}"), "{taken}");
    let chunked =
        post(&world.injects, &format!("{json}Transfer-Encoding: chunked\r\n"), "2\r\nab\r\n1\r\nc\r\n0\r\n\r\n");
    assert!(chunked.ends_with("{\"bytes\":3}"), "{chunked}");
    for (fields, body, expected) in [
        (format!("{json}Content-Length: 70000000\r\n"), "abc", 413),
        (format!("{json}Transfer-Encoding: chunked\r\n"), "zz\r\nabc", 400),
        (format!("{json}Content-Length: 3\r\nContent-Encoding: br\r\n"), "abc", 415),
        (format!("{json}Content-Length: 3\r\nContent-Encoding: gzip\r\n"), "abc", 400),
        (format!("{json}Content-Length: 3\r\nIdempotency-Key: a b\r\n"), "abc", 400),
        (format!("{json}Content-Length: 3\r\nIdempotency-Key:\r\n"), "abc", 400),
        (format!("{json}Content-Length: 3\r\nIdempotency-Key: a\r\nIdempotency-Key: a\r\n"), "abc", 400),
        (format!("{json}Content-Length: 3\r\nIdempotency-Key: {}\r\n", "k".repeat(256)), "abc", 400),
        ("Content-Type: text/plain\r\nContent-Length: 3\r\n".to_owned(), "abc", 415),
        ("Content-Length: 3\r\n".to_owned(), "abc", 415),
    ] {
        let answer = post(&world.injects, &fields, body);
        assert_eq!(status(&answer), expected, "{fields}: {answer}");
    }
    for (key, is_replayed) in [("new", false), ("old", true)] {
        let answer = post(&world.injects, &format!("{json}Content-Length: 3\r\nIdempotency-Key: {key}\r\n"), "abc");
        assert!(answer.ends_with(&format!("{{\"bytes\":3,\"key\":\"{key}\"}}")), "{answer}");
        assert_eq!(answer.contains("idempotent-replayed: true\r\n"), is_replayed, "{answer}");
    }
    assert_eq!(status(&post(&world.secret, &format!("{json}Content-Length: 3\r\n"), "abc")), 403);
    assert_eq!(status(&world.get("/api/inject/v1", &world.bearer())), 405);
}

/// Paths of the document with their methods.
fn routes(world: &World) -> Vec<(String, String)> {
    let answer = world.get("/api/openapi.json", &world.bearer());
    let document: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let methods = |(path, of): (&String, &serde_json::Value)| {
        let names = of.as_object().unwrap().keys().filter(|name| ["get", "post", "delete"].contains(&name.as_str()));
        names.map(|name| (path.clone(), name.to_uppercase())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(methods).collect()
}

#[test]
fn all_but_the_open_paths_need_a_credential() {
    let world = World::new();
    let open = ["/", "/health/live", "/health/ready", "/api/session/v1"];
    let routes = routes(&world);
    assert!(routes.len() >= 15, "{routes:?}");
    for (path, method) in routes {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        let json = "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
        let answer = world.raw(format!("{head}{json}").as_bytes());
        assert_eq!(status(&answer) == 401, !open.contains(&&*path), "{method} {path}: {answer}");
        assert!(!answer.to_lowercase().contains("www-authenticate"), "{answer}");
    }
    assert_eq!(world.guesses.load(Ordering::Relaxed), 0, "nobody has guessed");
}

#[test]
fn no_request_makes_or_changes_a_token() {
    let world = World::new();
    let names = || world.tokens.read().unwrap();
    let before = names();
    let field = "Authorization: Bearer kelp-orbit\r\nContent-Type: application/json\r\n";
    let body = "{\"name\":\"x\",\"scopes\":[\"inject\"]}";
    for path in ["/api/token/v1", "/api/tokens/v1", "/api/system/v1"] {
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            let answer = world.send(method, path, field, body);
            assert!([404, 405].contains(&status(&answer)), "{method} {path}: {answer}");
        }
    }
    for ask in ["token", "add-token", "remove-token"] {
        let answer = world.send("POST", "/api/control/v1", field, &format!("{{\"ask\":\"{ask}\"}}"));
        assert_eq!(status(&answer), 400, "{ask}: {answer}");
    }
    assert_eq!(names(), before);
}
