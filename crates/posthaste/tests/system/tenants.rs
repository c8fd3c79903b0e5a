//! The tenant of mail: by header field, sender's domain, network and listener.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::relaying::{list, wait_for_queue};
use crate::support::{Client, Server, command};

const CONFIG: &str = r#"
host_name = "mx.here.example"
[[listener]]
address = "127.0.0.1:0"
tenant = "listener"
campaign = "at-listener"
[[listener]]
address = "[::1]:0"
tenant = "listener"
[[network]]
cidr = "::1"
tenant = "network"
campaign = "of-network"
[[domain]]
name = "here.example"
users = ["eve"]
[domain.aliases]
out = ["eve", "ann@there.example"]
[relay]
networks = ["127.0.0.1"]
tenant_header = "X-Tenant"
campaign_header = "X-Campaign"
[[relay.tenant]]
name = "acme"
sender_domains = ["acme.example", ".acme.example"]
campaigns = { "acme.example" = "usual", ".acme.example" = "below", "Offers@acme.example" = "offers" }
[dns]
servers = ["127.0.0.1:9"]
hosts = { "there.example" = ["127.0.0.1"] }
"#;

/// The tenants and campaigns of waiting mail, in the order of its arrival.
fn labels(dir: &Path) -> Vec<(String, String)> {
    let text = |line: &Value, key| line[key].as_str().unwrap().to_owned();
    list(dir, &[]).iter().map(|line| (text(line, "tenant"), text(line, "campaign"))).collect()
}

fn hello(server: &Server, listener: usize) -> Client {
    let mut client = Client::open(server.addresses[listener]).unwrap();
    client.reply();
    client.expect("EHLO client.example.net", 250);
    client
}

#[test]
fn tenant_and_campaign_have_five_sources_in_order() {
    let here = tempfile::tempdir().unwrap();
    let dir = here.path();
    let server = Server::start(dir, CONFIG);
    let mut trusted = hello(&server, 0);
    let to = &["out@here.example"][..];
    let labelled =
        b"X-Tenant: bravo\r\nSubject: a\r\nx-campaign:\r\n spring\r\nX-TENANT: second\r\n\r\nX-Tenant: body\r\n\r\n";
    trusted.try_message("joe@acme.example", to, labelled).unwrap();
    trusted.try_message("joe@acme.example", to, b"Subject: b\r\n\r\n\r\n").unwrap();
    trusted.try_message("joe@other.example", to, b"Subject: c\r\n\r\n\r\n").unwrap();
    trusted.try_message("offers@ACME.example", to, b"Subject: d\r\n\r\n\r\n").unwrap();
    trusted.try_message("joe@news.acme.example", to, b"X-Campaign: now\r\n\r\n\r\n").unwrap();
    trusted.try_message("joe@news.acme.example", to, b"Subject: e\r\n\r\n\r\n").unwrap();
    // Another tenant's sender is none of its own.
    trusted.try_message("joe@acme.example", to, b"X-Tenant: bravo\r\n\r\n\r\n").unwrap();
    let refused = trusted.try_message("joe@acme.example", to, b"X-Tenant: a b\r\n\r\n\r\n").unwrap();
    assert_eq!(refused.code, 554, "{refused:?}");
    let mut other = hello(&server, 1);
    other.try_message("joe@acme.example", to, labelled).unwrap();
    let expected = [
        ("bravo", "spring"),
        ("acme", "usual"),
        ("listener", "at-listener"),
        ("acme", "offers"),
        ("acme", "now"),
        ("acme", "below"),
        ("bravo", "at-listener"),
        // Not trusted: neither its fields nor its sender count.
        ("network", "of-network"),
    ];
    assert_eq!(labels(dir), expected.map(|(tenant, campaign)| (tenant.to_owned(), campaign.to_owned())));
    let stored: Vec<String> = server.wait_for_mail("here.example", "eve", 8).iter().map(|mail| mail.text()).collect();
    let untouched = "X-Tenant: bravo\nSubject: a\nx-campaign:\n spring\nX-TENANT: second\n\nX-Tenant: body\n";
    let removed = stored.iter().filter(|mail| mail.contains("Subject: a\n\nX-Tenant: body\n")).count();
    assert_eq!((removed, stored.iter().filter(|mail| mail.contains(untouched)).count()), (1, 1), "{stored:?}");
    server.stop();
}

#[test]
fn local_users_name_a_tenant_and_a_reload_renames_the_field() {
    let here = tempfile::tempdir().unwrap();
    let dir = here.path();
    let server = Server::start(dir, CONFIG);
    let send = |field: &str| {
        let mut program =
            command(dir, &["sendmail", "-C", "posthaste.toml", "-f", "joe@acme.example", "ann@there.example"]);
        let mut program = program.stdin(Stdio::piped()).spawn().unwrap();
        program.stdin.take().unwrap().write_all(format!("{field}: bravo\n\nx\n").as_bytes()).unwrap();
        assert!(program.wait().unwrap().success());
    };
    let wait_for = |count: usize| {
        wait_for_queue(dir, "they wait", |waiting| waiting.len() == count);
        labels(dir)[count - 1].0.clone()
    };
    send("X-Tenant");
    assert_eq!(wait_for(1), "bravo");
    server.reload(&CONFIG.replace("X-Tenant", "X-Account"));
    server.wait_for_log("configuration reloaded");
    send("X-Tenant");
    assert_eq!(wait_for(2), "acme");
    send("X-Account");
    assert_eq!(wait_for(3), "bravo");
    server.stop();
}

#[test]
fn a_pool_comes_from_the_field_the_network_or_the_listener() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = "host_name = 'mx.there.example'\n[[listener]]\naddress = '127.0.0.1:0'\n\
                [[domain]]\nname = 'there.example'\nusers = ['ann', 'bob', 'cid', 'dan']\n";
    let next = Server::start(there.path(), next);
    let source = |name: &str, octet: u8| {
        format!(
            "[[relay.source]]\nname = '{name}'\nipv4 = '127.0.0.{octet}'\n\
             [[relay.pool]]\nname = 'of-{name}'\ntenants = []\nsources = {{ {name} = 1 }}\n"
        )
    };
    let config = format!(
        "host_name = 'mx.here.example'\n[[listener]]\naddress = '127.0.0.1:0'\npool = 'of-listener'\n\
         [[network]]\ncidr = '127.0.0.2'\npool = 'of-network'\n[[domain]]\nname = 'here.example'\n\
         [relay]\nnetworks = ['127.0.0.1', '127.0.0.2']\npool_header = 'X-Pool'\nport = {}\n{}{}{}\
         [dns]\nservers = ['127.0.0.1:9']\nhosts = {{ 'there.example' = ['127.0.0.1'] }}\n",
        next.addresses[0].port(),
        source("listener", 11),
        source("network", 12),
        source("field", 13),
    );
    let server = Server::start(here.path(), &config);
    let mut of_listener = hello(&server, 0);
    let mut of_network = Client::open_from(std::net::Ipv4Addr::new(127, 0, 0, 2), server.addresses[0]).unwrap();
    of_network.reply();
    of_network.expect("EHLO client.example.net", 250);
    let named = b"x-pool: of-field\r\nSubject: x\r\n\r\nx\r\n";
    let bare = b"Subject: x\r\n\r\nx\r\n";
    of_listener.deliver(&["ann@there.example"], bare);
    of_network.deliver(&["bob@there.example"], bare);
    of_network.deliver(&["cid@there.example"], named);
    let unknown = of_listener.try_message("s@x.example", &["dan@there.example"], b"X-Pool: other\r\n\r\nx\r\n");
    assert_eq!(unknown.unwrap().code, 554);
    for (user, octet) in [("ann", 11), ("bob", 12), ("cid", 13)] {
        let text = next.wait_for_mail("there.example", user, 1)[0].text();
        assert!(text.contains(&format!("([127.0.0.{octet}])")) && !text.contains("x-pool"), "{text}");
    }
    drop((of_listener, of_network));
    server.stop();
    next.stop();
}
