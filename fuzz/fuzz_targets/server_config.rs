//! Any text is a configuration or an error that points into it; what is shown is read as the same.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use posthaste_config::Config;

fuzz_target!(|text: &str| {
    match Config::parse(Path::new("posthaste.toml"), text) {
        Ok(config) => {
            let shown = config.to_toml();
            let again = Config::parse(Path::new("posthaste.toml"), &shown).expect("what is shown is a configuration");
            assert_eq!(again.to_toml(), shown);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
