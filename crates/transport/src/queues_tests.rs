//! The bookkeeping of transports: attempts in any order, entries written anew, power cuts.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use posthaste_random::Random;
use posthaste_spool::Lsn;

use crate::carry::CarriedMessage;
use crate::config::Config;
use crate::entry::{Deliver, Failure, Target, TargetKey, TargetTrouble, TransportEntry};
use crate::queues::{Queues, RefusalNotice, Stand};
use crate::work::{Outcome, Work};

/// A machine of which only what was appended remains after a power cut.
struct Log {
    entries: Vec<(Lsn, TransportEntry)>,
    position: Lsn,
    last: u64,
}

impl Log {
    fn append(&mut self, queues: &mut Queues, entry: TransportEntry) -> Lsn {
        self.last += 1;
        let lsn = Lsn::new(self.last);
        self.entries.push((lsn, entry.clone()));
        let done = queues.show(lsn, Some(entry), 100);
        if !done.is_empty() {
            self.append(queues, TransportEntry::Done(done));
        }
        lsn
    }

    /// Applies the entries as one batch.
    fn append_carried(&mut self, queues: &mut Queues, carried: CarriedMessage) {
        self.last += 1;
        let lsn = Lsn::new(self.last);
        for entry in carried.entries {
            self.entries.push((lsn, entry.clone()));
            let done = queues.show(lsn, Some(entry), 100);
            if !done.is_empty() {
                self.append(queues, TransportEntry::Done(done));
            }
        }
    }

    /// Writes down anew what holds up the position, which passes all before that.
    fn carry(&mut self, queues: &mut Queues) {
        for carried in queues.take_laggards(Lsn::new(self.last)) {
            self.append_carried(queues, carried);
        }
        self.advance(queues);
    }

    fn advance(&mut self, queues: &mut Queues) {
        self.position = queues.take_advance().map_or(self.position, |(position, _)| position);
    }

    fn replayed(&self, config: &Config) -> Queues {
        self.replayed_after_loss_of(config, Lsn::ZERO)
    }

    fn replayed_after_loss(&self, config: &Config) -> Queues {
        self.replayed_after_loss_of(config, Lsn::new(self.last))
    }

    /// Entries up to this one are lost, except those present.
    fn replayed_after_loss_of(&self, config: &Config, through: Lsn) -> Queues {
        let mut queues = Queues::new(config.clone());
        let entries = || self.entries.iter().filter(|(lsn, _)| *lsn > self.position);
        entries().filter(|(lsn, _)| *lsn <= through).for_each(|(lsn, entry)| {
            queues.show(*lsn, Some(entry.clone()), 100);
        });
        if through > Lsn::ZERO {
            queues.hold_all();
        }
        entries().filter(|(lsn, _)| *lsn > through).for_each(|(lsn, entry)| {
            queues.show(*lsn, Some(entry.clone()), 100);
        });
        queues.replayed();
        queues
    }
}

fn message(random: &mut Random) -> TransportEntry {
    let transports = ["|/a", "|/b", "/c", "lmtp:d:24"];
    let target = |number: u16, random: &mut Random| {
        let transport = transports[random.below(4) as usize].into();
        (number, Target { transport, recipient: format!("{number}").into(), original: "o".into(), detail: "".into() })
    };
    let targets = (0..1 + random.below(4) as u16).map(|number| target(number, random)).collect();
    TransportEntry::Deliver(Deliver {
        secs: 1,
        sender: "s".into(),
        is_8bit: false,
        smtputf8: false,
        body: None,
        targets,
    })
}

fn open(queues: &Queues) -> BTreeSet<TargetKey> {
    queues.messages.iter().flat_map(|(body, message)| message.jobs.keys().map(|number| (*body, *number))).collect()
}

/// Whatever happens in whatever order, with power cuts anywhere: each target is there until it is done, and not for ever after.
#[test]
fn any_order_of_attempts_rewrites_and_cuts_loses_nothing() {
    let config = Config::default();
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut log = Log { entries: Vec::new(), position: Lsn::ZERO, last: 0 };
        let mut queues = log.replayed(&config);
        let mut now = Instant::now();
        let mut at_work: Vec<(u64, Work)> = Vec::new();
        let mut ending: Vec<u64> = Vec::new();
        // Carried entries on their way into the log: something may be done meanwhile.
        let mut under_way: Vec<CarriedMessage> = Vec::new();
        let mut missing: BTreeSet<TargetKey> = BTreeSet::new();
        for _ in 0..200 {
            match random.below(12) {
                0..3 => {
                    let entry = message(&mut random);
                    let TransportEntry::Deliver(deliver) = &entry else { unreachable!() };
                    let numbers: Vec<u16> = deliver.targets.iter().map(|(number, _)| *number).collect();
                    let body = log.append(&mut queues, entry);
                    missing.extend(numbers.into_iter().map(|number| (body, number)));
                }
                3..6 => at_work.extend(queues.take(now)),
                6..9 if !at_work.is_empty() => {
                    let (worker, work) = at_work.swap_remove(random.below(at_work.len() as u64) as usize);
                    let outcome = |random: &mut Random| match random.below(6) {
                        0 => Outcome::Failed("f".into()),
                        1 => Outcome::Refused("r".into()),
                        2 => Outcome::Unavailable("u".into()),
                        _ => Outcome::Delivered,
                    };
                    let outcomes = work.targets.iter().map(|_| outcome(&mut random)).collect();
                    let (done, _) = queues.finish(worker, &work, outcomes, random.one_in(3), now);
                    done.iter().for_each(|key| assert!(missing.remove(key), "seed {seed}: delivered twice"));
                    log.append(&mut queues, TransportEntry::Done(done));
                    // It may take a while to end its session.
                    ending.push(worker);
                }
                9 => {
                    now += Duration::from_secs(random.below(100_000));
                    queues.wake(now);
                }
                10 => {
                    under_way.extend(queues.take_laggards(Lsn::new(random.below(log.last + 1))));
                    if random.one_in(2) {
                        for carried in std::mem::take(&mut under_way) {
                            log.append_carried(&mut queues, carried);
                        }
                    }
                }
                _ => {
                    if let Some((position, _)) = queues.take_advance() {
                        // Who was shown nothing since a cut knows of no position, and the spool stays at its own.
                        assert!(position >= log.position || queues.seen == Lsn::ZERO, "seed {seed}");
                        log.position = log.position.max(position);
                    }
                }
            }
            if random.one_in(4) {
                for worker in ending.drain(..) {
                    assert_eq!(queues.worker_ended(worker, &"p".into(), now), [], "seed {seed}: it had finished");
                }
            }
            assert_eq!(open(&queues), missing, "seed {seed}");
            if random.one_in(20) {
                // The cut: workers and what was not in the log yet are gone.
                (at_work, under_way, ending) = (Vec::new(), Vec::new(), Vec::new());
                queues = log.replayed(&config);
                assert_eq!(open(&queues), missing, "seed {seed}: after a cut");
            }
        }
        // In the end everything gets through.
        ending.into_iter().for_each(|worker| drop(queues.worker_ended(worker, &"p".into(), now)));
        for (worker, work) in at_work {
            let outcomes = vec![Outcome::Unavailable("u".into()); work.targets.len()];
            queues.finish(worker, &work, outcomes, random.one_in(3), now);
            queues.worker_ended(worker, &"p".into(), now);
        }
        for _ in 0..10_000 {
            now += Duration::from_secs(100_000);
            queues.wake(now);
            let Some((worker, work)) = queues.take(now) else { continue };
            let (done, _) = queues.finish(worker, &work, vec![Outcome::Delivered; work.targets.len()], false, now);
            log.append(&mut queues, TransportEntry::Done(done));
            queues.worker_ended(worker, &"p".into(), now);
            if queues.messages() == 0 {
                break;
            }
        }
        assert_eq!((queues.messages(), queues.bytes(), queues.queues.len()), (0, 0, 0), "seed {seed}");
        let (position, released) = queues.take_advance().expect("something has changed");
        assert_eq!((position.get(), released.below.get()), (log.last, log.last + 1), "seed {seed}");
    }
}

#[test]
fn an_owed_notice_is_written_anew_with_its_message() {
    let config = Config::default();
    let mut queues = Queues::new(config.clone());
    queues.replayed();
    let mut log = Log { entries: Vec::new(), position: Lsn::ZERO, last: 0 };
    let body = log.append(&mut queues, message(&mut Random::new(7)));
    let key = (body, 0);
    let refused = |failure, error: &str| {
        let (transport, error) = ("|/a".into(), error.into());
        TransportEntry::Trouble(TargetTrouble {
            key: Some(key),
            transport,
            attempts: 1,
            next_try_secs: 1,
            failure,
            error,
        })
    };
    log.append(&mut queues, refused(Failure::Refused, "550 no"));
    // Another trouble has taken its place for those who look.
    log.append(&mut queues, refused(Failure::Temporary, "450 later"));
    log.carry(&mut queues);
    assert_eq!(log.replayed(&config).owing, [key]);
    // Once it is made, that is written anew instead.
    log.append(&mut queues, TransportEntry::Told(vec![key]));
    log.carry(&mut queues);
    assert_eq!(log.replayed(&config).owing, []);
}

/// A notice is made, or a file begun, while the message is being written down anew.
#[test]
fn the_position_passes_no_entry_that_the_new_one_lacks() {
    let config = Config::default();
    for is_refused_first in [false, true] {
        let mut queues = Queues::new(config.clone());
        queues.replayed();
        let mut log = Log { entries: Vec::new(), position: Lsn::ZERO, last: 0 };
        let body = log.append(&mut queues, message(&mut Random::new(7)));
        let key = (body, 0);
        let refusal = TransportEntry::Trouble(TargetTrouble {
            key: Some(key),
            transport: "|/a".into(),
            attempts: 1,
            next_try_secs: 1,
            failure: Failure::Refused,
            error: "550 no".into(),
        });
        if is_refused_first {
            log.append(&mut queues, refusal.clone());
        }
        let under_way = queues.take_laggards(Lsn::new(log.last));
        assert_eq!((under_way.len(), queues.take_laggards(Lsn::new(log.last)).len()), (1, 0), "not twice at a time");
        if is_refused_first {
            log.append(&mut queues, TransportEntry::Told(vec![key]))
        } else {
            log.append(&mut queues, refusal)
        };
        log.append(&mut queues, TransportEntry::Begun { key, file_bytes: 77 });
        under_way.into_iter().for_each(|carried| log.append_carried(&mut queues, carried));
        log.advance(&mut queues);
        for _ in 0..2 {
            let mut replayed = log.replayed(&config);
            let job = replayed.job(key).unwrap();
            let expected = if is_refused_first { RefusalNotice::Told } else { RefusalNotice::Owed("550 no".into()) };
            assert_eq!((&job.notice, job.begun), (&expected, Some(77)));
            log.carry(&mut queues);
            assert!(log.position > body, "it is written anew once more");
        }
    }
}

#[test]
fn an_entry_that_the_spool_refuses_is_written_again() {
    let mut queues = Queues::new(Config::default());
    queues.replayed();
    let mut log = Log { entries: Vec::new(), position: Lsn::ZERO, last: 0 };
    let body = log.append(&mut queues, message(&mut Random::new(7)));
    assert_eq!(queues.take_laggards(body).len(), 1);
    queues.failed_carries.lock().unwrap().push(body);
    log.carry(&mut queues);
    assert!(log.position >= body);
}

#[test]
fn what_is_uncertain_is_held_until_it_is_released() {
    let config = Config::default();
    let mut queues = Queues::new(config.clone());
    queues.replayed();
    let mut log = Log { entries: Vec::new(), position: Lsn::ZERO, last: 0 };
    let bodies: Vec<Lsn> = (0..3).map(|_| log.append(&mut queues, message(&mut Random::new(7)))).collect();
    let mut queues = log.replayed_after_loss(&config);
    assert!(queues.take(Instant::now()).is_none() && queues.take_advance().is_none(), "nothing is tried or passed");
    let keys: Vec<TargetKey> = open(&queues).into_iter().collect();
    log.append(&mut queues, TransportEntry::Held(keys.clone()));
    assert!(queues.holds_to_record.is_empty());
    // The doubt is forgotten with the position, and the hold is not.
    log.carry(&mut queues);
    assert!(log.position > bodies[2]);
    let mut queues = log.replayed(&config);
    queues.retry_all();
    assert!(queues.take(Instant::now()).is_none() && queues.holds_to_record.is_empty(), "it stays held");
    let (of_first, others): (Vec<TargetKey>, Vec<TargetKey>) =
        keys.into_iter().partition(|(body, _)| *body == bodies[0]);
    log.append(&mut queues, TransportEntry::Released(of_first.clone()));
    for mut queues in [log.replayed(&config), log.replayed_after_loss_of(&config, bodies[2]), queues] {
        assert!(queues.take(Instant::now()).is_some());
        let mut is_held = |key: &TargetKey| queues.job(*key).unwrap().stand == Stand::Held;
        assert!(!of_first.iter().any(&mut is_held) && others.iter().all(is_held));
    }
}
