//! The commands; the result of each step is shown as soon as it is done.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use indicatif::{ProgressBar, ProgressStyle};
use posthaste_powercut::campaign::{self, Outcome};
use posthaste_powercut::faults::{self, Fault};
use posthaste_powercut::hostile::{self, Size};
use posthaste_powercut::log::Recording;
use posthaste_powercut::mount::FileSystem;
use posthaste_powercut::peers::{self, Peer};
use posthaste_powercut::recorded::{Plan, Recorded};
use posthaste_powercut::relay::kills::SnapshotCare;
use posthaste_powercut::rig::{Environment, Rig, RigError, is_installed};
use posthaste_powercut::{kill, relay, selftest};

use crate::show::Show;
use crate::{Cuts, Peers};

/// Context of all commands. Each command returns true if it has no findings.
pub struct Rigged {
    pub environment: Environment,
    pub show: Show,
}

/// A cut of a kept recording.
pub struct At {
    pub file_system: FileSystem,
    pub seed: u64,
    pub position: usize,
    pub cut_seed: u64,
    pub sector: usize,
}

impl Rigged {
    pub fn cuts(&self, cuts: &Cuts) -> Result<bool, RigError> {
        let file_systems = all_unless(&cuts.fs);
        self.environment.check(&file_systems)?;
        let plan = |file_system| Plan {
            file_system,
            messages: cuts.messages,
            connections: cuts.connections,
            cuts: cuts.cuts,
            seed: cuts.seed,
            sector: cuts.sector,
            is_relayed: cuts.relay,
        };
        self.cut_all(&self.environment, file_systems.into_iter().map(plan), cuts.keep.as_deref())
    }

    fn cut_all(
        &self,
        environment: &Environment,
        plans: impl IntoIterator<Item = Plan>,
        keep: Option<&Path>,
    ) -> Result<bool, RigError> {
        self.show.heading();
        self.each(plans, |plan| {
            let outcome = self.cut(environment, &plan, keep)?;
            self.show.outcome(&outcome);
            Ok(outcome.is_clean())
        })
    }

    fn cut(&self, environment: &Environment, plan: &Plan, keep: Option<&Path>) -> Result<Outcome, RigError> {
        let rig = Rig::new(environment, plan.file_system, DISK_BYTES)?;
        let recorded = campaign::record(&rig, plan, environment)?;
        let bar = ProgressBar::new(plan.cuts).with_prefix(plan.file_system.name());
        let style = "{prefix:>22} {bar:40} {pos}/{len} {msg} {eta}";
        bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
        let outcome = campaign::cut(&rig, plan, &recorded, environment, |outcome| {
            bar.set_message(format!("{} findings", outcome.findings.len()));
            bar.inc(1);
        });
        bar.finish_and_clear();
        if let Some(dir) = keep.filter(|_| !outcome.findings.is_empty()) {
            keep_findings(dir, environment, plan, &recorded, &outcome)?;
        }
        Ok(outcome)
    }

    pub fn replay(&self, recording: &Path, at: &At) -> Result<bool, RigError> {
        self.environment.check(&[at.file_system])?;
        let recording = Recording::load(&mut BufReader::new(File::open(recording)?))?;
        let position = at.position.min(recording.events.len());
        let rig = Rig::new(&self.environment, at.file_system, recording.base.len())?;
        let recorded = Recorded::of(recording, at.seed);
        let plan = Plan {
            file_system: at.file_system,
            messages: 0,
            connections: 0,
            cuts: 1,
            seed: at.seed,
            sector: at.sector,
            is_relayed: recorded.is_relayed,
        };
        let cut = [(position, at.cut_seed)];
        let outcome = campaign::cut_at(&rig, &plan, &recorded, &self.environment, &cut, &mut |_| ());
        self.environment.go_on()?;
        self.show.heading();
        self.show.outcome(&outcome);
        Ok(outcome.is_clean())
    }

    pub fn self_test(&self, seed: u64) -> Result<bool, RigError> {
        self.environment.check(&[FileSystem::Ext4])?;
        let test = selftest::self_test(&self.environment, seed)?;
        self.show.self_test(&test);
        Ok(test.is_passed())
    }

    pub fn kill(&self, times: u64, seed: u64) -> Result<bool, RigError> {
        self.kill_in(&self.environment, times, seed)
    }

    /// Runs a step on a server whose spool is in an LSM tree, if the program was built with it.
    fn with_fjall(
        &self,
        must_run: bool,
        step: impl FnOnce(&Environment) -> Result<bool, RigError>,
    ) -> Result<bool, RigError> {
        let environment = Environment { spool_kind: "fjall".to_owned(), ..self.environment.clone() };
        match environment.check_kind() {
            Err(RigError::Unavailable(why)) if !must_run => {
                eprintln!("skipped: spools of the kind fjall: {why}");
                Ok(true)
            }
            checked => checked.and_then(|()| step(&environment)),
        }
    }

    fn kill_in(&self, environment: &Environment, times: u64, seed: u64) -> Result<bool, RigError> {
        let bar = ProgressBar::new(times);
        let killed = kill::kill(environment, times, seed, |killed| bar.set_position(killed.times))?;
        bar.finish_and_clear();
        self.show.killed(&killed);
        self.outweighs(killed.is_clean())
    }

    pub fn kill_relay(&self, times: u64, seed: u64, care: SnapshotCare) -> Result<bool, RigError> {
        let bar = ProgressBar::new(times);
        let relayed = relay::kills::kill_relay(&self.environment, times, seed, care, |times| bar.set_position(times))?;
        bar.finish_and_clear();
        self.show.relayed(&relayed);
        self.outweighs(relayed.is_clean())
    }

    pub fn faults(&self, only: &[String]) -> Result<bool, RigError> {
        let known: Vec<&str> = faults::ALL.iter().map(|fault| fault.name).collect();
        check_names("fault", only, &known)?;
        self.environment.check(&[FileSystem::Ext4])?;
        let wanted = |name: &str| only.is_empty() || only.iter().any(|one| one == name);
        // Who has asked for it by name is told that it was not done.
        self.faults_where(wanted, !only.is_empty())
    }

    /// Runs several faults at once: each has disks and a server of its own, and mostly waits for a timer of the server.
    fn faults_where(&self, wanted: impl Fn(&str) -> bool, must_run: bool) -> Result<bool, RigError> {
        let faults: Vec<&Fault> = faults::ALL.iter().filter(|fault| wanted(fault.name)).collect();
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            for _ in 0..FAULTS_AT_ONCE {
                let (faults, next, tell) = (&faults, &next, tell.clone());
                scope.spawn(move || {
                    while let Some(fault) = faults.get(next.fetch_add(1, Ordering::Relaxed))
                        && self.environment.go_on().is_ok()
                        // Nobody listens any more once it cannot go on.
                        && tell.send(fault.run(&self.environment)).is_ok()
                    {}
                });
            }
            drop(tell);
            self.each(told, |shown| {
                let shown = shown?;
                self.show.fault(&shown);
                match shown.skipped {
                    Some(why) if must_run => Err(RigError::Unavailable(format!("{}: {why}", shown.fault))),
                    _ => Ok(shown.problems.is_empty()),
                }
            })
        })
    }

    pub fn hostile(&self, only: &[String], size: Size) -> Result<bool, RigError> {
        let known: Vec<&str> = hostile::ALL.iter().map(|case| case.name).collect();
        check_names("attack", only, &known)?;
        let wanted = |name: &str| only.is_empty() || only.iter().any(|one| one == name);
        self.each(hostile::ALL.iter().filter(|case| wanted(case.name)), |case| {
            let shown = case.run(&self.environment, size)?;
            self.show.hostile(&shown);
            Ok(shown.problems.is_empty())
        })
    }

    /// Checks that this machine can run the rig, by mounting a disk of the rig.
    pub fn check(&self) -> Result<bool, RigError> {
        let mounted = self.environment.check(&[FileSystem::Ext4]).and_then(|()| {
            let unavailable = |error: RigError| RigError::Unavailable(error.to_string());
            let rig = Rig::new(&self.environment, FileSystem::Ext4, 0).map_err(unavailable)?;
            rig.mount().map(drop).map_err(|error| RigError::Unavailable(error.to_string()))
        });
        self.show.check(mounted.as_ref().err());
        mounted.map(|()| true)
    }

    /// Never a failure of ours: the losses of other servers are the result.
    pub fn peers(&self, peers: &Peers) -> Result<bool, RigError> {
        let file_systems = all_unless(&peers.fs);
        self.environment.check(&file_systems)?;
        let mut rows = Vec::new();
        for peer in Peer::ALL.into_iter().filter(|peer| peers.only.is_empty() || peers.only.contains(peer)) {
            match peer.check() {
                Err(why) if peers.only.is_empty() => eprintln!("skipped: {}: {why}", peer.name()),
                checked => {
                    checked?;
                    rows.extend(file_systems.iter().map(|file_system| (peer, *file_system)));
                }
            }
        }
        self.show.heading();
        self.each(rows, |(peer, file_system)| {
            let plan = Plan {
                file_system,
                messages: peers.messages,
                connections: peers.connections,
                cuts: peers.cuts,
                seed: peers.seed,
                sector: 4096,
                is_relayed: false,
            };
            let rig = Rig::new(&self.environment, file_system, DISK_BYTES)?;
            let bar = ProgressBar::new(plan.cuts).with_prefix(peer.name());
            let cut = peers::cut(peer, &rig, &plan, &self.environment, |outcome| bar.set_position(outcome.cuts));
            bar.finish_and_clear();
            match cut {
                Ok(outcome) => self.show.outcome(&outcome),
                Err(error) if error.is_finding() => {
                    eprintln!("powercut: {} on {}: {error}", peer.name(), file_system.name());
                }
                Err(error) => return Err(error),
            }
            Ok(true)
        })
    }

    /// Everything briefly, on the file systems whose tools are installed.
    pub fn ci(&self, require_all: bool, keep: &Path) -> Result<bool, RigError> {
        if require_all {
            self.environment.check(&FileSystem::ALL)?;
        }
        let installed = |file_system: &FileSystem| {
            let is_there = is_installed(file_system.maker());
            if !is_there {
                eprintln!("skipped: {}: {} is not installed", file_system.name(), file_system.maker());
            }
            is_there
        };
        let file_systems = FileSystem::ALL.into_iter().filter(installed);
        let plan = |file_system| Plan {
            file_system,
            messages: 240,
            connections: 6,
            cuts: 15,
            seed: 1,
            sector: 4096,
            is_relayed: false,
        };
        let short = |file_system| Plan { cuts: 6, ..plan(file_system) };
        let relayed = |file_system| Plan { is_relayed: true, ..short(file_system) };
        let steps: [&dyn Fn() -> Result<bool, RigError>; 9] = [
            &|| self.self_test(1),
            &|| self.cut_all(&self.environment, file_systems.clone().map(plan), Some(keep)),
            &|| self.cut_all(&self.environment, file_systems.clone().take(1).map(relayed), Some(keep)),
            &|| {
                self.with_fjall(require_all, |of_fjall| {
                    self.cut_all(of_fjall, file_systems.clone().take(1).map(short), Some(keep))
                })
            },
            &|| self.kill(20, 1),
            &|| self.with_fjall(require_all, |of_fjall| self.kill_in(of_fjall, 10, 1)),
            &|| self.kill_relay(6, 1, SnapshotCare::Whole),
            &|| self.kill_relay(6, 2, SnapshotCare::Spoiled),
            &|| self.faults_where(|_| true, require_all),
        ];
        self.each(steps, |step| step())
    }

    /// Runs one step after the other, to the end of all or to an error of this machine. Findings until then take
    /// precedence: the error is then only reported.
    fn each<T>(
        &self,
        things: impl IntoIterator<Item = T>,
        mut one: impl FnMut(T) -> Result<bool, RigError>,
    ) -> Result<bool, RigError> {
        let mut is_clean = true;
        for thing in things {
            match self.environment.go_on().and_then(|()| one(thing)) {
                Ok(clean) => is_clean &= clean,
                Err(error) if error.is_finding() || !is_clean => {
                    eprintln!("powercut: {error}");
                    is_clean = false;
                    if !error.is_finding() {
                        break;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        self.outweighs(is_clean)
    }

    /// Turns a clean result into an error if the run was interrupted: an unfinished search proves nothing.
    fn outweighs(&self, is_clean: bool) -> Result<bool, RigError> {
        if is_clean {
            self.environment.go_on()?;
        }
        Ok(is_clean)
    }
}

/// Keeps recording and outcome, so that `replay` can repeat each cut with findings.
fn keep_findings(
    dir: &Path,
    environment: &Environment,
    plan: &Plan,
    recorded: &Recorded,
    outcome: &Outcome,
) -> Result<(), RigError> {
    std::fs::create_dir_all(dir)?;
    let kind = &environment.spool_kind;
    let relay = if plan.is_relayed { "relay-" } else { "" };
    let name = format!("{kind}-{relay}{:?}-{}", plan.file_system, plan.seed).to_lowercase();
    let file = dir.join(format!("{name}.powercut"));
    recorded.recording.save(&mut BufWriter::new(File::create(&file)?))?;
    for (number, finding) in outcome.findings.iter().enumerate() {
        let recovery = finding.recovery.as_ref();
        let (file, position) = match recovery {
            None => (file.clone(), finding.position),
            // What a recovery writes when differs from one to the next: it is kept as a run of its own.
            Some(recovery) => {
                let file = dir.join(format!("{name}-recovery-{number}.powercut"));
                recovery.recording.save(&mut BufWriter::new(File::create(&file)?))?;
                (file, recovery.position)
            }
        };
        if finding.again.is_some() && recovery.is_none() {
            continue;
        }
        eprintln!(
            "powercut: again: powercut replay {} --kind {kind} --fs {} --seed {} --position {position} --cut-seed {} --sector {}",
            file.display(),
            plan.file_system.argument(),
            plan.seed,
            finding.seed,
            plan.sector
        );
    }
    Ok(())
}

fn all_unless(chosen: &[FileSystem]) -> Vec<FileSystem> {
    if chosen.is_empty() { FileSystem::ALL.to_vec() } else { chosen.to_vec() }
}

fn check_names(what: &str, only: &[String], known: &[&str]) -> Result<(), RigError> {
    match only.iter().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => Err(RigError::Unavailable(format!("there is no {what} {unknown}, but {}", known.join(", ")))),
        None => Ok(()),
    }
}

const DISK_BYTES: u64 = 512 << 20;
const FAULTS_AT_ONCE: usize = 4;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use posthaste_powercut::server::ServerError;

    use super::*;

    fn rigged() -> Rigged {
        let scratch = std::env::temp_dir();
        let environment =
            Environment { program: "none".into(), spool_kind: "ring".into(), scratch, interrupted: Arc::default() };
        Rigged { environment, show: Show::default() }
    }

    fn ended() -> RigError {
        ServerError::Ended { status: "exit status: 1".to_owned(), log: String::new() }.into()
    }

    #[test]
    fn a_finding_outweighs_later_ones_and_the_rest_goes_on() {
        let rigged = rigged();
        let lacks = || Err(RigError::Unavailable("no disk".to_owned()));
        assert!(rigged.each([true, true], Ok).unwrap());
        assert!(!rigged.each([false, true], Ok).unwrap());
        assert!(rigged.each([true, false], |clean| if clean { Ok(true) } else { lacks() }).is_err());
        assert!(!rigged.each([false, true], |last| if last { lacks() } else { Ok(false) }).unwrap());
        let mut done = 0;
        let all = rigged.each([1, 2], |_| {
            done += 1;
            Err(ended())
        });
        assert_eq!((all.unwrap(), done), (false, 2));
    }

    #[test]
    fn a_clean_answer_that_was_broken_off_is_none() {
        let rigged = rigged();
        let interrupt = |clean: bool| {
            rigged.environment.interrupted.store(true, Ordering::Relaxed);
            Ok(clean)
        };
        assert!(matches!(rigged.each([true], interrupt), Err(RigError::Interrupted)));
        rigged.environment.interrupted.store(false, Ordering::Relaxed);
        assert!(!rigged.each([false], interrupt).unwrap());
    }
}
