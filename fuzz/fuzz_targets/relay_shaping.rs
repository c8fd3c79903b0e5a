//! Any text is a file of limits or an error that says where; what is read can be asked about any host, domain, source, tenant and reply. What is made of a file of KumoMTA is a
//! file of ours.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_shaping::explain::Defaults;
use posthaste_shaping::{ShapingRules, kumo};

const DEFAULTS: Defaults = Defaults { connections: 20, messages_per_connection: 100, recipients_per_message: 100 };

fuzz_target!(|text: &str| {
    if let Ok(converted) = kumo::convert(text) {
        ShapingRules::parse("converted.toml", &converted.shaping).expect("what was converted is a file of ours");
    }
    let (text, asked) = text.split_once('\0').unwrap_or((text, "a.example"));
    let rules = match ShapingRules::parse("shaping.toml", text) {
        Ok(rules) => rules,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let asked = asked.to_lowercase();
    for name in [&*asked, "a.example", "mx.a.example", ""] {
        let sections = rules.of_domain(name);
        let site = rules.of_site(name, &[name, "mx.b.example"], &sections);
        assert!(site.sections.iter().all(|section| !rules.title(*section).is_empty()));
        rules.messages_to(name, name);
        rules.messages_of(name);
        rules.automation().matching(&format!("451 4.7.0 {name}"), &sections, || "other".to_owned());
        rules.explain(name, name, &[name, "a"], &[name, "mx.b.example"], DEFAULTS);
    }
});
