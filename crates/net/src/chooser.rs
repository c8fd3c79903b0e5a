//! Several certificates at one listener, chosen by the requested name.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Certificates with their keys, in order. They can be replaced during use; later handshakes use the new ones.
#[derive(Debug, Default)]
pub struct CertificateList(RwLock<Arc<[Arc<CertifiedKey>]>>);

impl CertificateList {
    /// Replaces all of them.
    pub fn set(&self, all: impl IntoIterator<Item = Arc<CertifiedKey>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = all.into_iter().collect();
    }

    /// The certificates, in order.
    pub fn get(&self) -> Arc<[Arc<CertifiedKey>]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Chooses a certificate by the name in the handshake (SNI, RFC 6066 section 3).
///
/// The choice is the first certificate with the name and a key that the client can verify; for an unknown or missing
/// name, the first of all. So a sender that asks for one of our names without a certificate is still served: most
/// verify none.
#[derive(Debug)]
pub struct CertificateChooser {
    by_name: Vec<Arc<CertificateList>>,
    otherwise: Arc<CertificateList>,
}

impl CertificateChooser {
    /// Chooses among the lists of `by_name`, in order. `otherwise` is used if they are empty.
    pub fn new(by_name: Vec<Arc<CertificateList>>, otherwise: Arc<CertificateList>) -> Self {
        Self { by_name, otherwise }
    }

    fn choose(&self, name: Option<&str>, is_usable: impl Fn(&CertifiedKey) -> bool) -> Option<Arc<CertifiedKey>> {
        let name = name.and_then(|name| ServerName::try_from(name).ok());
        let mut first = None;
        for list in &self.by_name {
            for one in list.get().iter().filter(|one| is_usable(one)) {
                if name.as_ref().is_none_or(|name| has_name(one, name)) {
                    return Some(Arc::clone(one));
                }
                first.get_or_insert_with(|| Arc::clone(one));
            }
        }
        first.or_else(|| self.otherwise.get().first().cloned())
    }
}

/// True if clients accept the certificate for this host name. Only alternative names count, and a wildcard stands for
/// one label (RFC 6125 section 6.4.3).
pub fn certificate_has_name(one: &CertifiedKey, name: &str) -> bool {
    ServerName::try_from(name).is_ok_and(|name| has_name(one, &name))
}

fn has_name(one: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let parsed = one.cert.first().and_then(|own| ParsedCertificate::try_from(own).ok());
    parsed.is_some_and(|parsed| verify_server_name(&parsed, name).is_ok())
}

impl ResolvesServerCert for CertificateChooser {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_usable = |one: &CertifiedKey| one.key.choose_scheme(hello.signature_schemes()).is_some();
        // With no key that the client can verify, the handshake fails with the alert for that.
        self.choose(hello.server_name(), is_usable).or_else(|| self.choose(hello.server_name(), |_| true))
    }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs::default_provider;

    use super::*;

    fn certificate(names: &[&str]) -> Arc<CertifiedKey> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let chain = vec![made.cert.der().clone()];
        Arc::new(CertifiedKey::from_der(chain, key.into(), &default_provider()).unwrap())
    }

    #[test]
    fn sni_chooses_and_unknown_or_missing_gets_the_first() {
        let first = certificate(&["mx.example.org"]);
        let wild = certificate(&["*.example.net", "example.net"]);
        let later = certificate(&["mta-sts.example.org", "mx.example.org"]);
        let made = certificate(&["self.example.org"]);
        let lists: [Arc<CertificateList>; 3] = Default::default();
        let chooser = CertificateChooser::new(vec![lists[0].clone(), lists[1].clone()], lists[2].clone());
        let check = |name: &str, expected: Option<&Arc<CertifiedKey>>| {
            let found = chooser.choose(Some(name).filter(|name| !name.is_empty()), |_| true);
            assert_eq!(found.as_ref().map(Arc::as_ptr), expected.map(Arc::as_ptr), "`{name}`");
        };
        check("mx.example.org", None);
        lists[2].set([made.clone()]);
        check("mx.example.org", Some(&made));
        lists[1].set([later.clone()]);
        check("self.example.org", Some(&later));
        lists[0].set([first.clone(), wild.clone()]);
        check("", Some(&first));
        check("mx.example.org", Some(&first));
        check("MX.Example.Org", Some(&first));
        check("mta-sts.example.org", Some(&later));
        check("a.example.net", Some(&wild));
        check("example.net", Some(&wild));
        // A wildcard is one whole label.
        check("a.b.example.net", Some(&first));
        check("unknown.example", Some(&first));
        check("192.0.2.1", Some(&first));
        check("not a name", Some(&first));
        check("self.example.org", Some(&first));
    }

    #[test]
    fn a_key_that_the_client_cannot_verify_is_passed_over() {
        let (one, other) = (certificate(&["mx.example.org"]), certificate(&["mx.example.org", "b.example.org"]));
        let list = Arc::new(CertificateList::default());
        list.set([one.clone(), other.clone()]);
        let chooser = CertificateChooser::new(vec![list], Arc::default());
        let only = |it: &CertifiedKey| std::ptr::eq(it, &*other);
        assert!(Arc::ptr_eq(&chooser.choose(Some("mx.example.org"), only).unwrap(), &other));
        assert!(chooser.choose(Some("mx.example.org"), |_| false).is_none());
    }
}
