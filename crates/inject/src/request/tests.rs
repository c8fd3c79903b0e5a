use posthaste_message::mime::Header;

use super::*;

fn parse(json: &str) -> Result<InjectRequest, String> {
    InjectRequest::parse(json.as_bytes()).map_err(|error| error.to_string())
}

fn with(recipients: &str, content: &str, more: &str) -> Result<InjectRequest, String> {
    parse(&format!(r#"{{"envelope_sender":"shop@example.org","recipients":{recipients},"content":{content}{more}}}"#))
}

/// All messages, as text.
fn made(recipients: &str, content: &str, more: &str) -> Result<Vec<String>, String> {
    let request = with(recipients, content, more)?;
    let text =
        |index| request.message(index, &|| true).map(|message| String::from_utf8(message.content.into()).unwrap());
    (0..request.messages()).map(text).collect::<Result<_, _>>().map_err(|error: InvalidRequest| error.to_string())
}

const ANN: &str = r#"[{"email":"ann@example.org"}]"#;
const TWO: &str =
    r#"[{"email":"ann@example.org","name":"Ann Lee","substitutions":{"n":1}},{"email":"bob@example.org"}]"#;

#[test]
fn a_raw_message_is_taken() {
    let request = with(ANN, r#""Subject: x\n\nhello\n""#, "").unwrap();
    assert_eq!((request.sender.to_string().as_str(), request.messages()), ("<shop@example.org>", 1));
    let InjectMessage { content, wire_bytes } = request.message(0, &|| true).unwrap();
    assert_eq!((request.indexes_of(0), request.recipient(0).to_string().as_str()), (0..1, "<ann@example.org>"));
    assert_eq!((&*content, wire_bytes), (&b"Subject: x\n\nhello\n"[..], 21));
    assert_eq!(with(ANN, r#""a:\r\n\r\nb\r\n""#, "").unwrap().message(0, &|| true).unwrap().wire_bytes, 9);
    let twice = r#"[{"email":"ann@example.org"},{"email":"ann@example.org"}]"#;
    assert_eq!(with(twice, "\"\"", "").unwrap().indexes_of(0), 0..1);
    // They change nothing.
    assert!(with(ANN, "\"\"", r#","deferred_spool":true,"deferred_generation":true"#).is_ok());
    assert!(with(ANN, "\"\"", r#","deferred_spool":false,"deferred_generation":false"#).is_ok());
    assert!(parse(&format!(r#"{{"envelope_sender":"","recipients":{ANN},"content":""}}"#)).is_ok());
}

#[test]
fn a_client_is_named_only_if_it_asks_for_that() {
    let names = |more: &str| with(ANN, "\"\"", more).unwrap().names_client();
    assert!(!names("") && !names(r#","trace_headers":{}"#) && !names(r#","trace_headers":null"#));
    assert!(!names(r#","trace_headers":{"received_header":false,"supplemental_header":false,"header_name":"X-Ref"}"#));
    assert!(names(r#","trace_headers":{"received_header":true,"include_meta_names":["a"]}"#));
}

#[test]
fn one_text_is_one_message_for_a_thousand_recipients() {
    let many: Vec<String> = (0..2500).map(|n| format!(r#"{{"email":"u{n}@example.org"}}"#)).collect();
    let request = with(&format!("[{}]", many.join(",")), "\"X: y\\n\\nx\"", "").unwrap();
    let counts: Vec<_> = (0..request.messages()).map(|at| request.indexes_of(at).len()).collect();
    assert_eq!(counts, [1000, 1000, 500]);
}

#[test]
fn a_raw_message_is_a_template_too() {
    let text = r#""Subject: {{ n|default('none') }}\r\n\r\nDear {{ name|default(email) }}, {{ shop }}""#;
    let all = made(TWO, text, r#","substitutions":{"shop":"a\r\nb"}"#).unwrap();
    assert_eq!(all, ["Subject: 1\n\nDear Ann Lee, a\nb", "Subject: none\n\nDear bob@example.org, a\nb"]);
    assert_eq!(made(TWO, "\"X: {{ n }}\\n\\n\"", r#","template_dialect":"Static""#).unwrap(), ["X: {{ n }}\n\n"]);
    let why = made(TWO, "\"X: {{ n }}\\n\\n\"", r#","substitutions":{"n":"a\nBcc: b"}"#).unwrap_err();
    assert!(why.contains("line break") && why.contains("recipients[1]"), "{why}");
}

#[test]
fn keys_that_are_not_taken_are_named() {
    let check = |answer: Result<InjectRequest, String>, expected: &str| {
        let why = answer.unwrap_err();
        assert!(why.contains(expected), "{why}");
    };
    check(with(ANN, "\"\"", r#","meta":{}"#), "there is no key `meta`; there are envelope_sender, ");
    check(
        with(ANN, "\"\"", r#","trace_headers":{"supplemental_header":true}"#),
        "trace_headers.supplemental_header: true",
    );
    check(
        with(ANN, "\"\"", r#","trace_headers":{"x":true}"#),
        "trace_headers.x: there is no key `x`; there are received_header",
    );
    check(
        with(ANN, "\"\"", r#","template_dialect":"Handlebars""#),
        "there is no `Handlebars`; there are Jinja, Static",
    );
    check(
        with(r#"[{"email":"ann@example.org","phone":"1"}]"#, "\"\"", ""),
        "`phone`; there are email, name, substitutions",
    );
    check(with(ANN, r#"{"text_body":"x","amp_html_body":"x"}"#, ""), "`amp_html_body`");
    check(parse(&"[".repeat(100_000)), "");
    check(
        with(ANN, "\"\"", &format!(r#","substitutions":{{"x":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000))),
        "",
    );
    check(
        with(ANN, "\"\"", &format!(r#","substitutions":{{"x":{}{}}}"#, "[".repeat(40), "]".repeat(40))),
        "deeper than 32",
    );
    let long = "x".repeat(300_000);
    check(with(ANN, "\"\"", &format!(r#","substitutions":{{"x":"{long}"}}"#)), "substitutions: more than");
}

#[test]
fn mistakes_in_json_are_told_in_its_own_words() {
    let check = |body: &str, expected: &str| {
        let why = parse(body).unwrap_err();
        assert_eq!(why, expected, "{body}");
    };
    let with = |recipients: &str, content: &str, more: &str| {
        format!(r#"{{"envelope_sender":"a@b.example","recipients":{recipients},"content":{content}{more}}}"#)
    };
    check("{}", "`envelope_sender` is missing");
    check("[]", "expected an object, found an array");
    check("5", "expected an object, found a number");
    check(r#"["a@b.example",[],"x"]"#, "expected an object, found an array");
    check(r#"{"envelope_sender":5}"#, "envelope_sender: expected a string, found a number");
    check(r#"{"envelope_sender":{}}"#, "envelope_sender: expected a string, found an object");
    check(&with("{}", "\"\"", ""), "recipients: expected an array, found an object");
    check(
        &with("[\n{\"email\":\n\"a\",\n\"name\":1.5}]", "\"\"", ""),
        "recipients[0].name: expected a string, found a number",
    );
    check(&with(r#"[{"email":"a@b.example"},{}]"#, "\"\"", ""), "recipients[1]: `email` is missing");
    check(&with(r#"[{"email":"a"},"b"]"#, "\"\"", ""), "recipients[1]: expected an object, found a string");
    check(&with(r#"[["b",null,{}]]"#, "\"\"", ""), "recipients[0]: expected an object, found an array");
    check(
        &with(r#"[{"email":"a","substitutions":[]}]"#, "\"\"", ""),
        "recipients[0].substitutions: expected an object, found an array",
    );
    check(
        &with("[]", "true", ""),
        "content: expected a message as a text, or an object with its parts, found a boolean",
    );
    check(&with("[]", r#"{"from":"x\"]"}"#, ""), "content.from: expected an object, found a string");
    check(
        &with("[]", r#"{"attachments":[{"data":"","content_type":null}]}"#, ""),
        "content.attachments[0].content_type: expected a string, found null",
    );
    check(
        &with("[]", r#"{"headers":{"X, {":"y","Z":false}}"#, ""),
        "content.headers.Z: expected a string, found a boolean",
    );
    check(&with("[]", "\"\"", r#","content":"""#), "content: `content` is there twice");
    check(&with("[]", "\"\"", r#","deferred_spool":"yes""#), "deferred_spool: expected a boolean, found a string");
    let long = parse(&with("[]", "\"\"", &format!(r#","{0}":"{0}""#, "x".repeat(100_000)))).unwrap_err();
    assert!(long.len() < 500 && long.contains("there is no key `xxx"), "{long:.600}");
    let long = parse(&with(&format!("\"{}\"", "x".repeat(100_000)), "\"\"", "")).unwrap_err();
    assert_eq!(long, "recipients: expected an array, found a string");
    assert!(parse("").unwrap_err().starts_with("the body is not JSON: EOF"));
    assert!(
        parse(r#"{"envelope_sender":}"#).unwrap_err().starts_with("the body is not JSON: expected value at line 1")
    );
    assert!(parse("{\"envelope_sender\":\"\u{1}\"}").unwrap_err().contains("not JSON"));
}

#[test]
fn recipients_share_what_the_request_gives_all() {
    let request = with(
        TWO,
        r#""X: {{ n }} {{ shop }} {{ email }}\n\n""#,
        r#","substitutions":{"n":0,"shop":"s","email":"other","name":"N"}"#,
    );
    let request = request.unwrap();
    let texts: Vec<_> = (0..2).map(|at| request.message(at, &|| true).unwrap().content).collect();
    assert_eq!(texts, ["X: 1 s ann@example.org\n\n", "X: 0 s bob@example.org\n\n"]);
    let of = |recipient: usize| Variables::of(&request.recipients[recipient], &request.substitutions);
    // The text itself is in memory once.
    let shop = |of: Variable| of.get_attr("shop").unwrap().as_str().unwrap().as_ptr();
    let long = "x".repeat(1000);
    let shared = with(TWO, "\"{{ shop }}\"", &format!(r#","substitutions":{{"shop":"{long}"}}"#)).unwrap();
    let of_shared = |recipient: usize| Variables::of(&shared.recipients[recipient], &shared.substitutions);
    assert_eq!(shop(of_shared(0)), shop(of_shared(1)));
    assert!(of(0).get_attr("missing").unwrap().is_undefined());
}

#[test]
fn comparing_large_lists_ends_soon() {
    let list: Vec<String> = (0..1800).map(|n| format!("\"{n}\"")).collect();
    let variables = format!(r#","substitutions":{{"x":[{0}],"y":[{0}],"l":[{1}0]}}"#, list.join(","), "0,".repeat(99));
    let begun = std::time::Instant::now();
    for inner in ["{% if x == y %}{% endif %}", "{% if 'z' in x %}{% endif %}", "{% if x < y %}{% endif %}"] {
        let text = format!("{0}{0}{0}{inner}{1}{1}{1}", "{% for a in l %}", "{% endfor %}");
        let why = made(ANN, &format!("\"X: y\\n\\n{text}\""), &variables).unwrap_err();
        assert!(why.contains("out of fuel"), "{why}");
    }
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}

#[test]
fn templates_are_not_rendered_on_once_they_may_not() {
    let request = with(TWO, r#""X: {{ n }}\n\n{{ n }}""#, "").unwrap();
    assert!(request.has_templates());
    let asked = std::cell::Cell::new(0);
    let once = || asked.replace(asked.get() + 1) == 0;
    let why = request.message(0, &once).unwrap_err().to_string();
    assert_eq!((why.as_str(), asked.get()), ("the templates take too much time, for recipients[0]", 2));
    let fixed = with(TWO, "\"X: y\\n\\n\"", "").unwrap();
    assert!(!fixed.has_templates() && fixed.message(0, &|| false).is_ok());
}

#[test]
fn what_is_no_mail_is_refused() {
    let check = |recipients: &str, content: &str, expected: &str| {
        let why = made(recipients, content, "").unwrap_err();
        assert!(why.contains(expected), "{recipients} {content}: {why}");
    };
    check("[]", "\"\"", "recipients: 1 to 10000");
    check(&format!("[{}]", vec![r#"{"email":"a@b.example"}"#; 10_001].join(",")), "\"\"", "recipients: 1 to 10000");
    for email in
        ["", "ann", "postmaster", "a b@example.org", "a@b.example> SIZE=1", "a@b.example\\r\\nRCPT", "@b.example"]
    {
        check(&format!(r#"[{{"email":"{email}"}}]"#), "\"\"", "recipients[0].email: ");
    }
    let sender = parse(&format!(r#"{{"envelope_sender":"a@b> SIZE=3","recipients":{ANN},"content":""}}"#));
    assert!(sender.unwrap_err().contains("envelope_sender: "));
    let local = parse(&format!(r#"{{"envelope_sender":"a","recipients":{ANN},"content":""}}"#));
    assert_eq!(local.unwrap_err(), "envelope_sender: an address needs a domain");
    check(ANN, r#""a\u0000b""#, "NUL");
    check(ANN, r#""a\rb""#, "bare CR");
    check(ANN, r#""a\r\nb\n""#, "some lines end in CRLF and some in LF");
    check(ANN, r#""a\r""#, "bare CR");
    check(ANN, r#""X: {{ x ~ x }}\n\n""#, "no operators on text");
    check(ANN, r#""X: {{ x\n\n""#, "content: header: ");
    check(ANN, "{}", "text_body, html_body or attachments");
    check(ANN, r#"{"text_body":"x","headers":{"Received":"x"}}"#, "Received is set by the server");
    check(ANN, r#"{"text_body":"x","headers":{"bCC":"x"}}"#, "bCC is set by the server");
    check(ANN, r#"{"text_body":"x","headers":{"X Y":"x"}}"#, "`X Y` is not a name");
    check(ANN, r#"{"text_body":"x","headers":{"X":"x\nBcc: a@b.example"}}"#, "headers.X: it has a control character");
    check(ANN, r#"{"text_body":"x","subject":"x\r\ny"}"#, "control character");
    check(ANN, r#"{"text_body":"x","subject":"x","headers":{"subject":"x"}}"#, "Subject is given twice");
    check(ANN, r#"{"text_body":"x","headers":{"X-A":"x","x-a":"x"}}"#, "is given twice");
    check(ANN, r#"{"text_body":"x","headers":{"To":"nobody"}}"#, "headers.To: ");
    check(ANN, r#"{"text_body":"x","from":{"email":"a@b.example>\r\nX: y"}}"#, "content.from: ");
    check(ANN, r#"{"attachments":[{"data":"?","content_type":"a/b","base64":true}]}"#, "attachments[0].data");
    check(ANN, r#"{"attachments":[{"data":"","content_type":"a/b\r\nX: y"}]}"#, "attachments[0].content_type");
    check(ANN, r#"{"attachments":[{"data":"","content_type":"multipart/mixed"}]}"#, "attachments[0].content_type");
    check(
        ANN,
        r#"{"attachments":[{"data":"","content_type":"a/b","file_name":"a\r\nb"}]}"#,
        "attachments[0].file_name",
    );
    check(ANN, r#"{"attachments":[{"data":"","content_type":"a/b","content_id":"a>b"}]}"#, "attachments[0].content_id");
}

#[test]
fn a_header_line_that_is_no_field_is_refused_by_number() {
    let check = |content: &str, expected: Result<(), &str>| {
        let content = serde_json::to_string(content).unwrap();
        let made = made(ANN, &content, "").map(drop);
        assert_eq!(made, expected.map_err(|why| format!("content: {why}, for recipients[0]")), "{content}");
        // The same for a text that is not made for each.
        let fixed = with(ANN, &content, r#","template_dialect":"Static""#);
        assert_eq!(fixed.is_ok(), expected.is_ok(), "{content}");
    };
    for content in
        ["", "\n", "\r\nno field", "\nFrom ann\n\nx", "A: b", "A:\n b\n\t\n\nno field\n", "!~: b\n\nFrom ann\n"]
    {
        let json = serde_json::to_string(content).unwrap();
        assert!(made(ANN, &json, "").is_ok(), "{json}");
    }
    for (line, shown) in [
        ("From : x", "\"From : x\""),
        ("From\t: x", "\"From\\t: x\""),
        ("From ann Mon Jan  1 00:00:00 2026", "\"From ann Mon Jan  1 00:00:00 2026\""),
        (">From ann", "\">From ann\""),
        ("hello", "\"hello\""),
        (": x", "\": x\""),
        ("\u{dc}ber: x", "\"\u{dc}ber: x\""),
        (&"x".repeat(100), &format!("{:?}", "x".repeat(60))),
    ] {
        check(
            &format!("{line}\nSubject: {{{{ email }}}}\n\nx\n"),
            Err(&format!("line 1 is not a header field: {shown}")),
        );
        check(
            &format!("A: {{{{ email }}}}\r\n b\r\n{line}\r\n\r\n"),
            Err(&format!("line 3 is not a header field: {shown}")),
        );
    }
    check(" fold of nothing\nA: {{ email }}\n\n", Err("line 1 is not a header field: \" fold of nothing\""));
}

#[test]
fn a_message_is_built_of_its_parts() {
    let content = r#"{"text_body":"Hello {{ name|default('you') }}\n","html_body":"<p>{{ name }}</p><img src=\"cid:logo\">",
        "subject":"Grüße {{ n }}","from":{"email":"shop@example.org","name":"Shop, the"},
        "reply_to":{"email":"help@example.org"},"headers":{"X-A":"{{ email }}","Cc":"Jörg <j@example.org>, k@example.org"},
        "attachments":[{"data":"aGk=","base64":true,"content_type":"image/png","content_id":"logo"},
                       {"data":"a,b","content_type":"text/csv","file_name":"Überblick.csv"}]}"#;
    let all = made(TWO, content, "").unwrap();
    let message = &all[0];
    assert!(message.is_ascii() && !message.replace("\r\n", "").contains(['\r', '\n']), "{message}");
    let header = Header::new(message.as_bytes());
    let field = |name: &str| header.first(name).unwrap().text(None);
    assert_eq!(field("Subject"), "Grüße 1");
    assert_eq!(field("From"), "\"Shop, the\" <shop@example.org>");
    assert_eq!(field("To"), "Ann Lee <ann@example.org>");
    assert_eq!(field("Cc"), "Jörg <j@example.org>, k@example.org");
    assert_eq!((field("Reply-To"), field("X-A")), ("help@example.org".into(), "ann@example.org".into()));
    let order = [
        "multipart/mixed",
        "multipart/alternative",
        "text/plain",
        "Hello Ann Lee",
        "multipart/related",
        "text/html",
        "<p>Ann Lee</p>",
        "Content-ID: <logo>",
        "aGk=",
        "filename*=UTF-8''%C3%9Cberblick.csv",
        "YSxi",
    ];
    let mut rest = message.as_str();
    for part in order {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("{part} is not there or not in order: {message}")).1;
    }
    assert!(all[1].contains("To: bob@example.org\r\n") && all[1].contains("Hello you"), "{}", all[1]);
    let plain = made(ANN, r#"{"text_body":"x"}"#, "").unwrap().remove(0);
    assert!(
        plain.ends_with(
            "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\nx\r\n"
        ),
        "{plain}"
    );
    let evil = made(ANN, r#"{"html_body":"{{ x }}"}"#, r#","substitutions":{"x":"<script>"}"#).unwrap();
    assert!(evil[0].contains("&lt;script&gt;"), "{}", evil[0]);
}

#[test]
fn many_small_values_are_refused_before_they_take_memory() {
    let text = r#"{"text_body":"{{ n }}"}"#;
    for value in ["[]", "{}", r#"{"":0}"#, "0", r#""""#, "[[]]"] {
        let of = |count: usize| {
            let list = vec![value; count].join(",");
            made(ANN, text, &format!(r#","substitutions":{{"l":[{list}]}}"#)).unwrap_err()
        };
        assert!(of(5_000).contains("substitutions: more than"), "{value}");
        assert_eq!(of(2_100_000), "the request has too many values", "{value}");
    }
    // What is in a text is not a value.
    let content = format!(r#""X: \"\n\n{}""#, ",[{".repeat(200_000));
    assert_eq!(made(ANN, &content, "").unwrap().len(), 1);
}

#[test]
fn what_takes_long_to_read_is_known_by_its_octets() {
    let check = |content: &str, more: &str, expected: bool| {
        let body = format!(r#"{{"envelope_sender":"","recipients":{ANN},"content":"{content}"{more}}}"#);
        assert_eq!(InjectRequest::is_quick(body.as_bytes()), expected, "{}", &body[..body.len().min(120)]);
        assert!(InjectRequest::parse(body.as_bytes()).is_ok(), "{body}");
    };
    check(r"Subject: x\n\n{ hello, }\n", "", true);
    check(&format!(r"\n\n{}", "hello, world".repeat(40)), "", true);
    check(&r"\nx".repeat(20_000), "", true);
    check(&r"\nx".repeat(25_000), "", false);
    check(&format!(r"\n\n{{{{ 1{} }}}}", " + 1".repeat(10)), "", false);
    for marks in
        [r"\u007b{ x }}", r"{\u007b x }}", r"{\u007B x }}", r"{\u0023 x #}", r"{\u0025 if x %}{\u0025 endif %}"]
    {
        check(&format!(r"\n\n{marks}"), "", false);
    }
    check(r"\n\n", &format!(r#","substitutions":{{"a":[1{}]}}"#, ",1".repeat(600)), false);
}
