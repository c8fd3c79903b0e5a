use posthaste_notify::report::{RecipientReport, ReportedAction};

use super::*;

#[test]
fn common_replies_have_their_class() {
    let classifier = Classifier::default();
    let mut wrong = Vec::new();
    for (class, lines) in [
        (
            "bad-address",
            &[
                "550 5.1.1 <bob@example.org>: Recipient address rejected: User unknown in virtual mailbox table",
                "550 5.1.1 The email account that you tried to reach does not exist.",
                "550 No such user here",
                "550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient bob@example.org not found by SMTP address lookup",
                "554 delivery error: dd This user doesn't have a example.org account (bob@example.org) [0]",
                "550 Requested action not taken: mailbox unavailable, unknown user",
                "550 5.1.1 Sorry",
                "550 Invalid recipient",
                "550 5.1.0 bob@example.org ... not our customer",
                "550-5.1.1 the mailbox was not found",
            ][..],
        ),
        (
            "inactive",
            &[
                "550 5.2.1 The email account that you tried to reach is disabled.",
                "550 This account has been suspended",
                "554 30 Sorry, your message cannot be delivered. This mailbox is disabled (554.30).",
                "550 5.1.6 Recipient has moved",
            ],
        ),
        (
            "bad-domain",
            &[
                "550 5.1.2 the domain example.invalid does not exist",
                "556 5.1.10 the domain example.org accepts no mail",
            ],
        ),
        (
            "mailbox-full",
            &[
                "452 4.2.2 The recipient's inbox is out of storage space",
                "552 5.2.2 Mailbox full",
                "554 5.2.2 mailbox over quota",
                "552 User quota exceeded",
            ],
        ),
        (
            "policy",
            &[
                "550 5.7.1 Service unavailable, client host [192.0.2.1] blocked using Spamhaus",
                "550 5.1.1 recipient rejected: 192.0.2.1 is listed in zen.example",
                "554 5.7.1 Access denied",
                "550 5.7.1 Mail refused due to our policy",
                "550 5.7.25 The sending IP has no PTR record",
                "550 5.1.8 Sender rejected",
                "550 5.7.1 no",
            ],
        ),
        (
            "spam",
            &[
                "550 5.7.1 This message looks like spam",
                "554 5.6.0 virus found",
                "550 5.6.1 this looks like unsolicited mail",
                "550 5.6.0 message content rejected",
                "552 5.7.0 the attachment has prohibited content",
            ],
        ),
        (
            "rate-limited",
            &[
                "421 4.7.0 [TSS04] Messages from 192.0.2.1 temporarily deferred due to user complaints",
                "450 4.2.1 The user you are trying to contact is receiving mail too quickly, rate limited",
                "451 4.7.1 Greylisting in action, please come back later",
                "421 4.7.28 unusual rate of unsolicited mail",
                "421 Too many concurrent SMTP connections",
            ],
        ),
        (
            "authentication",
            &[
                "550 5.7.26 Unauthenticated email from example.org is not accepted due to domain's DMARC policy.",
                "550 5.7.23 The message was rejected because of Sender Policy Framework violation",
                "550 SPF check failed",
                "530 5.7.0 Authentication required",
            ],
        ),
        (
            "message-too-large",
            &[
                "552 5.3.4 Message size exceeds fixed limit",
                "552 message too big",
                "550 5.2.3 The message exceeds the maximum size",
            ],
        ),
        (
            "routing",
            &[
                "554 5.7.1 <bob@example.org>: Relay access denied",
                "554 5.4.6 Too many hops",
                "451 4.4.1 connection timed out",
                "451 4.4.3 DNS has no answer for example.org",
            ],
        ),
        ("other", &["451 4.3.0 Try again later", "550", "", "554 5.3.0 Error"]),
        // RFC 3463 section 3.7: X.6.x is about the form of a message, not about its worth.
        (
            "other",
            &[
                "550 5.6.7 SMTPUTF8 is required, but not offered",
                "554 5.6.1 Body type not supported by Remote Host",
                "554 5.6.3 Conversion required but not supported",
                "550 5.6.11 message has a bare CR or LF",
                "500 5.6.0 line too long (see RFC 5321 4.5.3.1.6)",
                "554 5.6.0 Duplicate header",
                "554 5.6.2 conversion is not allowed",
                "451 4.6.5 conversion failed",
                "554 5.6.6 content is not there any more",
            ],
        ),
    ] {
        for line in lines {
            let found = classifier.classify(line).name();
            if found != class {
                wrong.push((found, class, *line));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_group_of_codes_says_nothing() {
    let classifier = Classifier::default();
    for subject in 0..10 {
        let line = format!("550 5.{subject}.99 no");
        assert_eq!(classifier.classify(&line).name(), "other", "{line}");
    }
    for (line, class) in [("550 5.7.0 no", "policy"), ("550 5.7.606 no", "policy"), ("450 4.4.316 no", "routing")] {
        assert_eq!(classifier.classify(line).name(), class, "{line}");
    }
}

#[test]
fn only_three_classes_blame_the_address() {
    let classifier = Classifier::default();
    let bad: Vec<&str> =
        classifier.classes().iter().filter(|class| class.is_address_bad).map(|class| class.name()).collect();
    assert_eq!(bad, ["inactive", "bad-domain", "bad-address"]);
    assert_eq!(classifier.classes().len(), 11);
}

#[test]
fn a_reply_of_several_lines_is_one() {
    let reply = Reply::new(550, "5.1.1", "The mailbox\nwas not\x1b\r\nfound");
    assert_eq!(line_of(&reply), "550 5.1.1 The mailbox was not   found");
    assert_eq!(Classifier::default().classify_reply(&Reply::new(550, "", "no such\nuser")).name(), "bad-address");
}

#[test]
fn built_in_patterns_pass_the_checks_of_a_file() {
    for rule in &builtin() {
        assert_eq!((check_name(&rule.name), check_patterns(rule)), (Ok(()), Ok(())), "{}", rule.name);
    }
}

#[test]
fn own_rules_come_first() {
    let own = "[[class]]\nname = 'inactive'\npatterns = ['gone fishing']\n[[class]]\nname = 'vip'\nis_address_bad = true\npatterns = ['Ä{2}']\n";
    let classifier = Classifier::new(own).unwrap();
    assert_eq!(classifier.classify("550 5.1.1 no such user: gone FISHING").name(), "inactive");
    assert!(classifier.classify("550 gone fishing").is_address_bad());
    assert_eq!(classifier.classify("550 ää").name(), "vip");
    assert_eq!(classifier.classify("550 no such user").name(), "bad-address");
    let alone = Classifier::new(&format!("builtin = false\n{own}")).unwrap();
    assert_eq!(alone.classify("550 no such user").name(), "other");
    assert_eq!(Classifier::new("builtin = false").unwrap().classify("550 no such user").name(), "other");
}

#[test]
fn mistakes_are_refused() {
    let class = |rest: &str| format!("[[class]]\nname = 'a'\n{rest}");
    for (text, said) in [
        ("[[klass]]".to_owned(), "klass"),
        (class("pattern = []"), "pattern"),
        (class("patterns = ['(']"), "class `a`, pattern `(`"),
        (class("patterns = ['']"), "matches everything"),
        (class("patterns = ['.*']"), "matches everything"),
        (class("patterns = ['(a{1000}){1000}']"), "too large"),
        (class(&format!("patterns = ['{}']", "a".repeat(1001))), "too long"),
        ("[[class]]\nname = 'other'\npatterns = []".to_owned(), "`other`"),
        ("[[class]]\nname = 'a b'\npatterns = []".to_owned(), "`a b`"),
        ("[[class]]\nname = 'bad-address'\nis_address_bad = false\npatterns = ['x']".to_owned(), "contradictory"),
    ] {
        let error = Classifier::new(&text).expect_err(&text).to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
}

#[test]
fn a_hostile_reply_costs_a_bounded_time() {
    let classifier = Classifier::default();
    for piece in ["user ", "mailbox ", "ä", "spf dkim ", "\0", "550 5.1.1 "] {
        let line = piece.repeat(1_000_000 / piece.len());
        classifier.classify(&line);
    }
    assert_eq!(classifier.classify(&format!("550 {}no such user", "x".repeat(LINE_BYTES_MAX))).name(), "other");
}

#[test]
fn a_recipient_of_a_report_has_the_class_of_its_line() {
    for (status, diagnostic, class) in
        [((5, 1, 1), Some("550 5.1.1 no such user"), "bad-address"), ((5, 2, 2), None, "mailbox-full")]
    {
        let report = RecipientReport {
            recipient: "bob@example.org".to_owned(),
            original: None,
            action: ReportedAction::Failed,
            status: Some(status),
            diagnostic: diagnostic.map(str::to_owned),
            remote_mta: None,
        };
        assert_eq!(Classifier::default().classify(&report.line()).name(), class);
    }
}
