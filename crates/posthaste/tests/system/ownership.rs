//! The user that the server runs as, and the owners of mail.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::{ANYBODY, MESSAGE, Server, command};
use rustix::process::Signal;

#[test]
fn config_check_warns_of_a_spool_that_the_user_cannot_write_to() {
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path().join("posthaste-data/spool");
    std::fs::create_dir_all(&spool).unwrap();
    std::fs::set_permissions(&spool, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(
        dir.path().join("posthaste.toml"),
        "user = 65534\ngroup = 65534\n[[listener]]\naddress = \"127.0.0.1:0\"\n",
    )
    .unwrap();
    let said = |args: &[&str]| {
        let output = command(dir.path(), args).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let is_root = rustix::process::geteuid().is_root();
    let why = if is_root { "run chown -R 65534:" } else { "only root can become `65534`" };
    let checked = said(&["config", "check"]);
    let is_warning = checked.contains("warning, on this machine and for this user: ");
    assert!(is_warning != is_root && checked.contains(why), "{checked}");
    let started = said(&["serve"]);
    assert!(started.contains(why), "{started}");
}

#[test]
fn config_check_warns_of_files_that_the_user_cannot_read() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let data = dir.path().join("posthaste-data");
    std::fs::create_dir(&data).unwrap();
    let password = dir.path().join("password");
    std::fs::write(&password, "secret\n").unwrap();
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o600)).unwrap();
    let aliases = "aliases = { log = \"/var/tmp/mbox\" }\n";
    let route = "[[relay.route]]\nhost = \"next.example\"\nusername = \"u\"\npassword_file = \"password\"\n";
    let said = |user: &str| {
        std::fs::write(dir.path().join("posthaste.toml"), format!("{user}{ANYBODY}{aliases}{route}")).unwrap();
        let output = command(dir.path(), &["config", "check"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let warning = "warning, on this machine and for this user: the server's user, uid 65534, cannot read this: \
                   relay.route: the password in password: Permission denied\n";
    assert!(!said("").contains("cannot read this"));
    let of_root = "programs and files are not used as root";
    if !rustix::process::geteuid().is_root() {
        return;
    }
    assert!(said("").contains(of_root));
    // A supervisor such as systemd sets the user: the data are that user's.
    chown(&data, Some(65_534), Some(65_534)).unwrap();
    assert!(said("").contains(warning), "{}", said(""));
    chown(&password, Some(65_534), None).unwrap();
    assert!(!said("").contains("cannot read this") && !said("").contains(of_root));
    chown(&password, Some(0), None).unwrap();
    let user = "user = 65534\ngroup = 65534\n";
    assert!(said(user).contains(warning), "{}", said(user));
}

#[test]
fn mail_belongs_to_the_owner_of_domain_or_account() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let own_group = rustix::process::getgroups().unwrap().last().map_or(0, |group| group.as_raw());
    let (own, someone) = (rustix::process::geteuid().as_raw(), if is_root { 65_533 } else { 0 });
    let config = |of_domain: &str, of_account: &str| {
        format!(
            "[[domain]]\nname = \"example.org\"\nusers = \"any\"\nowner = \"{of_domain}\"\nmode = \"0640\"\n\
             [domain.accounts.ann]\nowner = \"{of_account}\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n"
        )
    };
    let refused = |text: &str| {
        std::fs::write(dir.path().join("posthaste.toml"), text).unwrap();
        let refused = command(dir.path(), &["serve"]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2));
        String::from_utf8(refused.stderr).unwrap()
    };
    if !is_root {
        let said = refused(&config(":0", &format!("{someone}:0")));
        assert!(said.contains("mail of `example.org` has another owner"), "{said}");
    }
    let said = refused(&format!("user = 65534\ngroup = 65534\n{}", config("65533:65533", "65532:65534")));
    assert!(
        said.contains("the server drops root for this user, but mail of `example.org` has another owner"),
        "{said}"
    );
    assert!(!dir.path().join("posthaste-data").exists());

    // What everybody may do: give files to a group of their own.
    let to_group = format!(":{own_group}");
    let text = if is_root { config("65533:65534", "65532:65534") } else { config(&to_group, &to_group) };
    let mut server = Server::start(dir.path(), &text);
    let deliver = |server: &Server, recipients: &[&str]| {
        let mut client = server.connect();
        client.expect("EHLO client.example.net", 250);
        client.deliver(recipients, MESSAGE);
    };
    deliver(&server, &["carl@example.org"]);
    server.wait_for_mail("example.org", "carl", 1);
    // Mail that only the spool has when the server is killed.
    let mail = dir.path().join("posthaste-data/mail");
    let in_the_way = ["ann", "bob"].map(|user| mail.join("example.org").join(user));
    in_the_way.iter().for_each(|path| std::fs::write(path, "").unwrap());
    deliver(&server, &["ann@example.org", "bob@example.org"]);
    server.signal(Signal::KILL);
    server.wait();
    in_the_way.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    let server = Server::start_as_it_is(dir.path());
    for user in ["ann", "bob"] {
        server.wait_for_mail("example.org", user, 1);
    }
    deliver(&server, &["ann@example.org", "bob@example.org"]);
    for user in ["ann", "bob"] {
        server.wait_for_mail("example.org", user, 2);
        let owner = match (is_root, user) {
            (true, "ann") => (65_532, 65_534),
            (true, _) => (65_533, 65_534),
            _ => (own, own_group),
        };
        let maildir = mail.join("example.org").join(user).join("Maildir");
        for sub in ["..", ".", "tmp", "new", "cur"] {
            let metadata = std::fs::metadata(maildir.join(sub)).unwrap();
            assert_eq!((metadata.mode() & 0o777, (metadata.uid(), metadata.gid())), (0o750, owner), "{user} {sub}");
        }
        for entry in std::fs::read_dir(maildir.join("new")).unwrap() {
            let metadata = entry.unwrap().metadata().unwrap();
            assert_eq!((metadata.mode() & 0o777, (metadata.uid(), metadata.gid())), (0o640, owner), "{user}");
        }
    }
    let bits = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((bits(&mail), bits(&mail.join("example.org"))), (0o711, 0o751), "owners can get through");
    assert_eq!(bits(&dir.path().join("posthaste-data/spool")), 0o700);
    server.stop();
}

#[test]
fn a_server_started_as_root_becomes_its_user_in_every_thread() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let dir = tempfile::tempdir().unwrap();
    // Relative paths lead through it, and so does the user.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = format!("user = 65534\ngroup = 65534\n{ANYBODY}");
    if !rustix::process::geteuid().is_root() {
        std::fs::write(dir.path().join("posthaste.toml"), config).unwrap();
        let refused = command(dir.path(), &["serve"]).output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.starts_with("posthaste: only root can become `65534`"), "{said}");
        return;
    }
    let server = Server::start(dir.path(), &config);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["a@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "a", 1);
    let mut threads = 0;
    for thread in std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().map_while(Result::ok) {
        // One may end meanwhile.
        let Ok(status) = std::fs::read_to_string(thread.path().join("status")) else { continue };
        for key in ["Uid:", "Gid:"] {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            assert!(line.split_whitespace().all(|id| id == "65534"), "{status}");
        }
        threads += 1;
    }
    assert!(threads > 3, "{threads}");
    let new = dir.path().join("posthaste-data/mail/example.org/a/Maildir/new");
    let file = std::fs::read_dir(new).unwrap().next().unwrap().unwrap().metadata().unwrap();
    assert_eq!((file.uid(), file.mode() & 0o777), (65534, 0o600));
    server.stop();

    // What root has left there is named.
    std::os::unix::fs::chown(dir.path().join("posthaste-data/spool/lock"), Some(0), Some(0)).unwrap();
    let refused = command(dir.path(), &["serve"]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("posthaste-data/spool/lock belongs to uid 0") && said.contains("chown -R 65534: "), "{said}");
}
