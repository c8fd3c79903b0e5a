//! `posthaste queue import-shaping`: converts limits of another relay.

use std::path::Path;
use std::process::ExitCode;

use posthaste_shaping::kumo::convert as convert_kumo;
use serde_json::json;

use super::args::AnyError;
use crate::terminal::{print, print_json};

/// Exit status 1: a setting has no equivalent.
pub fn shaping(file: &Path, is_json: bool) -> Result<ExitCode, AnyError> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| failed(&error))?;
    let converted = convert_kumo(&text).map_err(|error| failed(&error))?;
    if is_json {
        let all = json!({
            "shaping": converted.shaping, "tls_policies": converted.tls_policies, "ignored": converted.ignored, "sources": converted.sources,
        });
        print_json(&format!("{all}\n"))?;
    } else {
        print(&converted.shaping)?;
        if !converted.tls_policies.is_empty() {
            // Comments, as they belong into another file, and the output is mostly redirected into this one.
            let lines = converted.tls_policies.lines().map(|line| format!("# {line}\n").replace("# \n", "#\n"));
            print(&format!("\n# From enable_tls, for the server's configuration:\n#\n{}", lines.collect::<String>()))?;
            eprintln!("posthaste: enable_tls: copy the last lines of the output into posthaste.toml");
        }
        for source in &converted.sources {
            eprintln!(
                "posthaste: needed: a [[relay.source]] named `{source}` in posthaste.toml; else remove its sections here"
            );
        }
        converted.ignored.iter().for_each(|line| eprintln!("posthaste: left out: {line}"));
    }
    Ok(ExitCode::from(u8::from(!converted.ignored.is_empty())))
}
