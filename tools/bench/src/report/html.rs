//! The report as one self-contained page: tables, and a bar for each row's first figure.

use std::fmt::Write as _;

use posthaste_loadgen::report::{escape, footer, page};
use posthaste_units::count;

use super::markdown::{figures_shown, remarks, table};
use super::{Kind, Report, Row, WorkloadReport};

const NO_ERROR: &str = "a String takes everything";

impl Report {
    /// One self-contained page.
    pub fn to_html(&self) -> String {
        let mut body = String::new();
        for check in &self.checks {
            let class = if check.is_serious { "note" } else { "remark" };
            write!(body, "<p class=\"{class}\">{}</p>", escape(&check.to_string())).expect(NO_ERROR);
        }
        if self.was_stopped {
            body.push_str("<p class=\"note\">stopped before its end</p>");
        }
        for suite in &self.suites {
            write!(body, "<section class=\"tables\">").expect(NO_ERROR);
            suite.workloads.iter().for_each(|workload| card(&mut body, &suite.name, workload));
            body.push_str("</section>\n");
        }
        body.push_str(&footer(&self.started, &self.host, &self.version, &self.command));
        let names: Vec<&str> = self.suites.iter().map(|suite| suite.name.as_str()).collect();
        let lead =
            format!("{} × the published amounts, {} of each side, in turns", self.scale, count(self.rounds, "round"));
        page(&format!("Posthaste bench: {}", names.join(", ")), &lead, &body)
    }
}

fn card(body: &mut String, suite: &str, workload: &WorkloadReport) {
    let title = format!("{suite}: {}", workload.name);
    let figures = figures_shown(workload);
    let first = |row: &Row| Some(row.summary.get(&figures.first()?.key)?.median);
    let most = workload.rows.iter().filter_map(first).fold(0.0, f64::max);
    let bar = |index: usize| bar(&workload.rows[index], first(&workload.rows[index]), most);
    let table = table(workload).to_html(Some(&bar));
    write!(body, "<div><h2>{}</h2><p>{}</p>{table}", escape(&title), escape(&workload.what)).expect(NO_ERROR);
    for row in &workload.rows {
        for remark in remarks(row) {
            write!(body, "<p class=\"remark\">{}: {}</p>", escape(&row.side), linked(&escape(&remark)))
                .expect(NO_ERROR);
        }
    }
    for row in &workload.rows {
        body.extend(row.timeline.as_ref().map(|timeline| timeline.to_svg(&row.side)));
    }
    body.push_str("</div>\n");
}

/// A remark as HTML; an address at its end becomes a link.
fn linked(remark: &str) -> String {
    match remark.rsplit_once(' ').filter(|(_, last)| last.starts_with("https://")) {
        Some((text, url)) => format!("{text} <a href=\"{url}\">{url}</a>"),
        None => remark.to_owned(),
    }
}

/// A bar, 120 units wide for the largest value.
fn bar(row: &Row, value: Option<f64>, most: f64) -> String {
    let Some(value) = value.filter(|_| most > 0.0) else { return String::new() };
    let colour = match row.kind {
        Kind::Ours => "s0",
        Kind::Peer => "s2",
        Kind::Published { .. } => "s3",
    };
    let width = (value / most * 120.0).max(1.0);
    format!(
        "<svg class=\"inline {colour}\" viewBox=\"0 0 120 10\"><rect class=\"bar\" width=\"{width:.1}\" height=\"10\" rx=\"2\"/></svg>"
    )
}
