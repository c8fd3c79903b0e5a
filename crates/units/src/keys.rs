//! Tables of a TOML file whose keys belong to several crates: each declares its own, and one crate assembles the table.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, DeserializeSeed, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Some keys of a table, with their values.
pub trait Keys {
    /// Names of the keys.
    fn keys() -> Vec<&'static str>;

    /// Takes the next value of `table` if `key` is one of these; otherwise returns false and leaves the value.
    ///
    /// # Errors
    /// The value cannot be read.
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, table: &mut A) -> Result<bool, A::Error>;
}

/// Deserializes a table of exactly these keys. A missing key keeps its default.
///
/// # Errors
/// Not a table; an unknown key; or an unreadable value. Each error has its place.
pub fn table_of<'de, D: Deserializer<'de>, T: Keys + Default>(deserializer: D) -> Result<T, D::Error> {
    struct TableVisitor<T>(PhantomData<T>);
    impl<'de, T: Keys + Default> Visitor<'de> for TableVisitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
            let known = T::keys();
            let mut table = T::default();
            while let Some(key) = map.next_key_seed(KnownKey(&known))? {
                let is_read = table.read(&key, &mut map)?;
                assert!(is_read, "`{key}` is one of the keys and is not read");
            }
            Ok(table)
        }
    }
    deserializer.deserialize_map(TableVisitor(PhantomData))
}

/// Refuses an unknown key while it is read, so that the error has its place.
struct KnownKey<'a>(&'a [&'static str]);

impl<'de> DeserializeSeed<'de> for KnownKey<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        let key = String::deserialize(deserializer)?;
        if self.0.contains(&&*key) {
            return Ok(key);
        }
        // As serde says it, for `words::plain`.
        let known: Vec<String> = self.0.iter().map(|known| format!("`{known}`")).collect();
        Err(de::Error::custom(format!("unknown field `{key}`, expected one of {}", known.join(", "))))
    }
}

/// Declares a struct whose fields are [`Keys`] of a table: each with its type, its default, and its reader, such as
/// those of [`values`](crate::values).
///
/// With `overridden by`, also declares a struct of the same keys as options, each of which overrides the first one's.
/// The crate needs `serde` with `derive`.
///
/// ```
/// use posthaste_units::values;
///
/// posthaste_units::keys! {
///     /// What a session may do.
///     pub struct Limits, overridden by LimitOverrides {
///         /// Octets of a message.
///         message_bytes: u64 = 1 << 20, values::bytes;
///         /// Seconds for a command.
///         command_secs: u64 = 300, values::secs;
///     }
/// }
///
/// let limits: Limits = toml::from_str("command_secs = '1m'").unwrap();
/// assert_eq!((limits.message_bytes, limits.command_secs), (1 << 20, 60));
/// let overrides: LimitOverrides = toml::from_str("message_bytes = '5k'").unwrap();
/// assert_eq!(overrides.over(&limits), Limits { message_bytes: 5120, command_secs: 60 });
/// ```
#[macro_export]
macro_rules! keys {
    ($(#[$meta:meta])* $vis:vis struct $name:ident, overridden by $overrides:ident { $($body:tt)* }) => {
        $crate::keys! { $(#[$meta])* $vis struct $name { $($body)* } }
        $crate::key_overrides! { $vis struct $overrides of $name { $($body)* } }
    };
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$key_meta:meta])* $key:ident: $type:ty = $default:expr, $read:path;)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
        $vis struct $name {
            $($(#[$key_meta])* pub $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        $crate::impl_keys! { $name { $($key: $type => ::core::convert::identity, $read;)* } }
    };
}

/// The second half of [`keys`].
#[doc(hidden)]
#[macro_export]
macro_rules! key_overrides {
    ($vis:vis struct $name:ident of $base:ident {
        $($(#[$key_meta:meta])* $key:ident: $type:ty = $default:expr, $read:path;)*
    }) => {
        #[doc = concat!("Overrides of [`", stringify!($base), "`].")]
        #[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
        $vis struct $name {
            $(
                #[doc = concat!("Overrides [`", stringify!($base), "::", stringify!($key), "`].")]
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $key: Option<$type>,
            )*
        }

        impl $name {
            /// Returns `base` with the keys that are set here replaced.
            pub fn over(&self, base: &$base) -> $base {
                let mut merged = base.clone();
                $(if let Some(value) = &self.$key { merged.$key = value.clone(); })*
                merged
            }

            /// True if no key is set.
            pub fn is_empty(&self) -> bool {
                *self == Self::default()
            }
        }

        $crate::impl_keys! { $name { $($key: $type => Some, $read;)* } }
    };
}

/// Shared part of [`keys`] and [`key_overrides`].
#[doc(hidden)]
#[macro_export]
macro_rules! impl_keys {
    ($name:ident { $($key:ident: $type:ty => $keep:path, $read:path;)* }) => {
        impl $crate::keys::Keys for $name {
            fn keys() -> Vec<&'static str> {
                vec![$(stringify!($key)),*]
            }

            fn read<'de, A: serde::de::MapAccess<'de>>(&mut self, key: &str, table: &mut A) -> Result<bool, A::Error> {
                match key {
                    $(stringify!($key) => {
                        struct Value($type);
                        impl<'de> serde::Deserialize<'de> for Value {
                            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                                $read(deserializer).map(Self)
                            }
                        }
                        self.$key = $keep(table.next_value::<Value>()?.0);
                    })*
                    _ => return Ok(false),
                }
                Ok(true)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::keys::table_of(deserializer)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use crate::values;

    use super::*;

    crate::keys! {
        /// Keys of one reader.
        struct First, overridden by FirstOverrides {
            /// Some number.
            size: u64 = 7, values::bytes;
            /// Some list.
            names: Vec<String> = Vec::new(), Deserialize::deserialize;
        }
    }

    crate::keys! {
        /// Keys of another.
        struct Second {
            /// Some count.
            count: u32 = 3, values::count;
        }
    }

    #[derive(Debug, Default, PartialEq, serde::Serialize)]
    struct Both {
        #[serde(flatten)]
        first: First,
        #[serde(flatten)]
        second: Second,
    }

    impl Keys for Both {
        fn keys() -> Vec<&'static str> {
            [First::keys(), Second::keys()].concat()
        }

        fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, table: &mut A) -> Result<bool, A::Error> {
            Ok(self.first.read(key, table)? || self.second.read(key, table)?)
        }
    }

    #[derive(Debug, serde::Deserialize)]
    struct File {
        #[serde(deserialize_with = "table_of")]
        both: Both,
    }

    fn read(keys: &str) -> Result<Both, (String, Option<std::ops::Range<usize>>)> {
        let read = toml::from_str::<File>(&format!("[both]\n{keys}\n"));
        read.map(|file| file.both).map_err(|error| (error.message().to_owned(), error.span()))
    }

    #[test]
    fn a_table_of_two_readers_is_read_and_shown_as_one() {
        let both = read("count = 5\nsize = \"1k\"").unwrap();
        assert_eq!((both.first.size, both.second.count), (1024, 5));
        assert_eq!(read(&toml::to_string(&both).unwrap()).unwrap(), both);
        assert_eq!(read("").unwrap(), Both::default());
    }

    #[test]
    fn a_mistake_has_its_place() {
        let known = "expected one of `size`, `names`, `count`";
        assert_eq!(read("cuont = 5").unwrap_err(), (format!("unknown field `cuont`, {known}"), Some(7..12)));
        assert_eq!(read("count = -1").unwrap_err(), ("-1 is negative".to_owned(), Some(15..17)));
        let (said, place) = read("names = [3]").unwrap_err();
        assert_eq!((said.as_str(), place), ("invalid type: integer `3`, expected a string", Some(16..17)));
    }

    #[test]
    fn what_is_set_again_stands_in_place() {
        let overrides: FirstOverrides = toml::from_str("names = [\"a\"]").unwrap();
        let merged = overrides.over(&First { size: 9, names: Vec::new() });
        assert_eq!(merged, First { size: 9, names: vec!["a".to_owned()] });
        assert!(!overrides.is_empty() && toml::from_str::<FirstOverrides>("").unwrap().is_empty());
        assert_eq!(toml::to_string(&overrides).unwrap(), "names = [\"a\"]\n");
    }
}
