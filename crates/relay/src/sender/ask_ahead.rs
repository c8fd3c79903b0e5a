//! Call-ahead: at RCPT the next hop is asked if it accepts an address, for domains whose recipients only it knows.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use posthaste_message::address::Address;
use posthaste_random::{Random, mix};
use posthaste_smtp::client::Step;
use posthaste_smtp::{RcptTo, Reply, ShortReply};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::ahead::{Ahead, Hop, IdleSession};
use super::ended::ended_without_mail;
use super::route_table::Plan;
use super::router::site_of;
use super::session_settings::{demand_of, settings_for, tls_failed};
use super::shared::Shared;
use super::source::Egress;
use crate::session::{Endpoint, Loss, OutgoingSession, RecipientVerdict, SessionOpenError, SessionSettings};
use posthaste_dns::Attempt;
use posthaste_queue::QueueName;

/// Host and source of a session.
struct Asked<'a> {
    plan: &'a Plan,
    source: &'a Arc<Egress>,
    host: &'a Arc<str>,
}

/// Asks the next hop about an address. Dropping the future cancels the question.
pub(super) async fn ask(shared: &Arc<Shared>, address: &Address) -> Ahead {
    /// Aborts the question's task when the asker is dropped, so that questions never exceed sessions.
    struct Asking(JoinHandle<Ahead>);
    impl Drop for Asking {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    let mut asking = Asking(shared.runtime.spawn(answer(shared.clone(), address.clone())));
    (&mut asking.0).await.unwrap_or_else(|_| Ahead::NotKnown("the server ends".into()))
}

/// The cached answer, or the next hop's.
async fn answer(shared: Arc<Shared>, address: Address) -> Ahead {
    let domain = address.domain().to_string().to_lowercase();
    let name = format!("{}@{domain}", address.local_part());
    let look_up = async {
        let answer = ask_hop(&shared, &domain, &address).await;
        let until = Instant::now() + answer.lifetime();
        (answer, until)
    };
    shared.ahead.answers().get(&name, Instant::now(), look_up).await
}

async fn ask_hop(shared: &Arc<Shared>, domain: &str, address: &Address) -> Ahead {
    let name = QueueName { tenant: "".into(), campaign: "".into(), domain: domain.into(), pool: "".into() };
    let plan = match Plan::usual(&shared.routes, &name).await {
        Ok(plan) => plan,
        Err(error) => return Ahead::NotKnown(error.to_string().into()),
    };
    let hop = shared.ahead.hop(&plan.name);
    if let Some(trouble) = hop.trouble() {
        return trouble;
    }
    let Some(_counted) = hop.count() else { return Ahead::NotKnown("too many ask it at once".into()) };
    let Ok(Ok(_turn)) = timeout(TURN_PATIENCE, hop.turns.acquire()).await else {
        return Ahead::NotKnown("too many ask it at once".into());
    };
    // Another asker may have found a failure meanwhile.
    if let Some(trouble) = hop.trouble() {
        return trouble;
    }
    let address = shared.generic().and_then(|generic| generic.address(address)).unwrap_or_else(|| address.clone());
    let recipient = RcptTo::new(address);
    match timeout(ANSWER_PATIENCE, ask_hosts(shared, &plan, &hop, &recipient)).await {
        Ok(Ok(RecipientVerdict::Taken)) => Ahead::Taken,
        Ok(Ok(RecipientVerdict::Refused(reply))) => Ahead::Refused(refusal(&reply)),
        Ok(Ok(RecipientVerdict::NotKnown(reply))) => Ahead::NotKnown(cleaned(&reply.to_string()).into()),
        Ok(Err(why)) => hop.failed(&why),
        Err(_) => hop.failed(&format!("no answer within {} s", ANSWER_PATIENCE.as_secs())),
    }
}

/// # Errors
/// No host could be asked: the error of the last one.
async fn ask_hosts(
    shared: &Arc<Shared>,
    plan: &Plan,
    hop: &Arc<Hop>,
    recipient: &RcptTo,
) -> Result<RecipientVerdict, String> {
    // A session that was closed meanwhile says nothing about its host.
    while let Some(IdleSession { mut session, host, source, .. }) = hop.take() {
        let asked = Asked { plan, source: &source, host: &host };
        if let Ok(verdict) = verify(shared, &mut session, &asked, recipient).await {
            hop.put(session, &host, &source, &shared.runtime);
            return Ok(verdict);
        }
    }
    let source = plan.members.iter().map(|(egress, _)| egress).find(|egress| egress.is_usable());
    let source = source.ok_or("no source can be used")?;
    let mut random = Random::new(mix(shared.seed ^ mix(shared.ahead.serial.fetch_add(1, Ordering::Relaxed))));
    let resolver = shared.routes.resolver();
    let mut attempt = Attempt::new(plan.destination.clone(), plan.manner.port, &mut random);
    let mut error = String::from("it has no host");
    while let Some((host, addresses)) = attempt.next(&resolver).await.map_err(|error| error.to_string())? {
        let asked = Asked { plan, source, host: &host.name };
        let demanding = match demand_of(shared, &plan.manner, &host, &addresses).await {
            Ok(demanding) => demanding,
            Err(failed) => {
                error = format!("{}: {failed}", host.name);
                continue;
            }
        };
        for address in addresses.order(&mut random) {
            let said = |what: &dyn std::fmt::Display| format!("{} ({address}): {what}", host.name);
            let Some(local) = source.local(address) else {
                error = said(&"the source has no address of this family");
                continue;
            };
            let endpoint = Endpoint::Tcp((address, plan.manner.port).into());
            let settings = settings_for(shared, source, &plan.manner, &demanding, &endpoint, local);
            match ask_host(shared, &asked, hop, &endpoint, settings, recipient).await {
                Ok(verdict) => return Ok(verdict),
                Err(failed) => error = said(&failed),
            }
        }
    }
    Err(error)
}

/// # Errors
/// The host gave no answer.
async fn ask_host(
    shared: &Arc<Shared>,
    asked: &Asked<'_>,
    hop: &Arc<Hop>,
    endpoint: &Endpoint,
    settings: Result<SessionSettings, SessionOpenError>,
    recipient: &RcptTo,
) -> Result<RecipientVerdict, SessionOpenError> {
    let mut settings = settings?;
    // Leaves time to ask another host.
    settings.timeouts.connect = settings.timeouts.connect.min(CONNECT_PATIENCE);
    let may_retry_in_clear = settings.is_opportunistic();
    loop {
        let mut session = match open_to_ask(shared, asked, endpoint, &settings).await {
            Err(error) if error.may_retry_in_clear() => {
                tls_failed(shared, asked.host, &error.to_string());
                settings.tls = None;
                open_to_ask(shared, asked, endpoint, &settings).await?
            }
            opened => opened?,
        };
        match verify(shared, &mut session, asked, recipient).await {
            Ok(verdict) => {
                hop.put(session, asked.host, asked.source, &shared.runtime);
                return Ok(verdict);
            }
            Err(loss) if session.is_useless_tls(&loss) && may_retry_in_clear => {
                tls_failed(shared, asked.host, &loss.to_string());
                settings.tls = None;
            }
            Err(loss) => return Err(loss.into()),
        }
    }
}

/// Opens a session for a question. A reply that ends the session is reported, here and in [`verify`].
async fn open_to_ask(
    shared: &Arc<Shared>,
    asked: &Asked<'_>,
    endpoint: &Endpoint,
    settings: &SessionSettings,
) -> Result<OutgoingSession, SessionOpenError> {
    let opened = OutgoingSession::open(endpoint, settings).await;
    hear(shared, asked, opened.as_ref().err().and_then(SessionOpenError::last_words));
    opened
}

async fn verify(
    shared: &Arc<Shared>,
    session: &mut OutgoingSession,
    asked: &Asked<'_>,
    recipient: &RcptTo,
) -> Result<RecipientVerdict, Loss> {
    let verdict = session.verify(recipient.clone()).await;
    hear(shared, asked, verdict.as_ref().err().and_then(Loss::last_words));
    verdict
}

fn hear(shared: &Arc<Shared>, asked: &Asked<'_>, last_words: Option<(Step, &ShortReply)>) {
    let Some((step, reply)) = last_words else { return };
    ended_without_mail(shared, &site_of(shared, asked.plan, asked.source), asked.host, step, reply);
}

/// The reply for a refused address: with the next hop's code if it has one.
fn refusal(reply: &Reply) -> Reply {
    let status = reply.enhanced().filter(|code| code.class == 5).map_or("5.1.1".to_owned(), |code| code.to_string());
    let said = cleaned(reply.text());
    let separator = if said.is_empty() { "" } else { ": " };
    Reply::new(550, &status, format!("The next host refuses this address{separator}{said}"))
}

/// One bounded line of visible ASCII.
fn cleaned(text: &str) -> String {
    let visible = text.chars().map(|letter| if letter.is_ascii_graphic() { letter } else { ' ' });
    let visible: String = visible.take(10 * SAID_BYTES_MAX).collect();
    let mut line = visible.split_whitespace().collect::<Vec<_>>().join(" ");
    line.truncate(SAID_BYTES_MAX);
    line.trim_end().to_owned()
}

const TURN_PATIENCE: Duration = Duration::from_secs(10);
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);
const CONNECT_PATIENCE: Duration = Duration::from_secs(8);
const SAID_BYTES_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_the_next_hosts_code_and_one_clean_line() {
        let check = |enhanced: &str, text: &str, expected: &str| {
            assert_eq!(refusal(&Reply::new(553, enhanced, text.to_owned())).to_string(), expected);
        };
        check("", "no such user", "550 5.1.1 The next host refuses this address: no such user");
        check("5.7.1", "not\nyou\r\n\u{7}", "550 5.7.1 The next host refuses this address: not you");
        check("5.1.1", "", "550 5.1.1 The next host refuses this address");
        check("5.1.1", "\u{e9}t\u{e9}", "550 5.1.1 The next host refuses this address: t");
        let long = refusal(&Reply::new(550, "", "x ".repeat(5000)));
        assert!(long.text().len() < 250 && long.text().ends_with(" x"), "{}", long.text());
    }
}
