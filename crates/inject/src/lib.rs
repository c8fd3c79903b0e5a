//! Mail in by HTTP: validates requests of KumoMTA's `/api/inject/v1`, makes their messages, and writes the answer.
//!
//! For any server that accepts such requests: it passes the octets, accepts the resulting messages like any others, and
//! answers by [`InjectAnswer`]. Unsupported keys of a request are refused by name.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod answer;
mod built;
mod json;
pub mod keys;
mod mime;
mod request;
mod schedule;
mod template;

pub use answer::{InjectAnswer, Refusal};
pub use request::{InjectMessage, InjectRequest, InvalidRequest, RECIPIENTS_MAX};
pub use schedule::Schedule;
pub use template::MayGoOn;
