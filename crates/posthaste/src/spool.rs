//! `posthaste spool …`: inspects, checks and repairs a spool's directory, and takes mail out of it.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Subcommand;
use posthaste_control::{Request, SOCKET};
use posthaste_delivery::local::{BoundMounts, remove_mailbox};
use posthaste_spool::{
    ClosedFileSpool, ClosedSpool, FileSpool, Inspection, Lsn, OpenError, SpoolAdmin, StoreKind, StreamStats,
};
use serde_json::{Value, json};

use crate::new_file::check_outside;
use crate::progress::progress_bar;
use crate::queue::answer_in;
use crate::spool_access::{Spool, batches, become_owner, config_for};
use crate::spool_drop::Doomed;
use crate::spool_export::{Exported, Exporter};
use crate::spool_give_up::{self, GivenUp};
use crate::spool_import;
use crate::spool_inspect::{self, damage_json, damage_text};
use crate::terminal::complain;

type AnyError = Box<dyn std::error::Error>;

#[derive(Subcommand)]
pub enum SpoolCommand {
    /// Show the mail that waits for each mailbox and the reason, streams, segments, packs and large bodies; works while the server runs
    Inspect {
        #[command(flatten)]
        spool: Spool,
        /// Also list each waiting message
        #[arg(long)]
        messages: bool,
    },
    /// Read everything that is still needed and check it against its checksums; exit status 1 for damage
    Verify(Spool),
    /// Like verify, at a limited rate, for a disk in use
    Scrub {
        #[command(flatten)]
        spool: Spool,
        /// Maximum bytes to read per second, such as 20MiB
        #[arg(long, value_name = "BYTES", default_value = "20MiB", value_parser = scrub_rate)]
        rate: u64,
    },
    /// Write everything that is still needed into a new directory: each batch's entries and body
    Export {
        #[command(flatten)]
        spool: Spool,
        /// The directory to create; an interrupted export in it starts over
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        /// Export only what this stream needs
        #[arg(long, value_name = "NAME")]
        stream: Option<String>,
    },
    /// Make a new spool from an export of all streams, of this or another kind: numbers, positions and snapshots stay, so nothing is delivered twice or held. Repeat it if it was cut short
    Import {
        /// The directory of the new spool; not there yet, or empty
        to: PathBuf,
        /// The directory that `export` has written
        #[arg(long, value_name = "DIR")]
        from: PathBuf,
        /// How the new spool keeps mail, as in `storage.kind`: `ring` or `files`; `fjall` or `rocksdb` if this program was built with it
        #[arg(long, default_value_t)]
        kind: StoreKind,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Repair what can be rebuilt from second copies and from the batches; exit status 1 if damage remains
    Repair {
        #[command(flatten)]
        spool: Spool,
        /// If both checkpoint files are lost: build a new spool here from the remaining data. Every stream sees all of it again
        #[arg(long, value_name = "DIR")]
        rebuild: Option<PathBuf>,
        /// Also stop waiting for bodies that cannot be read and for missing segments: what is left of a body is copied to kept/ in the spool, and its message is not delivered
        #[arg(long, conflicts_with = "rebuild")]
        give_up_damaged: bool,
    },
    /// Drop a message that a program, file or LMTP server does not take; restart the server to try it again instead
    Drop {
        #[command(flatten)]
        spool: Spool,
        /// Its number, as `inspect --messages` shows it
        id: Lsn,
        /// Drop it only for this recipient; mailboxes get it in any case
        #[arg(long, value_name = "ADDRESS")]
        recipient: Option<String>,
        /// First export the message into a new directory
        #[arg(long, value_name = "DIR", required_unless_present = "discard", conflicts_with = "discard")]
        export: Option<PathBuf>,
        /// Drop it without a copy
        #[arg(long)]
        discard: bool,
    },
    /// Drop the mail accepted for a removed mailbox, and those below it, so that a new one of the same name does not get it; works while the server runs
    ForgetMailbox {
        #[command(flatten)]
        spool: Spool,
        /// Its path below the mail directory, such as example.org/ann
        mailbox: String,
        /// Drop the mail that waits for it, without a copy
        #[arg(long, required = true)]
        discard: bool,
    },
    /// Let a mail mount's stream deliver to another file system than before, such as a new disk: the one that is there at the next start
    AcceptMount {
        #[command(flatten)]
        spool: Spool,
        /// Its stream, as inspect shows it: `local:` for the mail directory itself, local:PATH for a mount below it
        stream: String,
    },
    /// Delete a stream, such as that of a removed mount, and the data that only it needs
    ForgetStream {
        #[command(flatten)]
        spool: Spool,
        /// Its name, as inspect shows it
        name: String,
        /// First export the data that it needs into a new directory
        #[arg(long, value_name = "DIR", required_unless_present = "discard", conflicts_with = "discard")]
        export: Option<PathBuf>,
        /// Delete the data that only it needs, without a copy
        #[arg(long)]
        discard: bool,
    },
}

impl SpoolCommand {
    /// The directory that it makes, and one of mail that must not contain it.
    fn makes(&self) -> Option<(&Path, &Path)> {
        match self {
            SpoolCommand::Export { spool, to, .. } => Some((to, &spool.dir)),
            SpoolCommand::Import { to, from, .. } => Some((to, from)),
            SpoolCommand::Repair { spool, rebuild: made, .. }
            | SpoolCommand::Drop { spool, export: made, .. }
            | SpoolCommand::ForgetStream { spool, export: made, .. } => Some((made.as_deref()?, &spool.dir)),
            SpoolCommand::Inspect { .. }
            | SpoolCommand::Verify(_)
            | SpoolCommand::Scrub { .. }
            | SpoolCommand::ForgetMailbox { .. }
            | SpoolCommand::AcceptMount { .. } => None,
        }
    }

    pub fn run(self) -> Result<ExitCode, AnyError> {
        if let Some((made, of_mail)) = self.makes() {
            check_outside(made, of_mail)?;
        }
        match self {
            SpoolCommand::Inspect { spool, messages } => spool_inspect::inspect(&spool, messages),
            SpoolCommand::Verify(spool) => verify(&spool, None),
            SpoolCommand::Scrub { spool, rate } => verify(&spool, Some(rate.max(1))),
            SpoolCommand::Export { spool, to, stream } => export(&spool, &to, stream.as_deref()),
            SpoolCommand::Import { to, from, kind, json } => spool_import::import(&from, &to, kind, json),
            SpoolCommand::Repair { spool, rebuild: Some(to), .. } => rebuild(&spool, &to),
            SpoolCommand::Repair { spool, rebuild: None, give_up_damaged } => repair(&spool, give_up_damaged),
            SpoolCommand::Drop { spool, id, recipient, export, .. } => {
                drop_message(&spool, id, recipient.as_deref(), export.as_deref())
            }
            SpoolCommand::ForgetMailbox { spool, mailbox, .. } => forget_mailbox(&spool, &mailbox),
            SpoolCommand::AcceptMount { spool, stream } => accept_mount(&spool, &stream),
            SpoolCommand::ForgetStream { spool, name, export, .. } => forget_stream(&spool, &name, export.as_deref()),
        }
    }
}

/// Parses a rate in bytes a second. A small number probably lacks its unit, and is refused.
fn scrub_rate(text: &str) -> Result<u64, String> {
    match posthaste_units::bytes(text).map_err(|error| error.to_string())? {
        rate if rate < 1024 => Err(format!("{rate} bytes a second would take for ever: write a unit, such as 20MiB")),
        rate => Ok(rate),
    }
}

fn verify(spool: &Spool, rate: Option<u64>) -> Result<ExitCode, AnyError> {
    let closed = spool.open()?;
    let Inspection { kind, spare, .. } = closed.inspect()?;
    let bar = progress_bar();
    let begun = Instant::now();
    bar.set_message("reading bytes");
    bar.set_length(closed.bytes());
    let report = closed.verify_with(&mut |report| {
        bar.set_position(report.bytes);
        if let Some(rate) = rate {
            let due = Duration::from_secs_f64(report.bytes as f64 / rate as f64);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
        ControlFlow::Continue(())
    })?;
    bar.finish_and_clear();
    let is_sound = report.damage.is_empty();
    let mut text = format!("kind: {kind}\n") + &damage_text(&report.damage, "DAMAGED");
    text += &damage_text(&spare, "damaged, but there is a second copy");
    if !spare.is_empty() {
        text += "`posthaste spool repair` writes the damaged copies anew\n";
    }
    if is_sound {
        text += &format!(
            "sound: {} bytes of {} batches, large bodies and snapshots are intact\n",
            report.bytes, report.read
        );
    }
    let json = json!({
        "kind": kind, "sound": is_sound, "read": report.read, "bytes": report.bytes,
        "damage": damage_json(&report.damage), "spare": damage_json(&spare),
    });
    spool.print(&json, &text)?;
    Ok(ExitCode::from(u8::from(!is_sound)))
}

fn export(spool: &Spool, to: &Path, stream: Option<&str>) -> Result<ExitCode, AnyError> {
    let all_of = stream.is_none().then_some(&*spool.dir);
    let exported = export_to(&spool.open()?, to, stream, all_of)?;
    finish_export(spool, to, &exported, json!({}), "")
}

/// With `all_of`, the directory of the spool, it can be imported.
fn export_to(
    closed: &ClosedFileSpool,
    to: &Path,
    stream: Option<&str>,
    all_of: Option<&Path>,
) -> Result<Exported, AnyError> {
    let shown = closed.inspect()?;
    if let Some(name) = stream.filter(|name| shown.streams.iter().all(|stream| stream.name != *name)) {
        return Err(no_stream(name, &shown.streams).into());
    }
    let mut exporter = Exporter::new(to, stream)?;
    let bar = progress_bar();
    let mut failed = None;
    bar.set_message("writing batches");
    bar.set_length(shown.streams.iter().map(|stream| stream.entries.max(stream.bodies)).sum());
    let lost = closed.export(&mut |batch| {
        bar.inc(1);
        match exporter.write(&batch) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    bar.finish_and_clear();
    if let Some(error) = failed {
        return Err(format!("{}: {error}", to.display()).into());
    }
    exporter.note_lost(closed, &lost, &shown.damage);
    if let Some(spool) = all_of.filter(|_| !exporter.is_damaged()) {
        exporter.write_streams(closed, spool).map_err(|error| format!("{}: {error}", to.display()))?;
    }
    Ok(exporter.finish()?)
}

fn finish_export(
    spool: &Spool,
    to: &Path,
    exported: &Exported,
    mut json: Value,
    more: &str,
) -> Result<ExitCode, AnyError> {
    let mut text = String::new();
    for (lsn, what) in &exported.damaged {
        let batch = lsn.map_or_else(String::new, |lsn| format!("batch {lsn}: "));
        text += &format!("DAMAGED, and not exported: {batch}{what}\n");
    }
    let left_out = match exported.damaged.len() {
        0 => String::new(),
        1 => "; 1 damaged part is left out".to_owned(),
        number => format!("; {number} damaged parts are left out"),
    };
    text += &format!("exported {} to {}{left_out}\n", batches(exported.batches), to.display());
    json["exported"] = exported.batches.into();
    json["damage"] = exported.damaged.iter().map(|(lsn, what)| json!({"batch": lsn, "what": what})).collect();
    spool.print(&json, &(text + more))?;
    Ok(ExitCode::from(u8::from(!exported.damaged.is_empty())))
}

fn no_stream(name: &str, streams: &[StreamStats]) -> String {
    let names: Vec<&str> = streams.iter().map(|stream| stream.name.as_str()).collect();
    format!("no stream {name:?}; existing streams: {}", names.join(", "))
}

fn repair(spool: &Spool, give_up_damaged: bool) -> Result<ExitCode, AnyError> {
    become_owner(&spool.dir)?;
    let closed = spool.open()?;
    let repaired = closed.repair()?;
    drop(closed);
    let given_up =
        if give_up_damaged { spool_give_up::give_up(&spool.dir, spool.open()?)? } else { GivenUp::default() };
    // What is left now.
    let report = spool.open()?.verify()?;
    let mut text: String = repaired.files.iter().map(|name| format!("repaired: {name}\n")).collect();
    for (name, why) in &repaired.failed {
        text += &format!("cannot be repaired: {name}: {why}\n");
    }
    text += &given_up.text();
    text += &damage_text(&report.damage, "DAMAGED, and kept nowhere else");
    let is_sound = report.damage.is_empty() && repaired.failed.is_empty();
    if is_sound {
        let is_unchanged = repaired.files.is_empty() && given_up.is_empty();
        text += if is_unchanged { "sound: nothing had to be repaired\n" } else { "sound\n" };
    } else if !give_up_damaged && has_what_may_be_given_up(&spool.open()?)? {
        text += "with `--give-up-damaged`, what is left of damaged messages is kept and nothing waits for them and for missing segments any more\n";
    }
    let failed: Vec<Value> = repaired.failed.iter().map(|(name, why)| json!({"name": name, "why": why})).collect();
    let json = json!({
        "sound": is_sound, "repaired": repaired.files, "failed": failed, "damage": damage_json(&report.damage),
        "given_up": given_up.json(), "given_up_segments": given_up.segments_json(),
    });
    spool.print(&json, &text)?;
    Ok(ExitCode::from(u8::from(!is_sound)))
}

fn has_what_may_be_given_up(closed: &ClosedFileSpool) -> std::io::Result<bool> {
    let is_missing = !closed.missing().is_empty() || spool_give_up::has_lost_batches(closed)?;
    Ok(is_missing || !closed.unreadable_bodies()?.is_empty() || !closed.lost_entries()?.is_empty())
}

fn rebuild(spool: &Spool, to: &Path) -> Result<ExitCode, AnyError> {
    let rebuilt = ClosedFileSpool::rebuild(&spool.dir, to).map_err(|error| match error {
        OpenError::Locked => spool.named(error),
        error => format!("{}: {error}", spool.dir.display()).into(),
    })?;
    let mut text = format!(
        "rebuilt in {}: {}, {} large; streams: {}\n",
        to.display(),
        batches(rebuilt.batches),
        rebuilt.large,
        rebuilt.streams.join(", ")
    );
    text += "every stream is shown all of it again from the beginning: mail that was delivered and moved or removed since may come a second time\n";
    if !rebuilt.left_out.is_empty() {
        let number = batches(rebuilt.left_out.len() as u64);
        text += &format!("left out: {number} without their large body, which was delivered or lost\n");
    }
    text += &damage_text(&rebuilt.damage, "DAMAGED");
    text += &format!("{} is unchanged; move it away and put the new one in its place\n", spool.dir.display());
    let json = json!({
        "rebuilt": to, "batches": rebuilt.batches, "large": rebuilt.large, "streams": rebuilt.streams,
        "left_out": rebuilt.left_out, "damage": damage_json(&rebuilt.damage),
    });
    spool.print(&json, &text)?;
    Ok(ExitCode::from(u8::from(!rebuilt.damage.is_empty())))
}

fn forget_stream(spool: &Spool, name: &str, to: Option<&Path>) -> Result<ExitCode, AnyError> {
    let closed = spool.open()?;
    let streams = closed.inspect()?.streams;
    if streams.iter().all(|stream| stream.name != name) {
        return Err(no_stream(name, &streams).into());
    }
    let exported = to.map(|to| export_to(&closed, to, Some(name), None).map(|exported| (to, exported))).transpose()?;
    if let Some((to, exported)) = &exported
        && !exported.damaged.is_empty()
    {
        complain("the stream stays, because not all of its mail could be exported; `--discard` removes it anyway");
        return finish_export(spool, to, exported, json!({"forgotten": false}), "");
    }
    drop(closed);
    become_owner(&spool.dir)?;
    let (open, _) = FileSpool::open(&spool.dir, config_for(&spool.dir)?).map_err(|error| spool.named(error))?;
    let stats = open.forget_stream(name)?;
    BoundMounts::read(&spool.dir)?.unbind(name)?;
    let said =
        format!("deleted: stream {name}; not consumed: {}; bodies held: {}\n", batches(stats.entries), stats.bodies);
    let json = json!({"forgotten": true, "entries": stats.entries, "bodies": stats.bodies});
    match exported {
        Some((to, exported)) => finish_export(spool, to, &exported, json, &said),
        None => {
            spool.print(&json, &said)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn accept_mount(spool: &Spool, stream: &str) -> Result<ExitCode, AnyError> {
    // Held until it is done: no server starts meanwhile.
    let _closed = spool.open()?;
    become_owner(&spool.dir)?;
    let bound = BoundMounts::read(&spool.dir)?;
    let streams = bound.streams();
    let Some((_, id)) = streams.iter().find(|(name, _)| name == stream) else {
        let names: Vec<&str> = streams.iter().map(|(name, _)| name.as_str()).collect();
        return Err(format!("{stream:?} is bound to no file system; streams that are: {}", names.join(", ")).into());
    };
    bound.unbind(stream)?;
    spool.print(
        &json!({"accepted": stream, "before": id.map(|id| id.to_string())}),
        &format!(
            "accepted: the next start binds {stream} to the file system found then, instead of {}\n",
            id.map_or_else(|| "an unknown one".to_owned(), |id| id.to_string())
        ),
    )?;
    Ok(ExitCode::SUCCESS)
}

fn forget_mailbox(spool: &Spool, mailbox: &str) -> Result<ExitCode, AnyError> {
    if ClosedFileSpool::is_in_use(&spool.dir).map_err(|error| spool.named(error))? {
        let data = spool.dir.parent().filter(|data| data.join(SOCKET).exists()).ok_or_else(|| {
            format!("{}: a server with another data directory uses it; stop that server first", spool.dir.display())
        })?;
        answer_in(data, &Request::ForgetMailbox { mailbox: mailbox.to_owned() })?;
    } else {
        become_owner(&spool.dir)?;
        let (open, _) = FileSpool::open(&spool.dir, config_for(&spool.dir)?).map_err(|error| spool.named(error))?;
        remove_mailbox(&open, mailbox)?;
    }
    spool.print(
        &json!({"forgotten": mailbox}),
        &format!("forgotten: mail accepted for {mailbox} until now is not delivered any more\n"),
    )?;
    Ok(ExitCode::SUCCESS)
}

fn drop_message(spool: &Spool, id: Lsn, recipient: Option<&str>, to: Option<&Path>) -> Result<ExitCode, AnyError> {
    let closed = spool.open()?;
    let doomed = Doomed::find(&closed, id, recipient)?;
    let exported = to.map(|to| doomed.export(&closed, to).map(|exported| (to, exported))).transpose()?;
    if let Some((to, exported)) = &exported
        && !exported.damaged.is_empty()
    {
        complain("the message stays, because it could not be exported; `--discard` drops it anyway");
        return finish_export(spool, to, exported, json!({"dropped": []}), "");
    }
    drop(closed);
    become_owner(&spool.dir)?;
    doomed.drop_from(&spool.dir)?;
    match exported {
        Some((to, exported)) => finish_export(spool, to, &exported, doomed.json(), &doomed.text()),
        None => {
            spool.print(&doomed.json(), &doomed.text())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
