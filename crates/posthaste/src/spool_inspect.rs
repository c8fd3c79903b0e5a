//! `posthaste spool inspect`: streams, segments, packs, large bodies and damage, as text and as JSON.

use std::process::ExitCode;

use posthaste_delivery::local::{BoundMounts, MountId};
use posthaste_spool::{ClosedFileSpool, Damage, Inspection, PlaceReport, StreamStats};
use serde_json::{Value, json};

use crate::spool_access::{Spool, batches};
use crate::spool_waiting::{self, Waiting};

type AnyError = Box<dyn std::error::Error>;
type BoundStream = (String, Option<MountId>);

pub fn inspect(spool: &Spool, messages: bool) -> Result<ExitCode, AnyError> {
    // Its lock is not held meanwhile: a server that starts beside us must find the spool free.
    let is_in_use = ClosedFileSpool::is_in_use(&spool.dir).map_err(|error| spool.named(error))?;
    let closed = ClosedFileSpool::glance(&spool.dir).map_err(|error| spool.named(error))?;
    let shown = closed.inspect()?;
    let undelivered = spool_waiting::all(&closed)?;
    // That the lists are damaged is told by the next start, which makes them anew.
    let mounts = BoundMounts::read(&spool.dir).map_or_else(|_| Vec::new(), |bound| bound.streams());
    let mut json = inspection_json(&shown, is_in_use);
    let mount = |(stream, id): &BoundStream| json!({"stream": stream, "id": id.map(|id| id.to_string())});
    json["mounts"] = mounts.iter().map(mount).collect();
    json["waiting"] = spool_waiting::totals_json(&undelivered).into();
    json["undelivered"] = spool_waiting::messages_json(&undelivered).into();
    let listed = if messages { spool_waiting::messages(&undelivered) } else { String::new() };
    spool.print(&json, &(listed + &inspection_text(&shown, &undelivered, &mounts, is_in_use)))?;
    Ok(ExitCode::from(u8::from(!shown.damage.is_empty())))
}

fn inspection_text(shown: &Inspection, undelivered: &[Waiting], mounts: &[BoundStream], is_in_use: bool) -> String {
    let mut out = String::new();
    out += &format!("kind: {}\n", shown.kind);
    if is_in_use {
        out += "in use: this is one moment of it\n";
    }
    for stream in &shown.streams {
        let state = match stream.first {
            None => "up to date".to_owned(),
            Some(first) => format!("{} not consumed, from {first}", batches(stream.entries)),
        };
        out += &format!(
            "stream {}  position {}, {state}, needs {}\n",
            stream.name,
            stream.position,
            bodies(stream.bodies)
        );
    }
    for (stream, id) in mounts {
        let id = id.map_or_else(|| "that it tells".to_owned(), |id| id.to_string());
        out += &format!("mount {stream}  delivers to the file system with id {id}\n");
    }
    out += &spool_waiting::text(undelivered);
    let mut places = |what: &str, all: &[PlaceReport]| {
        for place in all {
            if place.records == 0 {
                out += &format!("{what} {}  empty, ready, {} bytes\n", place.name, place.bytes);
                continue;
            }
            out += &format!(
                "{what} {}  batches {} to {}, {} of {} needed, {} bytes\n",
                place.name, place.first, place.last, place.needed, place.records, place.bytes
            );
        }
    };
    places("segment", &shown.segments);
    places("pack", &shown.packs);
    for (lsn, name, bytes) in &shown.large {
        out += &format!("large body {name}  of batch {lsn}, {bytes} bytes\n");
    }
    for name in &shown.unnamed_bodies {
        out += &format!("body file without a batch: {name}\n");
    }
    out += &format!(
        "last checkpoint: {}, through batch {}; last batch: {}\n",
        shown.checkpoint, shown.through, shown.last
    );
    out += &damage_text(&shown.spare, "damaged, but there is a second copy");
    out + &damage_text(&shown.damage, "DAMAGED")
}

fn bodies(number: u64) -> String {
    if number == 1 { "1 body".to_owned() } else { format!("{number} bodies") }
}

fn inspection_json(shown: &Inspection, is_in_use: bool) -> Value {
    let stream = |stream: &StreamStats| {
        json!({
            "name": stream.name, "position": stream.position, "entries": stream.entries,
            "first": stream.first, "bodies": stream.bodies,
        })
    };
    let place = |place: &PlaceReport| {
        json!({
            "name": place.name, "first": place.first, "last": place.last, "batches": place.records,
            "needed": place.needed, "bytes": place.bytes,
        })
    };
    let large = shown.large.iter().map(|(lsn, name, bytes)| json!({"batch": lsn, "name": name, "bytes": bytes}));
    json!({
        "kind": shown.kind, "in_use": is_in_use, "checkpoint": shown.checkpoint, "through": shown.through, "last": shown.last,
        "streams": shown.streams.iter().map(stream).collect::<Vec<_>>(),
        "segments": shown.segments.iter().map(place).collect::<Vec<_>>(),
        "packs": shown.packs.iter().map(place).collect::<Vec<_>>(),
        "large": large.collect::<Vec<_>>(), "unnamed_bodies": shown.unnamed_bodies,
        "damage": damage_json(&shown.damage), "spare": damage_json(&shown.spare),
    })
}

pub fn damage_text(damage: &[Damage], what: &str) -> String {
    damage.iter().map(|damage| format!("{what}: {damage}\n")).collect()
}

pub fn damage_json(damage: &[Damage]) -> Vec<Value> {
    let one = |damage: &Damage| json!({"batch": damage.lsn, "place": damage.place, "what": damage.what});
    damage.iter().map(one).collect()
}
