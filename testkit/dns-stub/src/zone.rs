use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::wire::{self, Answer, Kind, Labels, NXDOMAIN, Record, SERVFAIL, labels};

/// Records and behaviour of the server. Names are in any case, with or without a final dot.
#[derive(Debug, Clone)]
pub struct Zone {
    ttl: u32,
    records: HashMap<Labels, Vec<Record>>,
    failing: Vec<(Labels, Option<Kind>)>,
    /// Records of other names, by the name with which they are sent.
    strays: Vec<(Labels, Record)>,
    silent: Vec<Labels>,
    truncated: Vec<Labels>,
    /// Zones of other servers, with their NS records and addresses.
    delegated: Vec<(Labels, Record, Option<Record>)>,
    raw: HashMap<Labels, Vec<u8>>,
    is_foreign: bool,
    /// Zones whose names are signed.
    signed: Vec<Labels>,
}

impl Default for Zone {
    /// An empty zone. The TTL is an hour.
    fn default() -> Self {
        Zone {
            ttl: 3600,
            records: HashMap::new(),
            failing: vec![],
            strays: vec![],
            silent: vec![],
            truncated: vec![],
            delegated: vec![],
            raw: HashMap::new(),
            is_foreign: false,
            signed: vec![],
        }
    }
}

impl Zone {
    /// Sets the TTL of later records in seconds. The last one also applies to negative answers.
    pub fn ttl(mut self, secs: u32) -> Self {
        self.ttl = secs;
        self
    }

    /// An IPv4 address.
    pub fn a(self, name: &str, address: Ipv4Addr) -> Self {
        self.with(name, Kind::A, address.octets().to_vec())
    }

    /// An IPv6 address.
    pub fn aaaa(self, name: &str, address: Ipv6Addr) -> Self {
        self.with(name, Kind::Aaaa, address.octets().to_vec())
    }

    /// A mail exchanger.
    pub fn mx(self, name: &str, preference: u16, host: &str) -> Self {
        let host = labels(host);
        self.mx_of(name, preference, &host)
    }

    /// A text, split into strings of 255 octets.
    pub fn txt(self, name: &str, text: &str) -> Self {
        let mut data = Vec::new();
        for part in text.as_bytes().chunks(255) {
            data.push(part.len() as u8);
            data.extend_from_slice(part);
        }
        self.with(name, Kind::Txt, data)
    }

    /// A mail exchanger with these octets as labels.
    pub fn mx_labels(self, name: &str, preference: u16, host: &[&[u8]]) -> Self {
        let host: Labels = host.iter().map(|label| label.to_vec()).collect();
        self.mx_of(name, preference, &host)
    }

    /// A mail exchanger of `owner` in the answers for `name`, where it does not belong.
    pub fn stray_mx(mut self, name: &str, owner: &str, preference: u16, host: &str) -> Self {
        let data = mx_data(preference, &labels(host));
        let record = Record { owner: labels(owner), kind: Kind::Mx, ttl: self.ttl, data };
        self.strays.push((labels(name), record));
        self
    }

    /// An MX record without content.
    pub fn malformed_mx(self, name: &str) -> Self {
        self.with(name, Kind::Mx, Vec::new())
    }

    /// A null MX: the domain takes no mail (RFC 7505).
    pub fn null_mx(self, name: &str) -> Self {
        self.mx_of(name, 0, &[])
    }

    /// A canonical name. The answer also has the records of `target`, if the zone has them.
    pub fn cname(self, name: &str, target: &str) -> Self {
        self.with(name, Kind::Cname, name_data(target))
    }

    /// A name server of the zone `name`.
    pub fn ns(self, name: &str, host: &str) -> Self {
        self.with(name, Kind::Other(NS), name_data(host))
    }

    /// A service with priority 0 and weight 1.
    pub fn srv(self, name: &str, port: u16, host: &str) -> Self {
        let numbers = [0, 1, port].map(u16::to_be_bytes).concat();
        self.with(name, Kind::Other(SRV), [numbers, name_data(host)].concat())
    }

    /// Name of an address.
    pub fn ptr(self, name: &str, host: &str) -> Self {
        self.with(name, Kind::Other(PTR), name_data(host))
    }

    /// A certificate of a server, by usage, selector and matching type (RFC 6698 section 2.1).
    pub fn tlsa(self, name: &str, numbers: [u8; 3], data: &[u8]) -> Self {
        self.with(name, Kind::Tlsa, [&numbers, data].concat())
    }

    /// A record of a certificate with these octets.
    pub fn tlsa_octets(self, name: &str, octets: &[u8]) -> Self {
        self.with(name, Kind::Tlsa, octets.to_vec())
    }

    /// Answers for `name` and the names below it have the bit AD, as those of a resolver that has validated them. An
    /// answer over an alias has it only if both names are signed.
    pub fn signed(mut self, name: &str) -> Self {
        self.signed.push(labels(name));
        self
    }

    /// Refers questions for `name`, and for names below it, to the server `host`, with its address if given.
    pub fn delegate(mut self, name: &str, host: &str, address: Option<Ipv4Addr>) -> Self {
        let ttl = self.ttl;
        let server = Record { owner: labels(name), kind: Kind::Other(NS), ttl, data: name_data(host) };
        let glue =
            |address: Ipv4Addr| Record { owner: labels(host), kind: Kind::A, ttl, data: address.octets().to_vec() };
        self.delegated.push((labels(name), server, address.map(glue)));
        self
    }

    /// Answers `name` with these octets, after the id of the question.
    pub fn raw(mut self, name: &str, octets: &[u8]) -> Self {
        self.raw.insert(labels(name), octets.to_vec());
        self
    }

    /// Answers without the bit AA, as a lame or caching server does.
    pub fn is_foreign(mut self) -> Self {
        self.is_foreign = true;
        self
    }

    /// Answers SERVFAIL to all questions about the name.
    pub fn fails(mut self, name: &str) -> Self {
        self.failing.push((labels(name), None));
        self
    }

    /// Answers SERVFAIL for one type.
    pub fn fails_for(mut self, name: &str, kind: Kind) -> Self {
        self.failing.push((labels(name), Some(kind)));
        self
    }

    /// Never answers for the name.
    pub fn is_silent(mut self, name: &str) -> Self {
        self.silent.push(labels(name));
        self
    }

    /// Answers only over TCP.
    pub fn is_truncated(mut self, name: &str) -> Self {
        self.truncated.push(labels(name));
        self
    }

    fn mx_of(self, name: &str, preference: u16, host: &[Vec<u8>]) -> Self {
        self.with(name, Kind::Mx, mx_data(preference, host))
    }

    fn with(mut self, name: &str, kind: Kind, data: Vec<u8>) -> Self {
        let owner = labels(name);
        let record = Record { owner: owner.clone(), kind, ttl: self.ttl, data };
        self.records.entry(owner).or_default().push(record);
        self
    }

    /// The answer; `None` for silence.
    pub(crate) fn answer(&self, name: &Labels, kind: Kind, over_tcp: bool) -> Option<Answer> {
        if self.silent.contains(name) {
            return None;
        }
        if self.failing.iter().any(|(failing, of)| failing == name && of.is_none_or(|of| of == kind)) {
            return Some(Answer { code: SERVFAIL, ..Answer::default() });
        }
        if self.truncated.contains(name) && !over_tcp {
            return Some(Answer { truncated: true, ..Answer::default() });
        }
        if let Some(octets) = self.raw.get(name) {
            return Some(Answer { raw: Some(octets.clone()), ..Answer::default() });
        }
        if let Some(referral) = self.referral(name) {
            return Some(referral);
        }
        let (mut records, mut owner, mut code, mut is_signed) = (Vec::new(), name.clone(), 0, true);
        // A chain that comes back to where it was ends there.
        let mut seen: Vec<Labels> = Vec::new();
        let found = loop {
            is_signed &= self.signed.iter().any(|zone| owner.ends_with(zone));
            let Some(here) = self.records.get(&owner) else {
                code = NXDOMAIN;
                break false;
            };
            let before = records.len();
            records.extend(here.iter().filter(|record| record.kind == kind).cloned());
            if records.len() > before {
                break true;
            }
            let Some(cname) = here.iter().find(|record| record.kind == Kind::Cname) else { break false };
            records.push(cname.clone());
            seen.push(owner);
            owner = target(&cname.data);
            if seen.contains(&owner) {
                break true;
            }
        };
        records.extend(self.strays.iter().filter(|(with, _)| with == name).map(|(_, record)| record.clone()));
        let soa_ttl = (!found).then_some(self.ttl);
        Some(Answer { code, records, soa_ttl, is_foreign: self.is_foreign, is_signed, ..Answer::default() })
    }

    fn referral(&self, name: &Labels) -> Option<Answer> {
        let of_name = self.delegated.iter().filter(|(zone, ..)| name.ends_with(zone));
        let mut answer = Answer { is_foreign: true, ..Answer::default() };
        for (_, server, glue) in of_name {
            answer.authority.push(server.clone());
            answer.additional.extend(glue.clone());
        }
        (!answer.authority.is_empty()).then_some(answer)
    }
}

const NS: u16 = 2;
const PTR: u16 = 12;
const SRV: u16 = 33;

fn name_data(name: &str) -> Vec<u8> {
    let mut data = Vec::new();
    wire::write_name(&mut data, &labels(name));
    data
}

fn mx_data(preference: u16, host: &[Vec<u8>]) -> Vec<u8> {
    let mut data = preference.to_be_bytes().to_vec();
    wire::write_name(&mut data, host);
    data
}

/// The labels of an uncompressed name.
fn target(mut data: &[u8]) -> Labels {
    let mut name = Labels::new();
    while let Some((&length, rest)) = data.split_first().filter(|(length, _)| **length > 0) {
        let (label, rest) = rest.split_at(usize::from(length));
        name.push(label.to_vec());
        data = rest;
    }
    name
}
