//! The tables of `tests/conform` on the bare state machine and on the tokio driver, in the clear and over TLS. The sink replays them too.
#![cfg(feature = "tls")]

mod common;
#[path = "common/matrix.rs"]
mod matrix;
#[path = "common/rules.rs"]
mod rules;
#[path = "common/tcp_talk.rs"]
mod tcp_talk;

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use common::Host;
use matrix::{Matrix, Talk};
use posthaste_smtp::driver::Server;
use posthaste_smtp::server::Config;
use posthaste_smtp::tls::{TlsTrust, client_config, server_config_from};
use rules::Rules;
use tcp_talk::TcpTalk;

fn matrices() -> Vec<Matrix> {
    matrix::read_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conform"))
}

fn config(secure: bool) -> Config {
    let auth_mechanisms = if secure { vec!["PLAIN".into(), "LOGIN".into()] } else { Vec::new() };
    Config { starttls: secure, auth_mechanisms, ..Config::new("mx.example.org") }
}

struct MachineTalk {
    host: Host,
    replies: VecDeque<u16>,
}

impl Talk for MachineTalk {
    fn say(&mut self, octets: &[u8]) {
        self.host.read(octets);
        let text = String::from_utf8(std::mem::take(&mut self.host.output)).unwrap();
        let last = text.lines().filter(|line| line.as_bytes()[3] == b' ');
        self.replies.extend(last.map(|line| line[..3].parse::<u16>().unwrap()));
    }

    fn hear(&mut self) -> Option<u16> {
        let reply = self.replies.pop_front();
        assert!(reply.is_some() || self.host.closed, "no reply");
        reply
    }

    /// The host does it at once.
    fn start_tls(&mut self) {}
}

#[test]
fn tables_on_the_state_machine() {
    let mut cells = 0;
    for matrix in matrices() {
        cells += matrix.replay(|| {
            let mut host = Host::new(config(matrix.secure));
            host.read(b"");
            host.output.clear();
            Box::new(MachineTalk { host, replies: VecDeque::new() })
        });
    }
    assert!(cells > 800, "{cells}");
}

fn replay_over_tcp(implicit_tls: bool) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let certificate = server_config_from(vec![made.cert.der().clone()], key.into()).unwrap();
    let trust = client_config(&TlsTrust::Anything).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for matrix in matrices().iter().filter(|matrix| !(matrix.secure && implicit_tls)) {
        let mut builder = Server::builder().config(config(matrix.secure));
        if matrix.secure || implicit_tls {
            builder = builder.tls(certificate.clone());
        }
        let starting = builder.implicit_tls(implicit_tls).listen("127.0.0.1:0").start(Rules);
        let server = runtime.block_on(starting).unwrap();
        let address = server.local_addrs()[0];
        matrix.replay(|| Box::new(TcpTalk::open(address, trust.clone(), implicit_tls)));
        assert!(runtime.block_on(server.shutdown(Duration::from_secs(60))), "{}: a session is left over", matrix.name);
    }
}

#[test]
fn tables_over_tcp_and_starttls() {
    replay_over_tcp(false);
}

#[test]
fn tables_over_implicit_tls() {
    replay_over_tcp(true);
}
