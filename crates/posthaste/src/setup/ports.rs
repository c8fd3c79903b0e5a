//! Ports of this machine, and the programs that have them.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The address for all listeners: a machine may have no IPv6.
pub fn any_address() -> &'static str {
    match TcpListener::bind("[::]:0") {
        Ok(_) => "[::]",
        Err(_) => "0.0.0.0",
    }
}

/// The program that uses a port; an empty name if it is invisible. `None`: the port is free.
pub fn user_of(any: &str, port: u16) -> Option<String> {
    let at = format!("{any}:{port}");
    match TcpListener::bind(&at) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => Some(program_at(port).unwrap_or_default()),
        // A port below 1024 may not be tried by everybody: somebody who answers has it.
        Err(_) => answers(port).then(|| program_at(port).unwrap_or_default()),
        Ok(_) => None,
    }
}

/// True if something answers at this port of this machine.
pub fn answers(port: u16) -> bool {
    TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_secs(1)).is_ok()
}

/// True if a process listens at a port, and no other one at another address with it.
pub fn listens(process: u32, port: u16) -> bool {
    let sockets = listening_at(port);
    let process = PathBuf::from(format!("/proc/{process}"));
    !sockets.is_empty() && sockets.iter().all(|socket| has_socket(&process, socket))
}

/// The name of the process that listens at a port.
fn program_at(port: u16) -> Option<String> {
    let sockets = listening_at(port);
    processes()
        .find(|process| sockets.iter().any(|socket| has_socket(process, socket)))
        .and_then(|process| std::fs::read_to_string(process.join("comm")).ok())
        .map(|name| name.trim().to_owned())
}

fn listening_at(port: u16) -> Vec<String> {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().flat_map(|table| listening(table, port)).collect()
}

fn has_socket(process: &Path, socket: &str) -> bool {
    let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    files.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|target| target.as_os_str() == socket)
}

/// `socket:[INODE]` of each socket in state LISTEN at a port, from a table of the kernel (proc(5)).
fn listening(table: &str, port: u16) -> Vec<String> {
    let text = std::fs::read_to_string(table).unwrap_or_default();
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let local = words.get(1)?;
        let state = words.get(3)?;
        let inode = words.get(9)?;
        let at = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        (at == port && *state == "0A").then(|| format!("socket:[{inode}]"))
    };
    text.lines().filter_map(of_line).collect()
}

fn processes() -> impl Iterator<Item = PathBuf> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_told_with_its_program() {
        let any = any_address();
        let taken = TcpListener::bind(format!("{any}:0")).unwrap();
        let port = taken.local_addr().unwrap().port();
        let own = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(user_of(any, port).as_deref(), Some(own.trim()));
        assert!(answers(port) && listens(std::process::id(), port) && !listens(1, port));
    }
}
