//! Names of a server's UNIX sockets, and errors of listening.
#![cfg(feature = "tokio")]

use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use posthaste_smtp::driver::Server;

use crate::nobody::Nobody;

/// Far longer than any step takes unless it hangs.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_file_that_is_not_a_socket_is_never_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("precious.txt");
    std::fs::write(&path, "years of work").unwrap();
    let error = Server::builder().listen_unix(&path).bind().unwrap_err();
    assert_eq!(error.error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(
        error.to_string(),
        format!("{}: a file that is not a socket has this name; it is not replaced", path.display())
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "years of work");
}

#[test]
fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lmtp");
    drop(UnixListener::bind(&path).unwrap());
    let bound = Server::builder().listen_unix(&path).bind().unwrap();
    let error = Server::builder().listen_unix(&path).bind().unwrap_err();
    assert_eq!(error.error.kind(), ErrorKind::AddrInUse);
    UnixStream::connect(&path).unwrap();
    drop(bound);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_successor_keeps_the_name_that_it_has_taken() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lmtp");
    let server = Server::builder().listen_unix(&path).start(Nobody).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let successor = UnixListener::bind(&path).unwrap();
    assert!(server.shutdown(LONG).await);
    UnixStream::connect(&path).unwrap();
    drop(successor);
}

#[test]
fn the_listener_that_fails_is_the_one_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (good, bad) = (dir.path().join("good"), dir.path().join("missing/bad"));
    let error = Server::builder().listen("127.0.0.1:0").listen_unix(&good).listen_unix(&bad).bind().unwrap_err();
    assert_eq!((&*error.place, error.error.kind()), (bad.to_str().unwrap(), ErrorKind::NotFound));
    assert!(!good.exists(), "nothing is left of those that could be had");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = taken.local_addr().unwrap().to_string();
    let error = Server::builder().listen("127.0.0.1:0").listen(&place).bind().unwrap_err();
    assert_eq!((error.place, error.error.kind()), (place, ErrorKind::AddrInUse));
}
