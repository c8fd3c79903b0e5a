//! `posthaste index --watch`: keeps running and reports its commits.

use std::process::ExitCode;
use std::time::Duration;

use posthaste_search::{HookRunner, IndexError, Report, Stop, WatchEvent, WatchOptions, watch};
use posthaste_units::count;
use serde_json::Value;

use crate::index_update::{Update, changes, json_report, tell_troubles, tell_without_maildirs, text_report};
use crate::search_common::{Failure, waiting};
use crate::terminal::{complain, print};

pub fn run(args: &Update) -> Result<ExitCode, Failure> {
    let dir = args.index.path()?;
    let options = WatchOptions { update: args.options(), ..WatchOptions::default() };
    args.prepare(&dir)?;
    let stop = Stop::new().map_err(IndexError::Notify)?;
    end_by_signal(stop.clone())?;
    let mut hook = HookRunner::new(&dir, complain);
    let mut failed = None;
    let mut tell = |event: WatchEvent<'_>| {
        if let WatchEvent::Ready(report) | WatchEvent::Committed { report, .. } = &event
            && !args.no_hooks
        {
            hook.after(report);
        }
        if let Err(error) = tell(args, &event) {
            // The index is kept up to date all the same.
            failed.get_or_insert(error);
        }
    };
    watch(&dir, &args.roots, &options, &stop, &|| waiting(&dir), &mut tell)?;
    failed.map_or(Ok(ExitCode::SUCCESS), |error| Err(error.into()))
}

fn end_by_signal(stop: Stop) -> Result<(), Failure> {
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])?;
    std::thread::spawn(move || {
        signals.forever().for_each(|_| stop.stop());
    });
    Ok(())
}

fn tell(args: &Update, event: &WatchEvent<'_>) -> std::io::Result<()> {
    match event {
        WatchEvent::Rebuilding(why) => {
            if !args.quiet {
                complain(&format!("rebuilding the index: {why}"));
            }
            Ok(())
        }
        WatchEvent::Ready(report) => say(args, report, None),
        WatchEvent::Committed { report, lag } => say(args, report, Some(*lag)),
        WatchEvent::Trouble { error, pause } => {
            complain(&format!("{error}; retrying in {} s", pause.as_secs()));
            Ok(())
        }
        WatchEvent::Unwatched(count) => {
            complain(&format!(
                "too few inotify watches for {count} directories (raise fs.inotify.max_user_watches); they are checked once a minute"
            ));
            Ok(())
        }
    }
}

/// Prints a line for each commit.
fn say(args: &Update, report: &Report, lag: Option<Duration>) -> std::io::Result<()> {
    tell_troubles(report);
    if lag.is_none() {
        tell_without_maildirs(args, report);
    }
    if args.json {
        let mut value = json_report(report);
        value["lag_seconds"] = lag.map_or(Value::Null, |lag| lag.as_secs_f64().into());
        return print(&format!("{value}\n"));
    }
    if args.quiet {
        return Ok(());
    }
    let now = jiff::Zoned::now().strftime("%H:%M:%S").to_string();
    match lag {
        None => print(&format!("{now}  {}{now}  watching; Ctrl-C ends it\n", text_report(report))),
        Some(lag) => print(&format!(
            "{now}  {}; {}; {:.1} s behind\n",
            changes(report, false),
            count(report.messages, "message"),
            lag.as_secs_f64()
        )),
    }
}
