//! Links to the page, for the banner and for `posthaste page`.

use std::net::SocketAddr;
use std::sync::Arc;

use posthaste_admin::{LINK_SECS, PageLinks, Scope};
use posthaste_config::Config;
use serde_json::{Value, json};

/// Makes links to the page of a server.
#[derive(Debug, Clone)]
pub(crate) struct PageLinkMaker {
    links: Arc<PageLinks>,
    /// Addresses of the page for a browser.
    urls: Vec<String>,
    /// The first password is in use: every user of this machine may see everything.
    is_first_minute: bool,
}

/// Default lifetime of a link's session.
pub(crate) const SESSION_SECS: u64 = 12 * 3600;
const SESSION_SECS_MAX: u64 = 30 * 86_400;

impl PageLinkMaker {
    /// `listening`: addresses, and true for those with TLS.
    pub fn new(
        links: Arc<PageLinks>,
        config: &Config,
        listening: &[(SocketAddr, bool)],
        is_first_minute: bool,
    ) -> Self {
        let urls = listening.iter().map(|(address, is_encrypted)| url(config, *address, *is_encrypted)).collect();
        Self { links, urls, is_first_minute }
    }

    /// Makes a link for a session of `secs` seconds with `scopes`; empty: the default ones. `None` without a TCP
    /// address for HTTP.
    pub fn link(&self, scopes: &[Scope], secs: u64) -> Option<String> {
        let url = self.urls.first()?;
        Some(format!("{url}#k={}", self.links.make(self.or_usual(scopes), secs).reveal()))
    }

    /// These scopes; if there are none, the usual ones.
    fn or_usual(&self, scopes: &[Scope]) -> Vec<Scope> {
        match scopes {
            [] => Scope::all().filter(|scope| self.is_first_minute || *scope != Scope::MailRead).collect(),
            named => named.to_vec(),
        }
    }

    /// Answers `posthaste page`. `scopes` of the answer is a text as `--scopes` takes it.
    pub fn answer(&self, scopes: &[String], secs: u64) -> Result<Value, String> {
        let parsed = scopes.iter().map(|name| name.parse::<Scope>().map_err(|error| error.to_string()));
        let parsed: Vec<Scope> = parsed.collect::<Result<_, _>>()?;
        if !(1..=SESSION_SECS_MAX).contains(&secs) {
            return Err("a session lasts 1 s to 30 days".to_owned());
        }
        let link = self.link(&parsed, secs).ok_or(NO_PAGE)?;
        let scopes = self.or_usual(&parsed).iter().map(Scope::to_string).collect::<Vec<_>>().join(",");
        Ok(json!({ "done": 1, "link": link, "secs": LINK_SECS, "scopes": scopes }))
    }
}

pub(crate) const NO_PAGE: &str = "this server has no page: a [[listener]] with protocol = \"http\" shows one";

/// The page's URL for a browser: with the host name if others can connect, as the certificate and the check of `Host`
/// require it.
fn url(config: &Config, address: SocketAddr, is_encrypted: bool) -> String {
    let is_behind_proxy = config.http_listeners().any(|listener| listener.socket.proxies.is_some());
    let name = config.http.names.first().unwrap_or(&config.host_name);
    match address {
        _ if is_behind_proxy && !is_encrypted => format!("https://{name}/"),
        _ if address.ip().is_loopback() => format!("http{}://{address}/", if is_encrypted { "s" } else { "" }),
        _ if address.port() == 443 => format!("https://{name}/"),
        _ => format!("https://{name}:{}/", address.port()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_link_has_the_name_by_which_browsers_may_ask() {
        let check = |text: &str, address: &str, is_encrypted, expected: &str| {
            let config = Config::parse(Path::new("x"), &format!("host_name = 'mx.example.org'\n{text}")).unwrap();
            let maker = PageLinkMaker::new(Arc::default(), &config, &[(address.parse().unwrap(), is_encrypted)], false);
            let link = maker.link(&[], 60).unwrap();
            assert!(link.starts_with(&format!("{expected}#k=phl_")), "{link}");
        };
        let proxied = "[http]\nnames = ['mail.example.org']\n[[listener]]\naddress = '127.0.0.1:8025'\nprotocol = 'http'\nproxies = '127.0.0.1'\n";
        check("", "127.0.0.1:8025", false, "http://127.0.0.1:8025/");
        check("", "[::]:443", true, "https://mx.example.org/");
        check("[http]\nnames = ['mail.example.org']\n", "192.0.2.1:8443", true, "https://mail.example.org:8443/");
        check(proxied, "127.0.0.1:8025", false, "https://mail.example.org/");
    }

    #[test]
    fn the_mail_scope_is_named_once_there_is_a_configuration() {
        let config = Config::parse(Path::new("x"), "").unwrap();
        let address = "127.0.0.1:8025".parse().unwrap();
        for is_first_minute in [true, false] {
            let links = Arc::<PageLinks>::default();
            let maker = PageLinkMaker::new(links.clone(), &config, &[(address, false)], is_first_minute);
            let scopes = |named: &[String]| {
                let answer = maker.answer(named, 60).unwrap();
                let key = answer["link"].as_str().unwrap().split_once("#k=").unwrap().1.to_owned();
                let given = links.scopes_of(&key).unwrap();
                let told = answer["scopes"].as_str().unwrap().split(',').map(|name| name.parse().unwrap());
                assert_eq!(told.collect::<Vec<Scope>>(), given);
                given
            };
            assert_eq!(scopes(&[]).contains(&Scope::MailRead), is_first_minute);
            assert_eq!(scopes(&["mail:read".to_owned()]), [Scope::MailRead]);
            assert!(maker.answer(&["everything".to_owned()], 60).unwrap_err().contains("there is no scope"));
            assert!(maker.answer(&[], 0).is_err());
        }
        let nowhere = PageLinkMaker::new(Arc::default(), &config, &[], true);
        assert_eq!(nowhere.answer(&[], 60), Err(NO_PAGE.to_owned()));
    }
}
