//! The steps of setup. Each first checks if it is done, so that a second run does nothing.

use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use posthaste_accounts::LoginsFile;
use posthaste_config::UserIdentity;
use posthaste_dkim::KeyDirectory;
use serde_json::Value;

use super::made::Made;
use super::place::{PROGRAM, Place, REPLACED, TEMPORARY, UNIT, USER, has_systemd};
use super::smarthost::Smarthost;
use super::wanted::Wanted;
use crate::queue::AnyError;

/// Something that a set-up machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Program,
    User,
    Directories,
    SmarthostPassword,
    Config,
    Login,
    Keys,
    Unit,
    Start,
}

impl Step {
    /// All steps, in order.
    pub fn all(place: &Place) -> Vec<Step> {
        let all = [
            Step::Program,
            Step::User,
            Step::Directories,
            Step::SmarthostPassword,
            Step::Config,
            Step::Login,
            Step::Keys,
            Step::Unit,
            Step::Start,
        ];
        let is_of_here = |step: &Step| match step {
            Step::Program | Step::User => place.is_system,
            Step::Unit | Step::Start => place.is_system && has_systemd(),
            _ => true,
        };
        all.into_iter().filter(is_of_here).collect()
    }

    /// Line of the step in the plan.
    pub fn text(self, wanted: &Wanted, place: &Place) -> String {
        let dir = place.config_dir.display();
        match self {
            Step::Program if Path::new(PROGRAM).exists() => {
                format!("{PROGRAM} in place of the present one, which becomes {REPLACED}")
            }
            Step::Program => PROGRAM.to_owned(),
            Step::User => format!("user {USER}"),
            Step::Directories => format!("{dir}, {}", place.data.display()),
            Step::SmarthostPassword => format!("{} for the smarthost", place.smarthost_password().display()),
            Step::Config => {
                let (file, lines) = (place.config().display().to_string(), wanted.config(place).lines().count());
                let with_at =
                    |names: Vec<&str>| names.iter().map(|name| format!("{name}@")).collect::<Vec<_>>().join(", ");
                let (users, aliases) = (with_at(wanted.users()), with_at(wanted.alias_names()));
                format!("{file} ({lines} lines): accounts {users}; aliases {aliases} of {}@", wanted.user)
            }
            Step::Login => {
                let file = place.passwords();
                let address = wanted.address_of(&wanted.user);
                let other =
                    if is_unfinished(wanted, place) { " (another one: an earlier run has not ended)" } else { "" };
                format!("{} with a password for {address}{other}", file.display())
            }
            Step::Keys => format!("keys in {}", place.data.join("dkim").join(&wanted.domain).display()),
            Step::Unit => UNIT.to_owned(),
            Step::Start => "posthaste.service, started now and at each boot".to_owned(),
        }
    }

    /// True if the step is done.
    ///
    /// # Errors
    /// It cannot be checked, or something else is in its place.
    pub fn is_done(self, wanted: &Wanted, place: &Place) -> Result<bool, AnyError> {
        Ok(match self {
            Step::Program => has_octets(Path::new(PROGRAM), &std::fs::read(std::env::current_exe()?)?)?,
            Step::User => UserIdentity::of(USER, None).is_ok(),
            Step::Directories => place.config_dir.is_dir() && place.data.is_dir(),
            Step::SmarthostPassword => match &wanted.smarthost {
                Some(Smarthost { username: Some(_), password, .. }) => {
                    let password = password.as_deref().map(smarthost_line);
                    is_there_as(&place.smarthost_password(), password.as_deref())?
                }
                _ => true,
            },
            Step::Config => {
                wanted.written(place).is_some() || is_there_as(&place.config(), Some(&wanted.config(place)))?
            }
            // A password that nobody was told is of no use.
            Step::Login => has_login(wanted, place)? && !is_unfinished(wanted, place),
            Step::Keys => !KeyDirectory::new(&place.data.join("dkim")).keys(&wanted.domain)?.is_empty(),
            Step::Unit => Path::new(UNIT).exists(),
            Step::Start => is_running(place),
        })
    }

    /// # Errors
    /// The reason in words. What was made until then is in `made`.
    pub fn run(self, wanted: &Wanted, place: &Place, password: &str, made: &mut Made) -> Result<(), AnyError> {
        match self {
            Step::Program => {
                let temporary = Path::new(TEMPORARY);
                // Of a run that was cut off, or somebody's link.
                let _ = std::fs::remove_file(temporary);
                new_file(temporary, &std::fs::read(std::env::current_exe()?)?, 0o755, made)?;
                if Path::new(PROGRAM).exists() {
                    std::fs::rename(PROGRAM, REPLACED)?;
                    made.replaced(REPLACED, PROGRAM);
                } else {
                    made.file(Path::new(PROGRAM));
                }
                // A running server keeps its own.
                std::fs::rename(temporary, PROGRAM)?;
            }
            Step::User => {
                let home = place.data.display().to_string();
                call(Command::new("useradd").args([
                    "--system",
                    "--home-dir",
                    &home,
                    "--shell",
                    "/usr/sbin/nologin",
                    USER,
                ]))?;
                made.user(USER);
            }
            Step::Directories => {
                made.dir(&place.config_dir)?;
                if made.dir(&place.data)? {
                    std::fs::set_permissions(&place.data, std::fs::Permissions::from_mode(0o700))?;
                    give_to_server(&place.data, place)?;
                }
            }
            Step::SmarthostPassword => {
                let password = wanted.smarthost.as_ref().and_then(|smarthost| smarthost.password.as_deref());
                let password = password.ok_or("--smarthost-login has to name the file of the login")?;
                new_file(&place.smarthost_password(), smarthost_line(password).as_bytes(), 0o640, made)?;
                give_to_group(&place.smarthost_password(), place)?;
            }
            Step::Config => new_file(&place.config(), wanted.config(place).as_bytes(), 0o644, made)?,
            Step::Login => {
                let address = wanted.address_of(&wanted.user);
                if has_login(wanted, place)? {
                    own(place, &["account", "passwd", &address], Some(password))?;
                    return Ok(());
                }
                let is_new = !place.passwords().exists();
                if is_new {
                    // The server reads it and cannot change it.
                    new_file(&place.passwords(), b"", 0o640, made)?;
                    give_to_group(&place.passwords(), place)?;
                }
                own(place, &["account", "add", &address, "--scram"], Some(password))?;
                if !is_new {
                    made.undone_by(own_command(place, &["account", "delete", &address, "--yes"])?);
                }
            }
            Step::Keys => {
                let is_new = !place.data.join("dkim").exists();
                own(place, &["dkim", "new", &wanted.domain, "--json"], None)?;
                if is_new {
                    made.has_dir(&place.data.join("dkim"));
                }
            }
            Step::Unit => {
                new_file(Path::new(UNIT), UNIT_TEXT.as_bytes(), 0o644, made)?;
                call(Command::new("systemctl").arg("daemon-reload"))?;
            }
            Step::Start => {
                // A server that runs already is not stopped if a later step fails.
                if call(Command::new("systemctl").args(["is-active", "--quiet", "posthaste"])).is_err() {
                    made.unit("posthaste");
                }
                call(Command::new("systemctl").args(["enable", "--now", "posthaste"]))?;
            }
        }
        Ok(())
    }
}

/// Calls another command of this program on the new configuration. Returns its output.
///
/// # Errors
/// The error text of the command.
pub fn own(place: &Place, args: &[&str], input: Option<&str>) -> Result<Vec<u8>, AnyError> {
    let mut command = own_command(place, args)?;
    let mut running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut stdin = running.stdin.take();
    if let (Some(stdin), Some(input)) = (&mut stdin, input) {
        stdin.write_all(format!("{input}\n").as_bytes())?;
    }
    drop(stdin);
    let output = running.wait_with_output()?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("posthaste: ").to_owned().into())
    }
}

fn own_command(place: &Place, args: &[&str]) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(args).arg("--config").arg(place.config());
    Ok(command)
}

/// Text that names the login whose password is being made.
pub fn unfinished_mark(wanted: &Wanted) -> Vec<u8> {
    let address = wanted.address_of(&wanted.user);
    format!("`posthaste setup {address}` has not finished: run it again.\n").into_bytes()
}

fn is_unfinished(wanted: &Wanted, place: &Place) -> bool {
    std::fs::read(place.unfinished()).is_ok_and(|octets| octets == unfinished_mark(wanted))
}

fn has_login(wanted: &Wanted, place: &Place) -> Result<bool, AnyError> {
    if !place.passwords().exists() {
        return Ok(false);
    }
    let loaded = wanted.loaded(place)?;
    let login = wanted.address_of(&wanted.user);
    let file = LoginsFile::open(&place.passwords(), &loaded.directory, (0, 0))?;
    Ok(file.entries(&loaded.directory).iter().any(|entry| entry.login == login))
}

/// Names and texts of the records of the domain's keys.
pub fn key_records(wanted: &Wanted, place: &Place) -> Result<Vec<(String, String)>, AnyError> {
    let keys: Vec<Value> = serde_json::from_slice(&own(place, &["dkim", "list", &wanted.domain, "--json"], None)?)?;
    let record = |key: &Value| {
        let name = key["record"]["name"].as_str()?;
        let value = key["record"]["value"].as_str()?;
        (key["state"] == "active").then(|| (name.to_owned(), value.to_owned()))
    };
    Ok(keys.iter().filter_map(record).collect())
}

/// True if a server answers at the control socket.
pub fn is_running(place: &Place) -> bool {
    server_of(place).is_some()
}

/// The process that answers at the control socket, which is in our own directory.
pub fn server_of(place: &Place) -> Option<u32> {
    let stream = UnixStream::connect(place.data.join("control.sock")).ok()?;
    let process = rustix::net::sockopt::socket_peercred(&stream).ok()?.pid;
    u32::try_from(process.as_raw_nonzero().get()).ok()
}

/// Gives a file to the server's user and group.
fn give_to_server(path: &Path, place: &Place) -> Result<(), AnyError> {
    if place.is_system {
        let identity = UserIdentity::of(USER, None).map_err(|(_, why)| why)?;
        chown(path, Some(identity.uid), Some(identity.gid))?;
    }
    Ok(())
}

fn give_to_group(path: &Path, place: &Place) -> Result<(), AnyError> {
    if place.is_system {
        chown(path, None, Some(UserIdentity::of(USER, None).map_err(|(_, why)| why)?.gid))?;
    }
    Ok(())
}

/// Creates a file durably and atomically: an interrupted run leaves no partial file.
///
/// # Errors
/// It exists, or cannot be written.
pub fn new_file(path: &Path, octets: &[u8], mode: u32, made: &mut Made) -> Result<(), AnyError> {
    let at = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut temporary = path.to_owned().into_os_string();
    temporary.push(".part");
    let temporary = Path::new(&temporary);
    // Of a run that was cut off.
    let _ = std::fs::remove_file(temporary);
    let mut file = std::fs::File::options().write(true).create_new(true).mode(mode).open(temporary).map_err(at)?;
    let mut write = || {
        // Whatever the umask is.
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        file.write_all(octets)?;
        file.sync_all()?;
        std::fs::hard_link(temporary, path)
    };
    let written = write();
    let _ = std::fs::remove_file(temporary);
    written.map_err(at)?;
    made.file(path);
    Ok(())
}

fn smarthost_line(password: &str) -> String {
    format!("{password}\n")
}

/// True if the file exists, with this text if given.
///
/// # Errors
/// It has another text.
fn is_there_as(file: &Path, text: Option<&str>) -> Result<bool, AnyError> {
    let is_there = file.exists();
    if let Some(text) = text.filter(|_| is_there)
        && !has_octets(file, text.as_bytes())?
    {
        let file = file.display();
        let why = "it is not what setup would write";
        return Err(format!("{file} exists, and {why}: nothing was changed").into());
    }
    Ok(is_there)
}

fn has_octets(path: &Path, octets: &[u8]) -> Result<bool, AnyError> {
    match std::fs::read(path) {
        Ok(there) => Ok(there == octets),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(format!("{}: {error}", path.display()).into()),
    }
}

fn call(command: &mut Command) -> Result<(), AnyError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim()).into())
    }
}

const UNIT_TEXT: &str = include_str!("posthaste.service");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_is_whole_and_replaces_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        // As a run leaves it that is cut off.
        std::fs::write(dir.path().join("file.part"), "ha").unwrap();
        let mut made = Made::default();
        new_file(&file, b"half", 0o640, &mut made).unwrap();
        let error = new_file(&file, b"other", 0o640, &mut made).unwrap_err().to_string();
        assert!(error.contains("File exists"), "{error}");
        assert_eq!(std::fs::read(&file).unwrap(), b"half");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        drop(made);
        assert!(!file.exists());
    }

    #[test]
    fn the_unit_writes_no_core_dumps_and_gains_no_rights() {
        for line in ["LimitCORE=0", "NoNewPrivileges=true", "ProtectSystem=strict"] {
            assert!(UNIT_TEXT.lines().any(|given| given == line), "{line}");
        }
    }
}
