//! Commands about a cluster where there is none. What they do in one is in `tests/cluster.sh`.

use crate::support::{Server, command};

#[test]
fn commands_say_that_a_server_is_no_node() {
    let dir = tempfile::tempdir().unwrap();
    let commands: [&[&str]; 7] = [
        &["cluster", "status"],
        &["cluster", "drain"],
        &["cluster", "move", "1", "--to", "b"],
        &["cluster", "remove", "b"],
        &["cluster", "add", "b"],
        &["cluster", "open", "1", "--yes"],
        &["doctor", "cluster"],
    ];
    let check = |wanted: &str| {
        for line in commands {
            let output = command(dir.path(), line).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(said.contains(wanted) && output.stdout.is_empty(), "{line:?}: {said}");
            assert_eq!(output.status.code(), Some(2), "{line:?}");
        }
    };
    let server = Server::start(dir.path(), "");
    check("its configuration has no [cluster]");
    let reseed = command(dir.path(), &["cluster", "reseed", "1", "--yes"]).output().unwrap();
    assert!(String::from_utf8(reseed.stderr).unwrap().contains("the configuration has no [cluster]"));
    server.stop();
    check("no server runs with its data in");
}
