//! The client's state machine against all kinds of servers, as a script of both sides.

use bytes::Bytes;
use posthaste_smtp::client::{ClientError, Event, MessageBody, RecipientOutcome, Stage, Step, Transfer};
use posthaste_smtp::{BodyType, ForwardPath, MailFrom, Protocol, RcptTo, Reply, ReversePath};

use crate::script::{Script, fates, mail, rcpt, whole};

#[test]
fn without_pipelining_each_command_waits() {
    let mut script = Script::open(Transfer::BdatAtOnce, &[]);
    script.send(&["b", "c"], "x\r\n");
    script.said("MAIL FROM:<a@d>\r\n");
    script.server("250 ok\r\n", "RCPT TO:<b@d>\r\n");
    script.server("550 no\r\n", "RCPT TO:<c@d>\r\n");
    script.server("250 ok\r\n", "DATA\r\n");
    script.server("354 go\r\n", "x\r\n.\r\n");
    assert_eq!(fates(&script.sent("250 kept\r\n")), [(550, Stage::Rcpt), (250, Stage::Verdict)]);
    // The transaction is over at the server too: no RSET.
    script.send(&["b"], "x\r\n");
    script.said("MAIL FROM:<a@d>\r\n");
}

#[test]
fn a_transaction_given_up_is_reset_before_the_next() {
    let mut script = Script::open(Transfer::Data, &["PIPELINING"]);
    script.send(&["b"], "x\r\n");
    script.said("MAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\nDATA\r\n");
    assert_eq!(fates(&script.sent("250 ok\r\n550 no\r\n554 no\r\n")), [(550, Stage::Rcpt)]);
    script.send(&["c"], "x\r\n");
    script.said("RSET\r\n");
    script.server("250 ok\r\n", "MAIL FROM:<a@d>\r\nRCPT TO:<c@d>\r\nDATA\r\n");
    // A refused sender: the rest was sent already, and its replies belong to nothing.
    let outcome = script.sent("450 later\r\n503 no\r\n503 no\r\n");
    assert_eq!(fates(&outcome), [(450, Stage::Mail)]);
    assert!(!script.machine.is_closed());
}

#[test]
fn a_server_that_cannot_reset_is_left() {
    let mut script = Script::open(Transfer::Data, &[]);
    script.send(&["b"], "x\r\n");
    script.said("MAIL FROM:<a@d>\r\n");
    script.server("250 ok\r\n", "RCPT TO:<b@d>\r\n");
    assert_eq!(fates(&script.sent("550 no\r\n")), [(550, Stage::Rcpt)]);
    script.send(&["c"], "x\r\n");
    script.said("RSET\r\n");
    assert_eq!(fates(&script.sent("500 what\r\n")), [(451, Stage::Mail)]);
    assert!(script.machine.is_closed());
}

#[test]
fn data_accepted_for_nobody_gets_an_empty_message() {
    let mut script = Script::open(Transfer::Data, &["PIPELINING"]);
    script.send(&["b"], "secret\r\n");
    script.said("MAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\nDATA\r\n");
    script.server("250 ok\r\n550 no\r\n354 go\r\n", ".\r\n");
    assert_eq!(fates(&script.sent("250 whatever\r\n")), [(550, Stage::Rcpt)]);
}

#[test]
fn bdat_goes_at_once_or_after_the_recipients() {
    let extensions = ["PIPELINING", "CHUNKING", "SIZE 1000"];
    let mut script = Script::open(Transfer::BdatAtOnce, &extensions);
    script.send(&["b"], ".\nx");
    script.said("MAIL FROM:<a@d> SIZE=4\r\nRCPT TO:<b@d>\r\nBDAT 4 LAST\r\n.\r\nx");
    assert_eq!(fates(&script.sent("250 ok\r\n250 ok\r\n452 full\r\n")), [(452, Stage::Verdict)]);
    let mut script = Script::open(Transfer::Bdat, &extensions);
    script.send(&["b"], "x");
    script.said("MAIL FROM:<a@d> SIZE=1\r\nRCPT TO:<b@d>\r\n");
    script.server("250 ok\r\n", "");
    script.server("250 ok\r\n", "BDAT 1 LAST\r\nx");
    assert_eq!(fates(&script.sent("250 kept\r\n")), [(250, Stage::Verdict)]);
}

#[test]
fn many_recipients_go_in_windows() {
    let mut script = Script::open(Transfer::Data, &["PIPELINING"]);
    let names: Vec<String> = (0..250).map(|n| format!("r{n}")).collect();
    script.send(&names.iter().map(String::as_str).collect::<Vec<_>>(), "x\r\n");
    let mut asked = 0;
    loop {
        let said = String::from_utf8(script.machine.take_output().concat()).unwrap();
        let lines = said.lines().count();
        assert!((1..=100).contains(&lines), "{lines} commands at once");
        asked += lines;
        let replies = "250 ok\r\n".repeat(lines - usize::from(said.ends_with("DATA\r\n")));
        if said.ends_with("DATA\r\n") {
            script.server(&(replies + "354 go\r\n"), "x\r\n.\r\n");
            break;
        }
        assert!(matches!(script.hear(&replies), Ok(Event::NeedInput)));
    }
    assert_eq!(asked, 252);
    assert!(script.sent("250 kept\r\n").recipients.iter().all(|r| r.is_delivered()));
}

#[test]
fn a_server_may_leave_at_any_time() {
    for (at, stage) in [(0, Stage::Mail), (1, Stage::Rcpt), (2, Stage::Data), (3, Stage::Verdict)] {
        let mut script = Script::open(Transfer::Data, &[]);
        script.send(&["b"], "x\r\n");
        for reply in &["250 ok\r\n", "250 ok\r\n", "354 go\r\n"][..at] {
            assert!(matches!(script.hear(reply), Ok(Event::NeedInput)));
        }
        assert_eq!(fates(&script.sent("421 bye\r\n")), [(421, stage)]);
        assert!(script.machine.is_closed());
    }
    let mut script = Script::open(Transfer::Data, &[]);
    assert!(matches!(script.hear("421 bye\r\n"), Ok(Event::Closed)));
    let mut script = Script::open(Transfer::Data, &[]);
    assert!(matches!(script.hear("250 what for\r\n"), Err(ClientError::Unexpected { step: Step::Idle, .. })));
}

#[test]
fn a_lost_connection_keeps_the_verdicts_that_came() {
    let mut script = Script::new(Protocol::Lmtp, Transfer::Data);
    script.server("220 x\r\n", "LHLO c.example\r\n");
    assert!(matches!(script.hear("250-x\r\n250 PIPELINING\r\n"), Ok(Event::Ready)));
    script.send(&["b", "c", "e"], "x\r\n");
    script.said("MAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\nRCPT TO:<c@d>\r\nRCPT TO:<e@d>\r\nDATA\r\n");
    script.server("250 ok\r\n250 ok\r\n550 no\r\n250 ok\r\n354 go\r\n", "x\r\n.\r\n");
    script.server("250 kept\r\n", "");
    let outcome = script.machine.abort(&Reply::new(451, "4.4.2", "lost")).pop().unwrap();
    assert_eq!(fates(&outcome), [(250, Stage::Verdict), (550, Stage::Rcpt), (451, Stage::Verdict)]);
    assert_eq!(outcome.recipients.iter().map(|r| r.is_unknown()).collect::<Vec<_>>(), [false, false, true]);
    assert!(script.machine.abort(&Reply::new(451, "4.4.2", "lost")).is_empty());
}

#[test]
fn an_ehlo_reply_is_read_to_its_last_keyword() {
    // 128 lines, and nearly 64 KiB.
    for (lines, octets) in [(125, 1), (125, 500), (15, 4000)] {
        let long = "X".repeat(octets);
        let extensions = [vec![long.as_str(); lines], vec!["CHUNKING"]].concat();
        assert!(Script::open(Transfer::Bdat, &extensions).machine.extensions().chunking, "{lines} {octets}");
    }
}

#[test]
fn only_what_was_offered_is_said() {
    let mut full = mail("a");
    full.body = BodyType::EightBitMime;
    full.envid = Some("id".into());
    full.auth = Some("a".into());
    let mut to = rcpt("b");
    to.orcpt = Some("rfc822;b@d".into());
    let all = ["8BITMIME", "DSN", "AUTH PLAIN", "SIZE", "PIPELINING", "CHUNKING", "LIMITS RCPTMAX=5 MAILMAX=7"];
    let mut script = Script::open(Transfer::Bdat, &all);
    let offered = script.machine.extensions().clone();
    assert_eq!((offered.recipients_max, offered.messages_max, offered.size), (Some(5), Some(7), Some(None)));
    script.machine.send(full.clone(), vec![to.clone()], whole("x"));
    script.said("MAIL FROM:<a@d> SIZE=1 BODY=8BITMIME ENVID=id AUTH=a\r\nRCPT TO:<b@d> ORCPT=rfc822;b@d\r\n");
    let mut script = Script::open(Transfer::Bdat, &["PIPELINING"]);
    script.machine.send(full.clone(), vec![to.clone()], whole("x"));
    script.said("MAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\nDATA\r\n");
    // Values from elsewhere cannot carry commands.
    full.envid = Some("id\r\nRCPT TO:<evil@d>".into());
    to.orcpt = Some("rfc822;b\r\nDATA".into());
    let mut script = Script::open(Transfer::Data, &["DSN", "PIPELINING"]);
    script.machine.send(full, vec![to], whole("x"));
    script.said("MAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\nDATA\r\n");
}

#[test]
fn a_message_that_needs_smtputf8_does_not_go_without() {
    let mut script = Script::open(Transfer::Data, &[]);
    script.send(&["jürgen"], "x");
    script.said("");
    let outcome = script.sent("");
    assert_eq!(fates(&outcome), [(550, Stage::Local)]);
    assert_eq!(outcome.recipients[0].reply.enhanced().unwrap().to_string(), "5.6.7");
}

#[test]
fn a_domain_in_u_labels_goes_in_a_labels_without_smtputf8() {
    let of = |address: &str| MailFrom::new(ReversePath::parse(&format!("<{address}>")).unwrap());
    let to = |address: &str| RcptTo::new(ForwardPath::parse(&format!("<{address}>")).unwrap());
    let recipients = || vec![to("b@bücher.example"), to("jürgen@bücher.example"), to("c@例え.テスト")];
    let mut script = Script::open(Transfer::Data, &["PIPELINING"]);
    script.machine.send(of("a@grün.example"), recipients(), whole("x\r\n"));
    script.said("MAIL FROM:<a@xn--grn-ioa.example>\r\nRCPT TO:<b@xn--bcher-kva.example>\r\nRCPT TO:<c@xn--r8jz45g.xn--zckzah>\r\nDATA\r\n");
    script.server("250 ok\r\n250 ok\r\n250 ok\r\n354 go\r\n", "x\r\n.\r\n");
    assert_eq!(
        fates(&script.sent("250 kept\r\n")),
        [(250, Stage::Verdict), (550, Stage::Local), (250, Stage::Verdict)]
    );
    // If it is offered, addresses are sent unchanged.
    let mut script = Script::open(Transfer::Data, &["SMTPUTF8", "PIPELINING"]);
    script.machine.send(of("a@grün.example"), recipients(), whole("x\r\n"));
    script.said(
        "MAIL FROM:<a@grün.example> SMTPUTF8\r\nRCPT TO:<b@bücher.example>\r\nRCPT TO:<jürgen@bücher.example>\r\nRCPT TO:<c@例え.テスト>\r\nDATA\r\n",
    );
}

#[test]
fn smtputf8_is_said_where_an_address_needs_it() {
    let mut script = Script::open(Transfer::Data, &["SMTPUTF8", "PIPELINING"]);
    script.send(&["b"], "x");
    script.said("MAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\nDATA\r\n");
    let mut script = Script::open(Transfer::Data, &["SMTPUTF8", "PIPELINING"]);
    script.send(&["b", "jürgen"], "x");
    script.said("MAIL FROM:<a@d> SMTPUTF8\r\nRCPT TO:<b@d>\r\nRCPT TO:<jürgen@d>\r\nDATA\r\n");
    let mut script = Script::open(Transfer::Data, &["SMTPUTF8", "PIPELINING"]);
    script.machine.send(mail("jürgen"), vec![rcpt("b")], whole("x"));
    script.said("MAIL FROM:<jürgen@d> SMTPUTF8\r\nRCPT TO:<b@d>\r\nDATA\r\n");
    // Without it the other recipients are still reached, unless the sender or the message itself needs it.
    let mut script = Script::open(Transfer::Data, &["PIPELINING"]);
    script.send(&["b", "jürgen", "c"], "x\r\n");
    script.said("MAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\nRCPT TO:<c@d>\r\nDATA\r\n");
    script.server("250 ok\r\n250 ok\r\n550 no\r\n354 go\r\n", "x\r\n.\r\n");
    assert_eq!(fates(&script.sent("250 kept\r\n")), [(250, Stage::Verdict), (550, Stage::Local), (550, Stage::Rcpt)]);
    for from in [mail("jürgen"), MailFrom { smtputf8: true, ..mail("a") }] {
        let mut script = Script::open(Transfer::Data, &["PIPELINING"]);
        script.machine.send(from, vec![rcpt("b")], whole("x"));
        script.said("");
        assert_eq!(fates(&script.sent("")), [(550, Stage::Local)]);
    }
}

#[test]
fn a_streamed_body_is_asked_for() {
    let mut script = Script::open(Transfer::BdatAtOnce, &["PIPELINING", "CHUNKING"]);
    script.machine.send(mail("a"), vec![rcpt("b")], MessageBody::Streamed);
    script.said("MAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\nDATA\r\n");
    assert!(matches!(script.hear("250 ok\r\n250 ok\r\n354 go\r\n"), Ok(Event::SendBody)));
    script.machine.body(Bytes::from_static(b"x\r\n."));
    script.machine.body(Bytes::from_static(b"y"));
    script.machine.body_end();
    script.said("x\r\n..y\r\n.\r\n");
    assert_eq!(fates(&script.sent("250 kept\r\n")), [(250, Stage::Verdict)]);
}

#[test]
fn without_a_body_each_recipient_has_the_reply_to_its_rcpt() {
    for extension in ["PIPELINING", "HELP"] {
        let mut script = Script::open(Transfer::BdatAtOnce, &[extension, "CHUNKING"]);
        let ask = |script: &mut Script, names: &[&str]| {
            script.machine.send(mail("a"), names.iter().map(|name| rcpt(name)).collect(), MessageBody::Absent);
        };
        ask(&mut script, &["b", "c", "e"]);
        let outcome = if extension == "PIPELINING" {
            script.said("MAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\nRCPT TO:<c@d>\r\nRCPT TO:<e@d>\r\n");
            script.sent("250 ok\r\n252 perhaps\r\n550 no\r\n452 many\r\n")
        } else {
            script.said("MAIL FROM:<a@d>\r\n");
            script.server("250 ok\r\n", "RCPT TO:<b@d>\r\n");
            script.server("252 perhaps\r\n", "RCPT TO:<c@d>\r\n");
            script.server("550 no\r\n", "RCPT TO:<e@d>\r\n");
            script.sent("452 many\r\n")
        };
        assert_eq!(fates(&outcome), [(252, Stage::Rcpt), (550, Stage::Rcpt), (452, Stage::Rcpt)]);
        assert!(!outcome.recipients.iter().any(RecipientOutcome::is_delivered));
        // The next message is a transaction of its own.
        script.send(&["b"], "x\r\n");
        script.said("RSET\r\n");
        let rest = if extension == "PIPELINING" { "RCPT TO:<b@d>\r\nBDAT 3 LAST\r\nx\r\n" } else { "" };
        script.server("250 ok\r\n", &format!("MAIL FROM:<a@d>\r\n{rest}"));
        // A refused sender decides, whatever the replies about recipients.
        let mut script = Script::open(Transfer::Data, &[extension]);
        ask(&mut script, &["b"]);
        let outcome = script.sent(if extension == "PIPELINING" { "550 no\r\n250 ok\r\n" } else { "550 no\r\n" });
        assert_eq!(fates(&outcome), [(550, Stage::Mail)]);
    }
}

#[test]
fn octets_behind_the_reply_to_starttls_are_not_believed() {
    let mut script = Script::open(Transfer::Data, &["STARTTLS"]);
    script.machine.start_tls();
    script.said("STARTTLS\r\n");
    assert!(matches!(script.hear("220 go\r\n250 x\r\n"), Err(ClientError::TlsInjection)));
    let mut script = Script::open(Transfer::Data, &["STARTTLS", "CHUNKING"]);
    script.machine.start_tls();
    script.said("STARTTLS\r\n");
    assert!(matches!(script.hear("220 go\r\n"), Ok(Event::TlsReady)));
    script.machine.tls_started();
    assert!(!script.machine.extensions().chunking, "what was said in the clear is forgotten");
    script.said("EHLO c.example\r\n");
}

#[test]
fn refusals_at_the_door() {
    let mut script = Script::new(Protocol::Smtp, Transfer::Data);
    assert!(matches!(script.hear("554 no\r\n"), Err(ClientError::Greeting(_))));
    let mut script = Script::new(Protocol::Smtp, Transfer::Data);
    script.server("220 x\r\n", "EHLO c.example\r\n");
    script.server("502 what\r\n", "HELO c.example\r\n");
    assert!(matches!(script.hear("550 no\r\n"), Err(ClientError::Hello(_))));
    let mut script = Script::new(Protocol::Lmtp, Transfer::Data);
    script.server("220 x\r\n", "LHLO c.example\r\n");
    assert!(matches!(script.hear("500 what\r\n"), Err(ClientError::Hello(_))));
    let mut script = Script::new(Protocol::Smtp, Transfer::Data);
    assert!(matches!(script.hear("HTTP/1.1 400 Bad Request\r\n"), Err(ClientError::Reply(_))));
}
