//! Strangers' mail received with SPF, DKIM and DMARC, and without.
//!
//! All messages are signed and pass. Answers of DNS come from a server of this process, and from the second message on
//! out of the cache of ours. The generator connects by an address of the machine that is not on loopback: mail from there
//! is not checked.

use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use posthaste_dkim::{Algorithm, Draft, KeyRecord, Signer, generate};
use posthaste_dns_stub::{Server as Dns, Zone};
use posthaste_loadgen::load::Pool;
use posthaste_loadgen::server::ScratchServer;
use posthaste_loadgen::values::PerConnection;

use super::loaded::{Opened, Sent, Serving, side};
use super::of_sides;
use super::shape::{Amount, Shape, shape};
use crate::suite::{Settings, SideError, Workload};

const DOMAIN: &str = "sender.example";
const SENDER: &str = "bench@sender.example";
const SELECTOR: &str = "bench";
/// Numbers of messages that are taken from a pool to be signed: some are the same.
const TAKEN: u64 = 64;

pub(crate) fn workload(settings: &Settings) -> Workload {
    let shape = shape("checked-10k", "10k", 50, PerConnection::All, Amount::Count(100_000), 20);
    let ours = |name, algorithm, is_checked| {
        side(name, true, ScratchServer::DURABILITY, &shape, move |shape, settings, dir| {
            open(shape, settings, dir, algorithm, is_checked)
        })
    };
    let sides = vec![
        ours("posthaste without checks", Algorithm::Rsa, false),
        ours("posthaste RSA-2048", Algorithm::Rsa, true),
        ours("posthaste Ed25519", Algorithm::Ed25519, true),
    ];
    let what = format!("{}, from a stranger, signed; SPF, DKIM and DMARC pass", shape.what(settings));
    Workload { what, ..of_sides(&shape, settings, sides) }
}

fn open(
    shape: &Shape,
    settings: &Settings,
    dir: &Path,
    algorithm: Algorithm,
    is_checked: bool,
) -> Result<Opened, SideError> {
    let own = own_address().ok_or_else(|| {
        SideError::Absent("this machine has no address but those of loopback, whose mail is not checked".into())
    })?;
    let key = generate(algorithm).map_err(SideError::failed("a key"))?;
    let zone = Zone::default()
        .txt(DOMAIN, &format!("v=spf1 ip4:{own} -all"))
        .txt(&format!("{SELECTOR}._domainkey.{DOMAIN}"), &KeyRecord::of(&key).to_string())
        .txt(&format!("_dmarc.{DOMAIN}"), "v=DMARC1; p=reject");
    let signer = Signer::new(DOMAIN, SELECTOR, key).expect("names in A-labels");
    let plain = Pool::generated(&shape.sizes(), &[], SENDER, 1);
    let messages = (0..TAKEN).map(|number| sign(&plain.pick(number).plain, &signer)).collect::<Result<_, _>>()?;
    let sent = Sent { sender: SENDER, pool: Arc::new(Pool::of_messages(messages, &[])) };
    let dns = Dns::start(zone);
    let config = dir.join("posthaste.toml");
    let text = format!(
        "host_name = \"localhost\"\n[limits]\nconnections_per_address = 20000\n[[listener]]\naddress = \"{own}:0\"\n\
         [checks]\nenabled = {is_checked}\n[dns]\nservers = [\"{}\"]\n",
        dns.address()
    );
    std::fs::write(&config, text).map_err(SideError::failed("configuration"))?;
    let server = ScratchServer::start(&settings.program, dir, Some(&config));
    let server = server.map_err(SideError::failed("posthaste serve"))?;
    let (address, pid, mail) = (server.address, server.pid(), Some(server.mail.clone()));
    let holds = Checking { server, _dns: dns, is_checked };
    Ok(Opened { mail, sent: Some(sent), ..Opened::new(address, pid, holds) })
}

/// An IPv4 address by which this machine reaches others. Nothing is sent to find it.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Of documentation: a route to it is looked up.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

/// The message with a signature in front. Its header has no folded fields.
fn sign(message: &[u8], signer: &Signer) -> Result<Vec<u8>, SideError> {
    let end = message.windows(4).position(|octets| octets == b"\r\n\r\n").map_or(message.len(), |end| end + 2);
    let (header, body) = message.split_at(end);
    let mut draft = Draft::default();
    header.split_inclusive(|octet| *octet == b'\n').for_each(|field| draft.field(field));
    draft.body(body.strip_prefix(b"\r\n").unwrap_or(body));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let signature = signer.sign(&draft, now, None).map_err(SideError::failed("a signature"))?;
    Ok([signature.as_bytes(), message].concat())
}

/// A server, and the DNS server that it asks.
struct Checking {
    server: ScratchServer,
    _dns: Dns,
    is_checked: bool,
}

impl Serving for Checking {
    /// A message that was checked has its results.
    fn check(&self) -> Result<Option<String>, SideError> {
        let message = first_message(&self.server.mail).map_err(SideError::failed("a delivered message"))?;
        let text = String::from_utf8_lossy(&message);
        let passed = ["spf=pass", "dkim=pass", "dmarc=pass"].map(|result| text.contains(result));
        match (self.is_checked, passed) {
            (true, [true, true, true]) => Ok(Some("spf=pass, dkim=pass, dmarc=pass".into())),
            (false, [false, false, false]) => Ok(None),
            _ => {
                let header = text.split("\n\n").next().unwrap_or_default().split("\r\n\r\n").next().unwrap_or_default();
                Err(SideError::Failed(format!("a message has other results of checks than it should have: {header}")))
            }
        }
    }
}

/// Any message in a mailbox below `mail`.
fn first_message(mail: &Path) -> std::io::Result<Vec<u8>> {
    let mut dirs = vec![mail.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                dirs.push(entry.path());
            } else if dir.file_name().is_some_and(|name| name == "new") {
                return std::fs::read(entry.path());
            }
        }
    }
    Err(std::io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use posthaste_dkim::{DkimResult, Verifier};

    use super::*;

    #[test]
    fn a_generated_message_gets_a_signature_that_verifies() {
        let key = generate(Algorithm::Ed25519).unwrap();
        let record = KeyRecord::of(&key).to_string();
        let signer = Signer::new(DOMAIN, SELECTOR, key).unwrap();
        let pool = Pool::generated(&"10k".parse().unwrap(), &[], SENDER, 1);
        let signed = sign(&pool.pick(0).plain, &signer).unwrap();
        let end = signed.windows(4).position(|octets| octets == b"\r\n\r\n").unwrap();
        let mut verifier = Verifier::default();
        // With the field that the generator writes in front.
        verifier.field(b"X-Posthaste-Load: 1.2 3\r\n");
        let mut field = Vec::new();
        for line in signed[..end + 2].split_inclusive(|octet| *octet == b'\n') {
            if !field.is_empty() && !line.starts_with(b" ") && !line.starts_with(b"\t") {
                verifier.field(&std::mem::take(&mut field));
            }
            field.extend_from_slice(line);
        }
        verifier.field(&field);
        verifier.begin_body(Some(DOMAIN));
        verifier.body(&signed[end + 4..]);
        let claims = verifier.finish(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs());
        let results: Vec<_> =
            claims.into_iter().map(|claim| claim.verify(Some(std::slice::from_ref(&record))).result).collect();
        assert_eq!(results, [DkimResult::Pass]);
    }
}
