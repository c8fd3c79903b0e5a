//! Each fault is what it says, and the same seed gives the same ones.

use std::sync::mpsc::channel;

use super::*;

fn append(log: &MemoryLog, after: u64, text: &'static str) -> Result<u64, LogError> {
    let (tell, told) = channel();
    log.append(LogPosition::new(after), text.into(), Box::new(move |outcome| tell.send(outcome).unwrap()));
    told.try_recv().expect("an answer at once").map(LogPosition::get)
}

fn stored(log: &MemoryLog) -> Vec<Bytes> {
    log.records().into_iter().map(|(_, record)| record).collect()
}

fn read(log: &MemoryLog, from: u64, count: usize) -> Result<Vec<u64>, LogError> {
    let mut seen = Vec::new();
    log.follow(LogPosition::new(from), &mut |position, _| {
        seen.push(position.get());
        seen.len() < count
    })?;
    Ok(seen)
}

#[test]
fn a_record_is_stored_at_its_position_or_not_at_all() {
    let log = MemoryLog::new(1, LogFaults::default());
    assert_eq!((append(&log, 0, "a"), append(&log, 1, "b")), (Ok(1), Ok(2)));
    assert!(matches!(append(&log, 1, "c"), Err(LogError::Refused(_))));
    assert!(matches!(append(&log, 3, "c"), Err(LogError::Refused(_))));
    assert_eq!(stored(&log), ["a", "b"]);
    assert_eq!(read(&log, 1, 2), Ok(vec![1, 2]));
}

#[test]
fn each_fault_is_what_it_says() {
    let log = MemoryLog::new(1, LogFaults::default());
    let lost = |outcome| matches!(outcome, Err(LogError::Unknown(_)));
    log.script(&[Fault::Refused, Fault::UnknownLost, Fault::UnknownStored, Fault::UnknownLate(3), Fault::None]);
    assert!(matches!(append(&log, 0, "a"), Err(LogError::Refused(_))));
    assert!(lost(append(&log, 0, "b")) && stored(&log).is_empty());
    assert!(lost(append(&log, 0, "c")));
    assert_eq!(stored(&log), ["c"]);
    assert!(lost(append(&log, 1, "late")));
    assert_eq!(log.end(), Ok(LogPosition::new(1)), "a read that finds nothing decides nothing");
    assert_eq!(read(&log, 1, 1), Ok(vec![1]));
    assert_eq!(log.end(), Ok(LogPosition::new(2)));
    assert_eq!(stored(&log), ["c", "late"]);
    assert_eq!(append(&log, 2, "d"), Ok(3));
}

#[test]
fn a_late_record_whose_position_was_taken_is_not_stored() {
    let log = MemoryLog::new(1, LogFaults::default());
    log.script(&[Fault::UnknownLate(2), Fault::None]);
    assert!(append(&log, 0, "late").is_err());
    assert_eq!(append(&log, 0, "first"), Ok(1));
    (0..3).for_each(|_| drop(log.end()));
    assert_eq!(stored(&log), ["first"]);
}

#[test]
fn holes_cuts_and_shorter_logs_are_told_apart() {
    let log = MemoryLog::new(1, LogFaults::default());
    for (after, text) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        append(&log, after as u64, text).unwrap();
    }
    log.cut(LogPosition::new(3)).unwrap();
    assert_eq!((log.first(), log.end()), (Ok(LogPosition::new(3)), Ok(LogPosition::new(5))));
    assert_eq!(read(&log, 2, 9), Err(LogError::Cut { first: LogPosition::new(3) }));
    log.flip(LogPosition::new(3), 0);
    assert_eq!(stored(&log)[0], "b");
    log.lose(LogPosition::new(4));
    assert_eq!(read(&log, 3, 9), Err(LogError::Gap(LogPosition::new(4))));
    log.roll_back(2);
    assert_eq!(read(&log, 6, 9), Err(LogError::Gap(LogPosition::new(4))));
    log.cut(LogPosition::new(9)).unwrap();
    assert_eq!((log.first(), log.end()), (Ok(LogPosition::new(4)), Ok(LogPosition::new(3))), "a cut is no new log");
    log.delete();
    assert_eq!(append(&log, 0, "new"), Ok(1));
}

#[test]
fn a_follower_waits_for_the_next_record_and_hears_of_a_rollback() {
    let log = MemoryLog::new(1, LogFaults::default());
    append(&log, 0, "a").unwrap();
    let (tell, seen) = channel();
    let follower = std::thread::spawn({
        let log = log.clone();
        move || {
            log.follow(LogPosition::new(1), &mut |position, _| {
                tell.send(position.get()).unwrap();
                true
            })
        }
    });
    assert_eq!(seen.recv().unwrap(), 1);
    append(&log, 1, "b").unwrap();
    assert_eq!(seen.recv().unwrap(), 2);
    log.roll_back(1);
    assert_eq!(follower.join().unwrap(), Err(LogError::Gap(LogPosition::new(2))));
}

#[test]
fn an_engine_that_is_away_keeps_what_was_sent() {
    let log = MemoryLog::new(1, LogFaults::default());
    log.set_away(true);
    let (tell, told) = channel();
    log.append(LogPosition::START, "a".into(), Box::new(move |outcome| tell.send(outcome).unwrap()));
    assert!(told.try_recv().is_err() && matches!(log.end(), Err(LogError::Unreachable(_))));
    assert!(matches!(read(&log, 1, 1), Err(LogError::Unreachable(_))));
    log.set_away(false);
    assert_eq!(told.recv().unwrap(), Ok(LogPosition::new(1)));
}

#[test]
fn the_same_seed_fails_in_the_same_way() {
    let run = |seed| {
        let log = MemoryLog::by_steps(seed, LogFaults::all());
        let (tell, told) = channel();
        for number in 0..200 {
            let tell = tell.clone();
            let after = log.end().unwrap();
            log.append(after, format!("{number}").into(), Box::new(move |it| tell.send((number, it)).unwrap()));
            log.step();
        }
        while log.step() {}
        drop(tell);
        (told.iter().collect::<Vec<_>>(), log.records())
    };
    let one = run(7);
    let other = run(7);
    assert!(one == other && one.1 != run(8).1);
    assert_eq!(one.0.len(), 200, "each append is answered once");
    let count = |is: fn(&LogError) -> bool| one.0.iter().filter(|it| it.1.as_ref().is_err_and(is)).count();
    assert!(count(|error| matches!(error, LogError::Unknown(_))) > 5);
    assert!(count(|error| matches!(error, LogError::Refused(_))) > 5);
    assert!(!one.0.is_sorted_by_key(|(number, _)| *number), "answers overtake each other");
}

#[test]
fn room_and_settings_are_what_a_test_says() {
    let log = MemoryLog::new(1, LogFaults::default());
    append(&log, 0, "abc").unwrap();
    log.set_limit(10);
    assert_eq!((log.room(), log.check()), (Ok((3, 10)), Ok(Vec::new())));
    log.set_wrong(vec!["sync_interval".to_owned()]);
    assert_eq!(log.check(), Ok(vec!["sync_interval".to_owned()]));
}
