//! Signatures, ours and those of others.

mod prop;
mod verifier;
mod verify;
