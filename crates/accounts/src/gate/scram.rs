//! Logins by SCRAM-SHA-256: checks are cheap, and wrong proofs count like wrong passwords.

use posthaste_directory::Directory;
use posthaste_scram::{ScramKeys, ScramProof};

use super::{LoggedIn, LoginFailure, LoginGate, LoginOrigin};
use crate::logins::Logins;

impl LoginGate {
    /// Keys for the exchange with `user`; invented ones for a name without keys. Unknown networks wait here if the
    /// account is slow.
    ///
    /// # Errors
    /// See [`LoginFailure`].
    pub async fn scram_keys(
        &self,
        logins: &Logins,
        directory: &Directory,
        origin: LoginOrigin,
        user: &str,
    ) -> Result<Option<ScramKeys>, LoginFailure> {
        let entered = self.enter(origin)?;
        let name = directory.login_name(user);
        self.wait_if_slow(&entered, name.as_deref()).await;
        Ok(logins.scram_keys(name.as_deref().unwrap_or(user)))
    }

    /// Checks a client's proof for keys of [`scram_keys`](Self::scram_keys). A refusal takes as long as for a password.
    ///
    /// # Errors
    /// See [`LoginFailure`].
    pub async fn check_scram(
        &self,
        logins: &Logins,
        directory: &Directory,
        origin: LoginOrigin,
        proof: &ScramProof,
    ) -> Result<LoggedIn, LoginFailure> {
        let entered = self.enter(origin)?;
        let name = directory.login_name(proof.user());
        let login = name.as_deref().and_then(|name| logins.get(name));
        let why = match (&name, login) {
            // A reload may have changed the keys since the client was given them.
            (Some(name), Some(login))
                if proof.check().is_ok() && login.secrets.scram.as_ref() == Some(proof.keys()) =>
            {
                return Ok(self.let_in(&entered, logins, origin, name, login));
            }
            (_, Some(login)) if login.secrets.scram.is_none() => "no SCRAM keys for this login",
            (_, Some(_)) => "wrong password",
            (_, None) => "no such login",
        };
        // A proof does not tell whether it is of the password that was wrong before, so each counts.
        let guess = self.guesses.digest((&name, proof.exchange()));
        Err(self.refuse(entered, name.as_deref(), guess, why).await)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use posthaste_directory::Domain;
    use posthaste_scram::{ScramClient, ScramFirst, ScramServer};
    use tokio::time::Instant;

    use super::*;
    use crate::account_guesses::{ACCOUNT_FAILURES_MAX, ACCOUNT_WAIT};
    use crate::gate::LoginUse;
    use crate::guesses::FAILURES_MAX;

    struct Rig {
        gate: LoginGate,
        logins: Logins,
        directory: Directory,
    }

    /// `ann` has keys for `password`, `bob` has none.
    fn rig() -> Rig {
        let directory = Directory::new(&[Domain::open_to_any("example.org")], "Maildir").unwrap();
        let logins = logins(&directory, "password");
        Rig { gate: LoginGate::default(), logins, directory }
    }

    fn logins(directory: &Directory, password: &str) -> Logins {
        let hash = "$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        let keys = ScramKeys::new(password, 0).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("ann:{hash}:scram={keys}\nbob:{hash}\n")).unwrap();
        Logins::load(file.path(), directory).unwrap()
    }

    fn origin(ip: &str) -> LoginOrigin {
        LoginOrigin { purpose: LoginUse::Sending, network: Some(ip.parse::<IpAddr>().unwrap()) }
    }

    impl Rig {
        /// The client's proof, after the first two messages.
        async fn proof(&self, ip: &str, user: &str, password: &str) -> Result<ScramProof, LoginFailure> {
            let mut client = ScramClient::new(user, password, None, posthaste_scram::nonce().unwrap());
            let first = ScramFirst::parse(&client.first(), false).unwrap();
            let keys = self.gate.scram_keys(&self.logins, &self.directory, origin(ip), first.user()).await?;
            let server = ScramServer::new(first, keys.expect("a login has keys"), "abc");
            let last = client.last(server.message()).unwrap();
            Ok(server.prove(&last).unwrap())
        }

        async fn check(&self, ip: &str, user: &str, password: &str) -> Result<String, LoginFailure> {
            let proof = self.proof(ip, user, password).await?;
            let checked = self.gate.check_scram(&self.logins, &self.directory, origin(ip), &proof).await;
            checked.map(|login| login.name)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_right_password_is_shown_by_scram() {
        let rig = rig();
        let ann = Ok("ann@example.org".to_owned());
        assert_eq!(rig.check("192.0.2.1", "ANN", "password").await, ann);
        let begun = Instant::now();
        assert_eq!(rig.check("192.0.2.1", "ann", "x").await, Err(LoginFailure::Wrong("wrong password")));
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
        let no_keys = Err(LoginFailure::Wrong("no SCRAM keys for this login"));
        assert_eq!(rig.check("192.0.2.1", "bob", "password").await, no_keys);
        let nobody = Err(LoginFailure::Wrong("no such login"));
        assert_eq!(rig.check("192.0.2.1", "carol", "password").await, nobody);
        assert_eq!(rig.check("192.0.2.1", "not a name", "password").await, nobody);
        assert_eq!(rig.gate.checks_made(), 0, "none is expensive");
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_a_reload_has_changed_let_nobody_in() {
        let mut rig = rig();
        let proof = rig.proof("192.0.2.1", "ann", "password").await.unwrap();
        rig.logins = logins(&rig.directory, "next year's");
        let checked = rig.gate.check_scram(&rig.logins, &rig.directory, origin("192.0.2.1"), &proof).await;
        assert_eq!(checked, Err(LoginFailure::Wrong("wrong password")));
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_proofs_count_as_wrong_passwords() {
        let rig = rig();
        for _ in 0..FAILURES_MAX {
            let wrong = rig.check("192.0.2.1", "ann", "of last year").await;
            assert_eq!(wrong, Err(LoginFailure::Wrong("wrong password")), "nothing tells that it is the same again");
        }
        assert_eq!(rig.check("192.0.2.1", "ann", "password").await, Err(LoginFailure::Blocked));
        // Those who began before they were turned away have no more guesses either.
        let proof = rig.proof("192.0.2.2", "ann", "password").await.unwrap();
        for guess in 0..FAILURES_MAX {
            rig.check("192.0.2.2", "ann", &guess.to_string()).await.unwrap_err();
        }
        let checked = rig.gate.check_scram(&rig.logins, &rig.directory, origin("192.0.2.2"), &proof).await;
        assert_eq!(checked, Err(LoginFailure::Blocked));
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_wait_for_the_keys_of_a_slow_account() {
        let rig = rig();
        rig.check("192.0.2.1", "ann", "password").await.unwrap();
        for guess in 0..ACCOUNT_FAILURES_MAX {
            rig.check(&format!("198.51.100.{guess}"), "ann", &guess.to_string()).await.unwrap_err();
        }
        let begun = Instant::now();
        rig.check("192.0.2.1", "ann", "password").await.unwrap();
        assert!(begun.elapsed() < ACCOUNT_WAIT, "somebody has logged in from there");
        rig.proof("203.0.113.1", "ann", "password").await.unwrap();
        assert!(begun.elapsed() >= ACCOUNT_WAIT, "before the proof is known");
    }
}
