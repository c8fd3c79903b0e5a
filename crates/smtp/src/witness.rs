//! Observers of running sessions.

use std::fmt::Debug;

/// Receives the dialogue of one session as it happens: command lines and replies, but no messages and no AUTH secrets.
pub trait Witness: Debug + Send + Sync {
    /// A line without its line end. Must not block.
    fn line(&self, said_by: Side, line: &str);
}

/// A side of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// Reports a command; for AUTH only up to the mechanism.
pub(crate) fn command(witness: &dyn Witness, line: &[u8]) {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end_matches(['\r', '\n']);
    match text.get(..4) {
        Some(verb) if verb.eq_ignore_ascii_case("AUTH") => {
            let words: Vec<&str> = text.split_ascii_whitespace().take(2).collect();
            let rest = if text.split_ascii_whitespace().nth(2).is_some() { " …" } else { "" };
            witness.line(Side::Client, &format!("{}{rest}", words.join(" ")));
        }
        _ => witness.line(Side::Client, text),
    }
}

/// Reports an answer to an AUTH challenge, without its text.
pub(crate) fn secret(witness: &dyn Witness) {
    witness.line(Side::Client, "…");
}

/// Reports replies as they are written, without AUTH challenges.
pub(crate) fn replies(witness: &dyn Witness, text: &[u8]) {
    for line in String::from_utf8_lossy(text).lines() {
        witness.line(Side::Server, if line.starts_with("334") { "334 …" } else { line });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use bytes::BytesMut;

    use super::*;
    use crate::client::{Config, Machine};
    use crate::sasl::Credentials;
    use crate::server;

    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<String>>);

    impl Witness for Heard {
        fn line(&self, said_by: Side, line: &str) {
            let side = if said_by == Side::Client { "C" } else { "S" };
            self.0.lock().unwrap().push(format!("{side}: {line}"));
        }
    }

    #[test]
    fn a_client_says_no_secret_of_auth() {
        for (offered, expected) in [
            ("PLAIN", vec!["C: AUTH PLAIN …", "S: 235 2.7.0 ok"]),
            ("LOGIN", vec!["C: AUTH LOGIN", "S: 334 …", "C: …", "S: 334 …", "C: …", "S: 235 2.7.0 ok"]),
        ] {
            let heard = Arc::new(Heard::default());
            let mut machine = Machine::new(Config::new("c.example")).unwrap();
            machine.set_witness(heard.clone());
            let mut input = BytesMut::from(&b"220 s.example\r\n"[..]);
            machine.step(&mut input).unwrap();
            input.extend_from_slice(format!("250-s.example\r\n250 AUTH {offered}\r\n").as_bytes());
            machine.step(&mut input).unwrap();
            assert!(machine.authenticate(&Credentials::new("ann", "secret")));
            let challenges = expected.iter().filter(|line| line.starts_with("S: 334")).count();
            input.extend_from_slice("334 UGFzc3dvcmQ6\r\n".repeat(challenges).as_bytes());
            input.extend_from_slice(b"235 2.7.0 ok\r\n");
            machine.step(&mut input).unwrap();
            let heard = heard.0.lock().unwrap();
            let hello = ["S: 220 s.example", "C: EHLO c.example", "S: 250-s.example"];
            assert_eq!(heard[..3], hello);
            assert_eq!(heard[4..], expected);
        }
    }

    #[test]
    fn a_server_shows_no_secret_of_auth() {
        let heard = Arc::new(Heard::default());
        let mut config = server::Config::new("s.example");
        (config.auth_mechanisms, config.auth_needs_tls) = (vec!["LOGIN".into()], false);
        let mut machine = server::Machine::new(Arc::new(config));
        machine.set_witness(heard.clone());
        machine.greet(Ok(()));
        let mut input = BytesMut::from(&b"EHLO c.example\r\nauth login c2VjcmV0\r\nc2VjcmV0\r\n"[..]);
        while let event = machine.step(&mut input)
            && !matches!(event, server::Event::NeedInput)
        {
            match event {
                server::Event::Hello => machine.answer(Ok(())),
                server::Event::Auth(server::AuthStep::Begin { .. }) => machine.auth_challenge("UGFzc3dvcmQ6"),
                server::Event::Auth(_) => machine.auth_done(Ok(())),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(*heard.0.lock().unwrap(), ["C: EHLO c.example", "C: auth login …", "C: …"]);
    }
}
