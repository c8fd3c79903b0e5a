//! SMTP on standard input and output (`sendmail -bs`), each message into the directory.

use std::io::{self, Read, Write};
use std::sync::Arc;

use bytes::BytesMut;
use posthaste_smtp::server::{Config, Event, Machine};
use posthaste_smtp::{BodyError, ForwardPath, MessageOutcome, Reply};

use crate::directory::PickupDirectory;
use crate::entry::{EntryError, PickupEntry};
use crate::head::PickupHead;

/// Speaks SMTP until QUIT or the end of input. `check` is called for each recipient. A message gets 250 once it is
/// durable in the directory.
///
/// # Errors
/// Input or output failed. Unanswered messages were not stored.
pub fn serve(
    mut input: impl Read,
    mut output: impl Write,
    config: Config,
    directory: &PickupDirectory,
    mut check: impl FnMut(&ForwardPath) -> Result<(), Reply>,
) -> io::Result<()> {
    let config = Config { asks_hello: false, asks_data: false, starttls: false, auth_mechanisms: Vec::new(), ..config };
    let message_bytes_max = Some(config.limits.message_bytes).filter(|&max| max > 0);
    let mut machine = Machine::new(Arc::new(config));
    machine.greet(Ok(()));
    let mut buffer = BytesMut::new();
    let mut entry = None;
    loop {
        match machine.step(&mut buffer) {
            Event::NeedInput => {
                flush(&mut machine, &mut output)?;
                let mut piece = [0; 16 << 10];
                match input.read(&mut piece) {
                    Ok(0) => return Ok(()),
                    Ok(len) => buffer.extend_from_slice(&piece[..len]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Event::Flush => flush(&mut machine, &mut output)?,
            Event::Hello | Event::Mail | Event::Data => machine.answer(Ok(())),
            Event::Rcpt => {
                let verdict = machine.recipient().map_or(Ok(()), |rcpt| check(&rcpt.forward_path));
                machine.answer(verdict);
            }
            Event::BodyBegin(envelope) => {
                let head = PickupHead::new(envelope.mail, envelope.recipients);
                entry = Some(PickupEntry::begin(directory, head, message_bytes_max));
            }
            Event::Body(piece) => {
                if let Some(Ok(open)) = &mut entry
                    && let Err(error) = open.write(&piece)
                {
                    entry = Some(Err(error));
                }
            }
            Event::BodyEnd => {
                let kept = entry.take().unwrap_or_else(|| Err(io::Error::other("no message").into()));
                machine.finish(&outcome(kept.and_then(PickupEntry::finish)));
            }
            Event::BodyAborted(_) | Event::TransactionAborted(_) => entry = None,
            Event::StartTls => machine.close(&BodyError::ShuttingDown.reply()),
            Event::Auth(_) => machine.auth_done(Err(Reply::new(502, "5.5.1", "AUTH is not offered"))),
            Event::Close => return flush(&mut machine, &mut output),
        }
    }
}

fn flush(machine: &mut Machine, output: &mut impl Write) -> io::Result<()> {
    output.write_all(machine.output())?;
    machine.output_mut().clear();
    output.flush()
}

fn outcome(kept: Result<String, EntryError>) -> MessageOutcome {
    match kept {
        Ok(name) => MessageOutcome::accepted(format!("Kept as {name}")),
        Err(EntryError::TooLarge { .. }) => Reply::new(552, "5.3.4", "The message is too large").into(),
        Err(EntryError::TooManyRecipients) => Reply::new(552, "5.5.3", "Too many recipients").into(),
        Err(EntryError::Io(_)) => Reply::new(451, "4.3.0", "The message could not be kept, try again later").into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::PickupMessage;

    fn speak(directory: &PickupDirectory, text: &str) -> String {
        let mut said = Vec::new();
        let check = |path: &ForwardPath| match path.local_part() {
            "nobody" => Err(Reply::new(550, "5.1.1", "No such user here")),
            _ => Ok(()),
        };
        serve(text.as_bytes(), &mut said, Config::new("x.example"), directory, check).unwrap();
        String::from_utf8(said).unwrap()
    }

    #[test]
    fn a_message_that_was_answered_lies_in_the_directory() {
        let place = tempfile::tempdir().unwrap();
        let directory = PickupDirectory::open(place.path()).unwrap();
        let said = speak(
            &directory,
            "EHLO x\r\nMAIL FROM:<a@b.example> BODY=8BITMIME\r\nRCPT TO:<nobody@x.example>\r\nRCPT TO:<c@x.example>\r\n\
             DATA\r\nSubject: x\r\n\r\n..\r\n.\r\nQUIT\r\n",
        );
        let name = said.split("Kept as ").nth(1).unwrap().lines().next().unwrap();
        assert!(said.contains("\r\n550 5.1.1 No such user here\r\n") && said.contains("\r\n221 "), "{said}");
        let mut message = PickupMessage::open(&directory, name.as_ref()).unwrap();
        assert_eq!(message.head().mail.to_string(), "MAIL FROM:<a@b.example> BODY=8BITMIME");
        assert_eq!(message.head().recipients.len(), 1);
        assert_eq!(message.read().unwrap().unwrap(), b"Subject: x\r\n\r\n.\r\n".as_slice());
        assert_eq!(message.read().unwrap(), None);
    }

    proptest! {
        #[test]
        fn whatever_is_said_each_message_that_was_answered_lies_there(
            lines in proptest::collection::vec(
                prop_oneof![
                    Just("EHLO x\r\n"), Just("MAIL FROM:<a@b.example>\r\n"), Just("RCPT TO:<c@x.example>\r\n"),
                    Just("RCPT TO:<nobody@x.example>\r\n"), Just("DATA\r\n"), Just("S: x\r\n\r\ntext\r\n.\r\n"),
                    Just("BDAT 4 LAST\r\nS:\r\n"), Just("RSET\r\n"), Just("STARTTLS\r\n"), Just("AUTH PLAIN\r\n"),
                    Just("bare\n.\n"), Just("\0\r\n"), Just("NOOP\r\n"),
                ],
                0..30,
            ),
        ) {
            let place = tempfile::tempdir().unwrap();
            let directory = PickupDirectory::open(place.path()).unwrap();
            let said = speak(&directory, &lines.concat());
            let names = directory.names().unwrap();
            prop_assert_eq!(said.matches("Kept as ").count(), names.len(), "{}", said);
            for name in names {
                let mut message = PickupMessage::open(&directory, &name).unwrap();
                while message.read().unwrap().is_some() {}
            }
            prop_assert_eq!(directory.remove_unfinished(std::time::SystemTime::now() + 2 * crate::UNFINISHED_AGE_MAX).unwrap(), 0);
        }
    }

    #[test]
    fn what_was_cut_off_is_not_there() {
        let place = tempfile::tempdir().unwrap();
        let directory = PickupDirectory::open(place.path()).unwrap();
        let begin = "EHLO x\r\nMAIL FROM:<a@b.example>\r\nRCPT TO:<c@x.example>\r\nDATA\r\nSubject: x\r\n\r\nlong";
        speak(&directory, begin);
        let said = speak(&directory, &format!("{begin}\nbare\r\n.\r\nSTARTTLS\r\nAUTH PLAIN\r\nGET / HTTP/1.0\r\n"));
        assert!(said.contains("\r\n550 5.6.11 "), "{said}");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }
}
