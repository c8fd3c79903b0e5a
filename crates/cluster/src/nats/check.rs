//! Settings of the engine that keep the promise, and a check for others.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::{Value, json};

use super::connection::Connection;
use crate::LogError;

/// Stream settings that keep the promise.
pub(super) fn stream_config(name: &str, subjects: &[String], bytes_max: u64, replicas: u64, per_subject: i64) -> Value {
    json!({
        "name": name,
        "subjects": subjects,
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "num_replicas": replicas,
        "max_bytes": bytes_max,
        "max_msgs": -1,
        "max_msgs_per_subject": per_subject,
        "max_age": 0,
        "max_msg_size": -1,
        "max_consumers": -1,
        "allow_direct": false,
        "allow_rollup_hdrs": false,
    })
}

/// Returns one line for each wrong setting of a stream or a server. Unreachable servers are skipped, but most must have
/// answered.
pub(super) fn check(connection: &Connection, stream: &str, per_subject: i64) -> Result<Vec<String>, LogError> {
    let config = &connection.config;
    let info = connection.block_on(connection.info(stream))?;
    let mut wrong = of_stream(stream, &info["config"], config.replicas, per_subject);
    let monitors = config.monitors.len() as u64;
    if monitors < config.replicas {
        let replicas = config.replicas;
        wrong.push(format!("{monitors} monitoring addresses are named, and a stream has {replicas} replicas"));
    }
    let mut answered = 0;
    let mut silent = String::new();
    for monitor in &config.monitors {
        match ask(monitor, "/varz").and_then(|varz| Ok((varz, ask(monitor, "/jsz")?))) {
            Ok((varz, jsz)) => {
                answered += 1;
                wrong.extend(of_server(monitor, &varz, &jsz));
            }
            Err(error) => silent = format!("{monitor} does not tell its settings: {error}"),
        }
    }
    if wrong.is_empty() && answered * 2 <= monitors {
        return Err(LogError::Unreachable(silent));
    }
    Ok(wrong)
}

fn of_stream(stream: &str, config: &Value, replicas: u64, per_subject: i64) -> Vec<String> {
    let wanted = stream_config(stream, &[], 0, replicas, per_subject);
    let wanted = wanted.as_object().expect("it is an object").iter().filter(|(name, _)| !FREE.contains(&&name[..]));
    let is_same = |name: &str, wanted: &Value| match config.get(name) {
        Some(value) => value == wanted,
        None => wanted == false || wanted == 0,
    };
    let wrong = wanted.filter(|(name, wanted)| !is_same(name, wanted));
    let told = |name: &str| config.get(name).cloned().unwrap_or_default();
    let mut wrong: Vec<String> = wrong
        .map(|(name, wanted)| format!("stream {stream}: {name} is {}, and must be {wanted}", told(name)))
        .collect();
    if config["max_bytes"].as_i64().is_none_or(|bytes| bytes <= 0) {
        wrong.push(format!("stream {stream}: max_bytes must be set"));
    }
    if !matches!(config["persist_mode"].as_str(), None | Some("" | "default")) {
        wrong.push(format!("stream {stream}: persist_mode must be the default"));
    }
    let copies = ["mirror", "sources", "republish", "subject_transform"];
    wrong.extend(
        copies
            .iter()
            .filter(|name| config.get(**name).is_some_and(|value| !value.is_null()))
            .map(|name| format!("stream {stream}: it must have no {name}")),
    );
    wrong
}

fn of_server(server: &str, varz: &Value, jsz: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let version = varz["version"].as_str().unwrap_or_default();
    if parse(version).is_none_or(|version| version < OLDEST) {
        wrong.push(format!("{server}: version {version} is older than {}.{}.{}", OLDEST.0, OLDEST.1, OLDEST.2));
    }
    if varz["max_payload"].as_u64().is_none_or(|bytes| bytes < PAYLOAD_MIN) {
        wrong.push(format!("{server}: max_payload must be {PAYLOAD_MIN} at least"));
    }
    if jsz["config"]["sync_always"] != true {
        wrong.push(format!("{server}: jetstream.sync_interval must be always, or a power cut takes acknowledged mail"));
    }
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let reserved = number(&jsz["reserved_storage"]);
    let limit = number(&jsz["config"]["max_storage"]);
    if reserved > limit {
        wrong.push(format!("{server}: streams may take {reserved} bytes, and it has {limit}"));
    }
    wrong
}

/// `2.15.3`; a suffix is left out.
fn parse(version: &str) -> Option<(u32, u32, u32)> {
    let mut parts = version.split(['.', '-']).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}

/// One page of a server's monitoring.
fn ask(server: &str, path: &str) -> io::Result<Value> {
    let address = server.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
    let mut socket = TcpStream::connect_timeout(&address, MONITOR_TIMEOUT)?;
    socket.set_read_timeout(Some(MONITOR_TIMEOUT))?;
    socket.set_write_timeout(Some(MONITOR_TIMEOUT))?;
    // Of version 1.0, so that the answer comes in one piece and ends with the connection.
    write!(socket, "GET {path} HTTP/1.0\r\nHost: {server}\r\n\r\n")?;
    let mut answer = Vec::new();
    socket.take(PAGE_BYTES_MAX).read_to_end(&mut answer)?;
    let senseless = || io::Error::new(io::ErrorKind::InvalidData, format!("{path} has no page in JSON"));
    let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or_else(senseless)?;
    serde_json::from_slice(&answer[head + 4..]).map_err(|_| senseless())
}

/// Settings of a stream that are compared otherwise, or not at all.
const FREE: [&str; 4] = ["name", "subjects", "max_bytes", "max_consumers"];
/// The oldest server version that passed all tests.
const OLDEST: (u32, u32, u32) = (2, 15, 3);
const PAYLOAD_MIN: u64 = 8 << 20;
const MONITOR_TIMEOUT: Duration = Duration::from_secs(3);
const PAGE_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_setting_of_a_stream_is_named() {
        let right = stream_config("log", &["log".to_owned()], 1 << 30, 3, -1);
        assert_eq!(of_stream("log", &right, 3, -1), Vec::<String>::new());
        let wrongs = [
            ("storage", json!("memory")),
            ("retention", json!("workqueue")),
            ("discard", json!("old")),
            ("num_replicas", json!(1)),
            ("max_bytes", json!(-1)),
            ("max_msgs", json!(1000)),
            ("max_age", json!(1)),
            ("allow_direct", json!(true)),
            ("allow_rollup_hdrs", json!(true)),
            ("persist_mode", json!("async")),
            ("mirror", json!({ "name": "other" })),
            ("sources", json!([{ "name": "other" }])),
        ];
        for (name, value) in wrongs {
            let mut config = right.clone();
            config[name] = value;
            let wrong = of_stream("log", &config, 3, -1);
            assert!(matches!(&wrong[..], [line] if line.contains(name)), "{name}: {wrong:?}");
        }
        // The server leaves out what is false.
        let mut bare = right.clone();
        bare.as_object_mut().unwrap().retain(|_, value| *value != false);
        assert_eq!(of_stream("log", &bare, 3, -1), Vec::<String>::new());
    }

    #[test]
    fn each_wrong_setting_of_a_server_is_named() {
        let varz = json!({ "version": "2.15.3", "max_payload": 8 << 20 });
        let jsz = json!({ "config": { "sync_always": true, "max_storage": 1000 }, "reserved_storage": 900 });
        assert_eq!(of_server("n1", &varz, &jsz), Vec::<String>::new());
        let mut old = varz.clone();
        old["version"] = json!("2.15.2");
        assert!(of_server("n1", &old, &jsz)[0].contains("2.15.2"));
        let mut small = varz.clone();
        small["max_payload"] = json!(1 << 20);
        assert!(of_server("n1", &small, &jsz)[0].contains("max_payload"));
        let mut unsynced = jsz.clone();
        unsynced["config"] = json!({ "max_storage": 1000 });
        assert!(of_server("n1", &varz, &unsynced)[0].contains("sync_interval"));
        let mut short = jsz.clone();
        short["reserved_storage"] = json!(1001);
        assert!(of_server("n1", &varz, &short)[0].contains("1001"));
        assert_eq!(parse("2.16.0-RC.1"), Some((2, 16, 0)));
        assert_eq!(parse("dev"), None);
    }
}
