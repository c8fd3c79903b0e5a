//! Runs of the rig: power cuts and kills by `powercut --json FILE`, as rows of a report.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::plot::escape;
use super::{ReportError, Table};
use crate::live::thousands;

/// One line of a rig's file: a campaign of cuts on one file system, or a series of kills.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RigRun {
    /// Name of the mail system under test.
    pub system: String,
    pub kind: RigKind,
    /// `ext4`, `xfs` and so on; absent if the run used the machine's own disk.
    pub file_system: Option<String>,
    /// Cuts of the power, or kills.
    pub times: u64,
    /// Recoveries that were cut again.
    pub again: u64,
    /// Messages that the server acknowledged in the run.
    pub acknowledged: u64,
    /// In a campaign of cuts: entries expected in the mailboxes, over all disks that a cut left.
    pub looked_for: Option<u64>,
    pub lost: u64,
    pub duplicated: u64,
    pub half: u64,
    /// Cuts and kills after which the server did not start or left work undone.
    pub broken: u64,
    /// Cuts that the file system itself did not survive.
    pub unmountable: u64,
}

/// Kind of fault that hit the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RigKind {
    #[default]
    PowerCuts,
    Kills,
}

impl RigKind {
    fn name(self) -> &'static str {
        match self {
            Self::PowerCuts => "power cuts",
            Self::Kills => "kills",
        }
    }
}

/// A line that `powercut` writes; fields that are not listed here are ignored.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Cuts(Cuts),
    Kill(Kill),
    #[serde(untagged)]
    Other(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
struct Cuts {
    system: String,
    file_system: String,
    cuts: u64,
    cuts_in_recovery: u64,
    acknowledged: u64,
    looked_for: u64,
    lost: u64,
    duplicated: u64,
    half: u64,
    broken: u64,
    unmountable: u64,
}

#[derive(Deserialize)]
struct Kill {
    system: String,
    times: u64,
    acknowledged: u64,
    lost: u64,
    duplicated: u64,
    half: u64,
    findings: Vec<String>,
}

impl RigRun {
    /// Reads the file that `powercut --json FILE` wrote: a line of JSON for each outcome. Faults, attacks and
    /// self-tests have no row and are skipped.
    ///
    /// # Errors
    /// When the file cannot be read, a line is not from the rig, or none is about cuts or kills.
    pub fn read(path: &Path) -> Result<Vec<Self>, ReportError> {
        let text = fs::read_to_string(path).map_err(|source| ReportError::Io { path: path.to_owned(), source })?;
        let not_ours = |text: String| ReportError::NotOfTheRig { path: path.to_owned(), text };
        let mut runs = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
            let bad = |error: serde_json::Error| not_ours(format!("line {}: {error}", index + 1));
            match serde_json::from_str(line).map_err(bad)? {
                Line::Cuts(cuts) => runs.push(cuts.into()),
                Line::Kill(kill) => runs.push(kill.into()),
                Line::Other(_) => {}
            }
        }
        if runs.is_empty() { Err(not_ours("it has neither cuts nor kills".into())) } else { Ok(runs) }
    }

    /// True if no message was lost, doubled or truncated, and the server recovered every time.
    pub fn is_clean(&self) -> bool {
        self.lost + self.duplicated + self.half + self.broken == 0
    }

    /// The file system under test.
    fn place(&self) -> &str {
        self.file_system.as_deref().unwrap_or("this machine's disk")
    }
}

impl From<Cuts> for RigRun {
    fn from(cuts: Cuts) -> Self {
        let Cuts { system, file_system, cuts: times, cuts_in_recovery: again, acknowledged, looked_for, .. } = cuts;
        let Cuts { lost, duplicated, half, broken, unmountable, .. } = cuts;
        let (kind, file_system, looked_for) = (RigKind::PowerCuts, Some(file_system), Some(looked_for));
        Self {
            system,
            kind,
            file_system,
            times,
            again,
            acknowledged,
            looked_for,
            lost,
            duplicated,
            half,
            broken,
            unmountable,
        }
    }
}

impl From<Kill> for RigRun {
    fn from(kill: Kill) -> Self {
        let Kill { system, times, acknowledged, lost, duplicated, half, findings } = kill;
        // A finding that counts no message is a server that did not start.
        let broken = if lost + duplicated + half == 0 { findings.len() as u64 } else { 0 };
        Self { system, kind: RigKind::Kills, times, acknowledged, lost, duplicated, half, broken, ..Self::default() }
    }
}

const NO_ERROR: &str = "a String takes everything";

/// Table of the rig's results, a row for each run; `None` without any.
pub(super) fn table(runs: &[RigRun]) -> Option<Table> {
    let mut table = Table::default().words("system").words("done to it").words("file system").figures("times");
    for name in ["cut again", "acknowledged", "looked for", "lost", "duplicated", "half", "broken", "no file system"] {
        table = table.figures(name);
    }
    for run in runs {
        let looked_for = run.looked_for.map_or("-".to_owned(), thousands);
        let words = [run.system.clone(), run.kind.name().to_owned(), run.place().to_owned()];
        let counts = [run.times, run.again, run.acknowledged].map(thousands);
        let bad = [run.lost, run.duplicated, run.half, run.broken, run.unmountable].map(thousands);
        table.row(words.into_iter().chain(counts).chain([looked_for]).chain(bad));
    }
    (!runs.is_empty()).then_some(table)
}

const WIDTH: f64 = 640.0;
const ROW: f64 = 30.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 190.0;

/// A bar for each run, as long as its number of cuts or kills, with the losses after it.
pub(super) fn picture(runs: &[RigRun]) -> String {
    let most = runs.iter().map(|run| run.times + run.again).max().unwrap_or(0).max(1) as f64;
    let tall = runs.len() as f64 * ROW + 8.0;
    let mut svg = String::from("<figure><figcaption><b>Power cuts and kills: what came back</b>");
    for (colour, name) in [("s1", "cuts and kills"), ("s0", "cut again during recovery")] {
        write!(svg, "<span class=\"key {colour}\"><i></i>{name}</span>").expect(NO_ERROR);
    }
    write!(svg, "</figcaption><svg viewBox=\"0 0 {WIDTH} {tall}\" role=\"img\" aria-label=\"Power cuts and kills\">")
        .expect(NO_ERROR);
    for (index, run) in runs.iter().enumerate() {
        let top = index as f64 * ROW + 4.0;
        let (middle, tall) = (top + ROW / 2.0 + 1.0, ROW - 10.0);
        let wide = |count: u64| count as f64 / most * (WIDTH - LEFT - RIGHT);
        let (first, second) = (wide(run.times), wide(run.again));
        let name = escape(&format!("{}, {}", run.system, run.file_system.as_deref().unwrap_or(run.kind.name())));
        let bad = if run.is_clean() { "" } else { " class=\"bad\"" };
        write!(
            svg,
            "<text x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{name}</text>\
             <rect class=\"bar s1\" x=\"{LEFT}\" y=\"{top:.1}\" width=\"{first:.1}\" height=\"{tall}\"/>\
             <rect class=\"bar s0\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{second:.1}\" height=\"{tall}\"/>\
             <text{bad} x=\"{:.1}\" y=\"{middle:.1}\">{}</text>",
            LEFT - 8.0,
            LEFT + first,
            LEFT + first + second + 8.0,
            escape(&verdict(run))
        )
        .expect(NO_ERROR);
    }
    svg + "</svg></figure>\n"
}

/// `200 + 196: nothing lost`.
fn verdict(run: &RigRun) -> String {
    let again = if run.again > 0 { format!(" + {}", thousands(run.again)) } else { String::new() };
    let kinds = [(run.lost, "lost"), (run.duplicated, "twice"), (run.half, "half"), (run.broken, "broken")];
    let bad: Vec<String> =
        kinds.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
    let bad = if bad.is_empty() { "nothing lost".to_owned() } else { bad.join(", ") };
    format!("{}{again}: {bad}", thousands(run.times))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUTS: &str = r#"{"cuts":{"system":"Posthaste","file_system":"ext4","sector":4096,"cuts":200,"cuts_in_recovery":196,"acknowledged":760,"accounted":396,"looked_for":90000,"lost":0,"duplicated":0,"half":0,"unmountable":0,"broken":0,"writes":1,"flushes":1,"discards":0,"findings":[]}}"#;
    const KILL: &str = r#"{"kill":{"system":"Posthaste","times":50,"acknowledged":4000,"lost":2,"duplicated":1,"half":0,"findings":["series 1: lost"]}}"#;

    fn read(text: &str) -> Result<Vec<RigRun>, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("rig.jsonl");
        fs::write(&file, text).unwrap();
        RigRun::read(&file).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_of_cuts_and_kills_become_rows_and_a_picture() {
        let fault = r#"{"fault":{"fault":"full-disk","promise":"x","skipped":null,"problems":[]}}"#;
        let runs = read(&format!("{CUTS}\n{fault}\n{KILL}\n")).unwrap();
        assert_eq!((runs.len(), runs[0].times, runs[0].again, runs[0].looked_for), (2, 200, 196, Some(90_000)));
        assert_eq!((runs[1].kind, runs[1].lost, runs[1].broken), (RigKind::Kills, 2, 0));
        assert!(runs[0].is_clean() && !runs[1].is_clean());
        let text = table(&runs).unwrap().to_text().replace('\u{202f}', "");
        assert!(text.contains("power cuts  ext4") && text.contains("90000"), "{text}");
        let svg = picture(&runs);
        assert!(svg.contains("200 + 196: nothing lost") && svg.contains("50: 2 lost, 1 twice"), "{svg}");
        assert_eq!(svg.matches("class=\"bad\"").count(), 1);
        // In a report they are kept.
        let json = serde_json::to_string(&runs).unwrap();
        assert_eq!(serde_json::from_str::<Vec<RigRun>>(&json).unwrap(), runs);
    }

    #[test]
    fn what_is_no_rig_s_file_is_refused_with_its_line() {
        assert!(read(&format!("{CUTS}\nnonsense\n")).is_err_and(|error| error.contains("line 2")));
        assert!(read("{\"fault\":{}}\n").is_err_and(|error| error.contains("neither cuts nor kills")));
        assert!(read("").is_err_and(|error| error.contains("neither cuts nor kills")));
        assert!(read("{\"cuts\":{\"lost\":0}}\n").is_err(), "figures are missing");
    }
}
