//! Many tasks deliver at once, and all that wait share a sync: `cargo run -p posthaste-delivery --example many_tasks`. Runs with the tests.

use std::collections::BTreeMap;
use std::error::Error;

use posthaste_delivery::{DeliveryError, DeliveryExecutor};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    // One sequential write makes a message durable; its Maildir follows. `DeliveryExecutor::spawn()` writes into the Maildir at once.
    let (executor, recovered) = DeliveryExecutor::with_journal(dir.path())?;
    println!("left by the last run: {recovered:?}");

    let deliver = |number: usize| {
        let (executor, mailbox) = (executor.clone(), format!("user{}", number % 3));
        tokio::spawn(async move {
            let body = format!("Subject: message {number}\n\nHello.\n");
            // `Ok`: on stable storage. An error says if trying again can help.
            let id = executor.deliver(&mailbox, body).await?;
            Ok::<_, DeliveryError>((id, mailbox))
        })
    };
    let tasks: Vec<_> = (0..60).map(deliver).collect();
    let mut mailboxes = BTreeMap::new();
    for task in tasks {
        let (id, mailbox) = task.await??;
        mailboxes.insert(id, mailbox);
    }
    println!("{} messages in {} batches", mailboxes.len(), executor.stats().batches);

    // Ends the threads once all mail is in its mailbox.
    executor.shutdown().await;
    for (id, mailbox) in &mailboxes {
        let file = executor.locate(mailbox, id)?.ok_or("a message is not in its mailbox")?;
        assert!(std::fs::read_to_string(file)?.ends_with("Hello.\n"));
    }
    Ok(())
}
