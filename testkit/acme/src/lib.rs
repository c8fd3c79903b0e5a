//! An ACME authority for tests. It validates challenges at the place that the test names, and signs by its own root.
//!
//! It implements RFC 8555 and RFC 9773 as far as a client needs. It does not verify signatures: a real authority
//! (Pebble) tests those.
#![forbid(unsafe_code)]

mod http;
mod state;
mod validate;

use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;

use state::State;
pub use validate::{Challenge, by_http, by_tls};

/// Checks that a challenge is shown.
pub type Validation = Box<dyn Fn(&Challenge) -> Result<(), String> + Send + Sync>;

/// A running authority. Its threads end with the process.
pub struct AcmeStub {
    shared: Arc<Shared>,
    /// The URL of its directory.
    pub directory: String,
    /// The root of its own certificate and of those that it signs.
    pub root_pem: String,
}

pub(crate) struct Shared {
    pub state: Mutex<State>,
    pub validation: Validation,
    pub issuer: Issuer<'static, KeyPair>,
    pub base: String,
}

impl Shared {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AcmeStub {
    /// An authority on a free port of the loopback address.
    pub fn start(validation: impl Fn(&Challenge) -> Result<(), String> + Send + Sync + 'static) -> Self {
        let root_key = KeyPair::generate().expect("a key");
        let mut root = CertificateParams::new(Vec::<String>::new()).expect("parameters");
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        root.distinguished_name.push(rcgen::DnType::CommonName, "Root of a test");
        let root_pem = root.self_signed(&root_key).expect("a root").pem();
        let issuer = Issuer::new(root, root_key);

        let key = KeyPair::generate().expect("a key");
        let own = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        let own = own.signed_by(&key, &issuer).expect("a certificate");
        let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
        let der = PrivatePkcs8KeyDer::from(key.serialize_der());
        let config = Arc::new(builder.with_single_cert(vec![own.der().clone()], der.into()).expect("a key that fits"));

        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let base = format!("https://localhost:{}", listener.local_addr().expect("an address").port());
        let directory = format!("{base}/directory");
        let state = Mutex::new(State::default());
        let shared = Arc::new(Shared { state, validation: Box::new(validation), issuer, base });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (shared, config) = (Arc::clone(&serving), Arc::clone(&config));
                // A client that goes away is no matter.
                std::thread::spawn(move || drop(http::serve(stream, config, &shared)));
            }
        });
        Self { shared, directory, root_pem }
    }

    /// Names of all orders so far, in order.
    pub fn orders(&self) -> Vec<String> {
        self.shared.state().orders.iter().map(|order| order.name.clone()).collect()
    }

    /// Orders that replace a certificate (RFC 9773 section 5).
    pub fn replacing(&self) -> usize {
        self.shared.state().orders.iter().filter(|order| order.replaces.is_some()).count()
    }

    /// Number of accounts.
    pub fn accounts(&self) -> usize {
        self.shared.state().accounts.len()
    }

    /// Sets the start and end of later certificates, in seconds from now.
    pub fn set_validity(&self, from: i64, to: i64) {
        self.shared.state().validity = (from, to);
    }

    /// Sets the time to renew certificates, in seconds from now. `None` removes renewalInfo from the directory.
    pub fn set_renewal(&self, window: Option<(i64, i64)>) {
        self.shared.state().renewal = window;
    }
}
