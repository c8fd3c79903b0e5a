//! The relay: takes messages from a spool's stream `queue` and sends them to the hosts responsible for them.
//!
//! [`Relay::open`] restores the queue and attaches to the stream. A message enters by [`Relay::entry`], in the batch
//! that keeps it. The path of a message:
//!
//! ```text
//! spool ─published─► Queue ─unrouted─► DNS ─route─► ready queue of a site ─► connections ─fates─► OutcomeRecorder ─changes─► spool
//!   │                                                                            ▲
//!   └───────── body and envelope: from memory, else from the spool ──────────────┘
//! ```
//!
//! No part of a message leaves before its batch is durable, and a recipient is settled only once the record of the
//! outcome is durable. After a crash in between, the next hop gets the message once more: the only duplicate.
mod ahead;
mod alarm;
mod ask_ahead;
mod automation;
mod backlog;
mod bounces;
mod broken_tls;
mod careful;
mod config;
mod connection;
mod connection_sharing;
mod control;
mod count;
mod destination;
mod dial;
mod dispatch;
mod ended;
mod explain;
mod gate;
mod gather;
mod idle;
mod last_words;
mod leaving;
mod look;
mod maps;
mod messages;
mod mta_sts;
mod notices;
mod notices_to_make;
mod observer;
mod operator;
mod outcomes;
mod preview;
mod queue_limit;
mod ranking;
mod record;
mod relay;
mod replies;
mod reroute;
mod reuse;
mod round;
mod route;
mod route_section;
mod route_table;
mod router;
mod routing;
mod section;
mod serving;
mod session_settings;
mod shaping;
mod shared;
mod signatures;
mod site;
mod sites;
mod snapshots;
mod source;
mod source_section;
mod standing;
mod status;
mod summary;
mod suppress;
mod tell;
mod tenants;
#[cfg(test)]
mod test_relay;
mod tls_counts;
mod traffic;
mod transfer;
mod unrouted;
mod warm_up;

pub use ahead::Ahead;
pub use bounces::{
    BounceFiles, BounceSection, Bounces, BouncesError, Classes, ReturnPathSection, SignedPaths, wall_secs,
};
pub use config::{Config, Delivering, LeavingSigner, Notifier, OutgoingNotice, Witnesses, opportunistic_tls};
pub use control::{Acted, ControlError, Filter, WaitingRecipient};
pub use count::Count;
pub use explain::{OfMail, UnknownName};
pub use maps::{LocalParts, MapsSection, Pairs, RecipientsSection};
pub use messages::NotSigned;
pub use mta_sts::{MtaSts, MtaStsError};
pub use notices::{NoticeSection, Notices};
pub use observer::{
    ActedOn, AttemptResult, Observer, Originator, QueueLimitState, RecipientAttempt, RecordingState, RelayStats,
    SiteState, TlsFailure,
};
pub use preview::{
    HopPreview, HostPreview, HostSettings, MtaStsPreview, PreviewOf, RoutePreview, SourcePreview, TlsPreview,
};
pub use queue_limit::{QueueLimitNow, QueueLimits};
pub use ranking::Ranking;
pub use relay::{Relay, RelayOpenReport, STREAM};
pub use route::{FixedRoute, RouteTls, TlsRule};
pub use route_section::{Hosts, RouteEncryption, RouteError, RouteSection};
pub use routing::Routing;
pub use section::{EightBitMail, Section, SrsSection};
pub use source::{OutgoingSource, Pool};
pub use source_section::{PoolSection, SourceSection, TlsSection, WarmUpSection};
pub use summary::{CountBy, Standing};
pub use tenants::TenantSection;
pub use transfer::{Exported, ExportedCount, ExportedRecipient, Import, ImportError};
pub use warm_up::WarmUp;
