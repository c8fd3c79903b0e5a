//! Runs a program with a message on its standard input.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::Bytes;
use posthaste_spool::MessageReader;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};

use crate::blocking::blocking;
use crate::body::{PIECE_BYTES, ToLf, failed, prefix};
use crate::entry::{Deliver, Target};
use crate::work::Outcome;

/// Runs the program to its end, or until `patience` is over; then kills its process group. It gets no shell, only the
/// standard descriptors, and its own environment.
pub(crate) async fn run(
    arguments: &[String],
    deliver: &Deliver,
    target: &Target,
    reader: MessageReader,
    patience: Duration,
) -> Outcome {
    let program = arguments.first().map_or("", String::as_str);
    let body = reader.clone();
    let mut command = Command::new(program);
    command.args(arguments.iter().skip(1)).env_clear().envs(environment(deliver, target)).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut group = match command.spawn() {
        Ok(mut child) => Group { stdin: child.stdin.take(), child },
        Err(error) => return Outcome::Unavailable(format!("{program}: {error}").into()),
    };
    let mut stdout = group.child.stdout.take();
    let mut stderr = group.child.stderr.take();
    let mut from_out = [0; 4096];
    let mut from_err = [0; 4096];
    let mut said = ProgramOutput::default();
    let Group { child, stdin } = &mut group;
    let mut writing = std::pin::pin!(write(stdin, reader.with_prefix(prefix(deliver, target))));
    let mut is_written = false;
    let deadline = tokio::time::sleep(patience);
    let mut deadline = std::pin::pin!(deadline);
    let ended = loop {
        tokio::select! {
            outcome = &mut writing, if !is_written => match outcome {
                Ok(()) => is_written = true,
                // It must not take what it has for the whole message.
                Err(error) => {
                    let what = format!("{program}: killed: ");
                    return blocking(move || failed(&body, error, &what)).await;
                }
            },
            read = read(&mut stdout, &mut from_out) => said.take(&from_out[..read]),
            read = read(&mut stderr, &mut from_err) => said.take(&from_err[..read]),
            ended = child.wait() => break ended,
            () = &mut deadline => {
                return Outcome::Failed(format!("{program}: killed after {} s{}", patience.as_secs(), said.shown()).into());
            }
        }
    };
    let status = match ended {
        Ok(status) => status,
        Err(error) => return Outcome::Failed(format!("{program}: {error}").into()),
    };
    if !status.success() {
        // The rest of what it has said. Its children may keep the pipes open.
        let rest = async {
            while stdout.is_some() || stderr.is_some() {
                tokio::select! {
                    read = read(&mut stdout, &mut from_out) => said.take(&from_out[..read]),
                    read = read(&mut stderr, &mut from_err) => said.take(&from_err[..read]),
                }
            }
        };
        let _ = tokio::time::timeout(LAST_WORDS, rest).await;
    }
    verdict(program, status, &said)
}

/// A program and the processes of its group: killed on drop, unless the program has ended. It sees the end of its input
/// only if the message was complete.
struct Group {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Drop for Group {
    fn drop(&mut self) {
        // As long as it was not waited for, its number is nobody else's.
        if let Some(id) = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

/// Writes the message and closes the pipe, unless there is an error.
async fn write(stdin: &mut Option<ChildStdin>, reader: MessageReader) -> io::Result<()> {
    let Some(pipe) = stdin else { return Ok(()) };
    let mut to_lf = ToLf::default();
    let mut out = Vec::new();
    let mut at = 0;
    let len = reader.len();
    while at < len {
        let reader = reader.clone();
        let piece: Bytes = blocking(move || reader.piece(at, PIECE_BYTES)).await?;
        at += piece.len() as u64;
        to_lf.push(&piece, &mut out);
        if at == len {
            std::mem::take(&mut to_lf).end(&mut out);
        }
        if is_closed(pipe.write_all(&out).await)? {
            break;
        }
        out.clear();
    }
    is_closed(pipe.write_all(&out).await)?;
    *stdin = None;
    Ok(())
}

/// A program need not read all its input; its exit status decides the outcome.
fn is_closed(written: io::Result<()>) -> io::Result<bool> {
    match written {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(true),
        Err(error) => Err(error),
    }
}

/// Reads from the pipe: zero once at its end; after that it stays pending.
async fn read(pipe: &mut Option<impl AsyncRead + Unpin>, buffer: &mut [u8]) -> usize {
    let Some(open) = pipe else { return std::future::pending().await };
    let read = open.read(buffer).await.unwrap_or(0);
    if read == 0 {
        *pipe = None;
    }
    read
}

/// `sysexits.h`, as programs for Postfix and Sendmail use it.
fn verdict(program: &str, status: ExitStatus, said: &ProgramOutput) -> Outcome {
    let said = said.shown();
    match (status.code(), status.signal()) {
        (Some(0), _) => Outcome::Delivered,
        (Some(code), _) if REFUSALS.contains(&code) => {
            Outcome::Refused(format!("{program}: exit status {code}{said}").into())
        }
        (Some(code), _) => Outcome::Failed(format!("{program}: exit status {code}{said}").into()),
        (None, signal) => Outcome::Failed(format!("{program}: ended by signal {}{said}", signal.unwrap_or(0)).into()),
    }
}

fn environment(deliver: &Deliver, target: &Target) -> Vec<(&'static str, String)> {
    let (local, domain) = target.recipient.rsplit_once('@').unwrap_or((&target.recipient, ""));
    // The separator has one byte.
    let user = if target.detail.is_empty() {
        local
    } else {
        local.strip_suffix(&*target.detail).and_then(|rest| rest.get(..rest.len().saturating_sub(1))).unwrap_or(local)
    };
    let text = |text: &str| text.to_owned();
    vec![
        ("PATH", text("/usr/local/bin:/usr/bin:/bin")),
        ("LANG", text("C.UTF-8")),
        ("HOME", text("/")),
        ("SHELL", text("/bin/sh")),
        ("SENDER", text(&deliver.sender)),
        ("RECIPIENT", text(&target.recipient)),
        ("ORIGINAL_RECIPIENT", text(&target.original)),
        ("LOCAL", text(local)),
        ("USER", text(user)),
        ("LOGNAME", text(user)),
        ("EXTENSION", text(&target.detail)),
        ("DOMAIN", text(domain)),
    ]
}

/// The beginning of a program's output.
#[derive(Debug, Default)]
struct ProgramOutput(Vec<u8>);

impl ProgramOutput {
    fn take(&mut self, text: &[u8]) {
        let room = SAID_BYTES_MAX - self.0.len();
        self.0.extend_from_slice(&text[..text.len().min(room)]);
    }

    /// On one line, after a colon.
    fn shown(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        let words: Vec<&str> = text.split_whitespace().collect();
        let line: String = words.join(" ").chars().filter(|c| !c.is_control()).collect();
        if line.is_empty() { line } else { format!(": {line}") }
    }
}

/// EX_DATAERR, EX_NOUSER, EX_NOHOST, EX_UNAVAILABLE, EX_NOPERM: the same message would be refused again.
const REFUSALS: [i32; 5] = [65, 67, 68, 69, 77];
/// Maximum bytes of a program's output.
const SAID_BYTES_MAX: usize = 500;
/// Timeout of the end of a program's output, after its exit.
const LAST_WORDS: Duration = Duration::from_secs(1);
