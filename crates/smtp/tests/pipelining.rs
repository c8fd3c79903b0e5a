//! Pipelining of the next message, local refusals before anything is sent, and the outcome of a message when its
//! connection is lost.

use bytes::{Buf, BytesMut};
use posthaste_smtp::client::{ClientError, Config, EightBit, Event, Machine, Stage, Step, Transfer};
use posthaste_smtp::{BodyType, ForwardPath, MailFrom, Notify, RcptTo, Reply, Ret};

use crate::script::{Script, fates, mail, rcpt, whole};

const ENVELOPE: &str = "MAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\nDATA\r\n";

fn lost() -> Reply {
    Reply::new(451, "4.4.2", "lost")
}

/// Two messages: the final dot of the first is sent, and with it the commands of the second.
fn two() -> Script {
    let mut script = Script::open(Transfer::Data, &["PIPELINING"]);
    script.send(&["b"], "one\r\n");
    assert!(script.machine.may_send());
    script.send(&["c"], "two\r\n");
    assert!(!script.machine.may_send(), "one waits already");
    script.said(ENVELOPE);
    script.server("250 ok\r\n250 ok\r\n354 go\r\n", &format!("one\r\n.\r\n{}", ENVELOPE.replace("<b@", "<c@")));
    script
}

#[test]
fn the_next_commands_go_out_with_the_dot() {
    for (verdict, code) in [("250 kept\r\n", 250), ("452 later\r\n", 452), ("554 never\r\n", 554)] {
        let mut script = two();
        assert_eq!(fates(&script.sent(verdict)), [(code, Stage::Verdict)]);
        script.server("250 ok\r\n250 ok\r\n354 go\r\n", "two\r\n.\r\n");
        assert!(script.machine.may_send());
        assert_eq!(fates(&script.sent("250 kept\r\n")), [(250, Stage::Verdict)]);
    }
    // All at once.
    let mut script = two();
    assert_eq!(fates(&script.sent("452 later\r\n550 no\r\n503 no\r\n503 no\r\n")), [(452, Stage::Verdict)]);
    assert_eq!(fates(&script.sent("")), [(550, Stage::Mail)]);
    assert!(script.machine.may_send());
}

#[test]
fn a_message_queued_after_an_early_failure_goes_out() {
    let mut script = Script::open(Transfer::Data, &["PIPELINING"]);
    script.send(&["b"], "one\r\n");
    script.send(&["c"], "two\r\n");
    script.said(ENVELOPE);
    assert_eq!(fates(&script.sent("250 ok\r\n550 no\r\n503 no\r\n")), [(550, Stage::Rcpt)]);
    script.said("RSET\r\n");
    script.server("250 ok\r\n", &ENVELOPE.replace("<b@", "<c@"));
    script.server("250 ok\r\n250 ok\r\n354 go\r\n", "two\r\n.\r\n");
    assert_eq!(fates(&script.sent("250 kept\r\n")), [(250, Stage::Verdict)]);
}

#[test]
fn without_pipelining_nothing_is_queued() {
    let mut script = Script::open(Transfer::Data, &[]);
    script.send(&["b"], "one\r\n");
    assert!(!script.machine.may_send());
}

#[test]
fn a_421_to_the_first_ends_both() {
    let mut script = two();
    let outcome = script.sent("421 bye\r\n");
    assert_eq!(fates(&outcome), [(421, Stage::Verdict)]);
    assert!(!outcome.recipients[0].lost && !outcome.recipients[0].is_unknown(), "it was the reply");
    let outcome = script.sent("");
    assert_eq!(fates(&outcome), [(421, Stage::Mail)]);
    assert!(outcome.recipients[0].lost && !outcome.recipients[0].is_unknown());
    assert!(matches!(script.hear(""), Ok(Event::Closed)));
}

#[test]
fn a_server_that_fails_on_commands_after_the_dot_harms_no_mail() {
    let mut script = two();
    assert_eq!(fates(&script.sent("250 kept\r\n")), [(250, Stage::Verdict)]);
    assert!(matches!(script.hear("503 nested\r\n"), Err(ClientError::Unexpected { .. })));
    let outcome = script.machine.abort(&lost()).pop().unwrap();
    assert!(outcome.recipients[0].lost && !outcome.recipients[0].is_unknown());
}

#[test]
fn bdat_is_followed_once_a_recipient_is_good() {
    let mut script = Script::open(Transfer::BdatAtOnce, &["PIPELINING", "CHUNKING"]);
    script.send(&["b"], "one");
    script.send(&["c"], "two");
    script.said("MAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\nBDAT 3 LAST\r\none");
    script.server("250 ok\r\n", "");
    script.server("250 ok\r\n", "MAIL FROM:<a@d>\r\nRCPT TO:<c@d>\r\nBDAT 3 LAST\r\ntwo");
    assert_eq!(fates(&script.sent("452 full\r\n")), [(452, Stage::Verdict)]);
    // Without an accepted recipient the transaction is open until RSET.
    script.send(&["e"], "three");
    assert_eq!(fates(&script.sent("250 ok\r\n550 no\r\n503 nobody\r\n")), [(550, Stage::Rcpt)]);
    script.said("RSET\r\n");
}

#[test]
fn what_was_written_decides_what_is_known() {
    let whole_bdat = "MAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\nBDAT 5 LAST\r\none\r\n";
    for (transfer, end) in [(Transfer::Data, "one\r\n.\r\n".len()), (Transfer::BdatAtOnce, whole_bdat.len())] {
        let mut written = 0;
        loop {
            let mut script = Script::open(transfer, &["PIPELINING", "CHUNKING"]);
            script.send(&["b"], "one\r\n");
            script.send(&["c"], "two\r\n");
            if transfer == Transfer::Data {
                script.said(ENVELOPE);
                script.hear("250 ok\r\n250 ok\r\n354 go\r\n").unwrap();
            }
            let output = script.machine.output();
            if written > output.remaining() {
                break;
            }
            output.advance(written);
            let outcomes = script.machine.abort(&lost());
            let stages: Vec<_> = outcomes.iter().map(|outcome| outcome.recipients[0].stage).collect();
            let first = match transfer {
                _ if written >= end => Stage::Verdict,
                Transfer::Data => Stage::Body,
                _ => Stage::Mail,
            };
            assert_eq!(stages, [first, Stage::Mail], "{written} octets of {transfer:?}");
            assert!(outcomes.iter().all(|outcome| outcome.recipients[0].lost));
            assert_eq!(outcomes[0].recipients[0].is_unknown(), written >= end);
            written += 1;
        }
        assert!(written > end);
    }
}

#[test]
fn a_verdict_cannot_come_before_the_end_was_written() {
    let mut script = Script::open(Transfer::Data, &["PIPELINING"]);
    script.send(&["b"], "one\r\n");
    script.said(ENVELOPE);
    script.hear("250 ok\r\n250 ok\r\n354 go\r\n").unwrap();
    let output = script.machine.output();
    output.advance(output.remaining() - 1);
    assert!(matches!(script.hear("250 kept\r\n"), Err(ClientError::Unexpected { .. })));
    assert!(!script.machine.abort(&lost())[0].recipients[0].is_unknown());
    // A refusal can.
    let mut script = Script::open(Transfer::Data, &["PIPELINING"]);
    script.send(&["b"], "one\r\n");
    script.said(ENVELOPE);
    assert_eq!(fates(&script.sent("250 ok\r\n250 ok\r\n354 go\r\n552 no\r\n")), [(552, Stage::Verdict)]);
}

#[test]
fn replies_that_fit_no_command_are_not_believed() {
    for (replies, at) in [
        ("354 go\r\n", Step::Mail),
        ("250 ok\r\n354 go\r\n", Step::Rcpt),
        ("250 ok\r\n250 ok\r\n250 ok\r\n", Step::Data),
    ] {
        let mut script = Script::open(Transfer::Data, &["PIPELINING"]);
        script.send(&["b"], "one\r\n");
        script.said(ENVELOPE);
        let heard = script.hear(replies);
        assert!(matches!(heard, Err(ClientError::Unexpected { step, .. }) if step == at), "{replies}");
        assert!(script.machine.abort(&lost())[0].recipients[0].lost);
    }
    // A recipient accepted for a refused sender gets nothing.
    let mut script = Script::open(Transfer::Data, &["PIPELINING"]);
    script.send(&["b"], "one\r\n");
    script.said(ENVELOPE);
    script.server("550 no\r\n250 ok\r\n354 go\r\n", ".\r\n");
    assert_eq!(fates(&script.sent("250 kept\r\n")), [(550, Stage::Mail)]);
}

#[test]
fn recipients_above_a_limit_are_for_another_transaction() {
    let too_many = |replies: &str, expected: &[(u16, Stage)]| {
        let mut script = Script::open(Transfer::Data, &["PIPELINING"]);
        script.send(&["b", "c", "e"], "x\r\n");
        script.server(
            &format!("250 ok\r\n{replies}354 go\r\n"),
            "MAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\nRCPT TO:<c@d>\r\nRCPT TO:<e@d>\r\nDATA\r\nx\r\n.\r\n",
        );
        assert_eq!(fates(&script.sent("250 kept\r\n")), expected);
    };
    let kept = (250, Stage::Verdict);
    too_many("250 ok\r\n452 4.5.3 many\r\n552 many\r\n", &[kept, (452, Stage::TooMany), (552, Stage::TooMany)]);
    // Before an acceptance it is no such limit, nor if its code is about the mailbox.
    too_many("452 full\r\n250 ok\r\n452 4.2.2 full\r\n", &[(452, Stage::Rcpt), kept, (452, Stage::Rcpt)]);
    // Recipients not asked yet are not included.
    let mut script = Script::open(Transfer::Data, &[]);
    script.send(&["b", "c", "e"], "x\r\n");
    script.server("250 ok\r\n", "MAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\n");
    script.server("250 ok\r\n", "RCPT TO:<c@d>\r\n");
    script.server("452 many\r\n", "DATA\r\n");
    script.server("354 go\r\n", "x\r\n.\r\n");
    assert_eq!(fates(&script.sent("250 kept\r\n")), [kept, (452, Stage::TooMany), (452, Stage::TooMany)]);
}

#[test]
fn limits_that_were_offered_are_kept() {
    let mut script = Script::open(Transfer::Data, &["PIPELINING", "LIMITS RCPTMAX=2 MAILMAX=1"]);
    assert_eq!(script.machine.messages_left(), 1);
    script.send(&["b", "c", "e"], "x\r\n");
    assert!(!script.machine.may_send());
    script.said("MAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\nRCPT TO:<c@d>\r\nDATA\r\n");
    script.server("250 ok\r\n250 ok\r\n250 ok\r\n354 go\r\n", "x\r\n.\r\n");
    let outcome = script.sent("250 kept\r\n");
    assert_eq!(fates(&outcome), [(250, Stage::Verdict), (250, Stage::Verdict), (452, Stage::TooMany)]);
    assert!(!script.machine.may_send() && script.machine.messages_left() == 0);
}

#[test]
fn no_more_domains_at_once_than_were_offered() {
    for (most, sent) in [(1, vec!["b@d", "e@D"]), (2, vec!["b@d", "c@x", "e@D"]), (0, vec!["b@d", "e@D"])] {
        let extensions = format!("LIMITS RCPTDOMAINMAX={most}");
        let mut script = Script::open(Transfer::Data, &["PIPELINING", &extensions]);
        let to = ["b@d", "c@x", "e@D", "f@y"];
        let rcpt = |to: &&str| RcptTo::new(ForwardPath::parse(&format!("<{to}>")).unwrap());
        script.machine.send(mail("a"), to.iter().map(rcpt).collect(), whole("x\r\n"));
        let said: String = sent.iter().map(|to| format!("RCPT TO:<{to}>\r\n")).collect();
        script.said(&format!("MAIL FROM:<a@d>\r\n{said}DATA\r\n"));
        let replies = "250 ok\r\n".repeat(1 + sent.len()) + "354 go\r\n";
        script.server(&replies, "x\r\n.\r\n");
        let expected = to.map(|to| if sent.contains(&to) { (250, Stage::Verdict) } else { (452, Stage::TooMany) });
        assert_eq!(fates(&script.sent("250 kept\r\n")), expected);
    }
}

#[test]
fn a_message_above_the_size_offered_is_not_sent() {
    let mut script = Script::open(Transfer::Data, &["PIPELINING", "SIZE 5"]);
    script.send(&["b"], "123456");
    assert_eq!(fates(&script.sent("")), [(552, Stage::Local)]);
    script.send(&["b"], "12345");
    script.said("MAIL FROM:<a@d> SIZE=5\r\nRCPT TO:<b@d>\r\nDATA\r\n");
    // After one in flight, its turn comes later.
    let mut script = Script::open(Transfer::Data, &["PIPELINING", "SIZE 5"]);
    script.send(&["b"], "1234\n");
    script.send(&["b"], "123456");
    script.server("250 ok\r\n250 ok\r\n354 go\r\n", "MAIL FROM:<a@d> SIZE=5\r\nRCPT TO:<b@d>\r\nDATA\r\n1234\r\n.\r\n");
    assert_eq!(fates(&script.sent("250 ok\r\n")), [(250, Stage::Verdict)]);
    assert_eq!(fates(&script.sent("")), [(552, Stage::Local)]);
}

#[test]
fn eight_bits_go_to_a_server_without_8bitmime_unless_forbidden() {
    for (eight_bit, refused) in [(EightBit::Send, false), (EightBit::Refuse, true)] {
        let mut machine = Machine::new(Config { eight_bit, ..Config::new("c.example") }).unwrap();
        let mut input = BytesMut::from("220 x\r\n250-x\r\n250 PIPELINING\r\n");
        assert!(matches!(machine.step(&mut input), Ok(Event::Ready)));
        machine.take_output();
        machine.send(MailFrom { body: BodyType::EightBitMime, ..mail("a") }, vec![rcpt("b")], whole("\u{e9}\r\n"));
        match machine.step(&mut input).unwrap() {
            Event::Sent(outcome) => assert_eq!((fates(&outcome), refused), (vec![(554, Stage::Local)], true)),
            _ => assert!(!refused && machine.take_output().concat() == ENVELOPE.as_bytes()),
        }
    }
}

#[test]
fn dsn_parameters_are_said_where_they_are_offered() {
    let notify = Notify { success: true, failure: false, delay: true };
    let from = MailFrom { ret: Some(Ret::Headers), envid: Some("id".into()), ..mail("a") };
    let mut to = rcpt("b");
    (to.notify, to.orcpt) = (Some(notify), Some("rfc822;b@d".into()));
    let mut script = Script::open(Transfer::Data, &["PIPELINING", "DSN"]);
    script.machine.send(from.clone(), vec![to.clone()], whole("x"));
    script.said("MAIL FROM:<a@d> RET=HDRS ENVID=id\r\nRCPT TO:<b@d> NOTIFY=SUCCESS,DELAY ORCPT=rfc822;b@d\r\nDATA\r\n");
    let mut script = Script::open(Transfer::Data, &["PIPELINING"]);
    script.machine.send(from, vec![to], whole("x"));
    script.said(ENVELOPE);
}
