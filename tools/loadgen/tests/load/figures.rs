//! Every figure that a report shows, in each of its forms, is the one in its JSON.

use std::collections::BTreeSet;

use posthaste_loadgen::account::WaitingCopies;
use posthaste_loadgen::load::{Kill, Outcome};
use posthaste_loadgen::report::{About, PlanSummary, Report};
use posthaste_loadgen::resources::Usage;
use posthaste_smtp::Reply;
use serde_json::{Value, json};

use crate::support::{TestServer, Treat, go};

/// A table as it is read: the row of names first, if it has one.
type Table = Vec<Vec<String>>;

/// How a figure is written.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    Plain,
    Time,
    /// In the JSON; shown as a time.
    Seconds,
    Octets,
    OctetsPerSecond,
}

/// The rows of a table in order: what it is called, where the JSON has it, its unit.
type Rows = &'static [(&'static str, &'static str, Unit)];

const FIGURES: Rows = &[
    ("messages a second", "/rate", Unit::Plain),
    ("acknowledged", "/acked", Unit::Plain),
    ("acknowledged copies", "/copies", Unit::Plain),
    ("failed", "/failed", Unit::Plain),
    ("broken by a kill", "/broken", Unit::Plain),
    ("due and never sent", "/missed", Unit::Plain),
    ("seconds", "/elapsed_s", Unit::Plain),
    ("throughput", "/octets", Unit::OctetsPerSecond),
    ("latency p50", "/latency/p50_us", Unit::Time),
    ("latency p90", "/latency/p90_us", Unit::Time),
    ("latency p99", "/latency/p99_us", Unit::Time),
    ("latency p99.9", "/latency/p999_us", Unit::Time),
    ("latency max", "/latency/max_us", Unit::Time),
];

const COSTS: Rows = &[
    ("CPU seconds", "/cpu_s", Unit::Plain),
    ("CPU µs a message", "/cpu_us_per_message", Unit::Plain),
    ("memory at most", "/memory_octets_max", Unit::Octets),
    ("written to devices", "/written_octets", Unit::Octets),
    ("write calls", "/write_calls", Unit::Plain),
    ("context switches", "/context_switches", Unit::Plain),
    ("device flushes meanwhile, of all processes", "/device_flushes", Unit::Plain),
];

const ACCOUNT: Rows = &[
    ("acknowledged messages", "/acked", Unit::Plain),
    ("copies expected", "/expected", Unit::Plain),
    ("copies found", "/found", Unit::Plain),
    ("waiting in the spool", "/waiting/0/copies", Unit::Plain),
    ("lost", "/lost", Unit::Plain),
    ("duplicated", "/duplicated", Unit::Plain),
    ("altered", "/altered", Unit::Plain),
    ("unexpected", "/unexpected", Unit::Plain),
    ("lost connection, found", "/uncertain_found", Unit::Plain),
    ("lost connection, absent", "/uncertain_absent", Unit::Plain),
];

const TILES: Rows = &[
    ("messages/s", "/total/rate", Unit::Plain),
    ("acknowledged", "/total/acked", Unit::Plain),
    ("failed", "/total/failed", Unit::Plain),
    ("p50", "/total/latency/p50_us", Unit::Time),
    ("p99", "/total/latency/p99_us", Unit::Time),
    ("p99.9", "/total/latency/p999_us", Unit::Time),
    ("max", "/total/latency/max_us", Unit::Time),
    ("due and never sent", "/total/missed", Unit::Plain),
    ("server CPU/msg", "/server/cpu_us_per_message", Unit::Time),
    ("kills", "/kills", Unit::Plain),
    // They grow from the first to the last.
    ("longest until acknowledged again", "/kills/1/first_ack_s", Unit::Seconds),
    ("lost", "/account/lost", Unit::Plain),
];

/// The figure at `pointer`; of a list its length.
fn figure(json: &Value, pointer: &str) -> f64 {
    match json.pointer(pointer) {
        Some(Value::Array(list)) => list.len() as f64,
        Some(value) => value.as_f64().unwrap_or_else(|| panic!("{pointer} is {value}")),
        None => panic!("the JSON has no {pointer}"),
    }
}

/// True if `cell` is `value` rounded to the digits shown, with a unit of the right kind.
fn shows(cell: &str, value: f64, unit: Unit) -> bool {
    let (number, named) = cell.split_once(' ').unwrap_or((cell, ""));
    let number = number.replace('\u{202f}', "");
    let (unit, value) = if unit == Unit::Seconds { (Unit::Time, value * 1e6) } else { (unit, value) };
    let factor = match (unit, named) {
        (Unit::Plain, "") | (Unit::Time, "µs") | (Unit::Octets, "B") | (Unit::OctetsPerSecond, "B/s") => 1.0,
        (Unit::Time, "ms") => 1e3,
        (Unit::Time, "s") => 1e6,
        (Unit::Octets, "KiB") | (Unit::OctetsPerSecond, "KiB/s") => 1024.0,
        (Unit::Octets, "MiB") | (Unit::OctetsPerSecond, "MiB/s") => 1024.0 * 1024.0,
        (Unit::Octets, "GiB") | (Unit::OctetsPerSecond, "GiB/s") => 1024.0 * 1024.0 * 1024.0,
        _ => return false,
    };
    let digits = number.split_once('.').map_or(0, |(_, fraction)| fraction.len() as i32);
    let half_a_digit = factor * 10_f64.powi(-digits) / 2.0;
    number.parse::<f64>().is_ok_and(|number| (number * factor - value).abs() <= half_a_digit * 1.0001)
}

fn check(form: &str, table: &[Vec<String>], rows: Rows, columns: &[&Value]) {
    let names: Vec<&str> = table.iter().map(|row| row[0].as_str()).collect();
    let wanted: Vec<&str> = rows.iter().map(|(name, ..)| *name).collect();
    assert_eq!(names, wanted, "{form}");
    for (cells, (name, pointer, unit)) in table.iter().zip(rows) {
        assert_eq!(cells.len(), columns.len() + 1, "{form}: {cells:?}");
        for (cell, json) in cells[1..].iter().zip(columns) {
            let value = match unit {
                Unit::OctetsPerSecond => figure(json, pointer) / figure(json, "/elapsed_s"),
                _ => figure(json, pointer),
            };
            assert!(shows(cell, value, *unit), "{form}: {name} shows {cell}, the JSON has {value}");
        }
    }
}

/// Each table is known by its first row.
fn check_table(form: &str, table: &Table, json: &Value) {
    let rounds: Vec<&Value> = json["rounds"].as_array().unwrap().iter().chain([&json["total"]]).collect();
    let first: Vec<&str> = table[0].iter().map(String::as_str).collect();
    match first[..] {
        ["", "round 1", "round 2", "all"] => check(form, &table[1..], FIGURES, &rounds),
        ["", "generator", "server"] => check(form, &table[1..], COSTS, &[&json["generator"], &json["server"]]),
        ["error", "count", "first seen"] => {
            let errors = json["errors"].as_array().unwrap();
            assert_eq!(table.len() - 1, errors.len(), "{form}");
            for (cells, error) in table[1..].iter().zip(errors) {
                assert_eq!((&*cells[0], &*cells[2]), (text(&error["class"]), text(&error["example"])), "{form}");
                assert!(shows(&cells[1], figure(error, "/count"), Unit::Plain), "{form}: {cells:?} is not {error}");
            }
        }
        ["kill", "at", ..] => {
            let kills = json["kills"].as_array().unwrap();
            assert_eq!((table.len() - 1, table[0].len()), (kills.len(), 6), "{form}");
            for (index, (cells, kill)) in table[1..].iter().zip(kills).enumerate() {
                assert_eq!(cells[0], (index + 1).to_string());
                let times = ["/at_s", "/down_s", "/first_ack_s"].map(|pointer| (pointer, Unit::Seconds));
                let counts = ["/connections", "/messages"].map(|pointer| (pointer, Unit::Plain));
                for (cell, (pointer, unit)) in cells[1..].iter().zip(times.iter().chain(&counts)) {
                    assert!(shows(cell, figure(kill, pointer), *unit), "{form}: {cells:?} is not {kill}");
                }
            }
        }
        ["acknowledged messages", _] => check(form, table, ACCOUNT, &[&json["account"]]),
        ["", "message", "expected", "found"] => {
            let findings: Vec<[String; 4]> =
                findings(json).map(|(kind, id, expected, found, _)| [kind, id, expected, found]).collect();
            assert_eq!(table[1..], findings, "{form}");
        }
        _ => panic!("{form}: an unknown table {table:?}"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// Kind, id, expected, found and places of all that is not as it should be.
fn findings(json: &Value) -> impl Iterator<Item = (String, String, String, String, Vec<String>)> {
    ["lost", "duplicated", "altered", "unexpected"].into_iter().flat_map(|kind| {
        json["account"][kind].as_array().unwrap().iter().map(move |finding| {
            let places =
                finding["places"].as_array().into_iter().flatten().map(|place| text(place).to_owned()).collect();
            let (expected, found) = (finding["expected"].to_string(), finding["found"].to_string());
            (kind.to_owned(), text(&finding["id"]).to_owned(), expected, found, places)
        })
    })
}

/// The account's sums and findings in words.
fn account_text(json: &Value) -> Vec<String> {
    let account = &json["account"];
    let count = |name: &str| figure(account, &format!("/{name}"));
    let sums = ["lost", "duplicated", "altered", "unexpected"].map(|kind| format!("{} {kind}", count(kind)));
    let mut lines = vec![
        format!(
            "account of run {}: {} messages acknowledged, {} copies expected, {} found",
            text(&account["run"]),
            count("acked"),
            count("expected"),
            count("found")
        ),
        sums.join(", "),
        format!("{} copies wait in the server's spool, for:", count("waiting/0/copies")),
        format!("{}: {} (full)", text(&account["waiting"][0]["mailbox"]), count("waiting/0/copies")),
        format!(
            "connection lost before the verdict: {} of these are there, {} are not (either is right)",
            count("uncertain_found"),
            count("uncertain_absent")
        ),
        format!("passed over: {} of other runs, {} without a stamp", count("other_runs"), count("unstamped")),
    ];
    for (kind, id, expected, found, places) in findings(json) {
        lines.push(format!("{kind} {id}: {expected} expected, {found} found"));
        lines.extend(places);
    }
    lines
}

/// Texts between each `open` and the next `close`.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).map(move |rest| rest.split_once(close).unwrap_or_else(|| panic!("no {close}: {rest}")).0)
}

fn html_tables(page: &str) -> Vec<Table> {
    let plain =
        |cell: &str| cell.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&");
    // What follows the tag's own end is the cell.
    let cell = |cell: &str| plain(cell.split_once('>').expect("a tag ends").1);
    let row = |row: &str| -> Vec<String> {
        if row.contains("<th") {
            between(row, "<th", "</th>").map(cell).collect()
        } else {
            between(row, "<td", "</td>").map(cell).collect()
        }
    };
    between(page, "<table>", "</table>").map(|table| between(table, "<tr>", "</tr>").map(row).collect()).collect()
}

fn markdown_tables(text: &str) -> Vec<Table> {
    let row = |line: &str| -> Vec<String> {
        let line = line.trim().trim_start_matches('|').trim_end_matches('|');
        line.replace("\\|", "\0").split('|').map(|cell| cell.replace('\0', "|").trim().to_owned()).collect()
    };
    let mut tables: Vec<Table> = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        if line.starts_with('|') && !line.starts_with("| --") {
            if is_inside {
                tables.last_mut().unwrap().push(row(line));
            } else {
                tables.push(vec![row(line)]);
            }
        }
        is_inside = line.starts_with('|');
    }
    tables
}

/// Gives each number in `value` a value of its own, so that no figure can stand for another.
fn make_distinct(value: &mut Value, name: &str, next: &mut u64) {
    match value {
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| make_distinct(value, name, next)),
        Value::Array(list) => list.iter_mut().for_each(|value| make_distinct(value, name, next)),
        Value::Number(number) => {
            *next += 37;
            *value = match name {
                _ if number.is_f64() => json!(*next as f64 + 0.375),
                // In each unit that there is.
                "p50_us" => json!(*next / 10),
                "max_us" => json!(*next * 1000),
                "octets" | "memory_octets_max" => json!(*next * 100_003),
                "written_octets" => json!(*next * 30_000_001),
                _ => json!(*next),
            };
        }
        _ => {}
    }
}

/// A run in which everything comes that a report can show, with a server's cost, which this process has none of.
fn eventful() -> Report {
    let server = TestServer::start(|number| match number {
        3 => Treat::Lose,
        5 => Treat::Twice,
        7 => Treat::Alter,
        9 => Treat::RefuseAndKeep(Reply::new(554, "5.3.0", "no | <never>")),
        11 => Treat::Refuse(Reply::new(451, "4.3.0", "later")),
        _ => Treat::Keep,
    });
    let mut plan = server.plan(20);
    (plan.rounds, plan.recipients_per_message) = (2, 2);
    let about = about(PlanSummary::new(&plan, "1k-4k".into()));
    let mut outcome = go(plan);
    outcome.server = Some(Usage::default());
    let mut account = posthaste_loadgen::account::account(&outcome.ledger, &server.stores(), &[], None).unwrap();
    account.waiting = vec![WaitingCopies { mailbox: "example.org/a".into(), copies: 1, why: Some("full".into()) }];
    outcome.kills = vec![kill(0.5), kill(1.5)];
    Report::new(about, &outcome, Some(account))
}

fn kill(at_s: f64) -> Kill {
    Kill { at_s, down_s: Some(0.25), first_ack_s: Some(0.5), connections: 1, messages: 1 }
}

fn about(plan: PlanSummary) -> About {
    About { title: None, command: Vec::new(), started: std::time::SystemTime::now(), plan, notes: Vec::new() }
}

#[test]
fn every_figure_in_a_table_is_the_one_in_the_json() {
    let mut json: Value = serde_json::from_str(&eventful().to_json()).unwrap();
    json["generator"]["samples"] = json!([]);
    let mut next = 1009;
    for part in ["total", "rounds", "errors", "generator", "server", "account", "kills"] {
        make_distinct(&mut json[part], part, &mut next);
    }
    assert_eq!(json["errors"].as_array().unwrap().len(), 2, "{json}");
    assert!(findings(&json).count() >= 4, "{json}");
    let report: Report = serde_json::from_value(json.clone()).expect("it is still a report");
    assert_eq!(serde_json::from_str::<Value>(&report.to_json()).unwrap(), json);

    let (page, markdown) = (report.to_html(), report.to_markdown());
    let (in_page, in_markdown) = (html_tables(&page), markdown_tables(&markdown));
    assert_eq!((in_page.len(), in_markdown.len()), (6, 4), "{markdown}");
    in_page.iter().for_each(|table| check_table("page", table, &json));
    in_markdown.iter().for_each(|table| check_table("Markdown", table, &json));
    let (_, tiles) = page.split_once("<section class=\"tiles six\">").unwrap();
    let tiles: Table = between(tiles.split_once("</section>").unwrap().0, "<div", "</div>")
        .map(|tile| {
            [("<span>", "</span>"), ("<b>", "</b>")]
                .map(|(open, close)| between(tile, open, close).next().unwrap().to_owned())
                .to_vec()
        })
        .collect();
    check("tiles", &tiles, TILES, &[&json]);

    // The terminal has Markdown's tables and its account without the frames.
    let blank = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let terminal: Vec<String> = report.to_text(usize::MAX).lines().map(blank).collect();
    for row in in_markdown.iter().flatten().map(|row| blank(&row.join(" "))).chain(account_text(&json)) {
        assert!(terminal.contains(&blank(&row)), "{row} is not in {terminal:#?}");
    }
    let markdown: Vec<String> = markdown.lines().map(blank).collect();
    for line in account_text(&json) {
        assert!(markdown.contains(&blank(&line)), "{line} is not in {markdown:#?}");
    }
}

#[test]
fn warm_ups_rounds_and_kills_are_marked_on_time_axes() {
    let server = TestServer::start(|_| Treat::Keep);
    let mut plan = server.plan(20);
    plan.rounds = 3;
    let about = about(PlanSummary { warmup_s: 0.25, ..PlanSummary::new(&plan, "1k".into()) });
    let mut outcome = go(plan);
    outcome.server = Some(Usage::default());
    let starts: Vec<f64> = outcome.rounds.iter().map(|round| round.start_s).collect();
    assert!(starts.is_sorted() && starts[0] >= 0.0 && starts[2] > starts[0], "{starts:?}");
    let count = |report: &Report, text: &str| report.to_html().matches(text).count();
    let plain = Report::new(
        About { plan: PlanSummary { warmup_s: 0.0, ..about.plan.clone() }, ..self::about(about.plan.clone()) },
        &outcome,
        None,
    );
    assert_eq!((count(&plain, "class=\"warmup\""), count(&plain, "class=\"down\"")), (0, 0));
    outcome.kills = vec![kill(0.5), kill(1.5)];
    let report = Report::new(about, &outcome, None);
    // Messages a second, latency, CPU and memory: a stretch for each round and one for the legend.
    assert_eq!(count(&report, "class=\"warmup\""), 4 * (3 + 1));
    assert_eq!(count(&report, "class=\"down\""), 4 * (2 + 1));
    assert_eq!(count(&report, "class=\"start\""), 4 * 3);
    assert!(report.to_html().contains(">round 1</text>"));
}

#[test]
fn no_tile_stands_alone_in_the_last_row() {
    let server = TestServer::start(|number| match number {
        0 => Treat::Lose,
        _ => Treat::Keep,
    });
    let plan = server.plan(3);
    let summary = PlanSummary::new(&plan, "1k".into());
    let outcome = go(plan);
    let account = posthaste_loadgen::account::account(&outcome.ledger, &server.stores(), &[], None).unwrap();
    let (killed, mut served) = (kill(0.5), go(server.plan(3)));
    served.server = Some(Usage::default());
    served.kills = vec![killed];
    for report in [
        Report::new(about(summary.clone()), &outcome, None),
        Report::new(about(summary.clone()), &outcome, Some(account.clone())),
        Report::new(about(summary.clone()), &served, None),
        Report::new(about(summary), &served, Some(account)),
    ] {
        let page = report.to_html();
        let tiles = between(&page, "<section class=\"tiles", "</section>").next().unwrap();
        assert!(tiles.matches("<b>").count().is_multiple_of(4), "{tiles}");
    }
}

#[test]
fn a_report_without_title_has_a_readable_heading() {
    let server = TestServer::start(|_| Treat::Keep);
    let plan = |size: &str| {
        let plan = PlanSummary::new(&server.plan(1), size.into());
        PlanSummary { connections: 50, ..plan }
    };
    let check = |plan: PlanSummary, title: &str| assert_eq!(plan.title("mx.example:25"), title);
    check(plan("10k"), "Messages of 10 KiB over 50 connections to mx.example:25");
    check(
        PlanSummary { connections: 1, ..plan("1200") },
        "Messages of 1200 octets over one connection to mx.example:25",
    );
    check(
        PlanSummary { rate: Some(500.0), ..plan("1k-2m") },
        "500 messages of 1 KiB to 2 MiB a second to mx.example:25",
    );
    check(plan("1k:3,2k:1"), "Messages of mixed sizes over 50 connections to mx.example:25");
    check(plan("real messages from old.mbox"), "Real messages from old.mbox over 50 connections to mx.example:25");
}

#[test]
fn what_was_not_measured_is_a_dash_and_no_zero() {
    let server = TestServer::start(|_| Treat::Refuse(Reply::new(451, "4.3.0", "later")));
    let plan = server.plan(3);
    let about = about(PlanSummary::new(&plan, "1k-4k".into()));
    let report = Report::new(about, &go(plan), None);
    for tables in [html_tables(&report.to_html()), markdown_tables(&report.to_markdown())] {
        let latencies: Vec<_> = tables[0].iter().filter(|row| row[0].starts_with("latency")).collect();
        assert!(latencies.len() == 5 && latencies.iter().all(|row| row[1] == "-"), "{latencies:?}");
    }
}

#[test]
fn the_plan_in_a_sentence_names_sizes_or_real_messages() {
    let server = TestServer::start(|_| Treat::Keep);
    let sentence = |size: &str| {
        let plan = server.plan(1);
        let about = about(PlanSummary::new(&plan, size.into()));
        Report::new(about, &go(plan), None).plan_text()
    };
    assert!(sentence("1k-4k").contains(", 1k-4k octets, "));
    assert!(sentence("real messages from md").contains(", real messages from md, "));
}

#[test]
fn plots_and_sums_over_time_have_every_message() {
    let server = TestServer::start(|_| Treat::Keep);
    let plan = server.plan(200);
    let about = about(PlanSummary::new(&plan, "1k-4k".into()));
    let outcome: Outcome = go(plan);
    let report = Report::new(about, &outcome, None);
    let stretches = &report.timeline.stretches;
    assert_eq!(stretches.iter().map(|stretch| stretch.acked).sum::<u64>(), report.total.acked);
    assert_eq!(stretches.iter().map(|stretch| stretch.octets).sum::<u64>(), report.total.octets);
    assert_eq!(report.histogram.iter().map(|bucket| bucket.count).sum::<u64>(), report.total.acked);
    let page = report.to_html();
    let has_nothing_outside = !page.contains("http://") && !page.contains("https://") && !page.contains("<script");
    assert!(has_nothing_outside, "the page needs something that is not in it");
}

#[test]
fn each_series_of_a_plot_has_its_colour_and_failures_theirs() {
    let page = eventful().to_html();
    let mut all = Vec::new();
    for plot in between(&page, "<figcaption>", "</figcaption>") {
        let keys = between(plot, "<span class=\"key ", "</span>").map(|key| key.split_once("\"><i></i>").unwrap());
        let keys: Vec<(&str, &str)> = keys.collect();
        let colours: BTreeSet<&str> = keys.iter().map(|(colour, _)| *colour).collect();
        assert_eq!(colours.len(), keys.len(), "{plot}");
        all.extend(keys);
    }
    assert!(all.len() >= 9, "messages, latencies, errors, both sides: {all:?}");
    assert!(all.iter().all(|(colour, _)| page.contains(&format!(".{colour}{{--c:"))), "the style has them: {all:?}");
    let (failed, _) = all.iter().find(|(_, name)| *name == "failed").expect("some messages failed");
    assert_eq!(all.iter().filter(|(colour, _)| colour == failed).count(), 1, "{all:?}");
}
