//! Logins of clients that read mail: with the passwords of `[auth]`, or with the first password.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use posthaste_accounts::{LoggedIn, LoginFailure, PasswordClaim};
use posthaste_directory::Directory;
use posthaste_net::{Grant, Revocation};
use posthaste_smtp::driver::Peer;
use posthaste_smtp::sasl::scram::{ScramKeys, ScramProof};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use super::login_checks::{logged, reading};
use super::receiver::Receiver;
use crate::config::first_password::FirstPassword;
use crate::receive::settings::Settings;

impl Receiver {
    /// Takes this password of readers of mail while the configuration allows it.
    ///
    /// # Panics
    /// When it was cloned already.
    pub fn with_first_password(mut self, password: Option<FirstPassword>) -> Self {
        Arc::get_mut(&mut self.0).expect("nobody else has it yet").first_password = password;
        self
    }

    /// The first password, if it is valid.
    pub fn first_password(&self) -> Option<&FirstPassword> {
        self.0.first_password.as_ref().filter(|_| self.settings().first_password_mail.is_some())
    }

    /// Checks the password of a client that reads mail by `protocol`, and records the outcome. Wrong guesses count
    /// together with those of SMTP.
    pub async fn check_reader(&self, peer: &Peer, protocol: &str, claim: PasswordClaim) -> Result<Grant, LoginFailure> {
        let settings = self.settings();
        match &settings.first_password_mail {
            Some(mail) if self.0.first_password.is_some() => {
                let user = logged(&claim.user).to_owned();
                let checked = self.check_first_password(peer, &settings.directory, mail, claim).await;
                let name = checked.as_ref().unwrap_or(&user);
                self.record_login(peer, None, protocol, name, checked.as_ref().err().copied());
                checked.map(|login| Grant { login, until: self.end_of_first_password() })
            }
            _ => self.check_login(peer, None, protocol, claim).await.map(|login| self.grant(login)),
        }
    }

    /// True if a login has SCRAM-SHA-256 keys. The first password has none.
    pub fn offers_readers_scram(&self) -> bool {
        self.first_password().is_none() && self.settings().logins.has_scram()
    }

    /// The SCRAM-SHA-256 keys of `user`, for a client that reads mail by `protocol`.
    pub async fn reader_scram_keys(
        &self,
        peer: &Peer,
        protocol: &str,
        user: &str,
    ) -> Result<Option<ScramKeys>, LoginFailure> {
        let settings = self.settings();
        let keys = self.0.gate.scram_keys(&settings.logins, &settings.directory, reading(peer), user).await;
        keys.inspect_err(|failure| self.record_login(peer, None, protocol, logged(user), Some(*failure)))
    }

    /// Like [`check_reader`](Self::check_reader), for a proof with such keys.
    pub async fn check_reader_scram(
        &self,
        peer: &Peer,
        protocol: &str,
        proof: &ScramProof,
    ) -> Result<Grant, LoginFailure> {
        let settings = self.settings();
        let checked = self.0.gate.check_scram(&settings.logins, &settings.directory, reading(peer), proof).await;
        let name = checked.as_ref().map_or_else(|_| logged(proof.user()), |login| &login.name);
        self.record_login(peer, None, protocol, name, checked.as_ref().err().copied());
        checked.map(|login| self.grant(login))
    }

    /// A login until it is removed or has other secrets.
    fn grant(&self, login: LoggedIn) -> Grant {
        let LoggedIn { name, secrets } = login;
        let of = name.clone();
        let is_valid =
            move |settings: &Settings| settings.logins.get(&of).is_some_and(|login| login.secrets == secrets);
        Grant { login: name, until: self.while_it_is(is_valid) }
    }

    fn end_of_first_password(&self) -> Revocation {
        self.while_it_is(|settings| settings.first_password_mail.is_some())
    }

    /// Comes with settings that are not `valid`.
    fn while_it_is(&self, valid: impl Fn(&Settings) -> bool + Send + Sync + 'static) -> Revocation {
        let receiver = self.clone();
        let mut replaced = self.0.replaced.subscribe();
        Revocation::new(async move {
            while valid(&receiver.settings()) {
                // The sender lives as long as the receiver of mail.
                let _ = replaced.changed().await;
            }
        })
    }

    /// Checks the first password: for accounts with mail, and only from this machine. A refusal is delayed by a second.
    async fn check_first_password(
        &self,
        peer: &Peer,
        directory: &Directory,
        mail: &Path,
        claim: PasswordClaim,
    ) -> Result<String, LoginFailure> {
        let begun = Instant::now();
        let name = directory.login_name(&claim.user);
        // A client may name itself twice (RFC 4616 section 2).
        let is_for_other = claim.acts_for.as_ref().is_some_and(|other| directory.login_name(other) != name);
        let maildir = name.as_deref().and_then(|name| directory.maildir_of(name)).map(|maildir| mail.join(&*maildir));
        let receiver = self.clone();
        let is_near = is_near(peer);
        let checked = spawn_blocking(move || {
            let is_right = || receiver.0.first_password.as_ref().is_some_and(|first| first.is_right(&claim.password));
            match maildir {
                // Before the password: guesses from elsewhere do not count.
                _ if !is_near => Err("not from this machine"),
                _ if !is_right() => Err("wrong password"),
                _ if is_for_other => Err("this login may act only for itself"),
                Some(maildir) if maildir.is_dir() => Ok(()),
                _ => Err("no mail of that name"),
            }
        });
        let checked = checked.await.map_err(|_| LoginFailure::Busy)?;
        match (checked, name) {
            (Ok(()), Some(name)) => Ok(name),
            (checked, _) => {
                sleep_until(begun + FIRST_PASSWORD_DELAY).await;
                Err(LoginFailure::Wrong(checked.err().unwrap_or("no such login")))
            }
        }
    }
}

/// Delay of a refusal of the first password.
const FIRST_PASSWORD_DELAY: Duration = Duration::from_secs(1);

/// True if both ends of the connection are on this machine.
fn is_near(peer: &Peer) -> bool {
    match peer {
        Peer::Tcp { remote, local } => [remote, local].iter().all(|end| end.ip().to_canonical().is_loopback()),
        Peer::Unix | Peer::Local { .. } => true,
        Peer::Token { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use posthaste_delivery::local::{LocalConfig, LocalDelivery};

    use super::*;
    use crate::receive::destinations::Destinations;
    use crate::receive::settings::Settings;
    use posthaste_config::Config;

    const NEAR: &str = "127.0.0.1:40000";

    fn tcp(remote: &str, local: &str) -> Peer {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        Peer::Tcp { remote: address(remote), local: address(local) }
    }

    fn claim(user: &str, password: &str) -> PasswordClaim {
        PasswordClaim { user: user.into(), password: password.into(), acts_for: None }
    }

    #[tokio::test]
    async fn the_first_password_opens_accounts_with_mail_from_near_only() {
        let dir = tempfile::tempdir().unwrap();
        let mail = dir.path().join("mail");
        let (store, _) = LocalDelivery::open(LocalConfig::new(dir.path().join("spool"), mail.clone())).unwrap();
        std::fs::create_dir_all(mail.join("localhost/me/Maildir/new")).unwrap();
        let mut config = Config::default();
        config.storage.mail = mail;
        let settings = |config: &Config| Settings::new(config, config.directory().into(), Default::default());
        let first = FirstPassword::open(dir.path()).unwrap();
        let password = first.reveal();
        let receiver = Receiver::with_patience(
            settings(&config),
            Destinations::new(store.clone(), None, None),
            std::time::Duration::MAX,
        )
        .with_first_password(Some(first));
        let near = tcp(NEAR, "127.0.0.1:1143");
        let login =
            async |peer: &Peer, claim| receiver.check_reader(peer, "IMAP", claim).await.map(|grant| grant.login);
        for user in ["me@localhost", "me", "Me@LOCALHOST"] {
            assert_eq!(login(&near, claim(user, &password)).await.as_deref(), Ok("me@localhost"), "{user}");
        }
        for (peer, user, given, why) in [
            (&near, "me@localhost", "wrong", "wrong password"),
            (&near, "you@localhost", &*password, "no mail of that name"),
            (&near, "me@elsewhere.example", &*password, "no mail of that name"),
            (&tcp("192.0.2.1:4", "127.0.0.1:1143"), "me@localhost", &*password, "not from this machine"),
            (&tcp(NEAR, "192.0.2.1:1143"), "me@localhost", &*password, "not from this machine"),
        ] {
            assert_eq!(login(peer, claim(user, given)).await, Err(LoginFailure::Wrong(why)), "{user} from {peer}");
        }
        let acting = |who: &str| PasswordClaim { acts_for: Some(who.into()), ..claim("me@localhost", &password) };
        assert_eq!(login(&near, acting("ME@localhost")).await.as_deref(), Ok("me@localhost"), "for itself");
        assert!(login(&near, acting("you@localhost")).await.is_err());
        // A listener of one's own ends it.
        config.listeners.pop();
        receiver.replace(settings(&config));
        assert!(receiver.first_password().is_none());
        assert!(login(&near, claim("me@localhost", &password)).await.is_err());
        store.shutdown().await;
    }
}
