//! Routes of addresses. `large` counts allocations, so it is a program of its own.

mod laws;
mod routes;
mod transports;
