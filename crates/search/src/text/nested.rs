//! Parsed messages that enclose others to any depth.

use std::ops::Deref;

use mail_parser::{Message, MessageParser, MessagePart, MimeHeaders, PartType};

/// A parsed message that is taken apart level by level when it is dropped.
///
/// The parser follows enclosed messages that are not encoded to any depth, and each is a value inside the one around it. Dropped as they are, a hundred
/// thousand levels (3 MB of mail) would overflow the stack, which nothing can catch.
pub(super) struct Parsed<'a>(Message<'a>);

impl<'a> Parsed<'a> {
    /// `None` if there is nothing in it that could be a message.
    pub fn new(parser: &MessageParser, bytes: &'a [u8]) -> Option<Self> {
        parser.parse(bytes).map(Self)
    }
}

impl<'a> Deref for Parsed<'a> {
    type Target = Message<'a>;

    fn deref(&self) -> &Message<'a> {
        &self.0
    }
}

impl Drop for Parsed<'_> {
    fn drop(&mut self) {
        let mut levels = vec![std::mem::take(&mut self.0.parts)];
        while let Some(parts) = levels.pop() {
            for part in parts {
                if let PartType::Message(mut enclosed) = part.body {
                    levels.push(std::mem::take(&mut enclosed.parts));
                }
            }
        }
    }
}

/// What a part says it is, in lower case; without that, what the parser took it for.
pub(super) fn media_type(part: &MessagePart<'_>) -> String {
    let declared = part.content_type().map(|kind| match kind.subtype() {
        Some(subtype) => format!("{}/{subtype}", kind.ctype()).to_ascii_lowercase(),
        None => kind.ctype().to_ascii_lowercase(),
    });
    declared.unwrap_or_else(|| {
        let default = if matches!(part.body, PartType::Message(_)) { "message/rfc822" } else { "text/plain" };
        default.to_owned()
    })
}

#[cfg(test)]
mod tests {
    use crate::text::{extract, parts};

    /// On a stack of the size that threads get.
    fn on_a_thread(work: impl FnOnce() + Send + 'static) {
        std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap().join().unwrap();
    }

    #[test]
    fn messages_enclosed_to_any_depth_cost_no_stack() {
        let mail = "Content-Type: message/rfc822\n\n".repeat(200_000) + "Subject: core\n\nx\n";
        on_a_thread(move || {
            assert_eq!(extract(mail.as_bytes()).problem, Some("nested too deeply"));
            assert!(parts(mail.as_bytes()).len() > 50);
        });
    }

    #[test]
    fn multiparts_enclosed_to_any_depth_cost_no_stack() {
        let level = |n: u32| format!("Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n");
        let mail = (0..5_000).map(level).collect::<String>() + "\ncore\n";
        on_a_thread(move || {
            assert_eq!(extract(mail.as_bytes()).problem, Some("nested too deeply"));
            parts(mail.as_bytes());
        });
    }
}
