//! Nodes of a cluster, on a server of NATS. Without the program `nats-server` (or `NATS_SERVER`) these tests say so and pass; with `CI_REQUIRE_NATS` they fail.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use posthaste_cluster::nats::{NatsCells, NatsConfig, NatsEngine};
use posthaste_cluster::{Cells, NodeName, ShardCell};
use posthaste_nats_server::{NatsServer, SYNCED};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::http;
use crate::relay_events::wait_for;
use crate::relaying::{next_hop, queue, unused_port};
use crate::support::{Client, Server, command, configure};

/// The configuration of a node of two; each is the standby of the other. Mail is sent to a port of loopback.
fn config(node: &str, engine: &NatsServer, port: u16) -> String {
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
        [engine.address()],
        [engine.monitor()],
        PREFIX,
        shard(1),
        shard(2),
    )
}

fn connected(engine: &NatsServer) -> NatsEngine {
    let config = NatsConfig {
        servers: vec![engine.address().to_owned()],
        monitors: vec![engine.monitor().to_owned()],
        tls: None,
        login: None,
        prefix: PREFIX.to_owned(),
        replicas: 1,
        log_bytes_max: 1 << 30,
        timeout: Duration::from_secs(1),
    };
    NatsEngine::connect(config).unwrap()
}

/// Waits until the cell of shard 1 says this.
fn wait_for_cell(cells: &NatsCells, what: &str, holds: impl Fn(&ShardCell) -> bool) {
    wait_for_shard(cells, 1, what, holds);
}

fn wait_for_shard(cells: &NatsCells, shard: u16, what: &str, holds: impl Fn(&ShardCell) -> bool) {
    let deadline = Instant::now() + TAKEN_OVER;
    loop {
        // A busy machine may take longer than the request waits: it is asked again.
        let value = cells.get(&format!("shard.{shard}")).unwrap_or_default().0;
        let cell = ShardCell::decode(&value).unwrap_or_default();
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

/// Two nodes of one engine, where 20 messages wait that nobody takes: all have been acknowledged by the first.
struct Waiting {
    first: Server,
    second: Server,
    cells: NatsCells,
    port: u16,
    one: TempDir,
    two: TempDir,
    engine: NatsServer,
}

impl Waiting {
    fn start() -> Option<Self> {
        let engine = NatsServer::start(SYNCED)?;
        let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let port = unused_port();
        let first = Server::start(one.path(), &config("n1", &engine, port));
        let second = Server::start(two.path(), &config("n2", &engine, port));
        let cells = connected(&engine).cells().unwrap();
        wait_for_cell(&cells, "both are in sync", |cell| is_owner(cell, "n1") && cell.in_sync.len() == 2);
        deliver(&mut taking(&first), 20);
        Some(Self { first, second, cells, port, one, two, engine })
    }

    /// The next hop, which has got each message once from the second node.
    fn taken_over(&self, there: &TempDir) -> Server {
        let next = next_hop(there.path(), &format!("127.0.0.1:{}", self.port));
        wait_for_cell(&self.cells, "the standby takes over", |cell| is_owner(cell, "n2"));
        let mails = next.wait_for_mail("there.example", "ann", 20);
        let count =
            |number: usize| mails.iter().filter(|mail| mail.text().contains(&format!("Subject: {number}\n"))).count();
        assert_eq!((0..20).map(count).collect::<Vec<_>>(), [1; 20]);
        next
    }

    /// A client of the first node, once that has its shard again and sends its mail.
    fn is_back(&self, next: &Server) -> Client {
        let mut client = taking(&self.first);
        wait_for_cell(&self.cells, "its home has it again", |cell| is_owner(cell, "n1"));
        deliver(&mut client, 1);
        next.wait_for_mail("there.example", "ann", 21);
        client
    }
}

#[test]
fn mail_of_a_killed_node_leaves_by_another() {
    let Some(mut nodes) = Waiting::start() else { return };
    let there = tempfile::tempdir().unwrap();
    nodes.first.signal(Signal::KILL);
    nodes.first.wait();
    let (_, said) = queue(nodes.two.path(), &["summary"]);
    assert!(said.contains("1 of 2 nodes have answered; not n1: "), "{said}");
    let next = nodes.taken_over(&there);
    // It comes back as a standby, and takes no mail before it has its shard again.
    nodes.first = Server::start(nodes.one.path(), &config("n1", &nodes.engine, nodes.port));
    nodes.first.hello().expect("MAIL FROM:<ann@here.example>", 451);
    drop(nodes.is_back(&next));
    // A stop hands it over at once: no lease is waited for.
    let Waiting { first, second, cells, .. } = nodes;
    wait_for_cell(&cells, "both are in sync again", |cell| cell.in_sync.len() == 2);
    let begun = Instant::now();
    first.stop();
    wait_for_cell(&cells, "it is handed over", |cell| is_owner(cell, "n2"));
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    second.stop();
    next.stop();
}

/// It wakes when its shard is another's, and knows nothing of that.
#[test]
fn a_stopped_node_that_goes_on_sends_nothing_more() {
    let Some(nodes) = Waiting::start() else { return };
    let there = tempfile::tempdir().unwrap();
    nodes.first.signal(Signal::STOP);
    let next = nodes.taken_over(&there);
    nodes.first.signal(Signal::CONT);
    nodes.first.wait_for_log("this node is a standby of the shard");
    drop(nodes.is_back(&next));
    assert_eq!(next.mailbox("there.example", "ann").len(), 21, "each once");
    nodes.first.stop();
    nodes.second.stop();
    next.stop();
}

/// As while the engine elects a leader. No transaction begins that the lease does not cover, and no client is sent away.
#[test]
fn a_client_waits_at_mail_while_the_engine_is_silent() {
    let Some(nodes) = Waiting::start() else { return };
    let engine = i32::try_from(nodes.engine.process_id()).ok().and_then(Pid::from_raw).unwrap();
    drop(taking(&nodes.first));
    let (tell, replies) = channel();
    let ask = || loop {
        let mut client = nodes.first.hello();
        client.send(b"MAIL FROM:<ann@here.example>\r\n").unwrap();
        if tell.send(client.reply().code).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    std::thread::scope(|scope| {
        scope.spawn(ask);
        kill_process(engine, Signal::STOP).unwrap();
        // From the fourth second on there is no reply.
        while let Ok(code) = replies.recv_timeout(Duration::from_secs(2)) {
            assert_eq!(code, 250);
        }
        kill_process(engine, Signal::CONT).unwrap();
        assert_eq!(replies.recv_timeout(TAKEN_OVER), Ok(250));
        drop(replies);
    });
    nodes.first.stop();
    nodes.second.stop();
}

/// The nodes change shards: each takes mail under the one that it owns, and commands find messages where they wait.
#[test]
fn a_node_takes_mail_under_any_shard_that_it_owns() {
    let Some(nodes) = Waiting::start() else { return };
    let (one, two) = (nodes.one.path(), nodes.two.path());
    let move_shard = |from: &Path, shard: &str, to: &str| {
        let moved = command(from, &["cluster", "move", shard, "--to", to]).output().unwrap();
        assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
    };
    // Each node shows the queues of both.
    let shards = |dir: &Path| rows(dir, 2).iter().map(|row| row["shard"].as_u64()).collect::<Vec<_>>();
    wait_for_shard(&nodes.cells, 2, "both are in sync", |cell| is_owner(cell, "n2") && cell.in_sync.len() == 2);
    move_shard(two, "2", "n1");
    move_shard(one, "1", "n2");
    assert_eq!((shards(one), shards(two)), (vec![Some(1); 20], vec![Some(1); 20]));
    taking(&nodes.first).deliver(&["bob@there.example"], b"Subject: other\r\n\r\nx\r\n");
    let all: Vec<_> = [vec![Some(1); 20], vec![Some(2)]].concat();
    assert_eq!((shards(one), shards(two)), (all.clone(), all.clone()));
    let id = rows(two, 2)[20]["id"].as_str().unwrap().to_owned();
    let received = wait_for(one, "received", "message", id.split('.').next().unwrap());
    assert_eq!(received[0]["mailboxes"], serde_json::json!(["bob@there.example"]));
    // A command reaches the owner of the message, and one about all reaches all.
    assert_eq!(queue(two, &["hold", &id]), (0, "1 held\n".to_owned()));
    let (code, said) = queue(two, &["show", &id]);
    assert!(code == 0 && said.contains("held"), "{said}");
    for node in [one, two] {
        let (_, summary) = queue(node, &["summary"]);
        let there = summary.lines().find(|line| line.starts_with("there.example")).expect(&summary);
        let words: Vec<&str> = there.split_whitespace().collect();
        assert_eq!((words[1], words[3]), ("21", "1"), "{summary}");
    }
    assert_eq!(queue(one, &["hold", "--all"]), (0, "20 held\n".to_owned()));
    assert_eq!(queue(two, &["release", "--all"]), (0, "21 released\n".to_owned()));
    wait_for_cell(&nodes.cells, "both are in sync again", |cell| cell.in_sync.len() == 2);
    move_shard(two, "1", "n1");
    assert_eq!(shards(two), all);
    assert_eq!(queue(two, &["delete", &id]).0, 0);
    assert_eq!(shards(one).len(), 20);
    nodes.first.stop();
    nodes.second.stop();
}

/// The rows of `posthaste queue list` at a node, once this many of the two nodes have answered.
fn rows(dir: &Path, answered: u64) -> Vec<Value> {
    let (_, text) = queue(dir, &["list", "--json"]);
    let mut list: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!((list["cluster"]["nodes"].as_u64(), list["cluster"]["answered"].as_u64()), (Some(2), Some(answered)));
    list["lines"].take().as_array().unwrap().clone()
}

/// Its exit status, and all that it says.
fn run(dir: &Path, args: &[&str]) -> (i32, String) {
    let output = command(dir, args).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn a_removed_node_is_refused_until_it_is_added() {
    let Some(mut nodes) = Waiting::start() else { return };
    let (there, two) = (tempfile::tempdir().unwrap(), nodes.two.path().to_owned());
    let (code, said) = run(&two, &["cluster", "remove", "n1"]);
    assert!(code == 2 && said.contains("n1 runs"), "{said}");
    nodes.first.signal(Signal::KILL);
    nodes.first.wait();
    assert_eq!(run(&two, &["cluster", "remove", "n1"]), (0, "n1 was taken off the list and cannot start\n".to_owned()));
    let next = nodes.taken_over(&there);
    let n1 = NodeName::new("n1").unwrap();
    wait_for_cell(&nodes.cells, "nothing waits for it", |cell| !cell.in_sync.contains_key(&n1));
    let why = Server::try_start(nodes.one.path()).err().expect("it is refused");
    assert!(why.contains("`posthaste cluster add n1`"), "{why}");
    let (_, status) = run(&two, &["cluster", "status"]);
    assert!(status.lines().any(|line| line.starts_with("n1 ") && line.contains("removed")), "{status}");
    assert_eq!(run(&two, &["cluster", "add", "n1"]), (0, "n1 may start\n".to_owned()));
    nodes.first = Server::start_as_it_is(nodes.one.path());
    wait_for_cell(&nodes.cells, "both are in sync again", |cell| cell.in_sync.len() == 2);
    nodes.first.stop();
    nodes.second.stop();
    next.stop();
}

/// The steps of docs/cluster.md for a log that is gone.
#[test]
fn a_shard_whose_log_is_gone_begins_anew_with_its_mail() {
    let Some(mut nodes) = Waiting::start() else { return };
    let (one, two) = (nodes.one.path().to_owned(), nodes.two.path().to_owned());
    let place = tempfile::tempdir().unwrap();
    let saved = place.path().join("shard-1.jsonl");
    let saved = saved.to_str().unwrap();
    connected(&nodes.engine).new_log(1).unwrap();
    let (code, said) = wait_until_stopped(&one);
    assert!(code == 1 && said.contains("the log is gone, and n1 has applied position"), "{said}");
    nodes.first.hello().expect("MAIL FROM:<ann@here.example>", 451);
    let events = wait_for(&one, "shard", "state", "stopped");
    assert_eq!((&events[0]["shard"], &events[0]["node"]), (&serde_json::json!(1), &serde_json::json!("n1")));
    let (code, said) = run(&one, &["cluster", "open", "1", "--yes"]);
    assert!(code == 2 && said.contains("has stopped"), "{said}");
    let (code, said) = run(&one, &["queue", "export", "--all", "--shard", "1", "--output", saved]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = run(&one, &["cluster", "reseed", "1", "--yes"]);
    assert!(code == 2 && said.contains("stop the server first"), "{said}");
    nodes.first.stop();
    nodes.second.stop();
    for dir in [&one, &two] {
        let (code, said) = run(dir, &["cluster", "reseed", "1"]);
        assert!(code == 2 && said.contains("nothing is changed without --yes"), "{said}");
        let (code, said) = run(dir, &["cluster", "reseed", "1", "--yes"]);
        assert!(code == 0 && said.contains("shard-1.aside-1"), "{said}");
    }
    nodes.first = Server::start_as_it_is(&one);
    nodes.second = Server::start_as_it_is(&two);
    let (code, said) = run(&one, &["cluster", "open", "1", "--yes"]);
    assert!(code == 0 && said.contains("the log is empty") && said.contains("n1 owns it"), "{said}");
    wait_for_cell(&nodes.cells, "both are in sync again", |cell| cell.in_sync.len() == 2);
    assert_eq!(run(&one, &["queue", "import", saved]).0, 0);
    let there = tempfile::tempdir().unwrap();
    let next = next_hop(there.path(), &format!("127.0.0.1:{}", nodes.port));
    next.wait_for_mail("there.example", "ann", 20);
    nodes.first.stop();
    nodes.second.stop();
    next.stop();
}

/// The status of a node once its shard has stopped.
fn wait_until_stopped(dir: &Path) -> (i32, String) {
    let deadline = Instant::now() + TAKEN_OVER;
    loop {
        let (code, said) = run(dir, &["cluster", "status"]);
        if said.contains("stopped") {
            return (code, said);
        }
        assert!(Instant::now() < deadline, "{said}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// They are made at the node that does not own the shard, and outlive the one that does.
#[test]
fn suppressions_and_suspensions_hold_on_all_nodes() {
    let Some(mut nodes) = Waiting::start() else { return };
    let (one, two) = (nodes.one.path().to_owned(), nodes.two.path().to_owned());
    let suppressed = |dir: &Path| run(dir, &["suppression", "list"]).1;
    let added = (0, "1 suppressed, 1 of them new\n".to_owned());
    assert_eq!(run(&two, &["suppression", "add", "bob@there.example"]), added);
    assert!([&one, &two].iter().all(|dir| suppressed(dir).contains("bob@there.example")));
    assert_eq!(queue(&two, &["suspend", "--domain", "there.example"]), (0, "suspended\n".to_owned()));
    let (_, suspended) = queue(&one, &["suspensions"]);
    assert!(suspended.contains("there.example"), "{suspended}");
    nodes.first.signal(Signal::KILL);
    nodes.first.wait();
    wait_for_cell(&nodes.cells, "the standby takes over", |cell| is_owner(cell, "n2"));
    taking(&nodes.second);
    let (_, suspended) = queue(&two, &["suspensions"]);
    assert!(suspended.contains("there.example"), "{suspended}");
    // A node that is away gets changes when it is back.
    let (code, said) = run(&two, &["suppression", "remove", "bob@there.example"]);
    assert!(code == 0 && said.contains("1 of 2 nodes have it") && said.contains("n1"), "{said}");
    let there = tempfile::tempdir().unwrap();
    let next = next_hop(there.path(), &format!("127.0.0.1:{}", nodes.port));
    assert_eq!(next.mailbox("there.example", "ann").len(), 0);
    assert_eq!(queue(&two, &["resume", "--domain", "there.example"]).0, 0);
    next.wait_for_mail("there.example", "ann", 20);
    nodes.first = Server::start_as_it_is(&one);
    let deadline = Instant::now() + TAKEN_OVER;
    while suppressed(&one).contains("bob@there.example") {
        assert!(Instant::now() < deadline, "{}", nodes.first.log_text());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(run(&one, &["suppression", "add", "eve@there.example"]), added);
    assert!(suppressed(&two).contains("eve@there.example"));
    nodes.first.stop();
    nodes.second.stop();
    next.stop();
}

/// One node has mail, and sends at the rate of both: its tokens are lent by the home of the limit, which may be the other.
#[test]
fn a_rate_is_lent_to_the_node_with_mail() {
    let Some(engine) = NatsServer::start(SYNCED) else { return };
    let [one, two, there] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let port = unused_port();
    let start = |dir: &Path, node: &str| {
        // At home in the first shard, in the second one, or both.
        let limits = "[default]\nmessage_rate = '20/second, burst 1'\nlimits = ['a', 'b', 'c', 'd']\n";
        let named = ["a", "b", "c", "d"].map(|name| format!("[limit.{name}]\nmessage_rate = '1000/second'\n"));
        std::fs::write(dir.join("limits.toml"), format!("{limits}{}", named.concat())).unwrap();
        let text = config(node, &engine, port)
            .replace("[relay]\n", &format!("{}[relay]\nshaping = [\"limits.toml\"]\n", http::CONFIG));
        Server::start(dir, &text)
    };
    let (first, second) = (start(one.path(), "n1"), start(two.path(), "n2"));
    let cells = connected(&engine).cells().unwrap();
    for shard in [1, 2] {
        wait_for_shard(&cells, shard, "both are in sync", |cell| cell.owner.is_some() && cell.in_sync.len() == 2);
    }
    drop(taking(&second));
    let next = next_hop(there.path(), &format!("127.0.0.1:{port}"));
    let begun = Instant::now();
    deliver(&mut taking(&first), 60);
    next.wait_for_mail("there.example", "ann", 60);
    // 59 tokens after the first: half a second of them at once.
    assert!(begun.elapsed() >= Duration::from_millis(2450), "{:?}", begun.elapsed());
    let secret = http::token(one.path(), "scraper", "metrics");
    let counts = || {
        let (_, metrics) = http::get(http::page_of(&first), "/metrics", Some(&secret));
        ["lent", "used", "own_share"].map(|state| {
            let name = format!("posthaste_limit_tokens_total{{state=\"{state}\"}} ");
            metrics.lines().find_map(|line| line.strip_prefix(&name)).expect(&metrics).parse::<u64>().unwrap()
        })
    };
    // Counted after the next request to the home.
    let deadline = Instant::now() + TAKEN_OVER;
    while counts()[1..].iter().sum::<u64>() < 300 {
        assert!(Instant::now() < deadline, "{:?}", counts());
        std::thread::sleep(Duration::from_millis(50));
    }
    // Read once more: the three are not read at the same time.
    let [lent, used, own_share] = counts();
    // A loaded machine may answer so late that most are shares. But `c` and `d` are at home at the node's own shard,
    // which is asked without the engine.
    assert!(lent >= used && used > 0, "{lent} {used} {own_share}");
    first.stop();
    second.stop();
    next.stop();
}

#[test]
fn a_signal_ends_a_node_that_waits_for_its_engine() {
    let Some(engine) = NatsServer::start(SYNCED) else { return };
    let dir = tempfile::tempdir().unwrap();
    configure(dir.path(), &config("n1", &engine, unused_port()));
    drop(engine);
    let mut node = command(dir.path(), &["serve"]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut log = BufReader::new(node.stderr.take().unwrap()).lines().map(Result::unwrap);
    let asks = log.by_ref().find(|line| line.contains("the engine does not answer; asking again"));
    kill_process(Pid::from_child(&node), Signal::TERM).unwrap();
    let signalled_at = Instant::now();
    let left: Vec<String> = log.collect();
    assert!(asks.is_some() && node.wait().unwrap().success(), "{left:?}");
    assert!(
        left.iter().any(|line| line.contains("stopped while the engine of the cluster did not answer")),
        "{left:?}"
    );
    assert!(signalled_at.elapsed() < Duration::from_secs(30), "{left:?}");
}

/// Begins the names of the engine's streams.
const PREFIX: &str = "test";
/// A lease, the writes of a standby, and the time that a shard stays before its home has it again.
const TAKEN_OVER: Duration = Duration::from_secs(150);
