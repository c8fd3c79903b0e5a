//! Splits addresses of a header field that was joined into one text.

use posthaste_message::mime::{RawAddress, RawAddresses};

/// Splits a text made by [`extract`](crate::extract): `Name <address>`, `"Na, me" <address>`, `address`, `Name of
/// somebody`, `Group: address, address;`. Names and addresses are those that
/// [`AddressList`](posthaste_message::mime::AddressList) found in the header. A name without an address, and a group
/// without members, have an empty address.
pub fn split_addresses(field: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut group = None;
    for item in RawAddresses::new(field.as_bytes()) {
        // Cuts only at ASCII characters.
        let text = |octets: Vec<u8>| String::from_utf8(octets).unwrap_or_default();
        match item {
            RawAddress::Mailbox { name, address } => {
                group = None;
                all.push((name.map(text).unwrap_or_default(), address.map(text).unwrap_or_default()));
            }
            RawAddress::Group(name) => group = Some(text(name)),
            RawAddress::GroupEnd => {
                all.extend(group.take().filter(|name| !name.is_empty()).map(|name| (name, String::new())));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_apart_as_they_were_put_together() {
        let check = |field: &str, expected: &[(&str, &str)]| {
            let expected: Vec<(String, String)> =
                expected.iter().map(|(n, a)| ((*n).to_owned(), (*a).to_owned())).collect();
            assert_eq!(split_addresses(field), expected, "{field}");
        };
        check("Ann <a@x>, \"Doe, B\" <b@x>, c@x", &[("Ann", "a@x"), ("Doe, B", "b@x"), ("", "c@x")]);
        check("", &[]);
        check("root", &[("", "root")]);
        check("\"root\"", &[("root", "")]);
        check("\"Tester (Example \\\"x\\\")\" <a@x>", &[("Tester (Example \"x\")", "a@x")]);
        check("undisclosed-recipients:;", &[("undisclosed-recipients", "")]);
        check("The Team: a@x, B <b@x>;, c@x", &[("", "a@x"), ("B", "b@x"), ("", "c@x")]);
        check("\"A: B\": a@x;, \"C: D\" <c@x>", &[("", "a@x"), ("C: D", "c@x")]);
        check("A: \"B C\";, D:;, e@x", &[("B C", ""), ("D", ""), ("", "e@x")]);
        check("eve@[IPv6:2001:db8::1], John Doe", &[("", "eve@[IPv6:2001:db8::1]"), ("John Doe", "")]);
    }
}
