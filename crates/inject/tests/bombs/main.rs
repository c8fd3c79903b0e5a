//! Memory of templates that grow, measured by the peak of this process, which has no other test.

mod all;

use posthaste_inject::InjectRequest;
use serde_json::json;

/// Of one template, as the design has it.
const PEAK_BYTES_MAX: u64 = 64 << 20;

/// The most memory that this process has had since the last call of [`forget_peak`].
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

#[test]
fn bombs_take_little_memory() {
    let list: Vec<u32> = (0..100).collect();
    let substitutions = json!({ "x": "x".repeat(100_000), "l": list });
    for bomb in all::all() {
        let body = json!({
            "envelope_sender": "shop@example.org",
            "recipients": [{ "email": "ann@example.org" }],
            "substitutions": substitutions,
            "content": format!("Subject: x\n\n{bomb}\n"),
        });
        let body = body.to_string();
        forget_peak();
        let before = peak_bytes();
        let made = InjectRequest::parse(body.as_bytes()).and_then(|request| request.message(0, &|| true));
        let (taken, text) = (peak_bytes() - before, bomb.chars().take(60).collect::<String>());
        assert!(made.is_err(), "{text}");
        assert!(taken <= PEAK_BYTES_MAX, "{text}: {taken} bytes");
    }
}
