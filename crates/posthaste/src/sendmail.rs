//! `posthaste sendmail`, and the program under the names `sendmail`, `mailq` and `newaliases`.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::DirEntry;
use std::io::{self, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use posthaste_config::{FoundFile, Loaded};
use posthaste_directory::{DirectoryRefusal, Route};
use posthaste_message::DateTime;
use posthaste_pickup::{EntryError, Facts, PickupDirectory, SubmitError, dialogue};
use posthaste_smtp::{ForwardPath, Reply};

use crate::sendmail_options::{Mode, Options, parse};
use crate::terminal::harmless;
use crate::terminal::print;

/// Arguments of `sendmail`, parsed by our own rules.
#[derive(Args)]
#[command(after_help = OPTIONS)]
pub struct Sendmail {
    /// Options of sendmail, then recipients
    #[arg(value_name = "OPTIONS|ADDRESS", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

const OPTIONS: &str = "\
Options of sendmail:
  -t            The recipients are also those in To, Cc and Bcc; Bcc is removed
  -i, -oi       A line of a single dot is text, and does not end the message
  -f ADDRESS    The sender, also -r; default: the user
  -F NAME       The name in a From that is missing
  -bs           Speak SMTP on standard input and output
  -bp           List what waits, as mailq does; only root and the server's user may ask the server
  -q            Have the server try now what waits for other hosts; for root and the server's user
  -B TYPE       7BIT or 8BITMIME
  -N WHEN       When the sender is notified: never, or a list of success, failure, delay
  -R PART       What a notification returns: full or hdrs
  -V ENVID      What a notification calls the message
  --not-before TIME, --expires TIME
                When the message may leave at the earliest, and when it is given up: 2h from now, or 2027-01-02T03:04:05Z
  -C FILE, --config FILE
                Configuration file; default: $POSTHASTE_CONFIG, ./posthaste.toml, /etc/posthaste/posthaste.toml
  --            What follows are recipients

Exit status 0 once the message is on stable storage, otherwise as in sysexits.h: 64 misuse, 65 bad message, 67 unknown
recipient, 69 refused, 75 try again later, 78 bad configuration. Accepted without effect: -A -G -L -O -U -X -c -d -e -h -m -n -o -p -s -v.";

/// Name under which the program was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Sendmail,
    Mailq,
    Newaliases,
    /// `posthaste sendmail`.
    Command,
}

/// Exit status of a failure (sysexits.h), and the message for the user.
#[derive(Debug)]
struct Failure(u8, String);

const USAGE: u8 = 64;
const DATA: u8 = 65;
const NO_USER: u8 = 67;
const UNAVAILABLE: u8 = 69;
const INPUT: u8 = 74;
const TEMPORARY: u8 = 75;
const NO_PERMISSION: u8 = 77;
const CONFIGURATION: u8 = 78;

/// Runs as `sendmail` if the program was called by that name. `None` otherwise.
pub fn run(line: &[OsString]) -> Option<ExitCode> {
    let name = Path::new(line.first()?).file_name().unwrap_or_default();
    let (name, words) = match name.to_str() {
        Some("sendmail") => (Name::Sendmail, &line[1..]),
        Some("mailq") => (Name::Mailq, &line[1..]),
        Some("newaliases") => (Name::Newaliases, &line[1..]),
        _ if line.get(1).is_some_and(|word| word == "sendmail") => (Name::Command, &line[2..]),
        _ => return None,
    };
    if name == Name::Command && words.first().is_some_and(|word| word == "--help") {
        return None;
    }
    Some(run_words(name, words))
}

impl Sendmail {
    /// Sets the configuration named before the command.
    pub fn set_config(&mut self, config: PathBuf) {
        self.words.splice(0..0, ["-C".into(), config.into()]);
    }

    /// Runs the parsed command.
    pub fn run(self) -> ExitCode {
        run_words(Name::Command, &self.words)
    }
}

fn run_words(name: Name, words: &[OsString]) -> ExitCode {
    match send(name, words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(status, why)) => {
            let why: Vec<String> = why.lines().map(harmless).collect();
            // If nobody reads it, the status tells.
            let _ = writeln!(io::stderr(), "{}: {}", called(name), why.join("\n"));
            ExitCode::from(status)
        }
    }
}

fn called(name: Name) -> &'static str {
    match name {
        Name::Sendmail | Name::Command => "sendmail",
        Name::Mailq => "mailq",
        Name::Newaliases => "newaliases",
    }
}

fn send(name: Name, words: &[OsString]) -> Result<(), Failure> {
    let options = parse(words).map_err(|why| Failure(USAGE, why))?;
    let mode = match name {
        Name::Mailq => Mode::Queue,
        Name::Newaliases => Mode::Aliases,
        Name::Sendmail | Name::Command => options.mode,
    };
    match mode {
        // Scripts that install software call it: that nothing is to be done is no failure.
        Mode::Aliases => {
            let _ = writeln!(io::stderr(), "{}: aliases are in the configuration; SIGHUP reloads it", called(name));
            Ok(())
        }
        Mode::Flush => {
            let (loaded, _) = open(name, &options)?;
            crate::queue::flush_all(&loaded.config, "sendmail -q")
                .map_err(|error| Failure(UNAVAILABLE, error.to_string()))
        }
        Mode::Queue => {
            let (loaded, directory) = open(name, &options)?;
            let input = |error: io::Error| Failure(INPUT, error.to_string());
            match crate::queue::mailq(&loaded.config) {
                Ok(text) => print(&(text + &not_taken(&directory, true))).map_err(input),
                // Files of programs can be listed without the server, and by everybody who may read their directory.
                Err(error) => {
                    print(&not_taken(&directory, false)).map_err(input)?;
                    Err(Failure(UNAVAILABLE, error.to_string()))
                }
            }
        }
        Mode::Smtp => {
            let (loaded, directory) = open(name, &options)?;
            let config = loaded.config.local_session();
            let check = |path: &ForwardPath| refused(&loaded, path).map_or(Ok(()), Err);
            let spoken = dialogue::serve(io::stdin().lock(), io::stdout().lock(), config, &directory, check);
            spoken.map_err(|error| Failure(INPUT, error.to_string()))
        }
        Mode::Message => send_message(name, options),
    }
}

/// Lists mail that programs have submitted and the server has not accepted yet, in the form of `mailq`. With
/// `is_short`, prints nothing if there is none.
fn not_taken(directory: &PickupDirectory, is_short: bool) -> String {
    let path = harmless(&directory.path().display().to_string());
    let file = |entry: &DirEntry| {
        let found = entry.metadata().ok()?;
        Some((found.mtime(), found.len(), entry.file_name().display().to_string()))
    };
    let found = directory.files(LISTED_MAX, file).map(|(mut found, _)| {
        found.sort();
        found
    });
    let found = match found {
        Ok(found) if found.is_empty() && is_short => return String::new(),
        Ok(found) if found.is_empty() => return format!("Nothing waits in {path} for the server\n"),
        Ok(found) => found,
        Err(_) if is_short => return String::new(),
        Err(error) => return format!("{path}: {error}; mail of programs may wait there\n"),
    };
    let mut out = format!("-File in {path}, not taken yet--  --Size-- ----Arrival Time----\n");
    for (changed, bytes, name) in found {
        let _ = writeln!(out, "{}  {bytes} {}", harmless(&name), DateTime::from_unix(changed));
    }
    out
}

/// Maximum files of the pickup directory that `mailq` lists.
const LISTED_MAX: usize = 1000;

fn send_message(name: Name, options: Options) -> Result<(), Failure> {
    let (loaded, directory) = open(name, &options)?;
    let user = User::of_process();
    let mut submission = options.submission;
    submission.sender = options.sender.unwrap_or_else(|| user.login.clone());
    submission.full_name =
        submission.full_name.or_else(|| std::env::var("NAME").ok().filter(|name| !name.is_empty())).or(user.full_name);
    let limits = &loaded.config.limits.session;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let facts = Facts {
        origin: loaded.config.pickup.origin.clone(),
        header_bytes_max: limits.header_bytes,
        message_bytes_max: Some(limits.message_bytes).filter(|&max| max > 0),
        unix_secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        unique: format!("{:x}.{:x}", since.as_nanos(), std::process::id()),
    };
    let (completed, reading) = submission.read_header(BufReader::new(io::stdin().lock()), &facts)?;
    for rcpt in &completed.head.recipients {
        if let Some(reply) = refused(&loaded, &rcpt.forward_path) {
            let is_unknown = reply.to_string().starts_with("550 5.1.1 ");
            let status = if is_unknown { NO_USER } else { UNAVAILABLE };
            return Err(Failure(status, format!("{}: {reply}; nothing was sent", rcpt.forward_path)));
        }
    }
    reading.store(completed, &directory, &facts)?;
    Ok(())
}

/// A recipient that the server would refuse for good by its configuration. Reported at once, while a user is present.
fn refused(loaded: &Loaded, path: &ForwardPath) -> Option<Reply> {
    match loaded.directory.recipient(path) {
        Route::Refused(DirectoryRefusal::Relay) if loaded.config.relay.local_users => None,
        Route::Refused(refusal) => Some(refusal.reply()).filter(Reply::is_permanent),
        _ => None,
    }
}

/// Loads the configuration, and opens its pickup directory.
fn open(name: Name, options: &Options) -> Result<(Loaded, PickupDirectory), Failure> {
    let bad = |why: String| Failure(CONFIGURATION, why);
    let found = match name {
        // A program may be in any directory when it sends mail: its owner has no say in where the mail goes.
        Name::Sendmail | Name::Mailq | Name::Newaliases => FoundFile::find_elsewhere(options.config.as_deref()),
        Name::Command => FoundFile::find(options.config.as_deref()),
    };
    let loaded = Loaded::load(found.path.as_deref()).map_err(|error| bad(error.to_string()))?;
    let pickup = &loaded.config.pickup;
    if !pickup.enabled {
        return Err(Failure(UNAVAILABLE, "the configuration has pickup.enabled = false".to_owned()));
    }
    let path = pickup.directory.clone();
    let directory = PickupDirectory::open(&path).map_err(|error| {
        let of = loaded.file.as_ref().map(|file| format!(" (configuration: {})", file.display())).unwrap_or_default();
        let why = format!("{}: {error}{of}", path.display());
        match error.kind() {
            io::ErrorKind::NotFound if path.is_relative() => {
                Failure(UNAVAILABLE, format!("{why}; pickup.directory should be an absolute path"))
            }
            io::ErrorKind::NotFound => Failure(UNAVAILABLE, format!("{why}; the server makes it at its first start")),
            io::ErrorKind::PermissionDenied => Failure(NO_PERMISSION, why),
            _ => Failure(TEMPORARY, why),
        }
    })?;
    Ok((loaded, directory))
}

impl From<SubmitError> for Failure {
    fn from(error: SubmitError) -> Self {
        let status = match &error {
            SubmitError::NoRecipients => USAGE,
            SubmitError::Input(_) => INPUT,
            SubmitError::Entry(EntryError::TooLarge { .. } | EntryError::TooManyRecipients) => UNAVAILABLE,
            SubmitError::Entry(EntryError::Io(error)) => match error.kind() {
                io::ErrorKind::PermissionDenied => NO_PERMISSION,
                _ => TEMPORARY,
            },
            SubmitError::Entry(_) => TEMPORARY,
            _ => DATA,
        };
        Self(status, error.to_string())
    }
}

/// The user who runs the program.
#[derive(Debug, Clone, PartialEq, Eq)]
struct User {
    login: String,
    full_name: Option<String>,
}

impl User {
    fn of_process() -> Self {
        let uid = rustix::process::getuid().as_raw();
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        Self::among(&passwd, uid).unwrap_or_else(|| {
            let named = ["LOGNAME", "USER"].iter().filter_map(std::env::var_os).filter_map(|name| usable(&name));
            Self { login: named.into_iter().next().unwrap_or_else(|| format!("uid-{uid}")), full_name: None }
        })
    }

    /// name:password:uid:gid:full name,…
    fn among(passwd: &str, uid: u32) -> Option<Self> {
        passwd.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            (fields.get(2)?.parse() == Ok(uid)).then_some(())?;
            let login = fields[0].to_owned();
            let mut capital = login.clone();
            if let Some(first) = capital.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            let full_name =
                fields.get(4).and_then(|gecos| gecos.split(',').next()).map(|name| name.replace('&', &capital));
            Some(Self { login, full_name: full_name.filter(|name| !name.is_empty()) })
        })
    }
}

fn usable(name: &OsStr) -> Option<String> {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    name.to_str().filter(|name| !name.is_empty() && name.bytes().all(is_part)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_login_and_perhaps_a_name() {
        const PASSWD: &str =
            "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000:& Lee,Room 7,,:/home/ann:/bin/sh\nx:x:7:7::/:\nbad\n";
        let check = |uid: u32, expected: Option<(&str, Option<&str>)>| {
            let found = User::among(PASSWD, uid);
            let found = found.as_ref().map(|user| (user.login.as_str(), user.full_name.as_deref()));
            assert_eq!(found, expected, "{uid}");
        };
        check(0, Some(("root", Some("root"))));
        check(1000, Some(("ann", Some("Ann Lee"))));
        check(7, Some(("x", None)));
        check(8, None);
    }

    #[test]
    fn only_these_names_are_sendmail() {
        let asks = |line: &[&str]| run(&line.iter().map(OsString::from).collect::<Vec<_>>()).is_some();
        assert!(!asks(&["posthaste", "serve", "sendmail"]) && !asks(&["posthaste"]) && !asks(&[]));
        assert!(!asks(&["posthaste", "sendmail", "--help"]));
        assert!(
            asks(&["/usr/bin/newaliases"]) && asks(&["x/sendmail", "-q"]) && asks(&["posthaste", "sendmail", "-q"])
        );
    }
}
