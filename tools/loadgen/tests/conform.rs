//! The tables of what each command is answered in each state, which `posthaste-smtp` keeps, over the sink's own driver.

#[path = "../../../crates/smtp/tests/common/matrix.rs"]
mod matrix;
#[path = "../../../crates/smtp/tests/common/tcp_talk.rs"]
mod tcp_talk;

use std::path::Path;

use posthaste_loadgen::load::{TlsTrust, client_config};
use posthaste_loadgen::sink::{Options, Sink, TlsMode};
use tcp_talk::TcpTalk;

fn replay(tls: TlsMode) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/smtp/tests/conform");
    let trust = client_config(&TlsTrust::Anything).expect("a configuration");
    // The sink offers no AUTH.
    for matrix in matrix::read_all(&folder).iter().filter(|matrix| !matrix.secure) {
        let options = Options { listen: "127.0.0.1:0".into(), tls, threads: 1, ..Options::default() };
        let sink = Sink::start(options).expect("the sink starts");
        matrix.replay(|| Box::new(TcpTalk::open(sink.local_addr(), trust.clone(), tls == TlsMode::Implicit)));
        let summary = sink.stop().expect("ends well");
        assert!(summary.counts.connections > 50, "{}: {} sessions", matrix.name, summary.counts.connections);
    }
}

#[test]
fn tables_over_the_sink() {
    replay(TlsMode::Off);
}

#[test]
fn tables_over_the_sink_with_implicit_tls() {
    replay(TlsMode::Implicit);
}
