//! `posthaste-bench` as a person uses it, tiny: that it works, not how fast.

use std::path::Path;
use std::process::{Command, Output};

/// The measured program is beside this one, as `cargo build` and `cargo test --workspace` put it.
fn command(dir: &Path, args: &[&str]) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_posthaste-bench"));
    assert!(program.with_file_name("posthaste").is_file(), "what is measured is not built: cargo build -p posthaste");
    let mut command = Command::new(program);
    command.current_dir(dir).args(args);
    command
}

/// On the disk that the project is on, for a benchmark refuses memory.
fn disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

fn bench(dir: &Path, options: &[&str]) -> Output {
    bench_within(dir, "400ms", options)
}

/// `--force`, as a machine that is busy with other tests is not fit for figures.
fn bench_within(dir: &Path, round_max: &str, options: &[&str]) -> Output {
    let tiny = ["--quick", "--scale", "0.001", "--round-max", round_max, "--force"];
    command(dir, &[options, &tiny].concat()).output().expect("run posthaste-bench")
}

fn rows<'a>(report: &'a serde_json::Value, workload: &str) -> &'a [serde_json::Value] {
    let workloads =
        report["suites"].as_array().unwrap().iter().flat_map(|suite| suite["workloads"].as_array().unwrap());
    let workload = workloads.into_iter().find(|found| found["name"] == workload).expect("the workload was run");
    workload["rows"].as_array().unwrap()
}

#[test]
fn received_mail_is_measured_and_beside_published_figures() {
    let dir = disk();
    // Its rounds end with a count of messages: within a short time a busy machine may acknowledge none.
    let options = ["receive", "--only", "prixfixe-10k", "--side", "posthaste*", "--json", "--report", "out"];
    let output = bench_within(dir.path(), "60s", &options);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}{output:?}");
    assert!(output.stderr.is_empty(), "in a pipe it is quiet: {output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], "posthaste-bench/1");
    let rows = rows(&report, "prixfixe-10k");
    let (ours, sink, published) = (&rows[0], &rows[1], &rows[2]);
    assert_eq!(
        (&ours["side"], &ours["kind"], &ours["state"]),
        (&"posthaste".into(), &"ours".into(), &"measured".into())
    );
    assert!(ours["durability"].as_str().unwrap().contains("spool synced") && sink["durability"] == "discards");
    let rate = ours["summary"]["rate"]["median"].as_f64().unwrap();
    assert!(rate > 0.0 && ours["rounds"][0]["rate"] == rate, "{ours}");
    assert_eq!(ours["rounds"][0]["acked_percent"], 100.0);
    // On a busy machine it may not have come to rest in time, which is said before.
    let is_found = |note: &serde_json::Value| note.as_str().unwrap().contains("each found once and unaltered");
    assert!(ours["notes"].as_array().unwrap().iter().any(is_found), "{ours}");
    let ratio = published["ours_is"].as_f64().unwrap();
    assert!((ratio - rate / 685.0).abs() < 1e-9, "{published}");
    assert!(published["kind"]["published"]["url"].as_str().unwrap().starts_with("https://"), "{published}");

    let read = |file: &str| std::fs::read_to_string(dir.path().join("out").join(file)).unwrap();
    assert_eq!(read("bench.json"), text);
    assert!(read("bench.md").contains("| published: PrixFixe 0.1 |") && read("bench.html").contains("</html>"));
    let round: serde_json::Value = serde_json::from_str(&read("prixfixe-10k-posthaste-1/report.json")).unwrap();
    assert_eq!(round["total"]["rate"], rate, "the load tool's own report of that round");
    assert_eq!(round["server"]["cpu_us_per_message"], ours["rounds"][0]["server_cpu_us"], "one cost of a message");
    let command: Vec<&str> = round["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert!(command.starts_with(&["posthaste-bench", "receive", "--only"]), "as it was given: {command:?}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["out"], "the scratch directory is removed");
}

#[test]
fn executor_and_spool_run_in_this_process() {
    let dir = disk();
    let output = bench(dir.path(), &["executor", "spool", "--only", "lone,batch", "--only", "callers-16", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for (workload, figure) in [("lone", "p50_us"), ("batch", "gain"), ("callers-16", "rate")] {
        let ours = &rows(&report, workload)[0];
        assert!(ours["summary"][figure]["median"].as_f64().unwrap() > 0.0, "{ours}");
    }
    let is_peer = |row: &&serde_json::Value| row["side"].as_str().unwrap().starts_with("mailrs");
    let peer = rows(&report, "lone").iter().find(is_peer).unwrap();
    let has_figures = peer["summary"]["p50_us"]["median"].is_f64();
    assert!(has_figures || peer["state"]["absent"]["why"].as_str().unwrap().contains("peers"), "{peer}");
}

#[test]
fn idle_connections_cost_memory() {
    let dir = disk();
    let output = bench(dir.path(), &["idle", "--side", "posthaste,posthaste with TLS", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let each = |workload| rows(&report, workload)[0]["summary"]["octets_each"]["median"].as_f64().unwrap();
    assert!((100.0..1_000_000.0).contains(&each("connections")), "{report}");
    assert!((100.0..1_000_000.0).contains(&each("connections-tls")), "{report}");
}

#[test]
fn mail_is_injected_and_accounted_for() {
    let dir = disk();
    let output = bench_within(dir.path(), "60s", &["inject", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for row in rows(&report, "inject-10k") {
        let of = |key: &str| row["summary"][key]["median"].as_f64().unwrap();
        let recipients = if row["side"].as_str().unwrap().contains("many") { 20.0 } else { 1.0 };
        assert!((of("recipient_rate") / of("rate") - recipients).abs() < 1e-6, "{row}");
        assert!(row["notes"].to_string().contains("each found once and unaltered"), "{row}");
    }
}

#[test]
fn mail_over_tls_is_accounted_for_and_handshakes_are_counted() {
    let dir = disk();
    let output = bench_within(dir.path(), "60s", &["tls", "--side", "posthaste*", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let handshakes = &rows(&report, "tls-handshakes")[0]["summary"];
    assert!(handshakes["rate"]["median"].as_f64().unwrap() > 0.0, "{handshakes}");
    for workload in ["tls-10k", "tls-10k-new"] {
        let ours = &rows(&report, workload)[0];
        assert!(ours["notes"].to_string().contains("each found once and unaltered"), "{ours}");
    }
}

#[test]
fn open_pages_and_a_scrape_are_measured() {
    let dir = disk();
    let output = bench_within(dir.path(), "1s", &["pages", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for row in rows(&report, "pages-10m") {
        let of = |key: &str| row["summary"][key]["median"].as_f64().unwrap();
        assert!(of("first_us") > 0.0 && of("scrape_lines") > 50.0, "{row}");
    }
}

#[test]
fn mail_is_sent_on_and_accounted_for() {
    let dir = disk();
    let output = bench_within(dir.path(), "2s", &["relay", "--only", "relay-10k", "--side", "posthaste", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "in a pipe it is quiet: {output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let ours = &rows(&report, "relay-10k")[0];
    let figure = |key: &str| ours["summary"][key]["median"].as_f64().unwrap();
    assert!(figure("rate") > 0.0 && figure("sink_most") >= 1.0 && figure("sink_opened") >= 1.0, "{ours}");
    let is_found = |note: &serde_json::Value| note.as_str().unwrap().contains("each found once and unaltered");
    assert!(ours["notes"].as_array().unwrap().iter().any(is_found), "{ours}");
}

#[test]
fn mail_is_measured_only_if_it_was_signed_and_checked() {
    let dir = disk();
    let options = ["trust", "--side", "*out checks,posthaste unsigned,posthaste Ed25519", "--json"];
    let output = bench_within(dir.path(), "2s", &options);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let has_note = |row: &serde_json::Value, said: &str| row["notes"].to_string().contains(said);
    let signed = rows(&report, "signed-10k");
    let sides: Vec<_> = signed.iter().map(|row| row["side"].as_str().unwrap()).collect();
    assert_eq!(sides, ["posthaste unsigned", "posthaste Ed25519"]);
    assert!(has_note(&signed[0], "with 0 DKIM signatures") && has_note(&signed[1], "with 1 DKIM signatures"), "{text}");
    let checked = rows(&report, "checked-10k");
    // A machine without a network has no such address.
    if checked[1]["state"] == "measured" {
        assert!(has_note(&checked[1], "spf=pass, dkim=pass, dmarc=pass") && !has_note(&checked[0], "spf="), "{text}");
    }
}

#[test]
fn bad_destinations_and_a_waiting_queue_are_accounted_for() {
    let dir = disk();
    let only = [
        "relay",
        "--only",
        "relay-domains,relay-deferred-1m",
        "--side",
        "posthaste,posthaste with five*",
        "--json",
        "--report",
        "out",
    ];
    let output = bench_within(dir.path(), "2s", &only);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let figure = |workload, key: &str| rows(&report, workload)[0]["summary"][key]["median"].as_f64().unwrap();
    let with_pages = &rows(&report, "relay-deferred-1m")[1];
    assert!(with_pages["summary"]["rate"]["median"].as_f64().unwrap() > 0.0, "{with_pages}");
    assert!(figure("relay-domains", "good_p99_us") > 0.0 && figure("relay-domains", "bad_rate") > 0.0, "{text}");
    assert!(figure("relay-domains", "sink_opened") >= figure("relay-domains", "sink_most"), "{text}");
    let is_noted = |workload, said: &str| rows(&report, workload)[0]["notes"].to_string().contains(said);
    assert!(is_noted("relay-domains", "all in the queue"), "{text}");
    assert!(is_noted("relay-deferred-1m", "1000 recipients still wait"), "{text}");
    assert!(figure("relay-deferred-1m", "first_us") >= figure("relay-deferred-1m", "start_us"), "{text}");
    let page = std::fs::read_to_string(dir.path().join("out/bench.html")).unwrap();
    assert!(page.contains("posthaste: in the queue"), "no picture");
}

#[test]
fn a_peer_alone_is_a_good_run() {
    let dir = disk();
    let options = ["spool", "--only", "callers-1", "--side", "append + fdatasync", "--json"];
    let output = bench(dir.path(), &options);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = rows(&report, "callers-1");
    assert_eq!((rows.len(), &rows[0]["side"]), (1, &"append + fdatasync".into()), "sides by their whole names");
}

#[test]
fn searching_shows_how_much_was_found() {
    let dir = disk();
    // Longer rounds than the others': the index is made within them.
    let options = ["search", "--only", "common,absent", "--side", "posthaste", "--json"];
    let output = bench_within(dir.path(), "20s", &options);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let hits = |workload| rows(&report, workload)[0]["summary"]["hits"]["median"].as_f64().unwrap();
    assert!(hits("common") > 100.0 && hits("absent") == 0.0, "{report}");
    assert_eq!(report["suites"][0]["workloads"][0]["figures"][0]["name"], "newest 50");
}

#[test]
fn a_mailbox_is_asked_by_imap_and_all_of_it_answers() {
    let dir = disk();
    let options = ["mailbox", "--side", "posthaste,posthaste with an index,posthaste without UIDs", "--json"];
    let output = bench_within(dir.path(), "20s", &options);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let messages = |workload: &str| {
        rows(&report, &format!("mailbox-{workload}"))[0]["summary"]["messages"]["median"].as_f64().unwrap()
    };
    for many in ["idle-10", "idle-1000", "reconnect"] {
        assert!(rows(&report, &format!("mailbox-{many}"))[0]["summary"]["p99"]["median"].is_number(), "{many}");
    }
    for all in ["fetch-flags", "fetch-sizes", "sort", "start"] {
        assert_eq!(messages(all), 2000.0, "{all}");
    }
    assert_eq!((messages("fetch-envelopes"), messages("fetch-bodies"), messages("store")), (1000.0, 1000.0, 0.0));
    assert!((1.0..2000.0).contains(&messages("search-unseen")) && messages("search-subject") >= 1.0);
    let indexed = &rows(&report, "mailbox-search-text")[1];
    assert_eq!(indexed["side"], "posthaste with an index");
    assert_eq!(indexed["summary"]["messages"]["median"].as_f64(), Some(messages("search-text")), "{indexed}");
    assert_eq!((messages("open"), messages("million"), messages("import")), (2000.0, 2000.0, 500.0));
    let notes = |row: &serde_json::Value| row["notes"].to_string();
    for mailboxes in ["receive-1", "receive-64", "receive-2000", "receive-100000", "lmtp"] {
        let rows = rows(&report, &format!("mailbox-{mailboxes}"));
        assert!(rows.iter().all(|row| notes(row).contains("each found once and unaltered")), "{rows:?}");
        assert!(notes(&rows[0]).contains("user1: each of"), "{rows:?}");
        assert_eq!(rows.len(), if mailboxes == "lmtp" { 1 } else { 2 }, "{rows:?}");
    }
}

#[test]
fn tables_are_markdown_and_everything_listed_is_in_the_manual() {
    let dir = disk();
    let output = bench(dir.path(), &["spool", "--only", "callers-4"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("## spool") && text.contains("### callers-4") && text.contains("| posthaste spool "),
        "{text}"
    );

    let output = bench(dir.path(), &["all", "--list"]);
    let list = String::from_utf8_lossy(&output.stdout);
    let manual = include_str!("../../../docs/bench.md");
    let names: Vec<&str> = list
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(names.len() > 15, "{list}");
    for name in names {
        assert!(manual.contains(&format!("`{name}`")), "{name} is not in docs/bench.md");
    }
}

#[test]
fn misuse_is_told() {
    let dir = disk();
    let check = |args: &[&str], said: &str| {
        let output = command(dir.path(), args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(said), "{args:?}: {output:?}");
    };
    check(&[], "SUITE");
    check(&["everything"], "receive");
    check(&["spool", "--scale", "0"], "factor");
    check(&["spool", "--only", "callers"], "known are: callers-1, callers-4");
    check(&["spool", "--side", "post"], "known are: posthaste spool, overwrite + fdatasync");
    std::fs::write(dir.path().join("file"), "").unwrap();
    check(&["spool", "--report", "file/out"], "file/out");
    check(&["spool", "--dir", "absent"], "absent");
    check(&["spool", "--server", "absent"], "cargo build --profile dist -p posthaste");
    check(&["spool", "--dir", "/dev/shm"], "--force");
}

#[test]
fn every_command_and_option_of_the_manual_exists() {
    let mut program = posthaste_manual::Program::new(env!("CARGO_BIN_EXE_posthaste-bench"));
    // Of posthaste, which the suites run, and of cargo.
    let foreign = ["--check-files", "--list-all", "--features"];
    let mistakes = program.mistakes(include_str!("../../../docs/bench.md"), "posthaste-bench", &foreign);
    assert!(mistakes.is_empty(), "{mistakes:#?}");
}

#[test]
fn kinds_of_spools_are_measured_in_turns() {
    let dir = disk();
    let output = bench(dir.path(), &["kinds", "--only", "kinds-10k-50", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = rows(&report, "kinds-10k-50");
    let sides: Vec<_> =
        rows.iter().map(|row| (row["side"].as_str().unwrap(), row["durability"].as_str().unwrap())).collect();
    let synced = ["ring", "files", "fjall"].map(|name| (name, "message synced"));
    assert_eq!(sides, [&synced[..], &[("fjall unsynced", "none: a power cut loses it")]].concat());
    for row in rows {
        let of = |key: &str| row["summary"][key]["median"].as_f64().unwrap();
        assert!(of("rate") >= of("forgotten") && of("forgotten") > 0.0 && of("p99") >= of("p50"), "{row}");
    }
}

/// The other side needs servers of NATS; its row says so where there are none.
#[test]
fn a_shard_is_measured_beside_a_server_alone() {
    let dir = disk();
    let output = bench_within(dir.path(), "60s", &["cluster", "--only", "cluster-10k-50", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = rows(&report, "cluster-10k-50");
    assert_eq!(rows.iter().map(|row| &row["side"]).collect::<Vec<_>>(), ["replicated", "one server"]);
    for row in rows.iter().filter(|row| row["state"] == "measured") {
        let of = |key: &str| row["summary"][key]["median"].as_f64().unwrap();
        assert!(of("rate") > 0.0 && of("written") >= 1.0 && of("p99_us") >= of("p50_us"), "{row}");
        assert!(row["notes"].to_string().contains("each found once and unaltered in the sink"), "{row}");
    }
    assert_eq!(rows[1]["state"], "measured");
}

#[test]
fn a_server_with_each_kind_of_spool_is_measured_over_smtp() {
    let dir = disk();
    let output = bench_within(dir.path(), "60s", &["kinds", "--only", "kinds-smtp-10k-50", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = rows(&report, "kinds-smtp-10k-50");
    assert_eq!(rows.iter().map(|row| row["side"].as_str().unwrap()).collect::<Vec<_>>(), ["ring", "files", "fjall"]);
    for row in rows {
        let of = |key: &str| row["summary"][key]["median"].as_f64().unwrap();
        assert!(of("rate") > 0.0 && of("written") >= 1.0, "{row}");
        assert!(row["notes"].to_string().contains("each found once and unaltered in its mailbox"), "{row}");
    }
}
