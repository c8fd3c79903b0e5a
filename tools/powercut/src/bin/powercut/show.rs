//! Outcomes for people, or a line of JSON each.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

use posthaste_powercut::campaign::Outcome;
use posthaste_powercut::faults;
use posthaste_powercut::hostile;
use posthaste_powercut::kill::Killed;
use posthaste_powercut::relay::kills::Relayed;
use posthaste_powercut::rig::RigError;
use posthaste_powercut::selftest::SelfTest;

/// Format of the output.
#[derive(Default)]
pub enum Show {
    /// Tables.
    #[default]
    Tables,
    /// A line of JSON for each outcome, on standard output.
    Json,
    /// Tables, and lines of JSON in a file.
    Both(Mutex<File>),
}

impl Show {
    /// Tables without `json`; JSON instead of them if it is `-`; otherwise JSON appended to the file, too.
    pub fn new(json: Option<&Path>) -> std::io::Result<Self> {
        Ok(match json {
            None => Self::Tables,
            Some(file) if file == Path::new("-") => Self::Json,
            Some(file) => Self::Both(Mutex::new(File::options().create(true).append(true).open(file)?)),
        })
    }

    /// Writes `{"what": {...}}` if JSON was asked for. Returns true if no table is wanted.
    fn as_json(&self, what: &str, value: &impl serde::Serialize) -> bool {
        let line = || serde_json::json!({ what: value });
        match self {
            Self::Tables => false,
            Self::Json => {
                println!("{}", line());
                true
            }
            Self::Both(file) => {
                let mut file = file.lock().expect("nothing panics while it writes a line");
                if let Err(error) = writeln!(file, "{}", line()) {
                    eprintln!("powercut: --json: {error}");
                }
                false
            }
        }
    }

    /// Prints the heading of the lines of [`outcome`](Self::outcome).
    pub fn heading(&self) {
        if matches!(self, Self::Json) {
            return;
        }
        println!(
            "{:<34} {:<22} {:>6} {:>6} {:>8} {:>10} {:>5} {:>5} {:>5} {:>7} {:>7} {:>8} {:>8} {:>6} {:>6}",
            "system",
            "file system",
            "cuts",
            "again",
            "acked",
            "looked for",
            "lost",
            "twice",
            "half",
            "broken",
            "no fs",
            "writes",
            "flushes",
            "packs",
            "large"
        );
    }

    pub fn outcome(&self, o: &Outcome) {
        if self.as_json("cuts", o) {
            return;
        }
        println!(
            "{:<34} {:<22} {:>6} {:>6} {:>8} {:>10} {:>5} {:>5} {:>5} {:>7} {:>7} {:>8} {:>8} {:>6} {:>6}",
            o.system,
            o.file_system.name(),
            o.cuts,
            o.cuts_in_recovery,
            o.acknowledged,
            o.looked_for,
            o.lost,
            o.duplicated,
            o.half,
            o.broken,
            o.unmountable,
            o.writes,
            o.flushes,
            o.waiting.packs,
            o.waiting.large_bodies
        );
        for finding in &o.findings {
            let again = finding.again.map_or_else(String::new, |again| format!(", again at {again}"));
            let explained = if finding.is_of_a_hole { " (explained by a hole that the cut left)" } else { "" };
            println!(
                "{} cut at {}{again}, seed {}: {}{explained}",
                o.file_system.name(),
                finding.position,
                finding.seed,
                finding.what
            );
        }
        if o.sent_again > 0 {
            println!(
                "{}: {} sent twice, as the power went between the other host's 250 and the record: {} flushes after it at most",
                o.file_system.name(),
                o.sent_again,
                o.sent_again_flushes_max
            );
        }
        if o.accounted == 0 {
            println!("{}: on no disk could mail be looked for", o.file_system.name());
        }
    }

    pub fn killed(&self, killed: &Killed) {
        if self.as_json("kill", killed) {
            return;
        }
        let Killed { system, times, acknowledged, lost, duplicated, half, findings } = killed;
        println!(
            "{system}, killed {times} times: {acknowledged} acknowledged, {lost} lost, {duplicated} twice, {half} half"
        );
        findings.iter().for_each(|finding| println!("  {finding}"));
    }

    pub fn relayed(&self, relayed: &Relayed) {
        if self.as_json("relay", relayed) {
            return;
        }
        let Relayed { system, times, acknowledged, lost, half, .. } = relayed;
        let Relayed { recorded_twice, sent_though_recorded, twice_in_one_life, .. } = relayed;
        println!(
            "{system}, killed {times} times: {acknowledged} acknowledged, {lost} lost, {half} altered, {recorded_twice} recorded twice, \
             {sent_though_recorded} sent though recorded, {twice_in_one_life} sent twice in one life"
        );
        let Relayed { duplicated, duplicated_max, before_kill_ms_max, .. } = relayed;
        println!(
            "  {duplicated} sent twice, {duplicated_max} after one kill at most, as it came between the other host's 250 and the record: \
             {before_kill_ms_max} ms behind the 250 at most"
        );
        let Relayed { told, untold, told_twice, without_last, uncertain, .. } = relayed;
        println!(
            "  senders told of {told} recipients, {told_twice} of them again, not told of {untold}; \
             {without_last} starts without the last snapshot of the queue, {uncertain} starts with mail held"
        );
        let Relayed { short_of_space, held, held_notices, left, findings, .. } = relayed;
        println!(
            "  {short_of_space} lives with a full disk; at the last start {held} recipients were held, {held_notices} of them for notices; {left} waited at the end"
        );
        findings.iter().for_each(|finding| println!("  {finding}"));
    }

    pub fn fault(&self, shown: &faults::Shown) {
        if self.as_json("fault", shown) {
            return;
        }
        let faults::Shown { fault, promise, skipped, problems } = shown;
        match skipped {
            Some(why) => println!("{fault:<22} skipped: {why}"),
            None => println!("{fault:<22} {} {promise}", verdict(problems.is_empty())),
        }
        problems.iter().for_each(|problem| println!("  {problem}"));
    }

    pub fn hostile(&self, shown: &hostile::Shown) {
        if self.as_json("hostile", shown) {
            return;
        }
        println!(
            "{:<16} {} {:>4} of {:>3} MiB, honest: {:>5} messages, longest {:>4} (crowd {:>4}) of {:>4} ms, alone {:>4.1}; {}",
            shown.case,
            verdict(shown.problems.is_empty()),
            shown.memory_kib >> 10,
            shown.memory_mib_max,
            shown.honest_messages,
            shown.honest_wait_ms_max,
            shown.crowd_wait_ms_max,
            shown.wait_ms_allowed,
            shown.plain_us as f64 / 1000.0,
            shown.promise
        );
        shown.problems.iter().for_each(|problem| println!("  {problem}"));
    }

    pub fn self_test(&self, test: &SelfTest) {
        if self.as_json("self-test", test) {
            return;
        }
        let is_passed_on = test.not_passed_on.is_empty();
        println!("loop device passes on writes, flushes, discards: {}", verdict(is_passed_on));
        test.not_passed_on.iter().for_each(|what| println!("  {what}"));
        println!(
            "one flush forgotten: {} of {} found as a loss: {}",
            test.dropped_flushes_found,
            test.dropped_flushes,
            verdict(test.all_dropped_flushes_found())
        );
        println!("the same cuts, no flush forgotten, lose nothing: {}", verdict(test.honest_cuts_bad == 0));
        println!("a disk that lies about every flush is found: {}", verdict(test.lying_disk_found));
        println!("replay of its kept recording finds it again: {}", verdict(test.replay_finds_it_again));
        println!("so is one under a server that relays: {}", verdict(test.lying_disk_found_relaying));
    }

    /// Prints nothing for people if all is well; the caller reports an error.
    pub fn check(&self, lacks: Option<&RigError>) {
        let lacks = lacks.map(ToString::to_string);
        let is_told = self.as_json("check", &serde_json::json!({ "available": lacks.is_none(), "lacks": lacks }));
        if lacks.is_none() && !is_told {
            println!("this machine can cut the power");
        }
    }
}

fn verdict(good: bool) -> &'static str {
    if good { "ok    " } else { "FAILED" }
}

#[cfg(test)]
mod tests {
    use posthaste_loadgen::report::{RigKind, RigRun};
    use posthaste_powercut::mount::FileSystem;
    use posthaste_powercut::recorded::Waiting;

    use super::*;

    #[test]
    fn a_report_takes_what_is_written_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("rig.jsonl");
        let show = Show::new(Some(&file)).unwrap();
        let cuts = Outcome {
            system: "Posthaste".into(),
            file_system: FileSystem::Ext4Writeback,
            sector: 4096,
            cuts: 11,
            cuts_in_recovery: 12,
            acknowledged: 13,
            accounted: 14,
            looked_for: 15,
            lost: 16,
            duplicated: 17,
            half: 18,
            sent_again: 26,
            sent_again_flushes_max: 27,
            unmountable: 19,
            broken: 20,
            writes: 21,
            flushes: 22,
            discards: 23,
            waiting: Waiting { packs: 24, large_bodies: 25 },
            findings: Vec::new(),
        };
        show.outcome(&cuts);
        drop(show);
        // A second run is appended to the first.
        let show = Show::new(Some(&file)).unwrap();
        let findings = vec!["it did not start".to_owned()];
        let system = "Posthaste, fjall".to_owned();
        show.killed(&Killed { system, times: 31, acknowledged: 32, findings, ..Killed::default() });
        let runs = RigRun::read(&file).unwrap();
        let expected = RigRun {
            system: "Posthaste".into(),
            kind: RigKind::PowerCuts,
            file_system: Some("ext4-writeback".into()),
            times: 11,
            again: 12,
            acknowledged: 13,
            looked_for: Some(15),
            lost: 16,
            duplicated: 17,
            half: 18,
            broken: 20,
            unmountable: 19,
        };
        assert_eq!(runs[0], expected);
        assert_eq!((runs.len(), runs[1].kind, runs[1].times, runs[1].broken), (2, RigKind::Kills, 31, 1));
        assert_eq!(runs[1].system, "Posthaste, fjall");
    }
}
