//! The price of trust: mail that is signed when it is sent on, and strangers' mail that is checked when it is received.

use crate::suite::{Settings, Suite, Workload};
use crate::{receive, relay};

pub const SUITE: Suite = Suite {
    name: "trust",
    about: "Mail sent on unsigned and signed with DKIM, and received with and without SPF, DKIM and DMARC: not part of `all`",
    workloads,
};

fn workloads(settings: &Settings) -> Vec<Workload> {
    vec![relay::signed::workload(settings), receive::checked::workload(settings)]
}
