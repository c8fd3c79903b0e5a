//! Queries against an index, each a process of its own: the newest fifty shown, all hits counted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use posthaste_loadgen::measure::Spread;

use crate::engines::{Engine, Found, Index, Indexes};
use crate::maildirs::Maildirs;
use crate::published;
use crate::suite::{Better, Figure, Running, Sample, Settings, Side, SideError, Suite, Unit, Workload};

pub const SUITE: Suite = Suite {
    name: "search",
    about: "Twenty queries over 100,000 messages, a process each: the newest fifty shown, all hits counted (mu: listed). \
            POSTHASTE_BENCH_MAIL names Maildirs to search instead of synthetic ones",
    workloads,
};

/// Environment variable with the directory of Maildirs to use in place of generated ones.
const MAIL_VARIABLE: &str = "POSTHASTE_BENCH_MAIL";
const FIGURES: &[Figure] = &[
    Figure { key: "page", name: "newest 50", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "all", name: "all counted", unit: Unit::Micros, better: Better::Lower },
    // Who finds nothing is fast.
    Figure { key: "hits", name: "hits", unit: Unit::Count, better: Better::Neither },
];
const MESSAGES: u64 = 100_000;
const MESSAGES_LEAST: u64 = 2000;
const WORDS: usize = 200;
/// Runs of one round; the median counts.
const RUNS: usize = 5;

struct Query {
    name: &'static str,
    ours: &'static str,
    /// The query for mu; empty if it has no equivalent.
    mu: &'static str,
    notmuch: &'static str,
}

const fn query(name: &'static str, ours: &'static str, mu: &'static str, notmuch: &'static str) -> Query {
    Query { name, ours, mu, notmuch }
}

const fn same(name: &'static str, text: &'static str) -> Query {
    query(name, text, text, text)
}

static QUERIES: [Query; 20] = [
    same("common", "kernel"),
    same("rare", "zynqmp"),
    same("absent", "qqqzzz"),
    same("subject", "subject:patch"),
    same("from", "from:guenter"),
    same("to", "to:list"),
    same("phrase", "\"device tree\""),
    same("phrase-subject", "subject:\"device tree\""),
    same("prefix", "temper*"),
    same("and", "kernel and temperature"),
    same("or", "hwmon or zynqmp"),
    same("not", "patch and not hwmon"),
    same("group", "(hwmon or temperature) and from:delvare"),
    query("flag", "flag:unread", "flag:unread", ""),
    query("flag-not", "patch and not flag:seen", "patch and not flag:seen", ""),
    query("date", "date:2019..2020", "date:2019..2020", "date:2019..2020"),
    query("size", "size:>4k", "size:4k..", ""),
    query("regex-subject", "subject:/^re:.*hwmon/", "subject:/hwmon/", "subject:/^Re:.*hwmon/"),
    query("regex-body", "body:/lm9[0-9]$/", "body:/lm9[0-9]/", ""),
    query("thread", "thread:{from:delvare}", "", "thread:{from:delvare}"),
];

fn workloads(settings: &Settings) -> Vec<Workload> {
    let named = std::env::var_os(MAIL_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let messages = settings.count(MESSAGES, MESSAGES_LEAST);
    let what = match &named {
        Some(dir) => format!("the mail in {}", dir.display()),
        None => format!("{messages} synthetic messages of {WORDS} words"),
    };
    let mail = Arc::new(Maildirs::new(messages, WORDS));
    let indexes: Arc<Indexes> = Arc::default();
    let workload = |query: &'static Query| {
        let sides = [
            ("posthaste", Engine::Ours, query.ours),
            ("mu", Engine::Mu, query.mu),
            ("notmuch", Engine::Notmuch, query.notmuch),
        ];
        let side = |(name, engine, text): (&'static str, Engine, &'static str)| {
            let (mail, indexes, named) = (Arc::clone(&mail), Arc::clone(&indexes), named.clone());
            let start = move |settings: &Settings, dir: &Path| {
                if text.is_empty() {
                    return Err(SideError::Absent("has no such query".to_owned()));
                }
                let root = match &named {
                    Some(root) => root.as_path(),
                    None => mail.make(dir.parent().unwrap_or(dir)).map_err(SideError::failed("making mail"))?,
                };
                let index = indexes.of(engine, settings, dir, root)?;
                Ok(Box::new(Asked { index, text, cut_short: Vec::new() }) as Box<dyn Running>)
            };
            Side { name, is_ours: engine == Engine::Ours, durability: "reads only", start: Box::new(start) }
        };
        Workload {
            name: query.name.to_owned(),
            what: format!("`{}` in {what}", query.ours),
            figures: FIGURES,
            published: published::about(query.name),
            writes_octets: 0,
            sides: sides.map(side).into(),
        }
    };
    QUERIES.iter().map(workload).collect()
}

struct Asked {
    index: Index,
    text: &'static str,
    /// Figures at whose time limit the last round was stopped.
    cut_short: Vec<&'static str>,
}

impl Running for Asked {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        let mut found: Vec<Found> = Vec::new();
        while found.len() < RUNS && (found.is_empty() || !settings.is_stopped()) {
            found.push(self.index.find(settings, self.text)?);
            if found.iter().any(|found| found.page.is_none() || found.all.is_none()) {
                break;
            }
        }
        let mut round = Sample::new();
        let mut take = |key: &'static str, times: Option<Vec<Duration>>| {
            let micros = |time: &Duration| time.as_secs_f64() * 1e6;
            let median = match times {
                Some(times) => Spread::of(times.iter().map(micros)).map_or(0.0, |spread| spread.median),
                None => {
                    self.cut_short.push(key);
                    micros(&settings.round_max)
                }
            };
            round.insert(key.into(), median);
        };
        take("page", found.iter().map(|found| found.page).collect());
        take("all", found.iter().map(|found| found.all.map(|(took, _)| took)).collect());
        round.extend(found[0].all.map(|(_, hits)| ("hits".to_owned(), hits as f64)));
        Ok(round)
    }

    fn cut_short(&self) -> &[&'static str] {
        &self.cut_short
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::script;

    #[test]
    fn a_query_has_as_long_as_a_round() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), "case \"$*\" in *--count*) echo 7 ;; *) exec sleep 600 ;; esac");
        let settings = Settings { round_max: Duration::from_secs(2), ..Settings::new(program) };
        let index = Index::begin(Engine::Ours, &settings, dir.path(), dir.path()).unwrap();
        let mut asked = Asked { index, text: "x", cut_short: Vec::new() };
        let round = asked.round(&settings).unwrap();
        assert_eq!((round["page"], round["hits"], asked.cut_short()), (2e6, 7.0, &["page"][..]));
        assert!(round["all"] < 2e6, "{round:?}");
    }
}
