//! Answers at one stage of one domain: exact shares, in an order that the seed shuffles.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_smtp::Reply;

use super::chance;
use super::replies::{self, Provider};
use super::rule_file::{Delay, RuleError, StageRule};
use super::stage::Stage;
use super::verdict::{Action, Verdict, parse_reply};

/// One stage of one domain: thresholds in hundredths of a percent, and the number of decisions so far.
#[derive(Debug)]
pub(super) struct Dice {
    drop: u32,
    tempfail: u32,
    permfail: u32,
    pub delay: Delay,
    tempfail_replies: Vec<Reply>,
    permfail_replies: Vec<Reply>,
    key: u64,
    rolled: AtomicU64,
}

impl Dice {
    /// Compiles a rule; `None` if it has no effect.
    pub fn new(
        rule: &StageRule,
        provider: Provider,
        stage: Stage,
        place: &str,
        seed: u64,
    ) -> Result<Option<Self>, RuleError> {
        let shares = [rule.drop, rule.tempfail, rule.permfail];
        let in_range = |percent: &f64| (0.0..=100.0).contains(percent);
        // Hundredths, so that shares such as 33.3 + 33.3 + 33.4 are not above 100 by rounding.
        let [drop, tempfail, permfail] = shares.map(|percent| (percent * 100.0).round() as u32);
        if !shares.iter().all(in_range) || u64::from(drop + tempfail + permfail) > chance::BLOCK {
            return Err(RuleError::Percent(place.to_owned()));
        }
        if rule.delay.to < rule.delay.from {
            return Err(RuleError::Delay(place.to_owned()));
        }
        let own = |texts: &[String], standard: &[&str], transient: bool| -> Result<Vec<Reply>, RuleError> {
            let texts: Vec<&str> =
                if texts.is_empty() { standard.to_vec() } else { texts.iter().map(String::as_str).collect() };
            texts.iter().map(|text| wanted_reply(text, transient, place)).collect()
        };
        // Also of a rule that does nothing yet.
        let tempfail_replies = own(&rule.tempfail_replies, replies::tempfail(provider, stage), true)?;
        let permfail_replies = own(&rule.permfail_replies, replies::permfail(provider, stage), false)?;
        if drop + tempfail + permfail == 0 && rule.delay.to.is_zero() {
            return Ok(None);
        }
        Ok(Some(Self {
            drop,
            tempfail,
            permfail,
            delay: rule.delay,
            tempfail_replies,
            permfail_replies,
            key: chance::key(seed, place),
            rolled: AtomicU64::new(0),
        }))
    }

    pub fn roll(&self) -> Verdict {
        let n = self.rolled.fetch_add(1, Ordering::Relaxed);
        let place = chance::place(self.key, n);
        let pick = |replies: &[Reply]| {
            Action::Refuse(replies[chance::below(self.key, n, replies.len() as u64) as usize].clone())
        };
        let action = match place {
            _ if place < self.drop => Action::Drop,
            _ if place < self.drop + self.tempfail => pick(&self.tempfail_replies),
            _ if place < self.drop + self.tempfail + self.permfail => pick(&self.permfail_replies),
            _ => Action::Accept,
        };
        let spread_us = (self.delay.to - self.delay.from).as_micros() as u64;
        let delay = self.delay.from + Duration::from_micros(chance::below(!self.key, n, spread_us.saturating_add(1)));
        Verdict { delay, action }
    }
}

fn wanted_reply(text: &str, transient: bool, place: &str) -> Result<Reply, RuleError> {
    let (list, wanted, example) = if transient {
        ("tempfail-replies", "4yz", "452 4.2.2 Mailbox full")
    } else {
        ("permfail-replies", "5yz", "550 5.1.1 User unknown")
    };
    let fits = |reply: &Reply| if transient { reply.is_transient() } else { reply.is_permanent() };
    let place = format!("{place}.{list}");
    parse_reply(text).filter(fits).ok_or(RuleError::Reply { place, text: text.to_owned(), wanted, example })
}
