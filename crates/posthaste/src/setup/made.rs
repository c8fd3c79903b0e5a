//! Things that setup has made, to be undone if it does not come to its end.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Undone in reverse order when it is dropped, unless it was [kept](Self::keep).
#[derive(Debug, Default)]
pub struct Made(Vec<Thing>);

#[derive(Debug)]
enum Thing {
    File(PathBuf),
    /// With all that was put into it since.
    Dir(PathBuf),
    User(&'static str),
    /// The unit was started and enabled.
    Unit(&'static str),
    Server(Child),
}

impl Made {
    pub fn file(&mut self, path: &Path) {
        self.0.push(Thing::File(path.to_owned()));
    }

    /// Makes a directory and those above it. One that is there stays as it is.
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
        std::fs::create_dir(path)?;
        self.0.push(Thing::Dir(path.to_owned()));
        Ok(true)
    }

    /// A directory that something else has made.
    pub fn has_dir(&mut self, path: &Path) {
        self.0.push(Thing::Dir(path.to_owned()));
    }

    pub fn user(&mut self, name: &'static str) {
        self.0.push(Thing::User(name));
    }

    pub fn unit(&mut self, name: &'static str) {
        self.0.push(Thing::Unit(name));
    }

    /// A server that ends with this.
    pub fn server(&mut self, server: Child) {
        self.0.push(Thing::Server(server));
    }

    /// Ends the server that was started last, and waits for that.
    pub fn end_server(&mut self) {
        self.0.retain_mut(|thing| match thing {
            Thing::Server(server) => {
                end(server);
                false
            }
            _ => true,
        });
    }

    /// The status of a server that has ended by itself.
    pub fn has_ended(&mut self) -> Option<std::process::ExitStatus> {
        self.0.iter_mut().find_map(|thing| match thing {
            Thing::Server(server) => server.try_wait().ok().flatten(),
            _ => None,
        })
    }

    /// All of it stays.
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
                Thing::Server(mut server) => end(&mut server),
            }
        }
    }
}

fn quietly(command: &mut Command) {
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

fn end(server: &mut Child) {
    if let Some(pid) = i32::try_from(server.id()).ok().and_then(rustix::process::Pid::from_raw)
        && server.try_wait().is_ok_and(|status| status.is_none())
    {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let _ = server.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_goes_unless_it_is_kept_and_what_was_there_stays() {
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
            made.server(Command::new("sleep").arg("600").spawn().unwrap());
            if is_kept {
                made.keep()
            } else {
                drop(made)
            }
            assert_eq!((at("old").is_dir(), at("old/new").exists(), at("old/file").exists()), (true, is_kept, is_kept));
        }
    }
}
