//! Nodes of a cluster, on a server of NATS. Without the program `nats-server` (or `NATS_SERVER`) these tests say so and pass; with `CI_REQUIRE_NATS` they fail.

#[path = "../../../cluster/tests/nats/server.rs"]
#[allow(dead_code, reason = "these tests use a part")]
mod engine;

use std::path::Path;
use std::time::{Duration, Instant};

use posthaste_cluster::nats::{NatsCells, NatsEngine};
use posthaste_cluster::{Cells, NodeName, ShardCell};
use rustix::process::Signal;

use crate::relaying::{next_hop, unused_port};
use crate::support::{Client, Server, configure};

/// The configuration of a node of two; each is the standby of the other. Mail is sent to a port of loopback.
fn config(node: &str, engine: &engine::Server, port: u16) -> String {
    let of_engine = engine::config(engine);
    let shard = |number: usize| {
        format!("[[cluster.shard]]\nnumber = {number}\nhome = \"n{number}\"\nstandbys = [\"n{}\"]\n", 3 - number)
    };
    format!(
        "host_name = \"{node}.here.example\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
         [storage]\nspool_segment_bytes = \"4M\"\nspool_segments = 8\n\
         [[domain]]\nname = \"here.example\"\naliases = {{ postmaster = \"ops@there.example\" }}\n\
         [relay]\nnetworks = [\"127.0.0.1\"]\nport = {port}\nunreachable_secs = 1\n\
         [dns]\nservers = [\"127.0.0.1:9\"]\nhosts = {{ \"there.example\" = [\"127.0.0.1\"] }}\n\
         [cluster]\nnode = \"{node}\"\nservers = {:?}\nmonitors = {:?}\nprefix = \"{}\"\nreplicas = 1\nlog_bytes = \"1G\"\n{}{}",
        of_engine.servers,
        of_engine.monitors,
        of_engine.prefix,
        shard(1),
        shard(2),
    )
}

fn cells(engine: &engine::Server) -> NatsCells {
    NatsEngine::connect(engine::config(engine)).unwrap().cells().unwrap()
}

/// Waits until the cell of shard 1 says this.
fn wait_for_cell(cells: &NatsCells, what: &str, holds: impl Fn(&ShardCell) -> bool) {
    let deadline = Instant::now() + TAKEN_OVER;
    loop {
        let cell = ShardCell::decode(&cells.get("shard.1").unwrap().0).unwrap_or_default();
        if holds(&cell) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {cell:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn is_owner(cell: &ShardCell, node: &str) -> bool {
    cell.owner.as_ref().is_some_and(|owner| Some(&owner.node) == NodeName::new(node).as_ref())
}

/// Waits until a node takes mail, and returns a client of it.
fn taking(server: &Server) -> Client {
    let deadline = Instant::now() + TAKEN_OVER;
    loop {
        let mut client = server.hello();
        client.send(b"MAIL FROM:<ann@here.example>\r\n").unwrap();
        match client.reply().code {
            250 => {
                client.expect("RSET", 250);
                return client;
            }
            code => assert_eq!(code, 451),
        }
        assert!(Instant::now() < deadline, "it takes no mail:\n{}", server.log_text());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn deliver(client: &mut Client, count: usize) {
    for number in 0..count {
        let text = format!("Subject: {number}\r\n\r\nx\r\n");
        client.deliver(&["ann@there.example"], text.as_bytes());
    }
}

fn start(dir: &Path, config: &str) -> Server {
    configure(dir, config);
    Server::start_as_it_is(dir)
}

#[test]
fn mail_of_a_killed_node_leaves_by_another() {
    let Some(engine) = engine::Server::start(engine::SYNCED) else { return };
    let [one, two, there] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let port = unused_port();
    let first = start(one.path(), &config("n1", &engine, port));
    let second = start(two.path(), &config("n2", &engine, port));
    let cells = cells(&engine);
    wait_for_cell(&cells, "both are in sync", |cell| is_owner(cell, "n1") && cell.in_sync.len() == 2);
    // Nobody is there to take it: all of it waits when its node dies.
    deliver(&mut taking(&first), 20);
    first.signal(Signal::KILL);
    drop(first);
    let next = next_hop(there.path(), &format!("127.0.0.1:{port}"));
    wait_for_cell(&cells, "the standby takes over", |cell| is_owner(cell, "n2"));
    let mails = next.wait_for_mail("there.example", "ann", 20);
    let subjects =
        |number: usize| mails.iter().filter(|mail| mail.text().contains(&format!("Subject: {number}\n"))).count();
    assert_eq!((0..20).map(subjects).collect::<Vec<_>>(), [1; 20]);
    // It comes back as a standby, and takes no mail before it has its shard again.
    let first = start(one.path(), &config("n1", &engine, port));
    let mut early = first.hello();
    early.expect("MAIL FROM:<ann@here.example>", 451);
    let mut client = taking(&first);
    wait_for_cell(&cells, "its home has it again", |cell| is_owner(cell, "n1"));
    deliver(&mut client, 1);
    next.wait_for_mail("there.example", "ann", 21);
    drop(client);
    // A stop hands it over at once: no lease is waited for.
    wait_for_cell(&cells, "both are in sync again", |cell| cell.in_sync.len() == 2);
    let begun = Instant::now();
    first.stop();
    wait_for_cell(&cells, "it is handed over", |cell| is_owner(cell, "n2"));
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    second.stop();
    next.stop();
}

/// A lease, the writes of a standby, and the time that a shard stays before its home has it again.
const TAKEN_OVER: Duration = Duration::from_secs(150);
