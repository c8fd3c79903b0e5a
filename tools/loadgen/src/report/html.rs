//! The report as a self-contained page: tiles, plots, tables.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::plot::{Axis, BAD, COLOURS, Mark, Marks, Plot, Point, Scale, Series, Spans, escape};
use super::text::{latency, octets};
use super::{Cost, Host, Report, Table, provenance, rig};
use crate::account::Account;
use crate::live::{millis, thousands};
use crate::load::{Kill, Round};
use crate::measure::Stretch;

const NO_ERROR: &str = "a String takes everything";

impl Report {
    /// A self-contained page.
    pub fn to_html(&self) -> String {
        let mut body = String::new();
        let hint = self.account.as_ref().and_then(Account::hint);
        for note in self.notes.iter().map(String::as_str).chain(hint) {
            write!(body, "<p class=\"note\">{}</p>", escape(note)).expect(NO_ERROR);
        }
        self.tiles(&mut body);
        body.push_str("<section class=\"plots\">\n");
        self.plots().iter().for_each(|plot| body.push_str(plot));
        if !self.rig.is_empty() {
            body.push_str(&rig::picture(&self.rig));
        }
        body.push_str("</section>\n");
        self.tables(&mut body);
        let version = format!("{}, run {}", self.version, self.run);
        body.push_str(&footer(&self.started, &self.host, &version, &self.command));
        page(&self.name(), &self.plan_text(), &body)
    }

    fn tiles(&self, page: &mut String) {
        let total = &self.total;
        let latency = |us: u64| latency(total, us);
        let mut tiles = vec![
            ("messages/s", thousands(total.rate.round() as u64), false),
            ("acknowledged", thousands(total.acked), false),
            ("failed", thousands(total.failed), total.failed > 0),
            ("p50", latency(total.latency.p50_us), false),
            ("p99", latency(total.latency.p99_us), false),
            ("p99.9", latency(total.latency.p999_us), false),
            ("max", latency(total.latency.max_us), false),
        ];
        if total.missed > 0 {
            tiles.push(("due and never sent", thousands(total.missed), true));
        }
        if let Some(server) = &self.server {
            tiles.push(("server CPU/msg", format!("{:.0} µs", server.cpu_us_per_message), false));
        }
        if !self.kills.is_empty() {
            tiles.push(("kills", thousands(self.kills.len() as u64), false));
            let first = self.kills.iter().filter_map(|kill| kill.first_ack_s).fold(0.0, f64::max);
            tiles.push(("longest until acknowledged again", millis(first * 1e6), false));
        }
        if let Some(account) = &self.account {
            tiles.push(("lost", thousands(account.lost.len() as u64), !account.lost.is_empty()));
            if account.lost.is_empty() && !account.is_clean() {
                tiles.push(("account", "not clean".into(), true));
            }
        }
        // Rows of two, four or six are full: nobody stands alone in the last one.
        let fillers = [
            ("seconds", format!("{:.2}", total.elapsed_s), false),
            ("throughput", format!("{}/s", octets(total.octets as f64 / total.elapsed_s.max(1e-9))), false),
            ("p90", latency(total.latency.p90_us), false),
        ];
        let missing = tiles.len().next_multiple_of(TILES_IN_A_ROW) - tiles.len();
        tiles.extend(fillers.into_iter().take(missing));
        let many = if tiles.len() % 6 == 0 { " six" } else { "" };
        writeln!(page, "<section class=\"tiles{many}\">").expect(NO_ERROR);
        for (name, value, is_bad) in tiles {
            let class = if is_bad { " class=\"bad\"" } else { "" };
            writeln!(page, "<div{class}><b>{value}</b><span>{name}</span></div>").expect(NO_ERROR);
        }
        page.push_str("</section>\n");
    }

    fn plots(&self) -> Vec<String> {
        let mut plots = vec![self.throughput(), self.latency_over_time(), self.percentiles(), self.histogram()];
        if !self.errors.is_empty() {
            plots.push(self.errors_over_time());
        }
        let cpu = |cost: &Cost| -> Vec<Point> {
            let rate = |pair: &[crate::resources::Sample]| {
                let time = pair[1].at_s - pair[0].at_s;
                // Two samples right after one another say nothing: the clock of CPU time ticks every 10 ms.
                (pair[1].at_s, (time > 0.1).then(|| (pair[1].cpu_s - pair[0].cpu_s).max(0.0) / time))
            };
            let rates = cost.usage.samples.windows(2).map(rate).filter(|(_, value)| value.is_some());
            self.interrupted(cost, rates.collect())
        };
        let memory = |cost: &Cost| -> Vec<Point> {
            let points = cost.usage.samples.iter().map(|sample| (sample.at_s, Some(sample.memory_octets as f64 / MIB)));
            self.interrupted(cost, points.collect())
        };
        plots.push(self.by_side("CPU, in cores", &|cores| format!("{}", (cores * 100.0).round() / 100.0), &cpu));
        plots.push(self.by_side("Memory", &|mib| format!("{} MiB", (mib * 10.0).round() / 10.0), &memory));
        plots
    }

    /// Interrupts a server's line at kills, until the server is back.
    fn interrupted(&self, cost: &Cost, mut points: Vec<Point>) -> Vec<Point> {
        if self.server.as_ref().is_some_and(|server| std::ptr::eq(server, cost)) {
            for kill in &self.kills {
                let back = kill.at_s + kill.down_s.unwrap_or(0.0);
                // The first value after it stands for the time away, too.
                let first = points.iter().position(|(at, _)| *at > back).unwrap_or(points.len());
                points.insert(first, (back, None));
            }
        }
        points
    }

    fn end_s(&self) -> f64 {
        let samples = self.generator.usage.samples.last().map_or(0.0, |sample| sample.at_s);
        self.timeline.end_s.max(samples)
    }

    /// Marks on the time axis: warm-ups, rounds, kills.
    fn marks(&self) -> Marks {
        let mut marks = Marks::default();
        if self.plan.warmup_s > 0.0 {
            let warmup = |round: &Round| (round.start_s, round.start_s + self.plan.warmup_s);
            marks.spans.push(Spans {
                class: "warmup",
                name: "warm-up",
                spans: self.rounds.iter().map(warmup).collect(),
            });
        }
        let down = |kill: &Kill| {
            let away = kill.first_ack_s.or(kill.down_s).unwrap_or(self.end_s() - kill.at_s);
            (kill.at_s, kill.at_s + away)
        };
        if !self.kills.is_empty() {
            let spans = self.kills.iter().map(down).collect();
            marks.spans.push(Spans { class: "down", name: "killed, not back yet", spans });
        }
        if self.rounds.len() > 1 {
            let starts =
                self.rounds.iter().enumerate().map(|(index, round)| (round.start_s, format!("round {}", index + 1)));
            marks.lines = starts.collect();
        }
        marks
    }

    fn over_time(&self) -> Axis<'static> {
        Axis { scale: Scale::Linear, label: "seconds", text: &seconds, end: Some(self.end_s()), ticks: None }
    }

    /// The middle of each stretch with its value. The last stretch is left out if it is too short to mean anything.
    fn series(&self, name: &str, colour: usize, value: impl Fn(&Stretch, f64) -> Option<f64>) -> Series {
        let timeline = &self.timeline;
        let point = |stretch: &Stretch| {
            let width = timeline.width_s.min(timeline.end_s - stretch.start_s);
            let is_whole = width > timeline.width_s * 0.4;
            is_whole.then(|| (stretch.start_s + width / 2.0, value(stretch, width)))
        };
        Series { name: name.into(), colour, points: timeline.stretches.iter().filter_map(point).collect() }
    }

    fn throughput(&self) -> String {
        let mut series = vec![self.series("acknowledged", 0, |stretch, width| Some(stretch.acked as f64 / width))];
        if self.total.failed > 0 {
            series.push(self.series("failed", BAD, |stretch, width| Some(stretch.failed as f64 / width)));
        }
        let y = Axis { scale: Scale::Linear, label: "", text: &count, end: None, ticks: None };
        let (title, x) = ("Messages a second", self.over_time());
        Plot { title, mark: Mark::Area, x, y, series, marks: self.marks() }.to_svg()
    }

    fn latency_over_time(&self) -> String {
        let us = |us: u64, acked: u64| (acked > 0).then_some(us as f64);
        let series = vec![
            self.series("p50", 1, |stretch, _| us(stretch.p50_us, stretch.acked)),
            self.series("p99", 2, |stretch, _| us(stretch.p99_us, stretch.acked)),
            self.series("p99.9", 3, |stretch, _| us(stretch.p999_us, stretch.acked)),
        ];
        let y = Axis { scale: Scale::Log, label: "", text: &millis_short, end: None, ticks: None };
        let (title, x) = ("Latency over time", self.over_time());
        Plot { title, mark: Mark::Line, x, y, series, marks: self.marks() }.to_svg()
    }

    fn percentiles(&self) -> String {
        // Along the axis go the nines: 0 is the least, 1 is 90 %, 2 is 99 %.
        let nines = |share: f64| -(1.0 - share).log10();
        let points: Vec<_> = self.curve.iter().map(|point| (nines(point.share), Some(point.us as f64))).collect();
        let end = points.last().map_or(1.0, |(last, _)| last.max(1.0));
        let ticks = (0..=end as usize).map(|nines| nines as f64).chain((end <= 6.0).then(|| nines(0.5))).collect();
        let series = vec![Series { name: "latency".into(), colour: 2, points }];
        let x =
            Axis { scale: Scale::Linear, label: "percentile", text: &percentile, end: Some(end), ticks: Some(ticks) };
        let y = Axis { scale: Scale::Log, label: "", text: &millis_short, end: None, ticks: None };
        Plot { title: "Latency by percentile", mark: Mark::Line, x, y, series, marks: Marks::default() }.to_svg()
    }

    fn histogram(&self) -> String {
        let mut points: Vec<Point> = Vec::new();
        for bucket in &self.histogram {
            // A bar reaches to the next point: one without messages ends it where the next range does not follow at once.
            if points.last().is_some_and(|(end, _)| (end / bucket.from_us - 1.0).abs() < 1e-3) {
                points.pop();
            }
            points.push((bucket.from_us, Some(bucket.count as f64)));
            points.push((bucket.to_us, None));
        }
        let series = vec![Series { name: "messages".into(), colour: 3, points }];
        let x = Axis { scale: Scale::Log, label: "latency", text: &millis_short, end: None, ticks: None };
        let y = Axis { scale: Scale::Linear, label: "", text: &count, end: None, ticks: None };
        Plot { title: "Messages by latency", mark: Mark::Bars, x, y, series, marks: Marks::default() }.to_svg()
    }

    fn errors_over_time(&self) -> String {
        let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
        for stretch in &self.timeline.stretches {
            stretch.errors.iter().for_each(|(class, count)| *totals.entry(class).or_default() += count);
        }
        let mut classes: Vec<_> = totals.into_iter().collect();
        classes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let (shown, rest) = classes.split_at(classes.len().min(ERROR_CLASSES_MAX));
        let columns = |value: &dyn Fn(&Stretch) -> u64| {
            let point = |stretch: &Stretch| (stretch.start_s, Some(value(stretch) as f64));
            let end = self.timeline.stretches.len() as f64 * self.timeline.width_s;
            self.timeline.stretches.iter().map(point).chain([(end, None)]).collect()
        };
        let one = |stretch: &Stretch, class: &str| stretch.errors.get(class).copied().unwrap_or(0);
        let named = |(colour, (class, _)): (usize, &(&str, u64))| Series {
            name: (*class).into(),
            colour,
            points: columns(&|stretch| one(stretch, class)),
        };
        let mut series: Vec<_> = shown.iter().enumerate().map(named).collect();
        if !rest.is_empty() {
            let sum = |stretch: &Stretch| rest.iter().map(|(class, _)| one(stretch, class)).sum();
            series.push(Series { name: "others".into(), colour: ERROR_CLASSES_MAX, points: columns(&sum) });
        }
        let y = Axis { scale: Scale::Linear, label: "", text: &count, end: None, ticks: None };
        let (title, x) = ("Errors", self.over_time());
        Plot { title, mark: Mark::Bars, x, y, series, marks: self.marks() }.to_svg()
    }

    fn by_side(&self, title: &str, text: &dyn Fn(f64) -> String, points: &dyn Fn(&Cost) -> Vec<Point>) -> String {
        let series =
            |(name, colour, cost): (&str, usize, &Cost)| Series { name: name.into(), colour, points: points(cost) };
        let server = self.server.iter().map(|cost| ("server", 4, cost));
        let series: Vec<Series> = server.chain([("generator", 5, &self.generator)]).map(series).collect();
        let y = Axis { scale: Scale::Linear, label: "", text, end: None, ticks: None };
        let title = if series.len() == 1 { format!("{title}: generator") } else { title.to_owned() };
        Plot { title: &title, mark: Mark::Line, x: self.over_time(), y, series, marks: self.marks() }.to_svg()
    }

    fn tables(&self, page: &mut String) {
        page.push_str("<section class=\"tables\">\n");
        let errors = self.error_table();
        let tables = [
            ("Figures", Some(self.figures_table())),
            ("Cost", Some(self.cost_table())),
            ("Kills", self.kill_table()),
            ("Errors", errors),
            ("Power cuts and kills by the rig", rig::table(&self.rig)),
        ];
        for (title, table) in tables.iter().filter_map(|(title, table)| Some((title, table.as_ref()?))) {
            card(page, title, table);
        }
        if let Some(account) = &self.account {
            account_table(page, account);
        }
        page.push_str("</section>\n");
    }
}

/// The end of a page: time and place of a run, version, command.
pub fn footer(started: &str, host: &Host, version: &str, command: &[String]) -> String {
    let (provenance, command) = (escape(&provenance(started, host, version)), escape(&command.join(" ")));
    format!("<footer><p>{provenance}</p><pre>{command}</pre></footer>\n")
}

/// A self-contained page, light or dark by the reader's preference: `title` and `lead` are text, `body` is HTML.
pub fn page(title: &str, lead: &str, body: &str) -> String {
    let (title, lead) = (escape(title), escape(lead));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body><main>\n\
         <header><h1>{title}</h1><p>{lead}</p></header>\n{body}</main></body></html>\n"
    )
}

/// Tiles in a row of a wide page.
const TILES_IN_A_ROW: usize = 4;
const MIB: f64 = 1_048_576.0;
/// Maximum classes of errors with their own colour.
const ERROR_CLASSES_MAX: usize = COLOURS - 1;
/// Maximum findings of each kind on the page.
const FINDINGS_MAX: usize = 50;

fn seconds(seconds: f64) -> String {
    format!("{}", (seconds * 100.0).round() / 100.0)
}

fn count(count: f64) -> String {
    if count < 10.0 { format!("{}", (count * 100.0).round() / 100.0) } else { thousands(count.round() as u64) }
}

/// Formats without digits after the point: `2 ms`, not `2.00 ms`.
fn millis_short(us: f64) -> String {
    let text = millis(us);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// `99.9 %` for three nines.
fn percentile(nines: f64) -> String {
    let missing = 10_f64.powf(-nines) * 100.0;
    let digits = (nines - 2.0 - 1e-6).max(0.0).ceil() as usize;
    format!("{:.digits$} %", 100.0 - missing)
}

fn card(page: &mut String, title: &str, table: &Table) {
    writeln!(page, "<div><h2>{title}</h2>{}</div>", table.to_html(None)).expect(NO_ERROR);
}

fn account_table(page: &mut String, account: &Account) {
    let sums = [
        ("acknowledged messages", account.acked),
        ("copies expected", account.expected),
        ("copies found", account.found),
        ("waiting in the spool", account.waiting_copies()),
        ("lost", account.lost.len() as u64),
        ("duplicated", account.duplicated.len() as u64),
        ("altered", account.altered.len() as u64),
        ("unexpected", account.unexpected.len() as u64),
        ("lost connection, found", account.uncertain_found),
        ("lost connection, absent", account.uncertain_absent),
    ];
    let mut table = Table::default().words("").figures("");
    sums.iter().for_each(|(name, sum)| table.row([(*name).to_owned(), thousands(*sum)]));
    card(page, "Account", &table);
    let lists = [
        ("lost", &account.lost),
        ("duplicated", &account.duplicated),
        ("altered", &account.altered),
        ("unexpected", &account.unexpected),
    ];
    if lists.iter().all(|(_, list)| list.is_empty()) {
        return;
    }
    let mut table = Table::default().words("").verbatim("message").figures("expected").figures("found");
    for (name, list) in lists {
        for finding in list.iter().take(FINDINGS_MAX) {
            let (expected, found) = (finding.expected.to_string(), finding.found.to_string());
            table.row([name.to_owned(), finding.id.clone(), expected, found]);
        }
        if list.len() > FINDINGS_MAX {
            table.row([
                name.to_owned(),
                format!("… and {} more", list.len() - FINDINGS_MAX),
                String::new(),
                String::new(),
            ]);
        }
    }
    card(page, "Findings", &table);
}

const STYLE: &str = "
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--text:#1c2430;--dim:#5c6878;--line:#dfe4ea;--bad:#c62828;
--c0:#2563eb;--c1:#0d9488;--c2:#d97706;--c3:#7c3aed;--c4:#db2777;--c5:#4b7a1e}
@media (prefers-color-scheme:dark){:root{--page:#12161c;--card:#1a2029;--text:#e4e8ee;--dim:#97a3b3;--line:#2d3642;
--bad:#ff7b72;--c0:#6ea8fe;--c1:#2dd4bf;--c2:#fbbf24;--c3:#b794f6;--c4:#f472b6;--c5:#a3d468}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--text);
font:15px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
main{max-width:1240px;margin:0 auto;padding:24px 20px 40px}h1{font-size:24px;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:15px;margin:0 0 8px}header p{margin:0 0 18px;color:var(--dim)}
.note{margin:12px 0;padding:8px 12px;border-left:3px solid var(--bad);background:var(--card)}
.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:12px;margin-bottom:16px}
@media (min-width:1000px){.tiles.six{grid-template-columns:repeat(6,1fr)}}@media (max-width:640px){.tiles{grid-template-columns:repeat(2,1fr)}}
.tiles div,figure,.tables>div{background:var(--card);border:1px solid var(--line);border-radius:8px}
.tiles div{padding:12px 14px}.tiles b{display:block;font-size:21px;font-variant-numeric:tabular-nums;white-space:nowrap}
.tiles span{color:var(--dim);font-size:13px}.tiles .bad b{color:var(--bad)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px;margin-bottom:16px}
figure{margin:0;padding:12px 12px 6px}figcaption{display:flex;flex-wrap:wrap;gap:2px 14px;align-items:baseline;margin:0 4px 6px}
.key{color:var(--dim);font-size:13px;white-space:nowrap}.key i{display:inline-block;width:14px;height:3px;border-radius:2px;
margin-right:6px;vertical-align:middle;background:var(--c)}
svg{display:block;width:100%;height:auto}@media (max-width:640px){figure{overflow-x:auto}figure>svg{min-width:540px}}svg text{font-size:12px;fill:var(--dim);font-variant-numeric:tabular-nums}
.grid{stroke:var(--line);stroke-width:1;fill:none}.axis,.tick{stroke:var(--dim);stroke-width:1;fill:none}
.line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}.area{fill:var(--c);opacity:.16}
.warmup{fill:var(--dim);background:var(--dim)!important;opacity:.18}.down{fill:var(--bad);background:var(--bad)!important;opacity:.28}
.key .warmup,.key .down{height:11px;opacity:.45}.start{stroke:var(--dim);stroke-width:1;stroke-dasharray:4 3;fill:none}
.bar,.dot{fill:var(--c)}svg text.bad{fill:var(--bad)}.hint{fill:transparent}.hint:hover{fill:var(--dim);opacity:.12}
.s0{--c:var(--c0)}.s1{--c:var(--c1)}.s2{--c:var(--c2)}.s3{--c:var(--c3)}.s4{--c:var(--c4)}.s5{--c:var(--c5)}.s6{--c:var(--bad)}
.inline{width:120px;height:10px;margin-top:5px}a{color:var(--c0)}.remark{margin:6px 0 0;color:var(--dim);font-size:13px}.tables p{margin:0 0 8px}
.tables{display:flex;flex-wrap:wrap;gap:16px;align-items:flex-start;margin-bottom:16px}.tables>div{padding:14px 16px;overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:14px}th{text-align:left;color:var(--dim);font-weight:500}
td,th{padding:3px 20px 3px 0;vertical-align:top}td:first-child{max-width:14em}td:last-child,th:last-child{padding-right:0}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}td.text{font-family:ui-monospace,'DejaVu Sans Mono',monospace;
font-size:13px;overflow-wrap:anywhere}footer{margin-top:20px;color:var(--dim);font-size:13px}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px}
";
