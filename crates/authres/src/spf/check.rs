use std::net::IpAddr;
use std::sync::Arc;

use super::macros::{DomainSpec, Values};
use super::record::{Mechanism, Policy, Prefixes, is_in, is_policy};
use super::result::SpfResult;
use crate::{Dns, NoAnswer, is_at_or_below, is_name};

/// A client and the mail that it sends.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The client's address.
    pub ip: IpAddr,
    /// Its name by EHLO or HELO.
    pub helo: &'a str,
    /// The sender of MAIL, in A-labels; empty: the name of HELO is judged (RFC 7208 section 2.4).
    pub sender: &'a str,
}

impl Question<'_> {
    /// The checked local part and domain, the domain in lower case.
    fn identity(&self) -> (&str, String) {
        let (local, domain) = match self.sender {
            "" => ("postmaster", self.helo),
            sender => match sender.rsplit_once('@') {
                Some(("", domain)) => ("postmaster", domain),
                Some((local, domain)) => (local, domain),
                None => ("postmaster", ""),
            },
        };
        (local, domain.strip_suffix('.').unwrap_or(domain).to_ascii_lowercase())
    }
}

/// The result and the domain that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The result.
    pub result: SpfResult,
    /// The checked domain, in lower case; empty if there is none.
    pub domain: String,
    /// False if the sender was empty and the domain is that of HELO.
    pub is_of_sender: bool,
    /// The domain's own policy is `v=spf1 -all`: it sends no mail at all.
    pub sends_nothing: bool,
}

impl Verdict {
    /// The verdict when the caller's time is up.
    pub fn unanswered(question: &Question<'_>) -> Self {
        let (_, domain) = question.identity();
        Self { result: SpfResult::TempError, domain, is_of_sender: !question.sender.is_empty(), sends_nothing: false }
    }
}

/// Evaluates the policy of the sender's domain (RFC 7208 section 4).
///
/// At most 10 terms ask DNS, with 10 hosts each, and 2 answers may be void; beyond, the result is permerror. The caller bounds the time: RFC 7208 section 4.6.4 has
/// at least 20 s, and temperror after them.
pub async fn check<D: Dns>(dns: &D, question: &Question<'_>) -> Verdict {
    let (local, domain) = question.identity();
    let ip = question.ip.to_canonical();
    let mut check =
        Check { dns, ip, helo: question.helo, local, sender_domain: &domain, terms: 0, voids: 0, client_names: None };
    let policy = check.policy(&domain).await;
    let sends_nothing = policy.as_ref().is_ok_and(|policy| sends_nothing(policy.text()));
    let result = match policy {
        Ok(policy) => check.evaluate(&domain, policy).await.unwrap_or_else(|stop| stop),
        Err(result) => result,
    };
    Verdict { result, domain, is_of_sender: !question.sender.is_empty(), sends_nothing }
}

fn sends_nothing(policy: &str) -> bool {
    let mut terms = policy.split(' ').skip(1).filter(|term| !term.is_empty());
    terms.next().is_some_and(|term| term.eq_ignore_ascii_case("-all")) && terms.next().is_none()
}

const TERMS_MAX: u32 = 10;
const VOIDS_MAX: u32 = 2;
const HOSTS_MAX: usize = 10;

struct Check<'a, D> {
    dns: &'a D,
    ip: IpAddr,
    helo: &'a str,
    local: &'a str,
    sender_domain: &'a str,
    /// Terms that asked DNS.
    terms: u32,
    /// Answers without a record.
    voids: u32,
    /// The names of the client that have its address.
    client_names: Option<Vec<String>>,
}

/// A policy among the texts of its answer.
struct Published {
    texts: Arc<[String]>,
    index: usize,
}

impl Published {
    fn text(&self) -> &str {
        &self.texts[self.index]
    }
}

/// A policy during its evaluation.
struct Level {
    domain: String,
    policy: Published,
    /// Index of the next directive to check.
    next: usize,
    /// The result of the policy that the last directive includes.
    included: Option<SpfResult>,
}

impl Level {
    fn new(domain: String, policy: Published) -> Self {
        Self { domain, policy, next: 0, included: None }
    }
}

/// The next act of an evaluation.
enum Turn {
    /// The policy of another domain is evaluated first.
    Include(String),
    /// Continue with the policy of another domain.
    Redirect(String),
    Done(SpfResult),
}

/// The next step; `Err` ends the whole evaluation with a result.
type Step<T> = Result<T, SpfResult>;

impl<D: Dns> Check<'_, D> {
    /// The domain's policy, if it has exactly one; else a result.
    async fn policy(&self, domain: &str) -> Step<Published> {
        let is_host = domain.contains('.') && is_name(domain) && domain.is_ascii() && !domain.ends_with(']');
        if !is_host {
            return Err(SpfResult::None);
        }
        let texts = self.dns.texts(domain).await.map_err(|why| match why {
            NoAnswer::NoSuchName => SpfResult::None,
            NoAnswer::Temporary => SpfResult::TempError,
        })?;
        let index = texts.iter().position(|text| is_policy(text)).ok_or(SpfResult::None)?;
        let is_only = !texts[index + 1..].iter().any(|text| is_policy(text));
        if is_only { Ok(Published { texts, index }) } else { Err(SpfResult::PermError) }
    }

    /// Evaluates a policy and all that it includes. Nesting is the sender's choice, so policies that wait for an
    /// `include` are in a list, not on the stack.
    async fn evaluate(&mut self, domain: &str, policy: Published) -> Step<SpfResult> {
        let mut level = Level::new(domain.to_owned(), policy);
        // At most TERMS_MAX, as each `include` is a term that counts.
        let mut waiting: Vec<Level> = Vec::new();
        loop {
            match self.advance(&mut level).await? {
                Turn::Include(target) => {
                    let included = self.other(target).await?;
                    waiting.push(std::mem::replace(&mut level, included));
                }
                Turn::Redirect(target) => level = self.other(target).await?,
                Turn::Done(result) => {
                    let Some(outer) = waiting.pop() else { return Ok(result) };
                    level = outer;
                    level.included = Some(result);
                }
            }
        }
    }

    /// The policy of another domain, which must have one (RFC 7208 sections 5.2 and 6.1).
    async fn other(&self, domain: String) -> Step<Level> {
        match self.policy(&domain).await {
            Err(SpfResult::None) => Err(SpfResult::PermError),
            policy => Ok(Level::new(domain, policy?)),
        }
    }

    /// Continues until the policy has a result or needs another policy.
    async fn advance(&mut self, level: &mut Level) -> Step<Turn> {
        let Level { domain, policy, next, included } = level;
        let policy = Policy::parse(policy.text()).ok_or(SpfResult::PermError)?;
        if included.take() == Some(SpfResult::Pass) {
            return Ok(Turn::Done(policy.directives[*next - 1].0));
        }
        for (result, mechanism) in &policy.directives[*next..] {
            *next += 1;
            if let Mechanism::Include(spec) = mechanism {
                self.count_term()?;
                return Ok(Turn::Include(self.expand(domain, spec).await?));
            }
            if self.matches(domain, mechanism).await? {
                return Ok(Turn::Done(*result));
            }
        }
        let Some(redirect) = &policy.redirect else { return Ok(Turn::Done(SpfResult::Neutral)) };
        self.count_term()?;
        Ok(Turn::Redirect(self.expand(domain, redirect).await?))
    }

    /// True if a mechanism other than `include` matches.
    async fn matches(&mut self, domain: &str, mechanism: &Mechanism<'_>) -> Step<bool> {
        match mechanism {
            Mechanism::All => return Ok(true),
            Mechanism::Network(address, prefix) => return Ok(is_in(self.ip, *address, *prefix)),
            _ => self.count_term()?,
        }
        match mechanism {
            Mechanism::All | Mechanism::Network(..) | Mechanism::Include(_) => Ok(false),
            Mechanism::A(spec, prefixes) => {
                let target = self.target(domain, spec).await?;
                self.has_address(&target, *prefixes).await
            }
            Mechanism::Mx(spec, prefixes) => {
                let target = self.target(domain, spec).await?;
                self.has_mail_host(&target, *prefixes).await
            }
            Mechanism::Ptr(spec) => {
                let target = self.target(domain, spec).await?;
                let names = self.client_names().await?;
                Ok(names.iter().any(|name| is_at_or_below(name, &target)))
            }
            Mechanism::Exists(spec) => {
                let target = self.expand(domain, spec).await?;
                // Also for a client with IPv6 (RFC 7208 section 5.7).
                Ok(!self.addresses(&target, false).await?.is_empty())
            }
        }
    }

    async fn has_address(&mut self, host: &str, prefixes: Prefixes) -> Step<bool> {
        let addresses = self.addresses(host, self.ip.is_ipv6()).await?;
        Ok(addresses.iter().any(|address| prefixes.match_addresses(self.ip, *address)))
    }

    async fn has_mail_host(&mut self, domain: &str, prefixes: Prefixes) -> Step<bool> {
        if !is_name(domain) {
            return Ok(false);
        }
        let hosts = self.dns.mail_hosts(domain).await;
        let hosts = self.counted(hosts)?;
        if hosts.len() > HOSTS_MAX {
            return Err(SpfResult::PermError);
        }
        for host in hosts {
            if self.has_address(&host, prefixes).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn addresses(&mut self, host: &str, is_ipv6: bool) -> Step<Vec<IpAddr>> {
        if !is_name(host) {
            return Ok(Vec::new());
        }
        let found = self.dns.addresses(host, is_ipv6).await;
        self.counted(found)
    }

    /// Verified names of the client's address, looked up once.
    async fn client_names(&mut self) -> Step<&[String]> {
        if self.client_names.is_none() {
            let mut valid = Vec::new();
            // Without an answer there is no match (RFC 7208 section 5.5).
            let names = match self.dns.names(self.ip).await {
                Err(NoAnswer::Temporary) => Vec::new(),
                names => self.counted(names)?,
            };
            for name in names.into_iter().take(HOSTS_MAX).filter(|name| is_name(name)) {
                let addresses = self.dns.addresses(&name, self.ip.is_ipv6()).await;
                if addresses.is_ok_and(|addresses| addresses.contains(&self.ip)) {
                    valid.push(name.to_ascii_lowercase());
                }
            }
            self.client_names = Some(valid);
        }
        Ok(self.client_names.as_deref().unwrap_or_default())
    }

    fn count_term(&mut self) -> Step<()> {
        self.terms += 1;
        if self.terms > TERMS_MAX { Err(SpfResult::PermError) } else { Ok(()) }
    }

    fn counted<T>(&mut self, answer: Result<Vec<T>, NoAnswer>) -> Step<Vec<T>> {
        let found = match answer {
            Err(NoAnswer::Temporary) => return Err(SpfResult::TempError),
            Err(NoAnswer::NoSuchName) => Vec::new(),
            Ok(found) => found,
        };
        if found.is_empty() {
            self.voids += 1;
        }
        if self.voids > VOIDS_MAX { Err(SpfResult::PermError) } else { Ok(found) }
    }

    async fn target(&mut self, domain: &str, spec: &Option<DomainSpec<'_>>) -> Step<String> {
        match spec {
            None => Ok(domain.to_owned()),
            Some(spec) => self.expand(domain, spec).await,
        }
    }

    async fn expand(&mut self, domain: &str, spec: &DomainSpec<'_>) -> Step<String> {
        let mut client_name = String::from("unknown");
        if spec.has_client_name() {
            if self.client_names.is_none() {
                self.count_term()?;
            }
            let names = self.client_names().await?;
            let best = names.iter().find(|name| *name == domain);
            let best = best.or_else(|| names.iter().find(|name| is_at_or_below(name, domain))).or(names.first());
            client_name = best.cloned().unwrap_or(client_name);
        }
        let Self { local, ip, helo, sender_domain, .. } = self;
        Ok(spec.expand(&Values { local, sender_domain, domain, helo, ip: *ip, client_name: &client_name }))
    }
}
