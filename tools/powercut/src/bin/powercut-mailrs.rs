//! `powercut-mailrs ADDRESS DIR`: takes mail over SMTP and hands it to `mailrs-delivery-executor` for
//! `DIR/<user>/Maildir`, so that the rig can cut its power.
//!
//! A server with only the commands of the rig's own client. It answers 250 to a message when the executor returned `Ok`
//! for every recipient.
#![forbid(unsafe_code)]

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use mailrs_delivery_executor::DeliveryExecutor;
use tokio::runtime::Runtime;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, dir] = &arguments[..] else { return Err(io::Error::other("usage: powercut-mailrs ADDRESS DIR")) };
    let runtime = Arc::new(Runtime::new()?);
    let executor = {
        let _inside = runtime.enter();
        DeliveryExecutor::spawn()
    };
    for connection in TcpListener::bind(address)?.incoming() {
        let (connection, runtime, executor, dir) = (connection?, runtime.clone(), executor.clone(), dir.clone());
        // A client that goes away ends its own session only.
        std::thread::spawn(move || serve(&connection, &runtime, &executor, &dir));
    }
    Ok(())
}

fn serve(connection: &TcpStream, runtime: &Runtime, executor: &DeliveryExecutor, dir: &str) -> io::Result<()> {
    let mut lines = BufReader::new(connection);
    let mut out = connection;
    let mut users: Vec<String> = Vec::new();
    out.write_all(b"220 mailrs\r\n")?;
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let verb = line.get(..4).unwrap_or_default().to_ascii_uppercase();
        let reply = match &verb[..] {
            "RCPT" => {
                users.extend(line.split_once('<').and_then(|(_, rest)| rest.split('@').next()).map(str::to_owned));
                "250 ok"
            }
            "DATA" => {
                out.write_all(b"354 go on\r\n")?;
                let body = Arc::new(read_body(&mut lines)?);
                let all = std::mem::take(&mut users).into_iter().map(|user| {
                    let deliver = executor.deliver(format!("{dir}/{user}/Maildir"), body.clone());
                    runtime.block_on(deliver).is_ok()
                });
                if all.fold(true, |all, one| all & one) { "250 kept" } else { "451 not kept" }
            }
            "QUIT" => return out.write_all(b"221 bye\r\n"),
            _ => "250 ok",
        };
        out.write_all(format!("{reply}\r\n").as_bytes())?;
    }
}

fn read_body(lines: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let from = body.len();
        if lines.read_until(b'\n', &mut body)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if &body[from..] == b".\r\n" {
            body.truncate(from);
            return Ok(body);
        }
        if body[from] == b'.' {
            body.remove(from);
        }
        // LF line ends on disk.
        if body.ends_with(b"\r\n") {
            body.truncate(body.len() - 2);
            body.push(b'\n');
        }
    }
}
