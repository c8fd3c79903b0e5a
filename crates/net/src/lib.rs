//! Listeners for any protocol: sockets, limits on connections, the PROXY protocol, an orderly shutdown, TLS.
//!
//! For any server on tokio. It knows no protocol's replies: a protocol is a [`Service`], which serves each
//! [`Connection`] and supplies the last bytes for refused clients.
//!
//! ```
//! use posthaste_net::{Admission, Connection, Goodbye, GateLimits, Listeners, Peer, ListenPlace, ConnectionRefusal, Rules, Service};
//! use tokio::io::AsyncWriteExt;
//!
//! struct Hello;
//!
//! impl Service for Hello {
//!     async fn serve(&self, mut connection: Connection) {
//!         // The client may be gone already.
//!         let _ = connection.stream.write_all(b"hello\n").await;
//!     }
//!     fn refuse(&self, _: &Peer, _: &ConnectionRefusal) -> Goodbye {
//!         Goodbye::new(b"too busy\n")
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let mut listeners = Listeners::new(GateLimits::default())?;
//! for (bound, ()) in posthaste_net::bind(vec![(ListenPlace::Tcp("127.0.0.1:0".into()), ())], &GateLimits::default())? {
//!     listeners.serve(bound.listen()?, &Admission::new(Rules::default()), Hello);
//! }
//! listeners.shutdown(std::time::Duration::from_secs(5)).await;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod accept;
mod admission;
mod bind;
#[cfg(feature = "tls")]
mod chooser;
mod gate;
mod listen;
mod networks;
mod peer;
mod phase;
mod proxy;
mod reserve;
mod revocation;
#[cfg(feature = "config")]
#[cfg_attr(docsrs, doc(cfg(feature = "config")))]
pub mod section;
mod session;
mod stream;
#[cfg(feature = "tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub mod tls;
#[cfg(feature = "tls")]
mod validation;
pub mod x509;

pub use accept::{Connection, Goodbye, Listeners, Service};
pub use admission::{Admission, ConnectionRefusal, Proxies, Rules};
pub use bind::{ListenError, ListenPlace, bind};
#[cfg(feature = "tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub use chooser::{CertificateChooser, CertificateList, certificate_has_name};
pub use gate::{GateLimits, NetworkLimits};
pub use listen::{Backlog, Bound, ListeningSocket, UnixAccess};
pub use networks::{ByNetwork, IpNet, NetworkError, is_much_of_the_internet, network};
pub use peer::Peer;
pub use phase::{CurrentPhase, Phase, after};
pub use proxy::{HEADER_BYTES_MAX, ProxyError, ProxyHeader};
pub use revocation::{Grant, Revocation};
pub use session::{SessionEnd, SessionStream, Woken};
pub use stream::{Certificate, ClientCertificate, CurrentCertificate, Stream, TlsFacts, close};
#[cfg(feature = "tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub use validation::{ACME_TLS, ValidationCertificates};
