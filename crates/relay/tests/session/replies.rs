//! Every class of reply at every stage.

use posthaste_relay::session::{FateScope, Loss, RecipientFate, RunEnd, SessionOpenError};

use crate::support::{Act, At, List, Script, Seen, send_all, settings};

/// A fate without its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    Delivered,
    Deferred(FateScope),
    Refused(FateScope),
    NotSent,
    Unknown,
}

fn is(fate: &RecipientFate) -> Is {
    match fate {
        RecipientFate::Delivered(_) => Is::Delivered,
        RecipientFate::Deferred(_, scope) => Is::Deferred(*scope),
        RecipientFate::Refused(_, scope) => Is::Refused(*scope),
        RecipientFate::NotSent(_) => Is::NotSent,
        RecipientFate::Unknown(_) => Is::Unknown,
        RecipientFate::TooMany(_) => panic!("{fate:?}"),
    }
}

/// Outcome of two messages with two recipients each, with a server that does `act` at its first `at`.
async fn outcome(at: At, act: Act) -> (Result<RunEnd, SessionOpenError>, Vec<(usize, Vec<Is>)>, Seen) {
    let mut list = List::two();
    let (end, seen) = send_all(Script::odd(at, 0, act), &mut list, &settings()).await;
    (end, list.fates.iter().map(|(key, fates)| (*key, fates.iter().map(is).collect())).collect(), seen)
}

/// Replies that end all trust in the server, and no reply.
fn senseless() -> Vec<Act> {
    let say = |text: &str| Act::Say(text.to_owned());
    vec![
        say("HTTP/1.1 400 Bad Request\r\n"),
        say("99 x\r\n"),
        say("250x\r\n"),
        say("354 what\r\n"),
        say("250-a\r\n550 b\r\n"),
        say(&"2".repeat(5000)),
        say(&format!("250 {}\r\n", "x".repeat(5000))),
        say(&"250-more\r\n".repeat(5000)),
        Act::Close,
        Act::Silence,
    ]
}

const TWO_DELIVERED: [Is; 2] = [Is::Delivered; 2];

#[tokio::test(start_paused = true)]
async fn a_refusal_has_the_scope_of_its_command() {
    let stages = [(At::Mail, FateScope::Message), (At::Data, FateScope::Accepted), (At::Dot, FateScope::Accepted)];
    for (at, scope) in stages {
        for (code, expected) in [(450, Is::Deferred(scope)), (550, Is::Refused(scope)), (299, Is::Delivered)] {
            if code == 299 && at == At::Data {
                continue;
            }
            let (end, fates, _) = outcome(at, Act::Say(format!("{code} so\r\n"))).await;
            assert!(matches!(end, Ok(RunEnd::NoMore)), "{end:?}");
            assert_eq!(fates, [(0, vec![expected; 2]), (1, TWO_DELIVERED.to_vec())], "{at:?} {code}");
        }
    }
    for (code, expected) in [(450, Is::Deferred(FateScope::Recipient)), (553, Is::Refused(FateScope::Recipient))] {
        let (_, fates, seen) = outcome(At::Rcpt, Act::Say(format!("{code} so\r\n"))).await;
        assert_eq!(fates, [(0, vec![expected, Is::Delivered]), (1, TWO_DELIVERED.to_vec())]);
        assert_eq!(seen.kept.iter().map(|kept| kept.recipients.len()).collect::<Vec<_>>(), [1, 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_421_before_the_dot_belongs_to_the_host() {
    for at in [At::Mail, At::Rcpt, At::Data] {
        let (end, fates, _) = outcome(at, Act::Say("421 bye\r\n".into())).await;
        let Ok(RunEnd::Lost(Loss::Closed { step, reply })) = end else { panic!("{end:?}") };
        assert_eq!(
            (step.name().to_uppercase(), reply.to_string()),
            (format!("{at:?}").to_uppercase(), "421 bye".into())
        );
        assert_eq!(fates, [(0, vec![Is::NotSent; 2]), (1, vec![Is::NotSent; 2])], "{at:?}");
    }
    // After the final dot it is a reply to the message; the next is not sent.
    let (_, fates, seen) = outcome(At::Dot, Act::Say("421 bye\r\n".into())).await;
    assert_eq!(fates, [(0, vec![Is::Deferred(FateScope::Accepted); 2]), (1, vec![Is::NotSent; 2])]);
    assert_eq!(seen.kept.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn nonsense_replies_blame_the_host_or_are_unknown_after_the_dot() {
    for act in senseless() {
        for at in [At::Mail, At::Rcpt, At::Data, At::Dot] {
            if at == At::Data && act == Act::Say("354 what\r\n".into()) {
                continue;
            }
            let (end, fates, seen) = outcome(at, act.clone()).await;
            assert!(matches!(end, Ok(RunEnd::Lost(_))), "{end:?}");
            let first = if at == At::Dot { Is::Unknown } else { Is::NotSent };
            assert_eq!(fates, [(0, vec![first; 2]), (1, vec![Is::NotSent; 2])], "{at:?} {act:?}");
            assert!(seen.kept.len() == usize::from(at == At::Dot), "{at:?} {act:?}: {:?}", seen.kept);
        }
        for at in [At::Greeting, At::Ehlo] {
            let (end, fates, _) = outcome(at, act.clone()).await;
            assert!(matches!(end, Err(SessionOpenError::Lost(_))), "{at:?} {act:?}: {end:?}");
            assert!(fates.is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_session_is_told_with_its_reply() {
    for (at, code) in [(At::Greeting, 554), (At::Greeting, 421), (At::Ehlo, 421), (At::Ehlo, 450)] {
        let (end, fates, _) = outcome(at, Act::Say(format!("{code} no\r\n"))).await;
        let error = end.unwrap_err();
        assert_eq!(error.reply().map(|reply| reply.code()), Some(code), "{at:?}: {error}");
        assert!(fates.is_empty());
    }
    // Without EHLO there is HELO.
    let (end, fates, _) = outcome(At::Ehlo, Act::Say("502 what\r\n".into())).await;
    assert!(matches!(end, Ok(RunEnd::NoMore)), "{end:?}");
    assert_eq!(fates, [(0, TWO_DELIVERED.to_vec()), (1, TWO_DELIVERED.to_vec())]);
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_of_a_reply_is_bounded_at_each_stage() {
    let mut kept = 0;
    for at in [At::Greeting, At::Ehlo, At::Mail, At::Rcpt, At::Data, At::Dot] {
        for code in [421, 450, 550] {
            let lines = format!("{code}-4.2.0 {}\r\n", "x".repeat(400)).repeat(100);
            let mut list = List::two();
            let act = Act::Say(format!("{lines}{code} 4.2.0 end\r\n"));
            let (end, _) = send_all(Script::odd(at, 0, act), &mut list, &settings()).await;
            let fates = list.fates.iter().flat_map(|(_, fates)| fates).map(|fate| fate.reply().text().to_owned());
            let last_words = match &end {
                Ok(RunEnd::Lost(loss)) => loss.last_words(),
                Ok(_) => None,
                Err(error) => error.last_words(),
            };
            for text in fates.chain(last_words.map(|(_, reply)| reply.text().to_owned())) {
                assert!(text.len() <= 1000 && text.lines().count() <= 8, "{at:?} {code}: {}", text.len());
                kept += usize::from(text.len() > 700);
            }
        }
    }
    assert!(kept >= 20, "{kept} long ones");
}
