//! Mail by HTTP from clients without a token, and requests that a browser on their network can be made to send.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use crate::inject::{JSON, status, try_ask};
use crate::relaying::{config, list, unused_port};
use crate::support::Server;

/// A server that takes mail at a listener of HTTP with these lines; the network of this machine is acme's.
fn serve(dir: &Path, listener: &str) -> (Server, SocketAddr) {
    let relay = config(unused_port(), "tenant_header = \"X-Tenant\"\n");
    let port = unused_port();
    let http = format!("[[listener]]\naddress = \"127.0.0.1:{port}\"\nprotocol = \"http\"\n{listener}");
    let tenants = "[[network]]\ncidr = [\"127.0.0.0/8\", \"10.1.0.0/16\"]\ntenant = \"acme\"\n\
                   [[relay.tenant]]\nname = \"acme\"\nsender_domains = [\"acme.example\"]\n";
    let server = Server::start(dir, &format!("{relay}{http}{tenants}"));
    (server, SocketAddr::from(([127, 0, 0, 1], port)))
}

fn body(sender: &str, header: &str) -> Value {
    json!({ "envelope_sender": sender, "recipients": [{ "email": "ann@there.example" }], "content": format!("From: {sender}\n{header}\ntext\n") })
}

/// A request with these lines after the first.
fn post(address: SocketAddr, fields: &str, body: &Value) -> (u16, String, Value) {
    let body = body.to_string();
    let head =
        format!("POST /api/inject/v1 HTTP/1.1\r\nConnection: close\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
    let (head, answer) = try_ask(address, &format!("{head}{body}")).unwrap();
    (status(&head), head, answer)
}

#[test]
fn a_program_of_the_network_needs_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "inject_from = [\"127.0.0.1\"]\n");
    let own = body("shop@acme.example", "");
    let plain = format!("Host: localhost\r\n{JSON}");
    assert_eq!(post(address, &plain, &own).0, 200);
    assert_eq!(post(address, &format!("Host: {address}\r\n{JSON}"), &own).0, 200);
    let waiting = list(dir.path(), &[]);
    assert!(waiting.len() == 2 && waiting.iter().all(|line| line["tenant"] == "acme"), "{waiting:?}");
    let (status, _, answer) = post(address, &plain, &body("shop@else.example", ""));
    assert_eq!(status, 403, "a sender that is none of the tenant's: {answer}");
    let (status, _, answer) = post(address, &plain, &body("shop@acme.example", "X-Tenant: other\n"));
    assert_eq!(status, 400, "{answer}");
    let keyed = format!("{plain}Idempotency-Key: order-1\r\n");
    let (first, head, _) = post(address, &keyed, &own);
    assert!(first == 200 && !head.to_lowercase().contains("idempotent-replayed"), "{head}");
    let (second, head, _) = post(address, &keyed, &own);
    assert!(second == 200 && head.to_lowercase().contains("idempotent-replayed: true"), "{head}");
    assert_eq!(list(dir.path(), &[]).len(), 3);
    server.stop();
}

#[test]
fn a_browser_of_the_network_brings_no_mail() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "inject_from = [\"127.0.0.0/8\"]\n");
    let check = |fields: &str, expected: u16| {
        let (status, _, answer) = post(address, fields, &body("shop@acme.example", ""));
        assert_eq!(status, expected, "{fields}: {answer}");
    };
    let host = "Host: localhost\r\n";
    // Another site, or a page of ours: a browser sends Origin with each POST.
    for origin in ["http://evil.example", "null", "http://localhost", &format!("http://{address}")] {
        check(&format!("{host}{JSON}Origin: {origin}\r\n"), 403);
    }
    for field in
        ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: none", "Sec-Fetch-Mode: no-cors", "sec-fetch-anything: x"]
    {
        check(&format!("{host}{JSON}{field}\r\n"), 403);
    }
    // Types that a form or a request without preflight can have.
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain; application/json",
        "",
    ] {
        check(&format!("{host}Content-Type: {kind}\r\n"), 403);
    }
    check(host, 403);
    // A name that an attacker's DNS points here.
    for name in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0", "192.0.2.1"] {
        check(&format!("Host: {name}\r\n{JSON}"), 421);
    }
    check(JSON, 400);
    check(&format!("Host: localhost\r\nHost: evil.example\r\n{JSON}"), 400);
    // A credential counts for itself.
    check(&format!("{host}{JSON}Authorization: Bearer pht_wrong\r\n"), 401);
    check(&format!("{host}{JSON}Cookie: __Host-posthaste=phs_wrong\r\n"), 403);
    assert_eq!(list(dir.path(), &[]).len(), 0);
    for path in ["/api/queue/v1", "/api/now/v1", "/api/token/v1", "/api/openapi.json"] {
        let (head, answer) =
            try_ask(address, &format!("GET {path} HTTP/1.1\r\n{host}Connection: close\r\n\r\n")).unwrap();
        assert_eq!(status(&head), 401, "{path}: {answer}");
    }
    server.stop();
}

#[test]
fn only_clients_of_the_networks_need_no_token() {
    let own = body("shop@acme.example", "");
    let check = |listener: &str, fields: &str, expected: u16| {
        let dir = tempfile::tempdir().unwrap();
        let (server, address) = serve(dir.path(), listener);
        let (status, _, answer) = post(address, &format!("Host: localhost\r\n{JSON}{fields}"), &own);
        assert_eq!(status, expected, "{listener} {fields}: {answer}");
        server.stop();
    };
    check("", "", 401);
    check("inject_from = [\"192.0.2.0/24\"]\n", "", 401);
    let behind = "inject_from = [\"10.0.0.0/8\", \"127.0.0.1\"]\nproxies = [\"127.0.0.1\"]\n";
    check(behind, "X-Forwarded-For: 10.1.2.3\r\n", 200);
    check(behind, "X-Forwarded-For: 192.0.2.1\r\n", 401);
    check(behind, "X-Forwarded-For: 10.1.2.3, 192.0.2.1\r\n", 401);
    // A proxy that names nobody speaks for anybody.
    check(behind, "", 401);
    check(behind, "X-Forwarded-For: unknown\r\n", 401);
    // One that is not listed does too, whatever it says.
    for field in ["X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1", "X-Real-IP: 127.0.0.1", "Via: 1.1 web"] {
        check("inject_from = [\"127.0.0.1\"]\n", &format!("{field}\r\n"), 401);
    }
}
