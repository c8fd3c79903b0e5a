//! A session on an account's mail: with a running server, or on mailboxes opened by this process.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;

use posthaste_config::Config;
use posthaste_control::{MailAnswer, MailCommand, MailDone, MailPiece, PIECE_BYTES_MAX, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::queue::{AnyError, Connection, connect_or_open};

/// An open session.
pub struct MailSession {
    read: BufReader<UnixStream>,
    write: BufWriter<UnixStream>,
    connection: Connection,
}

impl MailSession {
    /// Begins a session. `account` is a login, or the path of its Maildir.
    ///
    /// # Errors
    /// Neither server nor spool is available, or there is no such account.
    pub fn begin(config: Config, account: &str) -> Result<Self, AnyError> {
        let connection = connect_or_open(config, "spool", Request::Account { account: account.to_owned() })?;
        let read = connection.stream.try_clone()?;
        let write = connection.stream.try_clone()?;
        let mut session = Self { read: BufReader::new(read), write: BufWriter::new(write), connection };
        match session.answer()? {
            MailAnswer::Done(_) => Ok(session),
            MailAnswer::Refused(why) | MailAnswer::Error(why) => {
                session.end()?;
                Err(why.into())
            }
        }
    }

    /// Sends a command, and returns the answer.
    ///
    /// # Errors
    /// The session has ended.
    pub fn ask(&mut self, command: &MailCommand) -> Result<MailAnswer, AnyError> {
        self.say(command)?;
        self.answer()
    }

    /// Like [`ask`](Self::ask), but a refusal is an error.
    ///
    /// # Errors
    /// The session has ended, or refused the command.
    pub fn done(&mut self, command: &MailCommand) -> Result<MailDone, AnyError> {
        match self.ask(command)? {
            MailAnswer::Done(done) => Ok(done),
            MailAnswer::Refused(why) | MailAnswer::Error(why) => Err(why.into()),
        }
    }

    /// Sends a line, at the latest with the next answer.
    pub fn say(&mut self, line: &impl Serialize) -> Result<(), AnyError> {
        serde_json::to_writer(&mut self.write, line)?;
        Ok(self.write.write_all(b"\n")?)
    }

    /// Sends octets of a message.
    pub fn send(&mut self, octets: &[u8]) -> Result<(), AnyError> {
        for piece in octets.chunks(PIECE_BYTES_MAX as usize) {
            self.say(&MailPiece::Data(u32::try_from(piece.len())?))?;
            self.write.write_all(piece)?;
        }
        Ok(())
    }

    /// The next answer.
    ///
    /// # Errors
    /// The session has ended.
    pub fn answer(&mut self) -> Result<MailAnswer, AnyError> {
        let line = self.line()?;
        Ok(serde_json::from_str(&line)?)
    }

    /// The next line of an answer, or its end.
    ///
    /// # Errors
    /// The session has ended.
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Result<T, MailAnswer>, AnyError> {
        let line = self.line()?;
        // A row may have the same shape as nothing else.
        match serde_json::from_str::<MailAnswer>(&line) {
            Ok(last) => Ok(Err(last)),
            Err(_) => Ok(Ok(serde_json::from_str(&line)?)),
        }
    }

    /// The names of all mailboxes, INBOX first.
    ///
    /// # Errors
    /// The session has ended, or refused the command.
    pub fn mailboxes(&mut self) -> Result<Vec<String>, AnyError> {
        self.say(&MailCommand::Mailboxes)?;
        let mut names = Vec::new();
        loop {
            match self.next::<String>()? {
                Ok(name) => names.push(name),
                Err(MailAnswer::Done(_)) => return Ok(names),
                Err(MailAnswer::Refused(why) | MailAnswer::Error(why)) => return Err(why.into()),
            }
        }
    }

    /// Reads this many octets, which follow a line.
    ///
    /// # Errors
    /// The session has ended.
    pub fn octets(&mut self, count: u32) -> Result<Vec<u8>, AnyError> {
        let mut octets = vec![0; count.min(PIECE_BYTES_MAX) as usize];
        self.read.read_exact(&mut octets)?;
        Ok(octets)
    }

    fn line(&mut self) -> Result<String, AnyError> {
        self.write.flush()?;
        let mut line = String::new();
        match self.read.read_line(&mut line) {
            Ok(0) => Err(ENDED.into()),
            Ok(_) => Ok(line),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(ENDED.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the session, and closes mailboxes opened by this process.
    ///
    /// # Errors
    /// They could not be closed.
    pub fn end(self) -> Result<(), AnyError> {
        let Self { read, write, connection } = self;
        drop((read, write.into_parts()));
        connection.end()
    }
}

const ENDED: &str = "the server ended the session";
