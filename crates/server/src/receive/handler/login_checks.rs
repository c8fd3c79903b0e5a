//! Logins by a password or a token: checked at the gate against guessing, then logged and recorded as events.

use std::net::IpAddr;

use posthaste_accounts::{LoggedIn, LoginFailure, LoginOrigin, LoginUse, PasswordClaim};
use posthaste_admin::is_page_link;
use posthaste_smtp::driver::Peer;

use super::log::log_bounded;
use super::receiver::Receiver;
use crate::config::certificates;
use crate::receive::events;
use crate::receive::logins::Session;
use crate::repeats::{About, Kind};

impl Receiver {
    /// Logs a login and records its event. Every accepted login is recorded, so that use of a stolen password can be
    /// found; refused ones only as often as they are logged.
    pub(super) fn record_login(
        &self,
        peer: &Peer,
        session: Option<&Session>,
        mechanism: &str,
        user: &str,
        failure: Option<LoginFailure>,
    ) {
        let why = failure.map(|failure| failure.to_string());
        let kind = if why.is_none() { Kind::Login } else { Kind::FailedLogin };
        let told = self.is_told(kind, About::Client(peer.ip()));
        if let Some(recorder) = self.events().filter(|_| told || why.is_none()) {
            events::login(recorder, peer, session, mechanism, user, failure);
        }
        let peer = events::peer_name(peer);
        let tls = session.and_then(|session| session.tls.as_deref()).map(certificates::version);
        if why.is_none() {
            log_bounded!(told, info, peer, user, mechanism, tls, "logged in");
        } else {
            log_bounded!(told, info, peer, user, mechanism, tls, why, "login failed");
        }
    }

    /// Checks a password and records the outcome. `session`: of SMTP.
    pub(super) async fn check_login(
        &self,
        peer: &Peer,
        session: Option<&Session>,
        mechanism: &str,
        claim: PasswordClaim,
    ) -> Result<LoggedIn, LoginFailure> {
        let settings = self.settings();
        let user = logged(&claim.user).to_owned();
        let origin = session.map_or_else(|| reading(peer), |_| sending(peer));
        let checked = self.0.gate.check(&settings.logins, &settings.directory, origin, claim).await;
        let name = checked.as_ref().map_or(&user, |login| &login.name);
        self.record_login(peer, session, mechanism, name, checked.as_ref().err().copied());
        checked
    }

    /// Counts a wrong token of HTTP for its client, and waits as after a wrong password.
    pub async fn wrong_token(&self, client: Option<IpAddr>, presented: &str) -> LoginFailure {
        // Without an address it has come by a UNIX socket.
        let peer = client.map_or(Peer::Unix, |ip| Peer::Tcp { remote: (ip, 0).into(), local: (ip, 0).into() });
        let failure = self.0.gate.wrong_token(peer.network(), presented).await;
        let (what, failure) = match failure {
            LoginFailure::Wrong(_) if is_page_link(presented) => ("a link to the page", LoginFailure::Wrong(USED_LINK)),
            failure => ("a token", failure),
        };
        self.record_login(&peer, None, "HTTP", what, Some(failure));
        failure
    }
}

/// Why a used link to the page is refused.
const USED_LINK: &str = "it was used, or is older than 10 minutes";

/// The logged part of a login's name; some users type their password there.
pub(super) fn logged(user: &str) -> &str {
    const BYTES_MAX: usize = 100;
    &user[..user.floor_char_boundary(BYTES_MAX)]
}

/// A client of SMTP.
pub(super) fn sending(peer: &Peer) -> LoginOrigin {
    LoginOrigin { purpose: LoginUse::Sending, network: peer.network() }
}

/// A client that reads mail.
pub(super) fn reading(peer: &Peer) -> LoginOrigin {
    LoginOrigin { purpose: LoginUse::Reading, network: peer.network() }
}
