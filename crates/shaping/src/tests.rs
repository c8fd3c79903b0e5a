use std::path::PathBuf;

use posthaste_units::Rate;

use super::*;

fn rules(text: &str) -> ShapingRules {
    ShapingRules::parse("a.toml", text).unwrap()
}

fn rate(text: &str) -> Rate {
    text.parse().unwrap()
}

#[test]
fn the_most_specific_section_decides_key_by_key() {
    let rules = rules(
        "[default]\nconnections = 10\nmessage_rate = '100/s'\nmessages_per_connection = 7\n\
         [provider.big]\nmx = ['.big.example', 'mx.other.example']\nconnections = 5\nmessage_rate = '50/s'\n\
         [domain.'.net.example']\nconnections = 4\n[domain.'a.net.example']\nconnections = 8\nmessage_rate = '1/s'\n",
    );
    let of = |hosts: &[&str], domain: &str| rules.of_site("default", hosts, &rules.of_domain(domain));
    let connections = |hosts: &[&str], domain: &str| of(hosts, domain).connections.map(|said| said.value);
    assert_eq!(connections(&["mx.small.example"], "x.example"), Some(10));
    assert_eq!(connections(&["MX1.big.example", "mx.other.example"], "x.example"), Some(5));
    assert_eq!(connections(&["mx1.big.example", "mx.small.example"], "x.example"), Some(10), "each host has to fit");
    assert_eq!(connections(&["big.example"], "x.example"), Some(10), "a dot is for what lies below");
    assert_eq!(connections(&["mx1.big.example"], "b.net.example"), Some(4));
    assert_eq!(connections(&["mx1.big.example"], "a.net.example"), Some(8));
    let site = of(&["mx1.big.example"], "a.net.example");
    assert_eq!(site.message_rate.unwrap().value, rate("50/s"), "that of the domain is its own");
    assert_eq!(
        site.messages_per_connection.as_ref().map(|said| (said.value, &*said.from)),
        Some((7, "a.toml: default"))
    );
    assert_eq!(rules.messages_to("a.net.example", "default").message_rate.unwrap().value, rate("1/s"));
    assert_eq!(rules.messages_to("b.net.example", "default"), OfDomain::default());
    let titles: Vec<_> = site.sections.iter().map(|section| rules.title(*section)).collect();
    assert_eq!(titles, ["default", "provider big", "domain .net.example", "domain a.net.example"]);
}

#[test]
fn a_section_for_one_source_precedes_one_for_all() {
    let rules = rules(
        "[default]\nconnections = 10\nmessages_per_connection = 9\nlimits = ['all']\n\
         [default.source.new]\nconnections = 1\nmessage_rate = '1/s'\nlimits = ['some']\n\
         [provider.big]\nmx = ['.big.example']\nconnections = 5\ntotal = { connections = 20, message_rate = '9/s' }\n\
         [provider.big.source.new]\nmessages_per_connection = 2\ntotal = { message_rate = '2/s' }\n\
         [domain.'a.example']\nmessage_rate = '8/s'\n[domain.'a.example'.source.new]\nmessage_rate = '3/s'\nconnections = 4\n\
         [limit.all]\nconnections = 100\n[limit.some]\nconnections = 50\n",
    );
    let of = |source: &str, host: &str, domain: &str| rules.of_site(source, &[host], &rules.of_domain(domain));
    let counts = |source: &str, host: &str, domain: &str| {
        let site = of(source, host, domain);
        (site.connections.unwrap().value, site.messages_per_connection.unwrap().value)
    };
    assert_eq!(counts("old", "mx.small.example", "b.example"), (10, 9));
    assert_eq!(counts("new", "mx.small.example", "b.example"), (1, 9));
    assert_eq!(counts("old", "mx.big.example", "b.example"), (5, 9));
    assert_eq!(counts("new", "mx.big.example", "b.example"), (5, 2), "the provider is more specific than the source");
    assert_eq!(counts("new", "mx.big.example", "a.example"), (4, 2));
    let rate_of = |source: &str| of(source, "mx.small.example", "b.example").message_rate.map(|said| said.value);
    assert_eq!((rate_of("old"), rate_of("new")), (None, Some(rate("1/s"))));
    let totals = |source: &str| -> Vec<_> {
        let totals = of(source, "mx.big.example", "b.example").totals.into_iter();
        totals.map(|total| (total.value.connections, total.value.message_rate.map(|rate| rate.count()))).collect()
    };
    assert_eq!(totals("old"), [(Some(20), Some(9))]);
    assert_eq!(totals("new"), [(Some(20), None), (None, Some(2))], "key by key");
    let of_domain = |source: &str| rules.messages_to("a.example", source).message_rate.unwrap();
    assert_eq!((of_domain("old").value, of_domain("new").value), (rate("8/s"), rate("3/s")));
    assert_eq!(&*of_domain("new").from, "a.toml: domain a.example from new");
    let named = |source: &str| of(source, "mx.small.example", "b.example").limits.len();
    assert_eq!((named("old"), named("new")), (1, 2));
    let titles: Vec<_> =
        of("new", "mx.big.example", "a.example").sections.into_iter().map(|at| rules.title(at)).collect();
    let expected = ["default", "default from new", "provider big", "provider big from new", "domain a.example"];
    assert_eq!(titles, [&expected[..], &["domain a.example from new"]].concat());
    assert!(rules.check_sources(&["default", "new"]).is_ok());
    let error = rules.check_sources(&["default", "old"]).unwrap_err();
    let expected = "there is no source `new`: add a [[relay.source]] of that name, or remove the section";
    assert_eq!(error.to_string(), format!("a.toml: default: {expected}"));
}

#[test]
fn what_differs_between_sources_is_explained_for_each() {
    let rules = rules("[default]\nconnections = 10\nmessage_rate = '5/s'\n[default.source.new]\nconnections = 1\n");
    let defaults = explain::Defaults { connections: 20, messages_per_connection: 100, recipients_per_message: 50 };
    let of = |sources: &[&str]| rules.explain("a.example", "", sources, &["mx.example"], defaults);
    let connections = |sources: &[&str]| -> Vec<(String, String)> {
        let values = of(sources).values.into_iter().filter(|value| value.key == "connections");
        values.map(|value| (value.source, value.value)).collect()
    };
    let one = |source: &str, value: &str| (source.to_owned(), value.to_owned());
    assert_eq!(connections(&["old", "new"]), [one("old", "10"), one("new", "1")]);
    assert_eq!((connections(&["new"]), connections(&["old"])), (vec![one("", "1")], vec![one("", "10")]));
    let rates = of(&["old", "new"]).values.into_iter().filter(|value| value.key == "message_rate").count();
    assert_eq!(rates, 1, "what is the same is said once");
    assert_eq!(of(&["old", "new"]).sections, ["default", "default from new"]);
    assert_eq!(of(&["old"]).sections, ["default"]);
}

#[test]
fn of_equally_specific_sections_the_lowest_value_counts() {
    let rules = rules(
        "[domain.'a.example']\nconnections = 8\nconnection_rate = '10/s'\nchunking = true\n[domain.'b.example']\nconnections = 3\nconnection_rate = '1000/minute'\nchunking = false\n",
    );
    let mut joined = rules.of_domain("a.example");
    joined.extend(rules.of_domain("b.example"));
    let site = rules.of_site("default", &["mx.example"], &joined);
    assert_eq!(site.connections.unwrap().value, 3);
    assert_eq!(site.connection_rate.unwrap().value, rate("10/s"));
    assert!(!site.chunking.unwrap().value, "not for one of two domains");
}

#[test]
fn named_limits_add_up_and_have_to_exist() {
    let rules = rules(
        "[default]\nlimits = ['all']\n[domain.'a.example']\nlimits = ['some']\n[tenant.news]\nlimits = ['all']\nmessage_rate = '5/s'\n\
         [tenant.'*']\nmessage_rate = '1/s'\n[limit.all]\nmessage_rate = '9/s'\n[limit.some]\nmessage_rate = '1/s'\nconnections = 2\n",
    );
    let site = rules.of_site("default", &["mx.example"], &rules.of_domain("a.example"));
    let found: Vec<_> =
        site.limits.iter().map(|named| (&*named.name, named.limit.value.message_rate.is_some())).collect();
    assert_eq!(found, [("all", true), ("some", false)], "what the domain names limits its own messages");
    assert_eq!(rules.messages_to("a.example", "default").limits[0].name, "some");
    assert_eq!(rules.messages_of("news").unwrap().limits.len(), 1);
    assert_eq!(rules.messages_of("other").unwrap().message_rate.unwrap().value, rate("1/s"));
    assert_eq!(rules.messages_of(""), None);
    let error = ShapingRules::parse("b.toml", "[default]\nlimits = ['al']\n").unwrap_err();
    assert_eq!(error.to_string(), "b.toml: default: there is no `[limit.al]`");
}

#[test]
fn a_later_file_overrides_key_by_key_or_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let first = file(
        "a.toml",
        "[default]\nconnections = 10\nmessage_rate = '5/s'\n[[default.automation]]\npatterns = ['x']\naction = 'suspend'\nfor = '1h'\n",
    );
    let second = file("b.toml", "[default]\nconnections = 20\n");
    let third = file("c.toml", "[default]\nreplace = true\nmessages_per_connection = 3\n");
    let of_source =
        file("d.toml", "[default.source.new]\nconnections = 7\nlimits = ['x']\n[limit.x]\nconnections = 9\n");
    let of_source_again = file("e.toml", "[default.source.new]\nreplace = true\nmessage_rate = '2/s'\n");
    let of = |files: &[&PathBuf]| {
        let files: Vec<PathBuf> = files.iter().map(|path| (*path).clone()).collect();
        let site = ShapingRules::read(&files).unwrap().of_site("new", &["mx.example"], &Sections::new());
        (site.connections.map(|said| said.value), site.message_rate.map(|said| said.value), site.limits.len())
    };
    assert_eq!(of(&[&first, &of_source, &second]), (Some(7), Some(rate("5/s")), 1));
    assert_eq!(of(&[&first, &of_source, &of_source_again]), (Some(10), Some(rate("2/s")), 0));
    assert_eq!(of(&[&first, &of_source, &third]), (None, None, 0), "also what was said of a source");
    let both = ShapingRules::read(&[first.clone(), second.clone()]).unwrap();
    let site = both.of_site("default", &["mx.example"], &Sections::new());
    assert_eq!((site.connections.unwrap().value, site.message_rate.unwrap().value), (20, rate("5/s")));
    assert_eq!(both.automation().rules().len(), 1);
    let all = ShapingRules::read(&[first, second, third]).unwrap();
    let site = all.of_site("default", &["mx.example"], &Sections::new());
    assert_eq!((site.connections, site.messages_per_connection.unwrap().value), (None, 3));
    assert_eq!(all.automation().rules().len(), 0);
    assert!(matches!(ShapingRules::read(&[dir.path().join("none")]), Err(ShapingError::Read { .. })));
}

#[test]
fn mistakes_are_refused_with_their_place() {
    let said = |text: &str| ShapingRules::parse("a.toml", text).unwrap_err().to_string();
    assert_eq!(
        said("[default]\nconections = 1\n"),
        "a.toml:2: there is no key `conections` here; did you mean `connections`?"
    );
    assert!(
        said("[default]\n\nmessage_rate = 'often'\n").starts_with("a.toml:3: `often` is not a rate"),
        "{}",
        said("[default]\n\nmessage_rate = 'often'\n")
    );
    for (text, part) in [
        ("[default]\nconnections = 0\n", "at least 1"),
        ("[default.source.x]\nconnections = 0\n", "a.toml: default from x: a count is at least 1"),
        ("[default.source.x]\nconections = 1\n", "did you mean `connections`?"),
        ("[default.source]\nconnections = 1\n", "a.toml:2:"),
        ("[default.source.x]\nlimits = ['y']\n", "default from x: there is no `[limit.y]`"),
        ("[default.source.x]\ntotal = { connections = 1 }\n", "are for providers"),
        ("[provider.p.source.x]\nmx = ['a.example']\n", "has only limits"),
        ("[provider.p.source.x]\ndomains = ['a.example']\n", "has only limits"),
        ("[default.source.x.source.y]\nconnections = 1\n", "has only limits"),
        ("[[default.source.x.automation]]\npatterns = ['a']\naction = 'suspend'\nfor = 60\n", "has only limits"),
        ("[default]\nmx = ['a.example']\n", "for providers"),
        ("[domain.'a..b']\nconnections = 1\n", "not a domain"),
        ("[provider.x]\nmx = ['*.x']\n", "`*.x` is not a name"),
        ("[limit.x]\nconnections = 0\n", "at least 1"),
        ("[[default.automation]]\naction = 'suspend'\nfor = 60\n", "`patterns` or `classes`"),
        ("[[default.automation]]\npatterns = ['(']\naction = 'suspend'\nfor = 60\n", "pattern `(`"),
        ("[[default.automation]]\npatterns = ['.*']\naction = 'suspend'\nfor = 60\n", "everything"),
        ("[[default.automation]]\npatterns = ['a']\naction = 'suspend'\nfor = 0\n", "1 second"),
        ("[[default.automation]]\npatterns = ['a']\naction = 'slow'\nfor = 60\n", "`slow` needs"),
        ("[[default.automation]]\npatterns = ['a']\naction = 'bounce'\nfor = 60\n", "set `of`"),
        (
            "[[default.automation]]\npatterns = ['a']\naction = 'slow'\nof = 'tenant'\nconnections = 1\nfor = 60\n",
            "`connections` needs `of",
        ),
        (
            "[[default.automation]]\npatterns = ['a']\naction = 'suspend'\nmessage_rate = '1/s'\nfor = 60\n",
            "are for `slow` only",
        ),
        ("[[default.automation]]\npatterns = ['a']\naction = 'suspend'\nafter = '5'\nfor = 60\n", "after: "),
    ] {
        assert!(said(text).contains(part), "{text}: {}", said(text));
    }
}

#[test]
fn a_reply_matches_the_rules_of_its_sections() {
    let rules = rules(
        "[[default.automation]]\npatterns = ['^421 ', 'too many']\naction = 'suspend'\nfor = '1h'\n\
         [[domain.'a.example'.automation]]\npatterns = ['TOO fast']\naction = 'slow'\nmessage_rate = '1/s'\nfor = '2h'\n\
         [[domain.'a.example'.automation]]\nclasses = ['policy']\naction = 'bounce'\nof = 'domain'\nfor = '2h'\n",
    );
    let automation = rules.automation();
    let of = |domain: &str| {
        let mut sections = rules.of_domain(domain);
        sections.extend(rules.of_site("default", &["mx.example"], &Sections::new()).sections);
        sections
    };
    let found = |line: &str, domain: &str, class: &str| automation.matching(line, &of(domain), || class.to_owned());
    assert_eq!(found("421 too many connections", "b.example", "other"), [0]);
    assert_eq!(found("451 4.7.1 you are too fast", "a.example", "policy"), [1, 2]);
    assert_eq!(found("451 4.7.1 you are too fast", "b.example", "policy"), []);
}

#[test]
fn a_threshold_is_reached_within_its_time_only() {
    let rules = rules("[[default.automation]]\npatterns = ['x']\nafter = '3/minute'\naction = 'suspend'\nfor = '1h'\n");
    let rule = &rules.automation().rules()[0];
    let mut counts = automation::Counts::default();
    let one = MailScope::Domain("one".into());
    let other = MailScope::Domain("other".into());
    let times =
        [(0, false), (30, false), (60, false), (61, true), (62, false), (121, false), (122, false), (123, true)];
    for (time, is_enough) in times {
        assert_eq!(counts.is_enough(0, rule, &one, time), is_enough, "{time}");
        assert!(!counts.is_enough(0, rule, &other, time * 60), "{time}");
    }
}

#[test]
fn a_share_of_connections_says_so_and_rates_stay_whole() {
    let text = "[default]\nconnections = 10\nmessage_rate = '100/s, burst 9'\nlimits = ['all']\n\
         [limit.all]\nconnections = 7\nmessage_rate = '9/minute'\n[tenant.a]\nmessage_rate = '1/hour'\n\
         [[default.automation]]\npatterns = ['x']\naction = 'slow'\nmessage_rate = '30/s'\nconnections = 1\nfor = 60\n";
    let shared = rules(text).share(3).unwrap();
    let site = shared.of_site("default", &["mx.example"], &Sections::new());
    let connections = site.connections.unwrap();
    assert_eq!((connections.value, &*connections.from), (3, "a.toml: default, shared by 3 shards"));
    let message_rate = site.message_rate.unwrap();
    assert_eq!((message_rate.value, &*message_rate.from), (rate("100/s, burst 9"), "a.toml: default"));
    let total = &site.limits[0].limit.value;
    assert_eq!((total.connections, total.message_rate), (Some(2), Some(rate("9/minute"))));
    assert_eq!(shared.messages_of("a").unwrap().message_rate.unwrap().value, rate("1/hour"));
    let rule = &shared.automation().rules()[0];
    assert_eq!((rule.message_rate, rule.connections), (Some(rate("10/s")), Some(1)));
    let refused = rules(text).share(8).unwrap_err().to_string();
    assert!(refused.contains("8 shards cannot share 7 connections"), "{refused}");
    let alone = rules(text).share(1).unwrap().of_site("default", &["mx.example"], &Sections::new()).connections;
    assert_eq!(&*alone.unwrap().from, "a.toml: default");
}
