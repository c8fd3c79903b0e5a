//! Any text as the record and the policy of a domain (RFC 8461): never a panic, and no more than the policy says is permitted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_mta_sts::{StsPolicy, policy_id};

const YEAR_SECS: u64 = 31_557_600;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let (records, policy) = text.split_once("\n\n").unwrap_or(("", &text));
    let records: Vec<String> = records.lines().map(str::to_owned).collect();
    if let Some(id) = policy_id(&records) {
        assert!((1..=32).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id:?}");
    }
    let Ok(policy) = StsPolicy::parse(policy) else { return };
    assert!(policy.max_age_secs <= YEAR_SECS);
    for pattern in &policy.hosts {
        let above = pattern.strip_prefix("*.");
        assert!(!policy.permits("") && policy.permits(pattern), "{pattern:?}");
        if let Some(above) = above {
            assert!(policy.permits(&format!("mx.{above}")), "{pattern:?}");
            let is_named = |host: &str| policy.hosts.iter().any(|of| of.trim_start_matches("*.") == host);
            assert!(
                is_named("a.b") || !policy.permits("a.b") || policy.hosts.iter().any(|of| of == "*.b"),
                "{policy:?}"
            );
        }
    }
});
