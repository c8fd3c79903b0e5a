//! Mail in by HTTP: the request that KumoMTA's `/api/inject/v1` takes, checked, the messages that it becomes, and its answer.
//!
//! For any server that takes such requests: it hands the octets over, receives the messages that come back as it receives others, and answers by
//! [`InjectAnswer`]. Keys of the request that are not taken here are refused by name.
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
