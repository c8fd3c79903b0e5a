//! The sink's rules, compiled from a rule file.

use std::collections::HashMap;

use posthaste_smtp::{Address, AddressDomain, RcptTo, Reply, ReversePath};

use super::dice::Dice;
use super::replies::{self, Provider};
use super::rule_file::{DomainRules, GreylistRule, RuleError, RuleFile, SlowReadRule};
use super::stage::Stage;
use super::verdict::{Verdict, parse_reply};

/// Checked rules with the counters for their percentages. Shared by all threads.
#[derive(Debug)]
pub struct Rules {
    default: [Option<Dice>; 6],
    domains: HashMap<String, [Option<Dice>; 6]>,
    /// True for stages at which any domain has a rule.
    used: [bool; 6],
    provider: Provider,
    providers: HashMap<String, Provider>,
    /// Greylisting, if any.
    pub greylist: Option<GreylistRule>,
    /// Slow reading, if any.
    pub slow_read: Option<SlowReadRule>,
    /// Messages in one session.
    pub messages_max: Option<u32>,
    local_parts: bool,
}

impl Rules {
    /// Checks and compiles a rule file. `local_parts`: true if recipients such as `tempfail@` and `450-…@` order their
    /// own answer.
    ///
    /// # Errors
    /// All of [`RuleError`] except those of reading.
    pub fn new(file: &RuleFile, local_parts: bool) -> Result<Self, RuleError> {
        let provider = file.default.provider.unwrap_or_default();
        let compile = |name: &str, rules: &DomainRules, provider| -> Result<[Option<Dice>; 6], RuleError> {
            let mut dice = [const { None }; 6];
            for stage in Stage::ALL {
                // Each domain counts for itself, also where the rule is the default's.
                if let Some(rule) = rules.stage(stage).or_else(|| file.default.stage(stage)) {
                    let place = format!("{name}.{}", stage.as_str());
                    dice[stage as usize] = Dice::new(rule, provider, stage, &place, file.seed)?;
                }
            }
            Ok(dice)
        };
        let default = compile("default", &file.default, provider)?;
        let (mut domains, mut providers) = (HashMap::new(), HashMap::new());
        for (name, rules) in &file.domain {
            if rules.connect.is_some() || rules.ehlo.is_some() {
                return Err(RuleError::TooEarly(name.clone()));
            }
            let own = rules.provider.unwrap_or(provider);
            domains.insert(name.to_ascii_lowercase(), compile(name, rules, own)?);
            providers.insert(name.to_ascii_lowercase(), own);
        }
        for (zero, name) in [
            (file.slow_read.is_some_and(|rule| rule.octets == 0), "slow-read.octets"),
            (file.greylist.is_some_and(|rule| rule.entries == 0), "greylist.entries"),
            (file.messages_max == Some(0), "messages-max"),
        ] {
            if zero {
                return Err(RuleError::Zero(name));
            }
        }
        let used = Stage::ALL.map(|stage| {
            default[stage as usize].is_some() || domains.values().any(|dice| dice[stage as usize].is_some())
        });
        Ok(Self {
            default,
            domains,
            used,
            provider,
            providers,
            greylist: file.greylist,
            slow_read: file.slow_read,
            messages_max: file.messages_max,
            local_parts,
        })
    }

    /// True if a rule applies at the stage.
    pub fn applies(&self, stage: Stage) -> bool {
        self.used[stage as usize] || (self.local_parts && matches!(stage, Stage::Rcpt | Stage::EndOfData))
    }

    /// True if any answer can be delayed.
    pub fn has_delays(&self) -> bool {
        let all = std::iter::once(&self.default).chain(self.domains.values());
        self.slow_read.is_some() || all.flatten().flatten().any(|dice| !dice.delay.to.is_zero())
    }

    /// Decides at [`Stage::Connect`] and [`Stage::Ehlo`].
    pub fn judge_session(&self, stage: Stage) -> Verdict {
        self.default[stage as usize].as_ref().map_or(Verdict::YES, Dice::roll)
    }

    /// Decides at [`Stage::Mail`].
    pub fn judge_sender(&self, sender: &ReversePath) -> Verdict {
        self.judge_domain(Stage::Mail, sender.address())
    }

    /// Decides about a recipient at [`Stage::Rcpt`] and later ones.
    pub fn judge_recipient(&self, stage: Stage, recipient: &RcptTo) -> Verdict {
        let by_domain = || self.judge_domain(stage, recipient.forward_path.address());
        self.ordered_answer(stage, recipient).unwrap_or_else(by_domain)
    }

    /// The answer that a recipient orders for itself, which takes precedence over rules and greylisting.
    pub fn ordered_answer(&self, stage: Stage, recipient: &RcptTo) -> Option<Verdict> {
        self.local_parts.then(|| reply_of_local_part(recipient.forward_path.local_part(), stage)).flatten()
    }

    /// Decides about an address by its domain alone.
    pub fn judge_domain(&self, stage: Stage, address: Option<&Address>) -> Verdict {
        if !self.used[stage as usize] {
            return Verdict::YES;
        }
        let dice = find(&self.domains, address).unwrap_or(&self.default);
        dice[stage as usize].as_ref().map_or(Verdict::YES, Dice::roll)
    }

    /// The reply to a greylisted client.
    pub fn greylisted(&self, recipient: &RcptTo) -> Reply {
        let provider = find(&self.providers, recipient.forward_path.address()).copied().unwrap_or(self.provider);
        parse_reply(replies::greylisted(provider)).expect("a reply of our own")
    }
}

/// The entry for an address's domain: its own, or else that of the nearest `*.` above it.
fn find<'a, T>(map: &'a HashMap<String, T>, address: Option<&Address>) -> Option<&'a T> {
    if map.is_empty() {
        return None;
    }
    let AddressDomain::Name(name) = address?.domain() else { return None };
    let name = name.to_ascii_lowercase();
    let below = |(dot, _): (usize, &str)| map.get(&format!("*{}", &name[dot..]));
    map.get(&name).or_else(|| name.match_indices('.').find_map(below))
}

/// Decides by a recipient that orders its own answer: `tempfail` or `permfail` in the local part, or `<code>-<text>`.
/// The code is 250 for acceptance, or 400 to 599. `<code>-eod-<text>` applies after the message.
fn reply_of_local_part(local_part: &str, stage: Stage) -> Option<Verdict> {
    let refuse = |code, enhanced, text: String| Some(Verdict::refuse(Reply::new(code, enhanced, text)));
    if let Some((code, text)) = local_part.split_once('-')
        && code.len() == 3
        && let Ok(code @ (250 | 400..=599)) = code.parse::<u16>()
    {
        let wanted = if text.starts_with("eod-") { Stage::EndOfData } else { Stage::Rcpt };
        return match code {
            250 => Some(Verdict::YES),
            _ if wanted == stage => refuse(code, "", format!("you said {local_part}")),
            _ => Some(Verdict::YES),
        };
    }
    match local_part {
        _ if stage != Stage::Rcpt => None,
        _ if local_part.contains("tempfail") => refuse(450, "4.0.0", "tempfail requested".into()),
        _ if local_part.contains("permfail") => refuse(550, "5.0.0", "permfail requested".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use posthaste_smtp::ForwardPath;

    use super::*;
    use crate::sink::verdict::Action;

    fn rules(text: &str) -> Rules {
        Rules::new(&RuleFile::parse(text).expect("the file is read"), true).expect("the rules are good")
    }

    fn recipient(text: &str) -> RcptTo {
        RcptTo::new(ForwardPath::parse(&format!("<{text}>")).expect("a path"))
    }

    /// Rolls for `rolls` recipients at a domain, and counts accepted, 4yz, 5yz, dropped.
    fn tally(rules: &Rules, address: &str, rolls: u32) -> [u32; 4] {
        let recipient = recipient(address);
        let mut tally = [0; 4];
        for _ in 0..rolls {
            tally[match rules.judge_recipient(Stage::Rcpt, &recipient).action {
                Action::Accept => 0,
                Action::Refuse(reply) if reply.is_transient() => 1,
                Action::Refuse(_) => 2,
                Action::Drop => 3,
            }] += 1;
        }
        tally
    }

    #[test]
    fn percentages_are_exact_for_each_domain() {
        let rules = rules(
            "[default.rcpt]\ntempfail = 5\npermfail = 10\ndrop = 0.25\n\
             [domain.\"a.example\"]\nrcpt = { permfail = 100 }\n\
             [domain.\"*.b.example\"]\nrcpt.tempfail = 33.33\n",
        );
        assert_eq!(tally(&rules, "x@other.example", 10_000), [8475, 500, 1000, 25]);
        assert_eq!(tally(&rules, "x@A.Example", 100), [0, 0, 100, 0]);
        assert_eq!(tally(&rules, "x@deep.mx.b.example", 20_000), [20_000 - 6666, 6666, 0, 0]);
        assert_eq!(tally(&rules, "x@b.example", 10_000), [8475, 500, 1000, 25], "the default, not the wildcard");
        assert_eq!(tally(&rules, "x@[192.0.2.1]", 10_000), [8475, 500, 1000, 25]);
    }

    #[test]
    fn a_seed_repeats_its_series() {
        let series = |seed: u64| -> Vec<Verdict> {
            let rules = rules(&format!("seed = {seed}\n[default.rcpt]\ntempfail = 30\ndelay = [\"1ms\", \"9ms\"]"));
            (0..200).map(|_| rules.judge_recipient(Stage::Rcpt, &recipient("x@example.org"))).collect()
        };
        assert_eq!(series(1), series(1));
        assert_ne!(series(1), series(2));
        assert!(series(1).iter().all(|v| (1..=9).contains(&v.delay.as_millis())));
    }

    #[test]
    fn a_domain_has_its_own_texts_and_keeps_other_stages() {
        let rules = rules(
            "default.mail.permfail = 100\n[domain.\"a.example\"]\nprovider = \"google\"\n\
             rcpt = { tempfail = 100, tempfail-replies = [\"452 4.2.2 Full\", \"421 Bye\\nsee you\"] }\n\
             end-of-data.permfail = 100",
        );
        let text = |verdict: Verdict| match verdict.action {
            Action::Refuse(reply) => reply.to_string(),
            other => panic!("{other:?}"),
        };
        let sender = ReversePath::parse("<s@a.example>").expect("a path");
        assert!(text(rules.judge_sender(&sender)).starts_with("550 5.7."), "the default's rule");
        let judge = |stage| rules.judge_recipient(stage, &recipient("s@a.example"));
        let text = |stage| text(judge(stage));
        assert!(text(Stage::EndOfData).contains("gsmtp") || text(Stage::EndOfData).contains("Gmail"));
        let seen: std::collections::BTreeSet<String> = (0..50).map(|_| text(Stage::Rcpt)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["421-Bye\r\n421 see you", "452 4.2.2 Full"]);
        assert_eq!(judge(Stage::Data), Verdict::YES);
    }

    #[test]
    fn a_local_part_orders_its_answer() {
        let rules = rules("");
        let answer = |address: &str, stage| match rules.judge_recipient(stage, &recipient(address)).action {
            Action::Refuse(reply) => reply.to_string(),
            other => format!("{other:?}"),
        };
        for (local, rcpt, end) in [
            ("tempfail", "450 4.0.0 tempfail requested", "Accept"),
            ("my-permfail-7", "550 5.0.0 permfail requested", "Accept"),
            ("450-mailbox-busy", "450 you said 450-mailbox-busy", "Accept"),
            ("421-go-away", "421 you said 421-go-away", "Accept"),
            ("552-eod-too-big", "Accept", "552 you said 552-eod-too-big"),
            ("250-tempfail", "Accept", "Accept"),
            ("354-no", "Accept", "Accept"),
            ("4500-no", "Accept", "Accept"),
            ("alice", "Accept", "Accept"),
        ] {
            for address in [local, &format!("{local}@x.example")] {
                assert_eq!([Stage::Rcpt, Stage::EndOfData].map(|stage| answer(address, stage)), [rcpt, end]);
            }
        }
        let off = Rules::new(&RuleFile::default(), false).expect("no rules are good rules");
        assert_eq!(off.judge_recipient(Stage::Rcpt, &recipient("tempfail@x.example")), Verdict::YES);
        assert!(!off.applies(Stage::Rcpt));
    }

    #[test]
    fn the_manual_s_example_is_a_rule_file() {
        let manual = include_str!("../../../../docs/sink.md");
        let (_, behind) = manual.split_once("```toml\n").expect("an example");
        let (example, _) = behind.split_once("```").expect("its end");
        let rules = rules(example);
        assert_eq!((rules.messages_max, rules.greylist.expect("a greylist").entries), (Some(100), 100_000));
        assert_eq!(tally(&rules, "x@busy.example", 10_000), [6000, 4000, 0, 0]);
    }

    #[test]
    fn a_mistake_in_the_file_is_told_in_words() {
        for (text, told) in [
            ("[default.rcpt]\ntempfial = 5\n", "rules:2:1: there is no key `tempfial` here; did you mean `tempfail`?"),
            ("[default.rcpt]\ntempfail = \"5\"\n", "rules:2:12: this has to be a number; it is \"5\""),
            ("[default.rcpt]\ndelay = 5\n", "a time such as \"50ms\", or a list of two"),
            ("[default]\ndrop = 5\n", "there is no key `drop` here; it belongs below a stage"),
            ("[greylist]\nentries = 5\n", "`wait` is missing"),
        ] {
            let error = RuleFile::parse(text).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (text, word) in [
            ("[default.rcpt]\ntempfail = 60\npermfail = 41", "from 0 to 100"),
            ("[default.rcpt]\ndrop = -1", "from 0 to 100"),
            ("[default.rcpt]\ntempfail = nan", "from 0 to 100"),
            ("[default.rcpt]\ntempfail = 1\ntempfail-replies = [\"550 5.1.1 no\"]", "is not a 4yz reply"),
            ("[default.rcpt]\npermfail = 1\npermfail-replies = [\"so sorry\"]", "is not a 5yz reply"),
            ("[default.rcpt]\ntempfail-replies = [\"550 x\"]", "is not a 4yz reply"),
            ("[default.rcpt]\ndelay = [\"2s\", \"1s\"]", "before its start"),
            ("[domain.\"a.example\"]\nehlo.tempfail = 1", "domain is not known yet"),
            ("slow-read = { octets = 0, pause = \"1s\" }", "must be more than 0"),
            ("messages-max = 0", "must be more than 0"),
        ] {
            let file = RuleFile::parse(text).expect("TOML");
            let error = Rules::new(&file, true).expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        for text in ["[default.rcpt]\ntempfial = 1", "[default.rcpt]\ndelay = \"soon\"", "domain = 3"] {
            assert!(matches!(RuleFile::parse(text), Err(RuleError::Syntax { .. })), "{text}");
        }
    }
}
