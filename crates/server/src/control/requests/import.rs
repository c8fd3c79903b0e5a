//! Imports messages of another queue: the client sends the lines of `export`, and gets a result for each message.

use std::io;

use aws_lc_rs::digest::{Context, SHA256};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use posthaste_intake::LARGE_BODY_BYTES;
use posthaste_message::HeaderScan;
use posthaste_relay::sender::{Exported, ImportError, Originator, Relay};
use posthaste_spool::{Body, Upload};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Take};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::spawn_blocking;
use tokio::time::{Duration, timeout};

use super::answering::PATIENCE;
use super::queues::relay_of;
use super::transfer::{End, FORMAT, Line, VERSION, hex};
use crate::receive::handler::WeakReceiver;

/// The client's lines.
pub(super) type Lines = BufReader<Take<OwnedReadHalf>>;

/// Takes messages until the last line.
pub(super) async fn import(
    mut lines: Lines,
    mut write: OwnedWriteHalf,
    queue: impl Importing,
    uid: u32,
    release: bool,
) -> io::Result<()> {
    let mut counts = Counts::default();
    let last = loop {
        let answer = match next(&mut lines, &queue, uid, release, &mut counts).await {
            Ok(Some(answer)) => answer,
            Ok(None) => break counts.as_json(),
            Err(error) => break json!({ "error": error }),
        };
        timeout(PATIENCE, write.write_all(format!("{answer}\n").as_bytes())).await??;
    };
    let Counts { messages, recipients, duplicates, refused, .. } = counts;
    tracing::info!(uid, messages, recipients, duplicates, refused, "the operator has imported mail into the queue");
    timeout(PATIENCE, write.write_all(format!("{last}\n").as_bytes())).await??;
    write.shutdown().await
}

#[derive(Default)]
struct Counts {
    has_begun: bool,
    messages: u64,
    recipients: u64,
    duplicates: u64,
    refused: u64,
}

impl Counts {
    fn as_json(&self) -> Value {
        let Self { messages, recipients, duplicates, refused, .. } = self;
        json!({ "done": messages, "recipients": recipients, "duplicates": duplicates, "refused": refused })
    }
}

/// Imports the next message, and returns its result line; `None` at the end.
///
/// # Errors
/// The import ends: the lines are invalid, or the queue or its spool is full. It can be restarted from the first line.
async fn next(
    lines: &mut Lines,
    queue: &impl Importing,
    uid: u32,
    release: bool,
    counts: &mut Counts,
) -> Result<Option<Value>, String> {
    loop {
        let (line, text) = line(lines).await?;
        match line {
            Line::First { format, version, .. } if !counts.has_begun => {
                if format != FORMAT || version != VERSION {
                    return Err(format!("an export of another kind: {format}, version {version}"));
                }
                counts.has_begun = true;
            }
            Line::Message { message } if counts.has_begun => {
                let mut incoming = Incoming::begin(message.bytes, queue).await?;
                incoming.digest.update(&text);
                let head = message.into_message();
                let (message, end) = match incoming.receive(lines, head).await? {
                    Ok(whole) => whole,
                    Err(why) => {
                        counts.refused += 1;
                        return Ok(Some(json!({ "refused": why })));
                    }
                };
                return incoming.keep(message, end, queue, uid, release, counts).await.map(Some);
            }
            Line::Broken { broken } if counts.has_begun => {
                counts.refused += 1;
                return Ok(Some(json!({ "refused": broken })));
            }
            Line::Last { .. } if counts.has_begun => return Ok(None),
            _ => return Err("this is not an export of a queue".to_owned()),
        }
    }
}

/// The next line, with and without its line end.
async fn line(lines: &mut Lines) -> Result<(Line, Vec<u8>), String> {
    lines.get_mut().set_limit(LINE_BYTES_MAX);
    let mut line = Vec::new();
    let read = timeout(IDLE_PATIENCE, lines.read_until(b'\n', &mut line)).await;
    let read = read.map_err(|_| "nothing more comes".to_owned())?.map_err(|error| error.to_string())?;
    if read == 0 || line.last() != Some(&b'\n') {
        return Err(
            "the export ends in the middle, or has a line that is too long: the messages before it were imported"
                .to_owned(),
        );
    }
    let parsed =
        serde_json::from_slice(&line).map_err(|_| "a line does not belong to an export of a queue".to_owned())?;
    Ok((parsed, line))
}

/// A message being imported.
struct Incoming {
    bytes: u64,
    /// Digest for [`End::sha256`].
    digest: Context,
    scan: HeaderScan,
    /// Pieces of a small body.
    pieces: Vec<Bytes>,
    large: Option<Upload>,
}

/// A message with its last line, or the reason for refusing it.
type Received = Result<(Exported, End), String>;

impl Incoming {
    async fn begin(bytes: u64, queue: &impl Importing) -> Result<Self, String> {
        let large = if bytes > LARGE_BODY_BYTES as u64 {
            let relay = queue.relay()?;
            let upload = spawn_blocking(move || relay.upload(bytes)).await.map_err(|error| error.to_string())?;
            Some(upload.map_err(|error| format!("a large message cannot be kept: {error}"))?)
        } else {
            None
        };
        let (digest, scan) = (Context::new(&SHA256), HeaderScan::default());
        Ok(Self { bytes: 0, digest, scan, pieces: Vec::new(), large })
    }

    /// Reads all lines of the message, even of a refused one.
    async fn receive(&mut self, lines: &mut Lines, head: Result<Exported, String>) -> Result<Received, String> {
        let mut message = head;
        loop {
            let (line, text) = line(lines).await?;
            match line {
                Line::Recipient { recipient } => {
                    self.digest.update(&text);
                    let recipient = recipient.into_recipient();
                    message = message.and_then(|mut message| {
                        let recipient = recipient?;
                        if message.recipients.last().is_some_and(|last| last.to.number >= recipient.to.number) {
                            return Err("the numbers of its recipients do not ascend".to_owned());
                        }
                        if recipient.is_forwarded && message.queued.forwarded.is_none() {
                            return Err("a recipient is forwarded, but the message has no sender for that".to_owned());
                        }
                        message.recipients.push(recipient);
                        Ok(message)
                    });
                }
                Line::Data { data } => {
                    let piece = STANDARD.decode(data).map_err(|_| "data is not in base64".to_owned())?;
                    self.push(piece.into()).await?;
                }
                Line::Broken { broken } => return Ok(Err(broken)),
                Line::End { end } => {
                    return Ok(message.and_then(|message| {
                        if message.recipients.is_empty() { Err("no recipients".to_owned()) } else { Ok((message, end)) }
                    }));
                }
                _ => return Err("a message ends in the middle".to_owned()),
            }
        }
    }

    async fn push(&mut self, piece: Bytes) -> Result<(), String> {
        self.bytes += piece.len() as u64;
        self.digest.update(&piece);
        self.scan.push(&piece);
        if let Some(mut upload) = self.large.take() {
            let write = move || upload.write(&piece).map(|()| upload);
            let upload = spawn_blocking(write).await.map_err(|error| error.to_string())?;
            self.large = Some(upload.map_err(|error| format!("a large message cannot be kept: {error}"))?);
        } else if self.bytes > LARGE_BODY_BYTES as u64 {
            return Err("a message is larger than its first line says".to_owned());
        } else {
            self.pieces.push(piece);
        }
        Ok(())
    }

    async fn keep(
        mut self,
        mut message: Exported,
        end: End,
        queue: &impl Importing,
        uid: u32,
        release: bool,
        counts: &mut Counts,
    ) -> Result<Value, String> {
        let origin = end.origin.parse::<posthaste_queue::Origin>();
        self.digest.update(end.origin.as_bytes());
        let is_whole = end.bytes == self.bytes && end.sha256 == hex(self.digest.finish().as_ref());
        let origin = match origin {
            Ok(origin) if is_whole => origin,
            _ => {
                counts.refused += 1;
                return Ok(json!({ "origin": end.origin, "refused": "it has been changed on the way" }));
            }
        };
        if release {
            for recipient in &mut message.recipients {
                if recipient.held.take_if(|held| held.is_operators()).is_some() {
                    recipient.next = 0;
                }
            }
        }
        let message_id = self.scan.finish().message_id.unwrap_or_default();
        let (large, pieces) = (self.large, self.pieces);
        let relay = queue.relay()?;
        let import = move || {
            let body = match large {
                Some(upload) => {
                    Body::file(upload.finish().map_err(|error| format!("a large message cannot be kept: {error}"))?)
                }
                None => Body::inline(pieces),
            };
            let by = Originator { uid, reason: "imported".to_owned(), ..Originator::default() };
            Ok::<_, String>(relay.import(&by, origin, message, &message_id, body))
        };
        let imported = spawn_blocking(import).await.map_err(|error| error.to_string())??;
        match imported {
            Ok(imported) => {
                counts.messages += u64::from(imported.message.is_some());
                counts.recipients += imported.recipients;
                counts.duplicates += imported.duplicates;
                let (message, recipients, duplicates) = (imported.message, imported.recipients, imported.duplicates);
                Ok(json!({
                    "origin": end.origin, "message": message, "recipients": recipients, "duplicates": duplicates,
                }))
            }
            Err(error @ ImportError::TooLarge(_)) => {
                counts.refused += 1;
                Ok(json!({ "origin": end.origin, "refused": error.to_string() }))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The queue that imports messages.
pub(super) trait Importing {
    /// # Errors
    /// The import cannot go on.
    fn relay(&self) -> Result<Relay, String>;
}

/// Imports into a running server, whose end is not delayed.
impl Importing for WeakReceiver {
    fn relay(&self) -> Result<Relay, String> {
        let receiver = self.upgrade().ok_or("the server ends")?;
        relay_of(&receiver)
    }
}

/// Without a server.
impl Importing for Relay {
    fn relay(&self) -> Result<Relay, String> {
        Ok(self.clone())
    }
}

/// A line has a piece of a message, or a recipient with its last reply.
const LINE_BYTES_MAX: u64 = 256 << 10;
/// Timeout of a silent client: the export may use a slow network.
const IDLE_PATIENCE: Duration = Duration::from_secs(300);
