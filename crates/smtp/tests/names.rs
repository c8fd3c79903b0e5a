//! A glob import of this crate takes no name away from another crate.
#![cfg(feature = "tokio")]

use posthaste_smtp::*;

// A module of the name `tokio` would make this attribute ambiguous, and this file would not compile.
#[tokio::test]
async fn a_glob_import_leaves_tokio_alone() {
    assert_eq!(Reply::ok("OK").code(), 250);
}
