//! Relays to the servers named by its arguments, switched by lines of standard input: for scripts.
//!
//! It prints the address of each relay, then `ok` for each line: `NUMBER delay WAY MILLISECONDS`, `NUMBER stall WAY`, `NUMBER resume WAY` or `NUMBER reset`.
//! A way is `to-server` or `to-client`; relays are numbered from 0. It ends with its input.
use std::io::{self, BufRead, Write};
use std::time::Duration;

use posthaste_tcp_relay::{TcpRelay, Way};

fn main() -> io::Result<()> {
    let mut relays = Vec::new();
    for server in std::env::args().skip(1) {
        relays.push(TcpRelay::start(server.parse().map_err(io::Error::other)?)?);
    }
    let mut output = io::stdout();
    for relay in &relays {
        writeln!(output, "{}", relay.address())?;
    }
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        switch(&relays, &words).ok_or_else(|| io::Error::other(format!("not a switch: {line}")))?;
        writeln!(output, "ok")?;
    }
    Ok(())
}

/// `None` for unknown switches.
fn switch(relays: &[TcpRelay], words: &[&str]) -> Option<()> {
    let [number, switch, rest @ ..] = words else { return None };
    let relay = relays.get(number.parse::<usize>().ok()?)?;
    match (*switch, rest) {
        ("delay", [to, ms]) => relay.delay(way(to)?, Duration::from_millis(ms.parse().ok()?)),
        ("stall", [to]) => relay.stall(way(to)?),
        ("resume", [to]) => relay.resume(way(to)?),
        ("reset", []) => relay.reset(),
        _ => return None,
    }
    Some(())
}

fn way(word: &str) -> Option<Way> {
    match word {
        "to-server" => Some(Way::ToServer),
        "to-client" => Some(Way::ToClient),
        _ => None,
    }
}
