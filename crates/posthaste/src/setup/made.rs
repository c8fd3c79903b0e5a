//! Undo list of setup, used if it fails.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Undone in reverse order on drop, unless it was [kept](Self::keep).
#[derive(Debug, Default)]
pub struct Made(Vec<Thing>);

#[derive(Debug)]
enum Thing {
    File(PathBuf),
    /// A file at the first path, moved there from the second.
    Replaced(&'static str, &'static str),
    /// A change that one of our commands reverts.
    By(Box<Command>),
    /// A directory, with its later content.
    Dir(PathBuf),
    User(&'static str),
    /// The unit was started and enabled.
    Unit(&'static str),
    /// A server, and the file with its output.
    Server(Child, PathBuf),
}

impl Made {
    pub fn file(&mut self, path: &Path) {
        self.0.push(Thing::File(path.to_owned()));
    }

    /// Makes a directory and missing ones above it. An existing one is not changed.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn dir(&mut self, path: &Path) -> std::io::Result<bool> {
        if path.is_dir() {
            return Ok(false);
        }
        if let Some(above) = path.parent() {
            self.dir(above)?;
        }
        let at = |error: std::io::Error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        std::fs::create_dir(path).map_err(at)?;
        self.0.push(Thing::Dir(path.to_owned()));
        Ok(true)
    }

    /// Notes a directory made elsewhere.
    pub fn has_dir(&mut self, path: &Path) {
        self.0.push(Thing::Dir(path.to_owned()));
    }

    pub fn user(&mut self, name: &'static str) {
        self.0.push(Thing::User(name));
    }

    pub fn unit(&mut self, name: &'static str) {
        self.0.push(Thing::Unit(name));
    }

    /// Notes a renamed file, whose name is reused.
    pub fn replaced(&mut self, now: &'static str, before: &'static str) {
        self.0.push(Thing::Replaced(now, before));
    }

    /// Notes a change that a command reverts.
    pub fn undone_by(&mut self, command: Command) {
        self.0.push(Thing::By(Box::new(command)));
    }

    /// Starts a server that ends with this object. Its output goes to a file in `dir`, for the error message if it ends
    /// by itself.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn server(&mut self, serve: &mut Command, dir: &Path) -> std::io::Result<()> {
        let path = dir.join("setup.log");
        let _ = std::fs::remove_file(&path);
        let words = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        let server = serve.stdin(Stdio::null()).stdout(Stdio::null()).stderr(words).spawn()?;
        self.0.push(Thing::Server(server, path));
        Ok(())
    }

    /// Ends the server that was started last, and waits until it has ended.
    pub fn end_server(&mut self) {
        self.0.retain_mut(|thing| match thing {
            Thing::Server(server, words) => {
                end(server, words);
                false
            }
            _ => true,
        });
    }

    /// The status of a server that has ended by itself, and its last line.
    pub fn has_ended(&mut self) -> Option<(std::process::ExitStatus, String)> {
        self.0.iter_mut().find_map(|thing| match thing {
            Thing::Server(server, words) => Some((server.try_wait().ok().flatten()?, last_line(words))),
            _ => None,
        })
    }

    /// Keeps all changes.
    pub fn keep(mut self) {
        self.end_server();
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        while let Some(thing) = self.0.pop() {
            // What cannot be taken away stays, and is found by the next run.
            match thing {
                Thing::File(path) => _ = std::fs::remove_file(path),
                Thing::Dir(path) => _ = std::fs::remove_dir_all(path),
                Thing::User(name) => quietly(Command::new("userdel").arg(name)),
                Thing::Unit(name) => quietly(Command::new("systemctl").args(["disable", "--now", name])),
                Thing::Server(mut server, words) => end(&mut server, &words),
                Thing::Replaced(now, before) => _ = std::fs::rename(now, before),
                Thing::By(mut command) => quietly(&mut command),
            }
        }
    }
}

fn quietly(command: &mut Command) {
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// The last line of a server's output.
fn last_line(words: &Path) -> String {
    let text = std::fs::read(words).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().rfind(|line| !line.is_empty()).unwrap_or("it says nothing").to_owned()
}

fn end(server: &mut Child, words: &Path) {
    if let Some(pid) = i32::try_from(server.id()).ok().and_then(rustix::process::Pid::from_raw)
        && server.try_wait().is_ok_and(|status| status.is_none())
    {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let _ = server.wait();
    let _ = std::fs::remove_file(words);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_files_go_unless_kept_and_earlier_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for is_kept in [false, true] {
            std::fs::create_dir_all(at("old")).unwrap();
            let mut made = Made::default();
            assert!(!made.dir(&at("old")).unwrap());
            assert!(made.dir(&at("old/new/deep")).unwrap());
            for name in ["old/file", "old/new/deep/file"] {
                std::fs::write(at(name), "x").unwrap();
            }
            made.file(&at("old/file"));
            made.server(Command::new("sleep").arg("600"), &at("old")).unwrap();
            if is_kept {
                made.keep()
            } else {
                drop(made)
            }
            assert_eq!((at("old").is_dir(), at("old/new").exists(), at("old/file").exists()), (true, is_kept, is_kept));
        }
    }
}
