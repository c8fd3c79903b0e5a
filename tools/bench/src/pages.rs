//! The page and metrics of a server with millions of waiting recipients: the CPU time that open pages take, the time of a
//! scrape.

mod browsers;

use std::path::Path;
use std::time::{Duration, Instant};

use posthaste_loadgen::resources::Sampler;
use posthaste_loadgen::server::ScratchServer;
use posthaste_units::count;

use self::browsers::PAGES;
pub(crate) use self::browsers::{OpenPages, Web};
use crate::published;
use crate::relay::backlog;
use crate::relay::ours::{self, Ours};
use crate::run::{sample, wait_until_idle};
use crate::suite::{Better, Figure, Running, Sample, Settings, Side, SideError, Suite, Unit, Workload};

pub const SUITE: Suite = Suite {
    name: "pages",
    about: "Five open pages and a scrape while millions of recipients wait: not part of `all`",
    workloads,
};

const FIGURES: &[Figure] = &[
    Figure { key: "pages_cpu_us", name: "server CPU a second, five pages", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "idle_cpu_us", name: "server CPU a second, no page", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "first_us", name: "first answer", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "slowest_us", name: "slowest answer", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "scrape_us", name: "scrape", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "scrape_max_us", name: "slowest scrape", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "scrape_lines", name: "lines of a scrape", unit: Unit::Count, better: Better::Lower },
];
const RECIPIENTS: u64 = 10_000_000;
const DOMAINS: u64 = 1_000_000;
/// The server looks at such a queue once a minute.
const TIME: Duration = Duration::from_secs(120);
const TIME_LEAST: Duration = Duration::from_secs(2);
const SCRAPES: usize = 21;
/// A look that is shared ends before the next scrape.
const SCRAPE_EVERY: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(100);
/// Octets on disk of a waiting message.
const WAITING_BYTES: u64 = 500;
/// The server's default.
const RING_SEGMENTS: u64 = 64;
/// Time limit for a start with ten million recipients to become idle.
const REST_MAX: Duration = Duration::from_secs(120);
/// Port of the next hop, which gets no mail: no recipient is due.
const PORT_OF_NOBODY: u16 = 9;

fn workloads(settings: &Settings) -> Vec<Workload> {
    let recipients = settings.count(RECIPIENTS, 1000);
    let domains = DOMAINS.min(recipients);
    let side = |name, recipients| Side {
        name,
        is_ours: true,
        durability: ScratchServer::DURABILITY,
        start: Box::new(move |settings: &Settings, dir: &Path| {
            Ok(Box::new(Shown::start(recipients, domains, settings, dir)?) as Box<dyn Running>)
        }),
    };
    vec![Workload {
        name: "pages-10m".into(),
        what: format!(
            "{} s without a page and {0} s with {PAGES} open, while {} to {domains} domains wait; then {SCRAPES} scrapes",
            time(settings).as_secs_f64(),
            count(recipients, "recipient"),
        ),
        figures: FIGURES,
        published: published::about("pages-10m"),
        writes_octets: recipients * WAITING_BYTES,
        sides: vec![side("posthaste", recipients), side("posthaste with an empty queue", 0)],
    }]
}

fn time(settings: &Settings) -> Duration {
    settings.time(TIME, TIME_LEAST).min(settings.round_max)
}

/// A server with a queue.
struct Shown {
    ours: Ours,
    token: String,
}

impl Shown {
    fn start(recipients: u64, domains: u64, settings: &Settings, dir: &Path) -> Result<Self, SideError> {
        if recipients > 0 {
            backlog::write(&Ours::spool(dir), recipients, domains)?;
        }
        let ours = Ours::start(settings, dir, ours::zone("there.example"), PORT_OF_NOBODY, RING_SEGMENTS)?;
        let token = ours.server.token("metrics", "metrics").map_err(SideError::failed("posthaste token"))?;
        Ok(Self { ours, token })
    }

    /// The server's CPU time in microseconds for each second from now on.
    fn cpu_us(&self, settings: &Settings) -> f64 {
        let mut sampler = Sampler::new(&[self.ours.server.pid()], Instant::now());
        let (before, begun) = (sampler.sample().cpu_s, Instant::now());
        while begun.elapsed() < time(settings) && !settings.is_stopped() {
            std::thread::sleep(LOOK);
        }
        (sampler.sample().cpu_s - before) * 1e6 / begun.elapsed().as_secs_f64()
    }
}

impl Running for Shown {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        let mut sampler = Sampler::new(&[self.ours.server.pid()], Instant::now());
        wait_until_idle(&mut sampler, REST_MAX.min(settings.round_max * 2));
        let idle_cpu_us = self.cpu_us(settings);
        let opened = Instant::now();
        let pages = OpenPages::open(&self.ours.server)?;
        let first = opened.elapsed();
        let pages_cpu_us = self.cpu_us(settings);
        let slowest = pages.close()?;
        let address = self.ours.server.http.ok_or_else(|| SideError::Failed("it has no HTTP listener".into()))?;
        let mut web = Web::connect(address, &self.token).map_err(SideError::failed("/metrics"))?;
        let (mut took, mut lines) = (Vec::new(), 0);
        for _ in 0..SCRAPES {
            let asked = Instant::now();
            let text = web.ask("GET", "/metrics", "").map_err(SideError::failed("/metrics"))?;
            took.push(asked.elapsed());
            lines = text.iter().filter(|octet| **octet == b'\n').count();
            std::thread::sleep(SCRAPE_EVERY.min(time(settings) / 10));
        }
        took.sort_unstable();
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        Ok(sample([
            ("pages_cpu_us", pages_cpu_us),
            ("idle_cpu_us", idle_cpu_us),
            ("first_us", micros(first)),
            ("slowest_us", micros(slowest)),
            ("scrape_us", micros(took[SCRAPES / 2])),
            ("scrape_max_us", micros(took[SCRAPES - 1])),
            ("scrape_lines", lines as f64),
        ]))
    }
}
