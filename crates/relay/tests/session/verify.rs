//! Call-ahead questions: every class of reply at every stage, and reused sessions.

use posthaste_relay::session::{Loss, OutgoingSession, RecipientVerdict, RunEnd};
use posthaste_smtp::{ForwardPath, RcptTo};

use crate::support::{Act, At, List, Script, Seen, settings};

fn rcpt(path: &str) -> RcptTo {
    RcptTo::new(ForwardPath::parse(path).unwrap())
}

/// Verdicts on two recipients, one after the other, by a server that misbehaves at its first `at`.
async fn ask(script: Script) -> (Vec<Result<RecipientVerdict, Loss>>, Seen) {
    let (stream, server) = script.serve();
    let mut session = OutgoingSession::open_over(stream, &settings()).await.unwrap();
    let answers = vec![session.verify(rcpt("<b@d>")).await, session.verify(rcpt("<c@d>")).await];
    session.quit().await;
    (answers, server.await.unwrap())
}

fn is(answer: &Result<RecipientVerdict, Loss>) -> (&'static str, u16) {
    match answer {
        Ok(RecipientVerdict::Taken) => ("taken", 0),
        Ok(RecipientVerdict::Refused(reply)) => ("refused", reply.code()),
        Ok(RecipientVerdict::NotKnown(reply)) => ("not known", reply.code()),
        Err(_) => ("lost", 0),
    }
}

#[tokio::test(start_paused = true)]
async fn a_recipient_is_asked_for_and_nothing_is_sent() {
    for extension in ["PIPELINING", "HELP"] {
        let script = Script { extensions: vec![extension], ..Script::default() };
        let (answers, seen) = ask(script).await;
        assert!(answers.iter().all(|answer| is(answer).0 == "taken"), "{answers:?}");
        let expected =
            ["EHLO c.example", "MAIL FROM:<>", "RCPT TO:<b@d>", "RSET", "MAIL FROM:<>", "RCPT TO:<c@d>", "QUIT"];
        assert_eq!(seen.lines, expected);
        assert!(seen.kept.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_reply_to_rcpt_speaks_of_the_recipient() {
    for extension in ["PIPELINING", "HELP"] {
        for (at, code, expected) in [
            (At::Rcpt, 251, "taken"),
            (At::Rcpt, 252, "taken"),
            (At::Rcpt, 550, "refused"),
            (At::Rcpt, 552, "refused"),
            (At::Rcpt, 450, "not known"),
            (At::Rcpt, 452, "not known"),
            (At::Mail, 450, "not known"),
            (At::Mail, 550, "not known"),
        ] {
            let odd = vec![(at, 0, Act::Say(format!("{code} so\r\n")))];
            let (answers, _) = ask(Script { extensions: vec![extension], odd, ..Script::default() }).await;
            let code = if expected == "taken" { 0 } else { code };
            assert_eq!(is(&answers[0]), (expected, code), "{at:?} {code}");
            assert_eq!(is(&answers[1]).0, "taken", "the session goes on after {code} to {at:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_reply_nothing_is_known_of_the_recipient() {
    let say = |text: &str| Act::Say(text.to_owned());
    for extension in ["PIPELINING", "HELP"] {
        for act in [Act::Close, Act::Silence, say("354 what\r\n"), say("no reply\r\n"), say("421 4.3.2 bye\r\n")] {
            for at in [At::Mail, At::Rcpt] {
                let odd = vec![(at, 0, act.clone())];
                let (answers, _) = ask(Script { extensions: vec![extension], odd, ..Script::default() }).await;
                let losses: Vec<_> =
                    answers.iter().map(|answer| answer.as_ref().expect_err("it is lost").last_words()).collect();
                let said = losses[0].map(|(step, reply)| (step.name(), reply.code()));
                let stage = if at == At::Mail { "MAIL" } else { "RCPT" };
                let expected = match &act {
                    Act::Say(text) => text.get(..3).and_then(|code| Some((stage, code.parse().ok()?))),
                    _ => None,
                };
                assert_eq!((said, losses[1]), (expected, None), "{at:?} {act:?}");
            }
        }
        for act in [Act::Close, say("451 no\r\n")] {
            let odd = vec![(At::Rset, 0, act.clone())];
            let (answers, _) = ask(Script { extensions: vec![extension], odd, ..Script::default() }).await;
            assert_eq!(is(&answers[0]).0, "taken");
            let said = answers[1].as_ref().expect_err("it is lost").last_words();
            let said = said.map(|(step, reply)| (step.name(), reply.code()));
            assert_eq!(said, (act != Act::Close).then_some(("RSET", 451)), "{act:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_impossible_address_is_refused_without_a_question() {
    let (stream, server) = Script::default().serve();
    let mut session = OutgoingSession::open_over(stream, &settings()).await.unwrap();
    assert_eq!(is(&session.verify(rcpt("<é@d>")).await), ("refused", 550));
    assert_eq!(is(&session.verify(rcpt("<b@d>")).await).0, "taken");
    session.quit().await;
    assert_eq!(server.await.unwrap().lines, ["EHLO c.example", "MAIL FROM:<>", "RCPT TO:<b@d>", "QUIT"]);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_asked_sends_messages() {
    let (stream, server) = Script::default().serve();
    let mut session = OutgoingSession::open_over(stream, &settings()).await.unwrap();
    assert_eq!(is(&session.verify(rcpt("<b@d>")).await).0, "taken");
    let mut list = List::two();
    assert!(matches!(session.run(&mut list).await, RunEnd::NoMore));
    assert_eq!(is(&session.verify(rcpt("<b@d>")).await).0, "taken");
    session.quit().await;
    let seen = server.await.unwrap();
    assert_eq!((seen.kept.len(), seen.lines.iter().filter(|line| *line == "RSET").count()), (2, 1));
}
