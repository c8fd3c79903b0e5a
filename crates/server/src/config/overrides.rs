//! What a listener or a network has in place of `[limits]` and `[policy]`.

use posthaste_smtp::driver::{IpNet, network};
use posthaste_smtp::{BareNewlines, LongLines, NulOctets};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::values::{self, SpoolShare};
use super::{Limits, Policy};

/// Defines the table of those keys of another that can be set again, and how they are put in its place.
macro_rules! overrides {
    ($(#[$doc:meta])* $name:ident of $base:ident { $($key:ident: $type:ty, $read:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields, expecting = "a table")]
        pub struct $name {
            $(
                #[doc = concat!("In place of [`", stringify!($base), "::", stringify!($key), "`].")]
                #[serde(skip_serializing_if = "Option::is_none", deserialize_with = $read)]
                pub $key: Option<$type>,
            )*
        }

        impl $name {
            /// `base` with what is set here in its place.
            pub fn over(&self, base: &$base) -> $base {
                let mut merged = base.clone();
                $(if let Some(value) = &self.$key { merged.$key = value.clone(); })*
                merged
            }

            /// Whether nothing is set.
            pub fn is_empty(&self) -> bool {
                *self == Self::default()
            }
        }
    };
}

overrides! {
    /// What of [`Limits`] can differ: the numbers of connections, and the bounds of a session.
    LimitOverrides of Limits {
        connections: usize, "values::some_count";
        connections_per_address: usize, "values::some_count";
        message_bytes: u64, "values::some_bytes";
        header_bytes: u64, "values::some_bytes";
        recipients: usize, "values::some_count";
        messages_per_session: u32, "values::some_count";
        command_line_bytes: usize, "values::some_bytes";
        text_line_bytes: u64, "values::some_bytes";
        discard_bytes: u64, "values::some_bytes";
        errors: u32, "values::some_count";
        deferred_recipients: u32, "values::some_count";
        idle_commands: u32, "values::some_count";
        hops: usize, "values::some_count";
        spool_per_address: SpoolShare, "values::some_share";
        command_secs: u64, "values::some_secs";
        body_read_secs: u64, "values::some_secs";
        body_total_secs: u64, "values::some_secs";
        write_secs: u64, "values::some_secs";
        linger_secs: u64, "values::some_secs";
    }
}

overrides! {
    /// What of [`Policy`] can differ: all of it.
    PolicyOverrides of Policy {
        bare_newlines: BareNewlines, "values::some";
        long_lines: LongLines, "values::some";
        nul_octets: NulOctets, "values::some";
        forbidden_commands: Vec<String>, "values::some";
    }
}

/// Addresses and networks: one in quotes, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Networks(pub Vec<IpNet>);

impl Serialize for Networks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(ToString::to_string))
    }
}

impl<'de> Deserialize<'de> for Networks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NetworksVisitor;
        impl<'de> Visitor<'de> for NetworksVisitor {
            type Value = Networks;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(
                    "addresses or networks in quotes, such as \"192.0.2.7\" or [\"10.0.0.0/8\", \"2001:db8::/32\"]",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Networks, E> {
                network(text).map(|network| Networks(vec![network])).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Networks, A::Error> {
                let mut networks = Vec::new();
                while let Some(Networks(one)) = seq.next_element()? {
                    networks.extend(one);
                }
                Ok(Networks(networks))
            }
        }
        deserializer.deserialize_any(NetworksVisitor)
    }
}
