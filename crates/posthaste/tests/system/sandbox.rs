//! The server in a sandbox that forbids system calls.
#![allow(unsafe_code, reason = "only the C library's prctl sets a filter")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;

use crate::auth::line;
use crate::imap::{CONFIG, address_of};
use crate::support::*;

/// A classic BPF program over `seccomp_data`: `openat2` fails with ENOSYS, as under `RestrictSUIDSGID=` of systemd, and everything else is allowed.
fn without_openat2() -> std::io::Result<()> {
    let step = |code: u32, jump_false: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: jump_false, k };
    let number = u32::try_from(libc::SYS_openat2).expect("it is small");
    let program = [
        // The number of the call is the first field.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned()),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: prctl reads `filter` and the program that it names, which live until it returns; the kernel keeps a copy.
    let is_set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    if is_set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn mail_is_delivered_and_read_where_openat2_is_forbidden() {
    let dir = tempfile::tempdir().unwrap();
    configure(dir.path(), CONFIG);
    std::fs::write(dir.path().join("passwords"), line(dir.path(), "ann@example.org", "secret")).unwrap();
    let mut serve = command(dir.path(), &["serve"]);
    // SAFETY: between fork and exec it makes two system calls on values of its own stack, and allocates nothing.
    unsafe { serve.pre_exec(without_openat2) };
    let server = Server::launch(dir.path(), &mut serve);
    server.hello().deliver(&["ann@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "ann", 1);
    let mut reader = TcpStream::connect(address_of(&server, "pop3")).unwrap();
    reader.write_all(b"USER ann@example.org\r\nPASS secret\r\nRETR 1\r\nQUIT\r\n").unwrap();
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert!(said.contains(str::from_utf8(MESSAGE).unwrap()), "{said}");
    server.stop();
}
