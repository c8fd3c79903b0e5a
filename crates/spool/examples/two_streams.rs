//! One message for two consumers, each at its own pace: `cargo run -p posthaste-spool --example two_streams`.
//!
//! A mail server would deliver by the first stream and index by the second one. Runs with the tests.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::channel;

use bytes::Bytes;
use posthaste_spool::{Batch, Body, Config, Entry, FileSpool, Lsn, Released, Replayed, Spool, SpoolAdmin, StreamId};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let lsn = accept_and_deliver(dir.path())?;

    // The next start shows each stream the entries after its position.
    let (spool, _) = FileSpool::open(dir.path(), Config::default())?;
    let (delivery, index) = (spool.stream("delivery")?, spool.stream("index")?);
    assert!(waiting(&spool, delivery)?.is_empty());
    assert_eq!(waiting(&spool, index)?, [(lsn, Bytes::from("new message"))]);
    // The body stays until no stream needs it.
    println!("batch {lsn}, still to be indexed: {:?}", spool.read(lsn, 0..14)?);
    assert_eq!(spool.scrub(&mut |_| ControlFlow::Continue(()))?.damage, []);
    Ok(())
}

/// Makes a message durable, and advances the first stream past it.
fn accept_and_deliver(dir: &Path) -> Result<Lsn, Box<dyn Error>> {
    let (spool, report) = FileSpool::open(dir, Config::default())?;
    assert!(report.damage.is_empty(), "damage to acknowledged batches is for the operator: {:?}", report.damage);
    let (delivery, index) = (spool.stream("delivery")?, spool.stream("index")?);

    let entry = |stream, payload: &'static str| Entry { stream, needs_body: true, payload: payload.into() };
    let entries = vec![entry(delivery, "to ann"), entry(index, "new message")];
    let body = Body::inline(vec!["Subject: hello\r\n\r\nHow are you?\r\n".into()]);
    let (tell, told) = channel();
    // Called on the spool's own thread. All batches that wait share one sync.
    spool.append(Batch { entries, body }, Box::new(move |outcome| drop(tell.send(outcome))));
    let lsn = told.recv()??;
    // From here on a power cut cannot lose it: a mail server replies 250.

    let released = Released { below: Lsn::new(lsn.get() + 1), also: Vec::new() };
    spool.advance(delivery, lsn, None, released);
    // The advance is durable with the next checkpoint, such as the one made on drop.
    Ok(lsn)
}

/// The entries that a stream has not passed.
fn waiting(spool: &FileSpool, stream: StreamId) -> Result<Vec<(Lsn, Bytes)>, Box<dyn Error>> {
    let mut entries = Vec::new();
    spool.replay(stream, &mut |replayed| {
        if let Replayed::Entry { lsn, payload, .. } = replayed {
            entries.push((lsn, payload.clone()));
        }
    })?;
    Ok(entries)
}
