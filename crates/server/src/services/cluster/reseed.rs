//! A member's copy of a shard is set aside. At the next start the member has an empty one, and applies the log from its first record on.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use posthaste_cluster::nats::NatsEngine;
use posthaste_cluster::{CellKey, Cells, LogPosition, ShardLog, UNCHANGED};
use posthaste_config::Config;
use posthaste_spool::{ClosedFileSpool, OpenError};

use super::node::{copy_of, engine_config};
use crate::config::engine_login::EngineLogin;
use crate::config::error::ServeError;

/// Sets the copy of a shard aside, by the configuration of a server that must not run. `begins_anew`: first replaces
/// the log by an empty one. `may` gets a description of the consequences, and decides. Returns the new path of the
/// copy; `None` if `may` refuses. Blocks, with `begins_anew` for half a minute.
///
/// # Errors
/// There is no such copy, the server runs, the engine does not answer, the log no longer has its first record, or a
/// node acts for the shard whose log is to be replaced. Nothing is changed then.
pub fn set_copy_aside(
    config: &Config,
    shard: u16,
    begins_anew: bool,
    may: &mut dyn FnMut(&str) -> bool,
) -> Result<Option<PathBuf>, ServeError> {
    let refused = |why: String| ServeError::Cluster(format!("shard {shard}: {why}"));
    let Some(cluster) = &config.cluster else { return Err(refused("the configuration has no [cluster]".to_owned())) };
    if cluster.own_shards().all(|own| own.number != shard) {
        return Err(refused(format!("{} is not a member of it", cluster.node)));
    }
    let dir = copy_of(config, shard);
    if !dir.is_dir() {
        return Err(refused(format!("there is no copy in {}", dir.display())));
    }
    // A copy that cannot be opened is set aside all the same.
    let opened = ClosedFileSpool::open(&dir);
    if matches!(opened, Err(OpenError::Locked)) {
        return Err(refused("its copy is in use: stop the server first".to_owned()));
    }
    let engine = NatsEngine::connect(engine_config(cluster, EngineLogin::read(config)?));
    let engine = engine.map_err(|error| refused(error.to_string()))?;
    let log = engine.log(shard).map_err(|error| refused(error.to_string()))?;
    let (first, end) = bounds(&log).map_err(|error| refused(error.to_string()))?;
    if !begins_anew && first > LogPosition::START.next() {
        return Err(refused(format!(
            "its log begins at position {first}: a new copy would lack what was cut. The members in sync have all of it; see docs/cluster.md for `--new-log`"
        )));
    }
    let question = if begins_anew {
        format!(
            "The log of shard {shard}, which ends at position {end}, is removed, and the copy of this node is set aside. Mail that waits in it is sent only after `queue import`."
        )
    } else {
        format!(
            "The copy of shard {shard} on this node is set aside, and built again from the log, positions 1 to {end}."
        )
    };
    let is_done = if begins_anew {
        let cells = engine.cells().map_err(|error| refused(error.to_string()))?;
        let renew = &mut || engine.new_log(shard).map(drop).map_err(|error| error.to_string());
        begin_anew((&cells, shard), &std::thread::sleep, &mut || may(&question), renew).map_err(refused)?
    } else {
        may(&question)
    };
    if !is_done {
        return Ok(None);
    }
    let aside = rename(&dir).map_err(|error| refused(format!("{}: {error}", dir.display())))?;
    drop(opened);
    Ok(Some(aside))
}

fn bounds(log: &dyn ShardLog) -> Result<(LogPosition, LogPosition), posthaste_cluster::LogError> {
    Ok((log.first()?, log.end()?))
}

/// Replaces the log of a shard by an empty one, if no node acts for the shard and `may` agrees. False if `may` refuses.
///
/// # Errors
/// A node acts for the shard, or has written its cell while `may` decided; or the engine does not answer.
fn begin_anew(
    (cells, shard): (&dyn Cells, u16),
    pause: &dyn Fn(Duration),
    may: &mut dyn FnMut() -> bool,
    renew: &mut dyn FnMut() -> Result<(), String>,
) -> Result<bool, String> {
    let revision = || cells.get(&CellKey::Shard(shard).to_string()).map(|(_, revision)| revision);
    let revision = || revision().map_err(|error| error.to_string());
    let is_left_at = |before: u64| {
        let is_left = revision()? == before;
        is_left.then_some(()).ok_or_else(|| "somebody acts for it or takes it now: its log stays".to_owned())
    };
    let before = revision()?;
    pause(UNCHANGED);
    is_left_at(before)?;
    if !may() {
        return Ok(false);
    }
    // The question may have waited for hours.
    is_left_at(before)?;
    renew().map(|()| true)
}

/// Gives a directory the first free name, durably.
fn rename(dir: &Path) -> io::Result<PathBuf> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let free = |number: u32| dir.with_file_name(format!("{name}.aside-{number}"));
    let aside = (1..).map(free).find(|path| !path.exists()).expect("numbers enough");
    std::fs::rename(dir, &aside)?;
    File::open(dir.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use posthaste_cluster::memory::MemoryCells;

    use super::*;

    /// Renewals of a log, the cell of which is written during the pause or the question.
    fn renewals(in_pause: bool, in_question: bool, may: bool) -> (Result<bool, String>, usize) {
        let cells = MemoryCells::default();
        let key = CellKey::Shard(3).to_string();
        let write = |is_due: bool| {
            if is_due {
                cells.swap(&key, cells.get(&key).unwrap().1, "taken".into()).unwrap();
            }
        };
        write(true);
        let mut count = 0;
        let renew = &mut || {
            count += 1;
            Ok(())
        };
        let asked = &mut || {
            write(in_question);
            may
        };
        let outcome = begin_anew((&cells, 3), &|_| write(in_pause), asked, renew);
        (outcome, count)
    }

    #[test]
    fn a_log_is_renewed_only_while_nobody_writes_the_cell() {
        assert_eq!(renewals(false, false, true), (Ok(true), 1));
        assert_eq!(renewals(false, false, false), (Ok(false), 0));
        for (in_pause, in_question) in [(true, false), (false, true)] {
            let (outcome, count) = renewals(in_pause, in_question, true);
            assert!(outcome.unwrap_err().contains("somebody acts for it") && count == 0, "{in_question}");
        }
    }

    #[test]
    fn a_copy_that_is_set_aside_replaces_no_other() {
        let data = tempfile::tempdir().unwrap();
        let copy = data.path().join("shard-3");
        let aside = [(); 2].map(|()| {
            std::fs::create_dir(&copy).unwrap();
            rename(&copy).unwrap()
        });
        let wanted = ["shard-3.aside-1", "shard-3.aside-2"].map(|name| data.path().join(name));
        assert_eq!(aside, wanted);
        assert!(!copy.exists() && wanted.iter().all(|path| path.is_dir()));
    }
}
