//! APPEND: messages are passed on piece by piece.

use bytes::{Bytes, BytesMut};

use super::appending::{AppendStep, Appending};
use super::event::split;
use super::refuse::refusal;
use super::state::{Reply, State};
use super::{AppendedMail, ImapEvent, ImapMachine, MailRefusal, MessageOffer};
use crate::command::{ImapCommandError, MessageOptions, parse_append, parse_append_next};
use crate::frame::{Appends, Frame};

/// Maximum octets of one [`ImapEvent::Write`], before bare LFs become CRLF.
const PIECE_BYTES_MAX: usize = 64 << 10;
/// Maximum messages of one APPEND.
const MESSAGES_MAX: u32 = 10_000;

impl ImapMachine {
    /// Begins an APPEND. Every error is answered before the client sends a message for which it waits (decision 52).
    pub(super) fn append(&mut self, line: &[u8], octets: u64, waits: bool) -> Option<ImapEvent> {
        let Some((tag, appending)) = parse_append(line) else { unreachable!("an APPEND was found") };
        self.has_changed = false;
        let step = AppendStep::Asked;
        let begun = Appending { tag, left: octets, waits, step, after_cr: false, messages: 1 };
        self.state = State::Appending(Box::new(begun));
        let offered = appending.map_err(refused).and_then(|appending| {
            let message = self.offer(appending.message, octets)?;
            let mailbox = self.name(&appending.mailbox).map_err(|_| "NO [CANNOT] That is not a mailbox name")?;
            Ok(ImapEvent::Append { mailbox, message })
        });
        match offered {
            Ok(event) => {
                self.errors = 0;
                Some(event)
            }
            Err(why) => self.refuse_append(&why),
        }
    }

    /// Begins another message of the same command (RFC 3502). A refusal drops all messages of the command.
    fn append_next(&mut self, line: &[u8], octets: u64, waits: bool) -> Option<ImapEvent> {
        let State::Appending(appending) = &mut self.state else { unreachable!("a message is being appended") };
        (appending.left, appending.waits, appending.step, appending.after_cr) =
            (octets, waits, AppendStep::Asked, false);
        appending.messages += 1;
        let is_too_much = appending.messages > MESSAGES_MAX;
        let offered = match parse_append_next(line) {
            _ if is_too_much => Err(refusal(MailRefusal::Limit)),
            // So a client takes back what it has begun.
            Ok(_) if octets == 0 => Err("NO APPEND is cancelled by an empty message".to_owned()),
            Ok(options) => self.offer(options, octets),
            Err(why) => Err(refused(why)),
        };
        match offered {
            Ok(message) => Some(ImapEvent::AppendNext(message)),
            Err(why) => self.abandon(&why),
        }
    }

    fn offer(&self, MessageOptions { flags, date }: MessageOptions, octets: u64) -> Result<MessageOffer, String> {
        if octets == 0 {
            return Err("BAD The message is empty".to_owned());
        }
        if octets > self.config.limits.append_bytes {
            return Err(refusal(MailRefusal::TooBig));
        }
        let (flags, keywords) = split(flags);
        Ok(MessageOffer { flags, keywords, date, octets })
    }

    /// Answers [`ImapEvent::Append`] and [`ImapEvent::AppendNext`]. [`MailRefusal::Gone`]: no such mailbox. An error
    /// drops all messages.
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn append_begun(&mut self, answer: Result<(), MailRefusal>) {
        let State::Appending(appending) = &mut self.state else { panic!("an append in {:?}", self.state) };
        assert_eq!(appending.step, AppendStep::Asked, "begun twice");
        match answer {
            Ok(()) => {
                appending.step = AppendStep::Read;
                if appending.waits {
                    self.line("+ OK");
                }
            }
            Err(MailRefusal::Gone) => drop(self.refuse_append("NO [TRYCREATE] There is no such mailbox")),
            Err(why) => drop(self.refuse_append(&refusal(why))),
        }
    }

    /// The outer `None`: needs more input.
    pub(super) fn step_append(&mut self, input: &mut BytesMut) -> Option<Option<ImapEvent>> {
        let State::Appending(appending) = &mut self.state else { unreachable!("a message is being appended") };
        assert_eq!(appending.step, AppendStep::Read, "stepped while an answer about a message is awaited");
        if appending.left == 0 {
            return self.end_append(input);
        }
        if input.is_empty() {
            return None;
        }
        let most = usize::try_from(appending.left).unwrap_or(usize::MAX).min(PIECE_BYTES_MAX);
        let piece = input.split_to(most.min(input.len())).freeze();
        appending.left -= piece.len() as u64;
        // What BODY[] could not send again is not taken (decision 28).
        if memchr::memchr(0, &piece).is_some() {
            return Some(self.abandon("NO [UNKNOWN-CTE] A message has no NUL"));
        }
        appending.step = AppendStep::Asked;
        Some(Some(ImapEvent::Write(with_crlf(piece, &mut appending.after_cr))))
    }

    /// Answers [`ImapEvent::Write`]. An error drops all messages.
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn written(&mut self, answer: Result<(), MailRefusal>) {
        let State::Appending(appending) = &mut self.state else { panic!("written in {:?}", self.state) };
        assert_eq!(
            std::mem::replace(&mut appending.step, AppendStep::Read),
            AppendStep::Asked,
            "written without a question"
        );
        if let Err(why) = answer {
            self.refuse_append(&refusal(why));
        }
    }

    /// Ends the line after the last message, or begins another message.
    fn end_append(&mut self, input: &mut BytesMut) -> Option<Option<ImapEvent>> {
        let limit = self.config.limits.command_bytes;
        let is_end = match self.framer.next(input, limit, Appends::Next) {
            Frame::Incomplete => return None,
            Frame::Append { line, octets, waits } => {
                self.commands += 1;
                return Some(self.append_next(&line, octets, waits));
            }
            Frame::Endless => {
                self.bye("[TOOBIG] That command is too long");
                return Some(Some(ImapEvent::Abandon));
            }
            Frame::Command(rest) => rest.is_empty(),
            Frame::TooBig { .. } | Frame::Literal => false,
        };
        self.commands += 1;
        let State::Appending(appending) = &mut self.state else { unreachable!("a message is being appended") };
        if is_end {
            appending.step = AppendStep::Asked;
            return Some(Some(ImapEvent::Finish));
        }
        let tag = std::mem::take(&mut appending.tag);
        self.state = State::Command;
        self.bad(&tag, "The command has more than it should");
        Some(Some(ImapEvent::Abandon))
    }

    /// Answers [`ImapEvent::Finish`].
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn appended(&mut self, answer: Result<AppendedMail, MailRefusal>) {
        let State::Appending(appending) = std::mem::replace(&mut self.state, State::Command) else {
            panic!("appended in {:?}", self.state)
        };
        self.has_changed = answer.is_ok();
        let text = match answer {
            Ok(AppendedMail { uid_validity, uids }) => {
                format!("OK [APPENDUID {uid_validity} {}] APPEND completed", uids.text())
            }
            Err(MailRefusal::Gone) => "NO [TRYCREATE] The mailbox was deleted".into(),
            Err(why) => refusal(why),
        };
        // EXISTS comes before the reply (decision 12).
        self.finish_with(appending.tag, text, true);
    }

    fn abandon(&mut self, text: &str) -> Option<ImapEvent> {
        self.refuse_append(text);
        Some(ImapEvent::Abandon)
    }

    /// Answers at once if the client has not begun to send the message, else after dropping the rest.
    fn refuse_append(&mut self, text: &str) -> Option<ImapEvent> {
        let State::Appending(appending) = std::mem::replace(&mut self.state, State::Command) else {
            unreachable!("a message is being appended")
        };
        let reply = Reply { tag: appending.tag, text: text.to_owned() };
        if appending.waits && appending.step == AppendStep::Asked {
            return self.append_refused(reply);
        }
        self.framer.drop_message(appending.left, self.config.limits.append_bytes);
        self.dropping = Some(reply);
        None
    }

    pub(super) fn append_refused(&mut self, Reply { tag, text }: Reply) -> Option<ImapEvent> {
        match text.strip_prefix("BAD ") {
            Some(why) => {
                self.bad(&tag, why);
                None
            }
            None => self.finish_with(tag, text, true),
        }
    }
}

fn refused(why: ImapCommandError) -> String {
    match why {
        ImapCommandError::Limit(why) => format!("NO [LIMIT] {why}"),
        why => format!("BAD {why}"),
    }
}

/// A message in CRLF octets: a bare LF gets its CR, a bare CR stays (decision 28). `after_cr`: the octet before was a CR.
fn with_crlf(piece: Bytes, after_cr: &mut bool) -> Bytes {
    let starts = memchr::memchr_iter(b'\n', &piece);
    let bare = |at: &usize| if *at == 0 { !*after_cr } else { piece[at - 1] != b'\r' };
    let bare: Vec<usize> = starts.filter(bare).collect();
    *after_cr = piece.last() == Some(&b'\r');
    if bare.is_empty() {
        return piece;
    }
    let mut out = Vec::with_capacity(piece.len() + bare.len());
    let mut from = 0;
    for at in bare {
        out.extend_from_slice(&piece[from..at]);
        out.push(b'\r');
        from = at;
    }
    out.extend_from_slice(&piece[from..]);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_line_feeds_get_their_cr_wherever_octets_are_split() {
        let text = b"\na\r\nb\n\nc\r\rd\r\n\n\re\n";
        for piece in 1..=text.len() {
            let mut after_cr = false;
            let pieces = text.chunks(piece).map(|octets| with_crlf(Bytes::copy_from_slice(octets), &mut after_cr));
            let out: Vec<u8> = pieces.flat_map(|octets| octets.to_vec()).collect();
            assert_eq!(out, b"\r\na\r\nb\r\n\r\nc\r\rd\r\n\r\n\re\r\n", "pieces of {piece}");
        }
    }
}
