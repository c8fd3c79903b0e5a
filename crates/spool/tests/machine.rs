//! Spools of all kinds, most of them on the simulated machine. Its calls wait for each other, so the tests without it are another program.

mod cancel;
mod files;
mod forget;
mod import;
mod lsm;
mod space;
mod suite;
