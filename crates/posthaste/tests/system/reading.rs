//! The commands that read messages: `view`, `extract` and others, also with mistaken arguments.

use std::fs;

use crate::search::Place;

#[test]
fn what_looks_like_a_path_is_never_a_query() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    // Each of these words is in a message.
    for (line, said) in [
        (["view", "rye/bread"], "rye/bread: No such file. To search for the text, write '\"rye/bread\"'"),
        (["view", "./rye"], "./rye: No such file"),
        (["view", ".rye"], ".rye: No such file"),
        (["view", "rye.eml"], "rye.eml: No such file"),
        (["view", "mail/cur"], "mail/cur is a directory, not a message"),
        (["extract", "rye.eml"], "rye.eml: No such file"),
    ] {
        let refused = place.run(&line);
        assert_eq!(refused.status.code(), Some(2), "{line:?}");
        assert!(refused.stdout.is_empty() && String::from_utf8_lossy(&refused.stderr).contains(said), "{refused:?}");
    }
    let beside = place.run(&["view", "rye", "bread.eml"]);
    assert!(String::from_utf8_lossy(&beside.stderr).contains("bread.eml: No such file"), "{beside:?}");
    assert!(place.says(0, &["view", "maildir:/.Sent", "rye"]).contains("Which oven?"));
    assert!(place.says(0, &["view", "/^two.*/"]).contains("Two days"));
    for line in
        [["view", "wheat"], ["find", "wheat"], ["threads", "wheat"], ["extract", "wheat"], ["addresses", "wheat"]]
    {
        let nothing = place.run(&line);
        assert_eq!((nothing.status.code(), &*nothing.stderr), (Some(1), &b"posthaste: no matches\n"[..]), "{line:?}");
    }
    let no_thread = place.run(&["find", "rye", "thread:abc"]);
    assert_eq!(no_thread.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&no_thread.stderr).ends_with("\n  rye thread:abc\n             ^^^\n"),
        "{no_thread:?}"
    );
    let thread = place.says(0, &["find", "--output", "threads", "rye"]);
    assert_eq!(place.says(0, &["find", "--count", thread.trim()]), "2\n");
}

#[test]
fn messages_are_shown_in_either_order_and_as_json() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    let order = |line: &[&str]| {
        let text = place.says(0, line);
        text.lines()
            .filter_map(|line| line.strip_prefix("From: "))
            .map(|from| from[..3].to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(order(&["view", "rye"]), "Bob");
    assert_eq!(order(&["view", "rye", "-n", "9"]), "Bob Ann");
    assert_eq!(order(&["view", "rye", "-n", "9", "--reverse"]), "Ann Bob");
    assert_eq!(order(&["view", "--entire-thread", "oven"]), "Ann Bob");
    assert_eq!(order(&["view", "-t", "-z", "oven"]), "Bob Ann");
    let json: serde_json::Value = serde_json::from_str(&place.says(0, &["view", "--json", "oven"])).unwrap();
    assert_eq!(json[0]["from"][0]["address"], "bob@example.net");
    assert_eq!(json[0]["parts"][1]["name"], "../oven list.txt");
    assert!(json[0]["text"].as_str().unwrap().starts_with("Which oven?"));
    let of_file: serde_json::Value =
        serde_json::from_str(&place.says(0, &["view", "--json", "mail/.Sent/new/2.b.host"])).unwrap();
    assert_eq!(of_file[0]["references"][0], "1@example.org");
}

#[test]
fn attachments_of_one_name_are_all_saved() {
    let place = Place::new();
    let part = |name: &str, text: &str| {
        format!("--b\nContent-Type: application/x-y\nContent-Disposition: attachment; filename=\"{name}\"\n\n{text}\n")
    };
    let parts = [
        ("list.tar.gz", "one"),
        ("list.tar.gz", "two"),
        ("list.tar (2).gz", "three"),
        ("list", "four"),
        ("list", "five"),
    ];
    let parts: String = parts.into_iter().map(|(name, text)| part(name, text)).collect();
    fs::write(place.path().join("two.eml"), format!("Content-Type: multipart/mixed; boundary=b\n\n{parts}--b--\n"))
        .unwrap();
    let saved = place.says(0, &["extract", "-a", "--target-dir", "mail", "two.eml"]);
    let expected = ["list.tar.gz", "list.tar (2).gz", "list.tar (2) (2).gz", "list", "list (2)"];
    assert_eq!(saved.lines().collect::<Vec<_>>(), expected.map(|name| format!("mail/{name}")));
    for (name, text) in expected.into_iter().zip(["one", "two", "three", "four", "five"]) {
        assert_eq!(fs::read_to_string(place.path().join("mail").join(name)).unwrap().trim(), text);
    }
    // Files that were there before are another thing.
    let nowhere = place.run(&["extract", "-a", "--target-dir", "nowhere", "two.eml"]);
    assert_eq!(nowhere.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&nowhere.stderr), "posthaste: there is no directory nowhere; create it first\n");
    let refused = place.run(&["extract", "-a", "--target-dir", "mail", "two.eml"]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&refused.stderr).matches("use --overwrite to replace it").count(), 5);
    assert_eq!(place.says(0, &["extract", "-a", "--overwrite", "--target-dir", "mail", "two.eml"]).lines().count(), 5);
}

#[test]
fn what_is_saved_or_piped_are_the_octets_that_were_sent() {
    let place = Place::new();
    let files: [(&str, &str, &str, &[u8]); 7] = [
        (
            "scan.png",
            "text/plain; charset=us-ascii",
            "iVBORw0KGgoAAAANSUhEUv/+gIE=",
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\xff\xfe\x80\x81",
        ),
        (
            "prices.csv",
            "text/csv; charset=windows-1252",
            "R3L232U7UHJlaXMNClhMOzkggA0K",
            b"Gr\xf6\xdfe;Preis\r\nXL;9 \x80\r\n",
        ),
        ("letter.rtf", "text/rtf", "e1xydGYxXGFuc2kg6YB9DQo=", b"{\\rtf1\\ansi \xe9\x80}\r\n"),
        ("bird.txt", "text/plain; charset=utf-16", "//5NAPYAdwBlAA0ACgA=", b"\xff\xfeM\0\xf6\0w\0e\0\r\0\n\0"),
        ("page.html", "text/html; charset=utf-8", "77u/PHA+w7wNCg==", b"\xef\xbb\xbf<p>\xc3\xbc\r\n"),
        ("fix.patch", "text/x-patch; charset=iso-8859-1", "LWHpCitiDQo=", b"-a\xe9\n+b\r\n"),
        ("day.ics", "text/calendar; charset=koi8-r", "QkVHSU46WA0K0MXU0g0K", b"BEGIN:X\r\n\xd0\xc5\xd4\xd2\r\n"),
    ];
    let part = |(name, media_type, base64, _): &(&str, &str, &str, &[u8])| {
        format!(
            "--b\nContent-Type: {media_type}; name=\"{name}\"\nContent-Disposition: attachment; filename=\"{name}\"\n\
             Content-Transfer-Encoding: base64\n\n{base64}\n"
        )
    };
    let parts: String = files.iter().map(part).collect();
    let mail = format!(
        "Subject: files\nMessage-ID: <files@example.org>\nDate: Mon, 03 Mar 2025 10:00:00 +0100\n\
         Content-Type: multipart/mixed; boundary=b\n\n--b\n\nsee the files\n{parts}--b--\n"
    );
    fs::write(place.path().join("mail/cur/9.files:2,S"), mail).unwrap();
    place.says(0, &["index", "--quiet", "mail"]);
    for (option, dir) in [("-a", "attachments"), ("--save-all", "all")] {
        fs::create_dir(place.path().join(dir)).unwrap();
        place.says(0, &["extract", option, "--target-dir", dir, "msgid:files@example.org"]);
        for (name, .., octets) in &files {
            assert_eq!(fs::read(place.path().join(dir).join(name)).unwrap(), *octets, "{option} {name}");
        }
    }
    for (number, (name, .., octets)) in (3..).zip(&files) {
        for format in [&["--format=raw"][..], &[]] {
            let number = format!("--part={number}");
            let line = [&["show", &number], format, &["id:files@example.org"]].concat();
            assert_eq!(place.run(&line).stdout, *octets, "{name}");
        }
    }
    // Text is for readers.
    assert_eq!(place.says(0, &["show", "--part=4", "--format=text", "id:files@example.org"]), "Größe;Preis\nXL;9 €\n");
    assert!(place.says(0, &["view", "msgid:files@example.org"]).contains("Größe;Preis"));
    assert!(place.says(0, &["find", "петр"]).contains("files"));
    assert_eq!(place.run(&["view", "-o", "html", "msgid:files@example.org"]).stdout, "<p>ü\r\n".as_bytes());
}

#[test]
fn mail_that_is_not_as_it_should_be_is_found_and_shown() {
    let place = Place::new();
    let types = [
        "html",
        "plain",
        "<html>",
        "text_plain",
        "charset=utf-8",
        "/plain",
        "txt",
        "text",
        "unknown;",
        "\"text/plain\"",
    ];
    let part =
        |(number, value): (usize, &&str)| format!("--b\nContent-Type: {value}\n\n<p>bird{number}word here</p>\n");
    let parts: String = types.iter().enumerate().map(part).collect();
    let body = |kind: &str, text: &str| format!("Content-Type: {kind}\n\n{text}\n");
    let html = "<p>caf&eacute au lait, M&uumlller, R&ampD, &#233t&#233, &lt;x&gt, a&nbspb <img alt='cr&egrave;me br&ucirc;l&eacute;e'></p>";
    for (name, mail) in [
        ("types", format!("Subject: types\n{}", body("multipart/mixed; boundary=b", &format!("{parts}--b--")))),
        ("alone", format!("Subject: alone\n{}", body("plain", "kestrelword in the only body"))),
        ("entities", format!("Subject: entities\n{}", body("text/html; charset=utf-8", html))),
        ("mark", "Subject: =?utf-8?Q?Noch_Fragen?=20Wir_helfen_gern_=C3=BCberall?=\n\nx\n".to_owned()),
        ("cut", "Subject: =?UTF-8?Q?INFO:_p=?=\n =?UTF-8?Q?C5=99idal...?=\n\nx\n".to_owned()),
    ] {
        fs::write(place.path().join("mail/cur").join(format!("9.{name}:2,S")), format!("From: a@a.example\n{mail}"))
            .unwrap();
    }
    place.says(0, &["index", "--quiet", "mail"]);
    let shown = |name: &str| place.says(0, &["view", &format!("mail/cur/9.{name}:2,S")]);
    for (number, value) in types.iter().enumerate() {
        let word = format!("bird{number}word");
        assert_eq!(place.says(0, &["find", "--count", &word]), "1\n", "{}", value);
        assert!(shown("types").contains(&word), "{}", value);
    }
    for word in ["kestrelword", "café", "müller", "été", "crème"] {
        assert_eq!(place.says(0, &["find", "--count", word]), "1\n", "{word}");
    }
    assert!(shown("alone").contains("kestrelword in the only body"));
    assert!(
        shown("entities").contains("café au lait, Müller, R&D, été, <x>, a b crème brûlée"),
        "{}",
        shown("entities")
    );
    assert!(shown("mark").contains("Subject: Noch Fragen? Wir helfen gern überall\n"), "{}", shown("mark"));
    assert!(shown("cut").contains("Subject: INFO: přidal...\n"), "{}", shown("cut"));
}

#[test]
fn text_is_read_as_its_writer_saw_it() {
    let place = Place::new();
    let plain = |label: &str, text: &[u8]| [format!("Content-Type: text/plain{label}\n\n").as_bytes(), text].concat();
    let html = |label: &str, text: &[u8]| [format!("Content-Type: text/html{label}\n\n").as_bytes(), text].concat();
    let meta = |charset: &str| {
        format!("<html><head><meta http-equiv=\"Content-Type\" content=\"text/html; charset={charset}\"></head><body>")
    };
    let latin1 = meta("iso-8859-1") + "<p>";
    let utf8 = meta("UTF-8") + "<p>";
    let cases: [(Vec<u8>, &str); 11] = [
        (plain("", b"a closing balance of \xa37,500,000.00 (seven million)"), "of £7,500,000.00 (seven"),
        (plain("; charset=utf-8", b"Please forward it to him/her.\n\xa92009 Example Inc."), "©2009 Example Inc."),
        (plain("; charset=us-ascii", b"add \xbd cup of sugar at 200\xb0"), "add ½ cup of sugar at 200°"),
        (plain("; charset=x-unknown", b"Windows\xae of Example\xae, 20\xa3"), "Windows® of Example®, 20£"),
        (html("; charset=UTF-8", &[latin1.as_bytes(), b"\xa92009 Example, Inc."].concat()), "©2009 Example, Inc."),
        (html("", &[utf8.as_bytes(), b"Copyright \xa9 2009, caf\xe9"].concat()), "Copyright © 2009, café"),
        (html("; charset=us-ascii", &[meta("iso-8859-2").as_bytes(), b"\xa9koda"].concat()), "Škoda"),
        (html("; charset=utf-8", &[meta("koi8-r").as_bytes(), b"\xd0\xc5\xd4\xd2"].concat()), "петр"),
        (html("", b"<table><tbody><tr><td>price</td></tr></ TBODY></table>"), "\nprice\n"),
        (html("", b"one<!-->two</ p>three</>four<?xml x?>five"), "onetwothreefourfive"),
        (
            plain("", b"Cze\xb6\xe6, prosz\xea o przes\xb3anie ksi\xb1\xbfki. Dzi\xeakuj\xea"),
            "Cześć, proszę o przesłanie książki. Dziękuję",
        ),
    ];
    for (number, (mail, expected)) in cases.into_iter().enumerate() {
        let head = format!("From: a@a.example\nSubject: {number}\nMIME-Version: 1.0\n");
        fs::write(place.path().join("m.eml"), [head.as_bytes(), &mail].concat()).unwrap();
        let shown = place.says(0, &["view", "m.eml"]) + "\n";
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
}

#[test]
fn every_command_shows_a_name_alike_and_finds_its_comment() {
    let place = Place::new();
    let names = [
        ("Masao Tester (Googol) <m@x.example>", "Masao Tester (Googol)"),
        ("Ann Lee <ann@x.example> (Googol)", "Ann Lee (Googol)"),
        ("(Dr.) \"Lee, A\" (=?utf-8?q?Googol?=) <a@x.example>", "Lee, A (Dr.) (Googol)"),
        ("b@x.example (Googol Inc) (Support)", "Googol Inc (Support)"),
        ("\"Bob Googol  <bob@x.example>", "Bob Googol"),
        ("\"Bob \\\"the\\\" Googol\" <bob2@x.example>", "Bob \"the\" Googol"),
    ];
    for (number, (field, _)) in names.iter().enumerate() {
        let mail =
            format!("From: {field}\nTo: me@here.example\nSubject: number {number}\nMessage-ID: <{number}@n>\n\nx\n");
        fs::write(place.path().join(format!("mail/cur/9.{number}:2,S")), mail).unwrap();
    }
    place.says(0, &["index", "--quiet", "mail"]);
    assert_eq!(place.says(0, &["find", "--count", "from:googol"]), format!("{}\n", names.len()));
    for (number, (field, name)) in names.iter().enumerate() {
        let id = format!("id:{number}@n");
        let json = |line: &[&str]| -> serde_json::Value { serde_json::from_str(&place.says(0, line)).unwrap() };
        assert_eq!(place.says(0, &["find", "-f", "f", &id]), format!("{name}\n"), "{field}");
        assert_eq!(json(&["find", "-o", "json", &id])[0]["from"][0]["name"], *name, "{field}");
        assert_eq!(json(&["view", "--json", &id])[0]["from"][0]["name"], *name, "{field}");
        assert_eq!(json(&["addresses", "--json", "--output", "sender", &id])[0]["name"], *name, "{field}");
        let shown = json(&["show", "--format=json", &id])[0][0][0]["headers"]["From"].as_str().unwrap().to_owned();
        let viewed = place.says(0, &["view", &id]);
        assert!(viewed.contains(&format!("From: {shown}\n")), "{shown}: {viewed}");
        let reply = place.says(0, &["reply", "--from=me@here.example", &id]);
        assert!(reply.contains(&format!("\nTo: {shown}\n")), "{shown}: {reply}");
    }
}

/// `id[answers]` of what `show` prints.
fn tree(node: &serde_json::Value) -> String {
    let below: Vec<String> = node[1].as_array().unwrap().iter().map(tree).collect();
    format!("{}[{}]", node[0]["id"].as_str().unwrap(), below.join(" "))
}

#[test]
fn threads_do_not_depend_on_the_order_of_arrival() {
    let mail = |from: &str, id: &str, rest: &str| {
        format!("From: {from}@example.org\nMessage-ID: <{id}>\n{rest}\nX-Copy: {from}\n\n{from}\n")
    };
    let at = |minute: u32| format!("Date: Mon, 2 Nov 2020 10:{minute:02}:00 +0000");
    let copies = [
        mail("ann", "a", &format!("Subject: bread\n{}", at(0))),
        mail("bob", "b", &format!("Subject: Re: bread\nReferences: <a>\n{}", at(1))),
        mail("list", "b", &format!("Subject: Re: bread\nReferences: <a>\n{}", at(1))),
        mail("cid", "c", &format!("Subject: Re: bread\nReferences: <a> <b>\n{}", at(2))),
    ];
    let equal_dates = [
        mail("ann", "a", &format!("Subject: bread\n{}", at(0))),
        mail("bob", "b", &format!("Subject: bread\n{}", at(0))),
        mail("cid", "c", &format!("Subject: Re: bread\n{}", at(1))),
        mail("dan", "d", &format!("Subject: Re: bread\n{}", at(1))),
    ];
    for mails in [copies, equal_dates] {
        let mut shown = std::collections::BTreeSet::new();
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
            let place = Place::new();
            for (position, &which) in order.iter().enumerate() {
                fs::write(place.path().join(format!("mail/cur/9.{position}:2,S")), &mails[which]).unwrap();
                place.says(0, &["index", "--quiet", "mail"]);
            }
            let json: serde_json::Value =
                serde_json::from_str(&place.says(0, &["show", "--format=json", "subject:bread and not rye"])).unwrap();
            let threads: Vec<String> =
                json.as_array().unwrap().iter().flat_map(|thread| thread.as_array().unwrap()).map(tree).collect();
            let drawn = place.says(0, &["find", "--threads", "-f", "t,i", "subject:bread and not rye"]);
            shown.insert((threads, if mails[1].contains("bread\nRef") { String::new() } else { drawn }));
        }
        assert_eq!(shown.len(), 1, "{shown:?}");
        let (threads, _) = shown.first().unwrap();
        if mails[2].contains("<b>") {
            assert_eq!(threads[..], ["a[b[c[]]]"]);
        }
    }
}

#[test]
fn show_gives_the_tags_of_every_file_of_a_message() {
    let place = Place::new();
    for (name, copy) in [("9.a:2,FS", 1), ("9.b:2,RS", 2), ("9.c:2,", 3)] {
        let mail = format!("From: ann@example.org\nSubject: loaf\nMessage-ID: <loaf@x>\nX-Copy: {copy}\n\nx\n");
        fs::write(place.path().join("mail/cur").join(name), mail).unwrap();
    }
    place.says(0, &["index", "--quiet", "mail"]);
    place.says(0, &["tag", "+crust", "--", "id:loaf@x"]);
    let json: serde_json::Value =
        serde_json::from_str(&place.says(0, &["show", "--format=json", "id:loaf@x"])).unwrap();
    assert_eq!(json[0][0][0]["tags"], serde_json::json!(["crust", "flagged", "replied", "unread"]));
    assert_eq!(json[0][0][0]["filename"].as_array().unwrap().len(), 3);
    assert!(place.says(0, &["show", "id:loaf@x"]).contains("(crust flagged replied unread)"));
}

#[test]
fn a_reply_goes_to_one_address_where_a_name_has_a_comma() {
    let place = Place::new();
    for (from, to) in [
        ("Doe, Joe <joe@a.example>", "\"Doe, Joe\" <joe@a.example>"),
        ("\"Doe, Joe <joe@a.example>", "\"Doe, Joe\" <joe@a.example>"),
        ("Doe, Joe, Dr. <joe@a.example>", "\"Doe, Joe, Dr.\" <joe@a.example>"),
        ("Example GmbH, Joe <joe@a.example>", "\"Example GmbH, Joe\" <joe@a.example>"),
        ("Doe, Joe <joe@a.example>, Ann <ann@a.example>", "\"Doe, Joe\" <joe@a.example>, Ann <ann@a.example>"),
    ] {
        for header in [format!("From: {from}"), format!("From: x@x.example\nReply-To: {from}")] {
            fs::write(place.path().join("m.eml"), format!("{header}\nTo: me@here.example\nSubject: x\n\nx\n")).unwrap();
            let reply = place.says(0, &["reply", "--from=me@here.example", "m.eml"]);
            assert!(reply.contains(&format!("\nTo: {to}\n")), "{header}: {reply}");
        }
    }
}

#[test]
fn mail_without_a_date_stands_last() {
    let place = Place::new();
    let add = |name: &str, text: &str| fs::write(place.path().join("mail/cur").join(name), text).unwrap();
    // Their files are of today.
    add("3.c.host:2,S", "Subject: none\nMessage-ID: <3@example.org>\n\nrye\n");
    add("4.d.host:2,S", "Subject: broken\nDate: soon\nMessage-ID: <4@example.org>\n\nrye\n");
    let received = "Received: from a by b with SMTP id 1; Mon, 03 Mar 2025 10:40:00 +0000\n";
    add("5.e.host:2,S", &format!("{received}Subject: received\nMessage-ID: <5@example.org>\n\nrye\n"));
    place.says(0, &["index", "--quiet", "mail"]);
    let subjects = |line: &[&str]| place.says(0, &[&["find", "-f", "s", "rye"], line].concat()).replace('\n', ", ");
    assert_eq!(subjects(&["-n", "3"]), "Re: Rye bread, Rye bread, received, ");
    assert_eq!(subjects(&["--reverse", "-n", "3"]), "received, Rye bread, Re: Rye bread, ");
    assert!(["none, broken, ", "broken, none, "].contains(&&*subjects(&["--offset", "3"])));
    assert!(["none, broken, ", "broken, none, "].contains(&&*subjects(&["--reverse", "--offset", "3"])));
    let threads = place.says(0, &["threads", "rye"]);
    assert!(threads.lines().next().unwrap().ends_with("Ann, Bob; Rye bread"), "{threads}");
    assert!(place.says(0, &["view", "-o", "raw", "rye"]).contains("Which oven?"), "not what has no date");
}

#[test]
fn where_one_file_is_gone_the_others_are_shown() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    // A second file of the answer; the message is shown from whichever is there.
    fs::copy(place.path().join("mail/.Sent/new/2.b.host"), place.path().join("mail/new/3.b.host")).unwrap();
    place.says(0, &["index", "--quiet"]);
    fs::remove_file(place.path().join("mail/.Sent/new/2.b.host")).unwrap();
    assert!(place.says(0, &["show", "--entire-thread", "oven"]).contains("Which oven?"));
    fs::remove_file(place.path().join("mail/cur/1.a.host:2,S")).unwrap();
    let shown = |line: &[&str]| {
        let shown = place.run(line);
        let told = String::from_utf8_lossy(&shown.stderr).into_owned();
        assert!(told.contains("cur/1.a.host:2,S: is not there any more; `posthaste index`"), "{line:?}: {told}");
        assert_eq!(shown.status.code(), Some(1), "{line:?}");
        String::from_utf8(shown.stdout).unwrap()
    };
    assert!(shown(&["show", "--entire-thread", "oven"]).contains("Which oven?"));
    let threads: serde_json::Value = serde_json::from_str(&shown(&["show", "--format=json", "oven"])).unwrap();
    assert_eq!(threads[0][0][0], serde_json::Value::Null, "{threads}");
    assert_eq!(threads[0][0][1][0][0]["id"], "2@example.net", "{threads}");
    assert!(shown(&["show", "--format=sexp", "oven"]).contains("2@example.net"));
    assert!(shown(&["show", "--format=mbox", "--entire-thread", "oven"]).contains("Which oven?"));
    assert!(shown(&["find", "--format=mbox", "rye"]).contains("Which oven?"));
    assert!(shown(&["view", "-t", "from:ann", "or", "maildir:/"]).contains("Which oven?"));
    assert!(shown(&["view", "--json", "-n", "9", "maildir:/"]).contains("Which oven?"));
    assert_eq!(shown(&["show", "--format=raw", "from:ann"]), "");
}

#[test]
fn a_message_without_an_id_has_one_of_its_content() {
    let place = Place::new();
    place.add("5.e.host:2,S", "From: Eve <eve@example.org>\nSubject: no id\n\nAlone.\n");
    place.says(0, &["index", "--quiet", "mail"]);
    let id = place.says(0, &["search", "--output=messages", "from:eve"]);
    assert!(id.starts_with("id:posthaste-") && id.trim().len() == 45, "{id}");
    assert_eq!(place.says(0, &["find", "--output=messages", "from:eve"]), id);
    let threads: serde_json::Value =
        serde_json::from_str(&place.says(0, &["search", "--format=json", "from:eve"])).unwrap();
    assert_eq!(threads[0]["query"][0], id.trim());
    let shown: serde_json::Value = serde_json::from_str(&place.says(0, &["show", "--format=json", id.trim()])).unwrap();
    assert_eq!(shown[0][0][0]["id"], id.trim()["id:".len()..]);
    place.says(0, &["tag", "+alone", "--", id.trim()]);
    assert_eq!(place.says(0, &["find", "-f", "s", "tag:alone"]), "no id\n");
    assert!(place.says(0, &["tag", "--dump"]).ends_with(&format!("+alone -- {id}")));
    place.says(1, &["find", "id:posthaste-0123"]);
    // One that has a Message-ID is found by that.
    assert_eq!(place.says(0, &["find", "--count", "id:*"]), "2\n");
}

#[test]
fn a_query_may_begin_with_what_must_not_be_there() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    assert_eq!(place.says(0, &["find", "-from:ann", "-f", "f"]), "Bob\n");
    assert_eq!(place.says(0, &["count", "-subject:wheat", "-f:bob"]), "1\n");
    assert!(place.says(0, &["find", "--scan", "mail", "-header:X-Foo:*", "-n", "1"]).contains("Bob"));
    let refused = place.run(&["find", "-header:X"]);
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("a header's name and a value belong here"),
        "{refused:?}"
    );
}
