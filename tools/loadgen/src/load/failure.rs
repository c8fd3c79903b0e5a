//! Failures of messages and connections, in classes for counting.

use std::fmt;
use std::io;

/// The step that the client was waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    Connect,
    Tls,
    Greeting,
    /// EHLO, HELO or LHLO.
    Hello,
    StartTls,
    Auth,
    Rset,
    Mail,
    Rcpt,
    /// DATA, until its 354.
    Data,
    /// The message itself, until the verdict on it.
    Body,
    /// A request of HTTP, until its answer.
    Http,
}

/// Kind of error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// A negative reply, with a code of 4yz or 5yz.
    Reply(u16),
    /// No answer in time.
    Timeout,
    /// ECONNREFUSED.
    Refused,
    /// ECONNRESET or EPIPE.
    Reset,
    /// The server closed the connection.
    Closed,
    /// The input is not a reply, or an unexpected one.
    Garbage,
    /// The server lacks what the plan asks for.
    Unsupported,
    /// The server's certificate is not trusted, or not for this name.
    Certificate,
    /// The TLS handshake or a record failed otherwise.
    Handshake,
    /// Any other error of the operating system.
    System,
}

/// One class of errors: `rcpt 550`, `connect refused`, `body timeout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class {
    pub stage: Stage,
    pub cause: Cause,
}

/// An error with its class and text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{class}: {text}")]
pub struct Failure {
    pub class: Class,
    /// The server's reply or the system's message.
    pub text: String,
}

impl Failure {
    pub fn new(stage: Stage, cause: Cause, text: impl Into<String>) -> Self {
        Self { class: Class { stage, cause }, text: text.into() }
    }

    /// A negative reply. Only the first line's text is kept.
    pub fn reply(stage: Stage, code: u16, wire: &[u8]) -> Self {
        let line = wire.split(|octet| *octet == b'\n').next().unwrap_or_default();
        Self::new(stage, Cause::Reply(code), String::from_utf8_lossy(line).trim_end())
    }

    /// An error of a socket.
    pub fn io(stage: Stage, error: &io::Error) -> Self {
        let cause = match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Cause::Refused,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
                Cause::Reset
            }
            io::ErrorKind::TimedOut => Cause::Timeout,
            io::ErrorKind::UnexpectedEof => Cause::Closed,
            _ => Cause::System,
        };
        Self::new(stage, cause, error.to_string())
    }

    /// An error of the TLS library.
    pub fn tls(error: &rustls::Error) -> Self {
        let cause = match error {
            rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => Cause::Certificate,
            _ => Cause::Handshake,
        };
        Self::new(Stage::Tls, cause, error.to_string())
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::Connect => "connect",
            Stage::Tls => "tls",
            Stage::Greeting => "greeting",
            Stage::Hello => "ehlo",
            Stage::StartTls => "starttls",
            Stage::Auth => "auth",
            Stage::Rset => "rset",
            Stage::Mail => "mail",
            Stage::Rcpt => "rcpt",
            Stage::Data => "data",
            Stage::Body => "body",
            Stage::Http => "http",
        };
        match self.cause {
            Cause::Reply(code) => write!(f, "{stage} {code}"),
            Cause::Timeout => write!(f, "{stage} timeout"),
            Cause::Refused => write!(f, "{stage} refused"),
            Cause::Reset => write!(f, "{stage} reset"),
            Cause::Closed => write!(f, "{stage} closed"),
            Cause::Garbage => write!(f, "{stage} garbage"),
            Cause::Unsupported => write!(f, "{stage} not offered"),
            Cause::Certificate => write!(f, "{stage} certificate"),
            Cause::Handshake => write!(f, "{stage} handshake"),
            Cause::System => write!(f, "{stage} system error"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_name_stage_and_cause() {
        let check = |failure: Failure, name: &str| assert_eq!(failure.class.to_string(), name);
        check(Failure::reply(Stage::Rcpt, 550, b"550-5.1.1 no\r\n550 such\r\n"), "rcpt 550");
        check(Failure::new(Stage::Body, Cause::Timeout, ""), "body timeout");
        check(Failure::io(Stage::Connect, &io::ErrorKind::ConnectionRefused.into()), "connect refused");
        check(Failure::io(Stage::Mail, &io::ErrorKind::BrokenPipe.into()), "mail reset");
        check(Failure::tls(&rustls::Error::NoCertificatesPresented), "tls certificate");
        assert_eq!(Failure::reply(Stage::Mail, 451, b"451 4.3.0 later\r\n").text, "451 4.3.0 later");
    }
}
