//! Readiness notification: a line to `--ready-fd` (s6's `notification-fd`, scripts), and systemd's `NOTIFY_SOCKET` (`Type=notify`).

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::config::error::ServeError;

/// The service manager that started this process and expects notifications.
#[derive(Debug)]
pub(crate) struct Supervisor {
    ready_fd: Option<File>,
}

impl Supervisor {
    /// # Errors
    /// [`ServeError::ReadyFd`]: the descriptor is not open, or not for writing.
    pub fn new(ready_fd: Option<u32>) -> Result<Self, ServeError> {
        let open = |number| duplicate(number).map_err(|error| ServeError::ReadyFd { number, error });
        Ok(Self { ready_fd: ready_fd.map(open).transpose()? })
    }

    /// Reports that all listeners are bound and the spool is replayed. A failed notification does not stop the server.
    pub fn ready(&mut self) {
        // Closed afterwards.
        if let Some(Err(error)) = self.ready_fd.take().map(|mut file| file.write_all(b"ready\n")) {
            tracing::warn!(error = error.to_string(), "cannot write to the descriptor of --ready-fd");
        }
        notify_systemd("READY=1");
    }

    /// Reports the beginning of a shutdown.
    pub fn stopping(&self) {
        notify_systemd("STOPPING=1");
    }
}

/// Duplicates a descriptor. `BorrowedFd::borrow_raw` would need unsafe code.
fn duplicate(number: u32) -> std::io::Result<File> {
    let number = i32::try_from(number).ok().filter(|number| *number > 2);
    let number = number.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "not a descriptor for this"))?;
    let own = pidfd_open(getpid(), PidfdFlags::empty());
    let file = match own.and_then(|own| pidfd_getfd(own, number, PidfdGetfdFlags::empty())) {
        Ok(descriptor) => File::from(descriptor),
        Err(rustix::io::Errno::BADF) => return Err(rustix::io::Errno::BADF.into()),
        // Linux before 5.6, or a sandbox that forbids the call. This opens pipes and files, but no sockets.
        Err(_) => OpenOptions::new().append(true).open(format!("/proc/self/fd/{number}"))?,
    };
    match fcntl_getfl(&file)? & OFlags::ACCMODE {
        OFlags::RDONLY => Err(Error::new(ErrorKind::PermissionDenied, "it is open for reading only")),
        _ => Ok(file),
    }
}

/// Sends `state` as `sd_notify(3)` does, if systemd asks for it.
fn notify_systemd(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(socket = %name.display(), error = error.to_string(), state, "cannot notify systemd");
    }
}
