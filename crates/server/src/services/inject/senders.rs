//! Senders that a token may use.

use std::sync::Arc;

use posthaste_admin::Token;
use posthaste_message::mime::Message;
use posthaste_message::sole_mailbox;
use posthaste_smtp::{Address, ReversePath};

use super::refusal::Refused;
use crate::receive::settings::Settings;

/// The senders of a token that is bound to some.
pub(super) struct AllowedSenders {
    domains: Vec<String>,
    /// The tenant whose senders are allowed, if no domains are named.
    tenant: Option<String>,
    settings: Arc<Settings>,
}

impl AllowedSenders {
    /// `None`: any sender.
    pub fn of(token: &Token, settings: Arc<Settings>) -> Option<Self> {
        let bounds = token.bounds();
        let is_bound = !bounds.sender_domains.is_empty() || bounds.tenant.is_some();
        let (domains, tenant) = (bounds.sender_domains.clone(), bounds.tenant.clone());
        is_bound.then_some(Self { domains, tenant, settings })
    }

    /// Checks the envelope sender and the only address in From, which is read as strictly as that of a login.
    ///
    /// # Errors
    /// 403, with the address.
    pub fn check(&self, sender: &ReversePath, header: &[u8]) -> Result<(), Refused> {
        if let Some(address) = sender.address() {
            self.check_address("envelope_sender", address)?;
        }
        let parsed = Message::parse(header);
        let mut fields = parsed.root().header().fields().filter(|field| field.name.eq_ignore_ascii_case(b"from"));
        let unclear = || Refused { status: 403, why: format!("From must have one address; {QUOTES}") };
        let (Some(field), None) = (fields.next(), fields.next()) else { return Err(unclear()) };
        let address = sole_mailbox(field.value).and_then(|address| Address::parse(&address).ok());
        self.check_address("From", &address.ok_or_else(unclear)?)
    }

    fn check_address(&self, field: &str, address: &Address) -> Result<(), Refused> {
        let is_allowed = match (&*self.domains, &self.tenant) {
            ([], Some(tenant)) => self.settings.tenants.may_send_as(tenant, address),
            (domains, _) => is_below(domains, &address.domain().to_string().to_ascii_lowercase()),
        };
        if is_allowed { Ok(()) } else { Err(refused(&format!("{field}: {}", cut(&address.to_string())))) }
    }
}

/// A hint in the refusal.
const QUOTES: &str = "put a name with signs such as @ or , in quotes";

fn refused(which: &str) -> Refused {
    Refused { status: 403, why: format!("{which}: this token may not send from there") }
}

fn cut(text: &str) -> String {
    text.chars().take(300).collect()
}

/// True for one of the domains, and for those below one with a leading dot.
fn is_below(domains: &[String], domain: &str) -> bool {
    domains.iter().any(|allowed| {
        if allowed.starts_with('.') {
            domain.len() > allowed.len() && domain.ends_with(allowed.as_str())
        } else {
            domain == allowed
        }
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use posthaste_admin::{Scope, Secret, TokenBounds};
    use posthaste_config::Config;

    use super::*;

    fn senders(tenant: Option<&str>, domains: &[&str]) -> Option<AllowedSenders> {
        let text = "[[relay.tenant]]\nname = 'a'\nsender_domains = ['a.example', '.sub.example']\nsenders = ['ann@else.example']\n\
                    [[relay.tenant]]\nname = 'open'\n";
        let config = Config::parse(Path::new("x"), text).unwrap();
        let settings = Arc::new(Settings::new(&config, Arc::new(config.directory()), Arc::default()));
        let domains: Vec<String> = domains.iter().map(|domain| (*domain).to_owned()).collect();
        let bounds = TokenBounds::parse(tenant, &domains, &[]).unwrap();
        let token = Token::new("t", &Secret::random(), [Scope::Inject].into(), None).unwrap().within(bounds).unwrap();
        AllowedSenders::of(&token, settings)
    }

    #[test]
    fn envelope_and_from_are_of_the_tokens_domains() {
        let check = |tenant, domains: &[&str], sender: &str, from: &str, expected: bool| {
            let sender = ReversePath::parse(&format!("<{sender}>")).unwrap();
            let header = format!("From: {from}\r\n\r\n");
            let found = senders(tenant, domains).unwrap().check(&sender, header.as_bytes());
            assert_eq!(found.is_ok(), expected, "{tenant:?} {domains:?} {sender} {from}");
        };
        let own: &[&str] = &["A.example", ".sub.example"];
        check(None, own, "x@a.example", "X <x@A.EXAMPLE>", true);
        check(None, own, "x@y.sub.example", "x@z.sub.example", true);
        check(None, own, "", "x@a.example", true);
        check(None, own, "x@sub.example", "x@a.example", false);
        check(None, own, "x@evila.example", "x@a.example", false);
        check(None, own, "x@a.example", "x@b.example", false);
        check(None, own, "x@a.example", "x@a.example, y@b.example", false);
        check(None, own, "x@a.example", "\"x@a.example\" <y@b.example>", false);
        check(None, own, "x@a.example", "x@a.example\r\nFrom: y@b.example", false);
        check(None, own, "x@a.example", "nobody", false);
        check(None, own, "x@a.example", "x@b.example <x@a.example>", false);
        check(None, own, "x@a.example", "us: x@a.example;", false);
        check(None, own, "x@a.example", "", false);
        check(Some("a"), &[], "x@a.example", "ann@else.example", true);
        check(Some("a"), &[], "bob@else.example", "x@a.example", false);
        check(Some("a"), &["b.example"], "x@a.example", "x@a.example", false);
        check(Some("open"), &[], "x@anywhere.example", "y@anywhere.example", true);
        assert!(senders(None, &[]).is_none());
    }
}
