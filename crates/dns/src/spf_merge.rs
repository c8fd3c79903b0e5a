//! The SPF record (RFC 7208) that a domain needs before our host sends its mail, based on the existing one.

use std::collections::HashSet;

use crate::{DnsError, Resolver};

/// Why a record cannot be merged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpfMergeError {
    /// The domain has several, which every receiver treats as an error (RFC 7208 section 4.5).
    #[error("{0} has several SPF records: make one of them")]
    Several(String),
    /// Receivers stop at [`SPF_LOOKUPS_MAX`].
    #[error("SPF of {domain} would need more than {SPF_LOOKUPS_MAX} look-ups: {}", terms.join(", "))]
    TooManyLookups {
        /// The domain.
        domain: String,
        /// Each term that needs a look-up, with the record that contains it.
        terms: Vec<String>,
    },
}

/// The only SPF record among these texts.
///
/// # Errors
/// [`SpfMergeError::Several`].
pub fn spf_of<'a>(domain: &str, texts: &'a [String]) -> Result<Option<&'a str>, SpfMergeError> {
    let mut found = texts.iter().map(String::as_str).filter(|text| is_spf(text));
    match (found.next(), found.next()) {
        (record, None) => Ok(record),
        _ => Err(SpfMergeError::Several(domain.to_owned())),
    }
}

/// Puts the first of `terms`, such as `mx` or `a:mx.example.org`, in front of all others in `record`. A record with one
/// of them stays unchanged. Without a record: a new one that allows nobody else.
pub fn with_term(record: Option<&str>, terms: &[&str]) -> String {
    let wanted = terms.first().copied().unwrap_or_default();
    let Some(record) = record else { return format!("v=spf1 {wanted} -all") };
    let is_wanted = |known: &str| terms.iter().any(|term| known.eq_ignore_ascii_case(term));
    let mut there = record.split_ascii_whitespace();
    let version = there.next().unwrap_or("v=spf1");
    let has_term = there.clone().any(|known| is_wanted(known.strip_prefix('+').unwrap_or(known)));
    if has_term {
        return record.to_owned();
    }
    [version, wanted].into_iter().chain(there).collect::<Vec<_>>().join(" ")
}

/// Counts the look-ups of a record and of the records that it includes.
///
/// # Errors
/// [`SpfMergeError::TooManyLookups`]. An unreachable record counts as one look-up.
pub async fn check_lookups(resolver: &Resolver, domain: &str, record: &str) -> Result<(), SpfMergeError> {
    let mut terms = Vec::new();
    let mut seen = HashSet::new();
    let mut left = vec![(domain.to_owned(), record.to_owned())];
    while let Some((of, record)) = left.pop() {
        for term in record.split_ascii_whitespace().skip(1) {
            let bare = term.trim_start_matches(['+', '-', '~', '?']).to_ascii_lowercase();
            let name = bare.split([':', '/', '=']).next().unwrap_or_default();
            if !LOOKUP_TERMS.contains(&name) {
                continue;
            }
            terms.push(format!("{term} of {of}"));
            if terms.len() > SPF_LOOKUPS_MAX {
                return Err(SpfMergeError::TooManyLookups { domain: domain.to_owned(), terms });
            }
            let next = bare.strip_prefix("include:").or_else(|| bare.strip_prefix("redirect="));
            // A macro depends on the mail.
            let next = next.filter(|next| !next.contains('%') && seen.insert(next.to_string()));
            if let Some(next) = next
                && let Ok(Some(record)) = record_of(resolver, next).await
            {
                left.push((next.to_owned(), record));
            }
        }
    }
    Ok(())
}

async fn record_of(resolver: &Resolver, domain: &str) -> Result<Option<String>, DnsError> {
    let texts = resolver.texts(domain).await?;
    Ok(spf_of(domain, &texts).ok().flatten().map(str::to_owned))
}

fn is_spf(text: &str) -> bool {
    let version = text.split(' ').next().unwrap_or_default();
    version.eq_ignore_ascii_case("v=spf1")
}

/// RFC 7208 section 4.6.4.
pub const SPF_LOOKUPS_MAX: usize = 10;
const LOOKUP_TERMS: [&str; 6] = ["include", "a", "mx", "ptr", "exists", "redirect"];

#[cfg(test)]
mod tests {
    use posthaste_dns_stub::{Server, Zone};

    use super::*;
    use crate::Settings;

    #[test]
    fn a_term_goes_in_front_and_never_twice() {
        let check = |record: Option<&str>, expected: &str| {
            assert_eq!(with_term(record, &["a:mx.example.org"]), expected);
        };
        check(None, "v=spf1 a:mx.example.org -all");
        check(Some("v=spf1 -all"), "v=spf1 a:mx.example.org -all");
        check(Some("v=spf1  include:x.example ~all"), "v=spf1 a:mx.example.org include:x.example ~all");
        check(
            Some("v=spf1 include:x.example +A:MX.example.org -all"),
            "v=spf1 include:x.example +A:MX.example.org -all",
        );
        check(Some("v=spf1 -a:mx.example.org -all"), "v=spf1 a:mx.example.org -a:mx.example.org -all");
        check(Some("V=SPF1 redirect=x.example"), "V=SPF1 a:mx.example.org redirect=x.example");
        // Made while mail was received elsewhere; it is as good later.
        let either = ["mx", "a:mx.example.org"];
        assert_eq!(with_term(Some("v=spf1 a:mx.example.org -all"), &either), "v=spf1 a:mx.example.org -all");
        assert_eq!(with_term(Some("v=spf1 a -all"), &either), "v=spf1 mx a -all");
    }

    #[test]
    fn one_record_is_found_among_other_texts() {
        let texts = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect::<Vec<_>>();
        let one = texts(&["v=spf10 x", "google-site=1", "v=spf1 -all", "spf"]);
        assert_eq!(spf_of("x", &one), Ok(Some("v=spf1 -all")));
        assert_eq!(spf_of("x", &texts(&["v=DKIM1"])), Ok(None));
        assert!(matches!(spf_of("x", &texts(&["v=spf1", "v=spf1 -all"])), Err(SpfMergeError::Several(_))));
    }

    #[tokio::test]
    async fn more_than_ten_look_ups_are_refused_with_their_list() {
        let mut zone = Zone::default().txt("loop.example", "v=spf1 include:loop.example -all");
        zone = zone.txt("five.example", "v=spf1 a mx ptr exists:%{i}.x.example a:x.example ip4:192.0.2.0/24 -all");
        let server = Server::start(zone);
        let resolver = Resolver::new(&Settings { servers: vec![server.address()], ..Settings::default() }).unwrap();
        let check = async |record: &str| check_lookups(&resolver, "example.org", record).await;
        assert_eq!(
            check("v=spf1 a mx include:five.example ?a/24 ~exists:y.example ip6:2001:db8::/32 -all").await,
            Ok(())
        );
        assert_eq!(check("v=spf1 include:loop.example include:nowhere.example -all").await, Ok(()));
        let error = check("v=spf1 a a a a a redirect=five.example").await.unwrap_err().to_string();
        assert!(
            error.contains("more than 10 look-ups: a of example.org, ")
                && error.contains("a:x.example of five.example"),
            "{error}"
        );
    }
}
