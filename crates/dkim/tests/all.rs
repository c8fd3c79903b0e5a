//! Signatures, ours and those of others.

mod allocations;
mod prop;
mod verifier;
mod verify;
