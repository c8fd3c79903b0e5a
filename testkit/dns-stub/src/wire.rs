//! Messages of RFC 1035, without compression.

/// A record type that the server knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An IPv4 address.
    A,
    /// An IPv6 address.
    Aaaa,
    /// A canonical name.
    Cname,
    /// A mail exchanger.
    Mx,
    /// A text.
    Txt,
    /// A certificate of a server (RFC 6698).
    Tlsa,
    /// Any other type, by number.
    Other(u16),
}

impl Kind {
    fn of(number: u16) -> Kind {
        match number {
            1 => Kind::A,
            5 => Kind::Cname,
            15 => Kind::Mx,
            16 => Kind::Txt,
            28 => Kind::Aaaa,
            52 => Kind::Tlsa,
            other => Kind::Other(other),
        }
    }

    fn number(self) -> u16 {
        match self {
            Kind::A => 1,
            Kind::Cname => 5,
            Kind::Mx => 15,
            Kind::Txt => 16,
            Kind::Aaaa => 28,
            Kind::Tlsa => 52,
            Kind::Other(number) => number,
        }
    }
}

/// A name as labels, in lower case; empty for the root.
pub type Labels = Vec<Vec<u8>>;

/// The labels of a name with dots between them.
pub fn labels(name: &str) -> Labels {
    name.split('.').filter(|label| !label.is_empty()).map(|label| label.to_ascii_lowercase().into_bytes()).collect()
}

/// A question, and the limits of its answer.
pub struct Question {
    id: [u8; 2],
    /// In the client's spelling, for the answer.
    name: Labels,
    pub kind: Kind,
    class: [u8; 2],
    /// Maximum octets of an answer over UDP.
    pub udp_bytes_max: usize,
    /// The bit AD is set: the client wants to know of it (RFC 6840 section 5.7).
    wants_ad: bool,
}

impl Question {
    /// Reads a query with one question. `None` for anything else.
    pub fn read(message: &[u8]) -> Option<Question> {
        let mut at = 12;
        let name = read_name(message, &mut at)?;
        let kind = Kind::of(read_u16(message, at)?);
        let class = message.get(at + 2..at + 4)?.try_into().ok()?;
        at += 4;
        let (id, wants_ad) = (message.get(..2)?.try_into().ok()?, message.get(3)? & AD != 0);
        let mut question = Question { id, name, kind, class, udp_bytes_max: UDP_BYTES_WITHOUT_EDNS, wants_ad };
        if read_u16(message, 4)? != 1 || message[2] & 0x80 != 0 {
            return None;
        }
        // EDNS (RFC 6891 section 6.1.2): a record with the root as owner, whose class is the size.
        if read_u16(message, 10)? > 0 && message.get(at) == Some(&0) && read_u16(message, at + 1)? == 41 {
            question.udp_bytes_max = usize::from(read_u16(message, at + 3)?).max(UDP_BYTES_WITHOUT_EDNS);
        }
        Some(question)
    }

    /// The name in lower case.
    pub fn name(&self) -> Labels {
        self.name.iter().map(|label| label.to_ascii_lowercase()).collect()
    }

    /// Encodes an answer to the question.
    pub fn answer(&self, answer: &Answer) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.id);
        // Response, authoritative, recursion desired; recursion available.
        out.push(0x81 | if answer.truncated { 0x02 } else { 0 } | if answer.is_foreign { 0 } else { 0x04 });
        out.push(0x80 | answer.code | if answer.is_signed && self.wants_ad { AD } else { 0 });
        let authority = answer.authority.len() + usize::from(answer.soa_ttl.is_some());
        let counts = [1, answer.records.len(), authority, answer.additional.len()];
        for count in counts {
            out.extend(u16::try_from(count).expect("a test has no 65,536 records").to_be_bytes());
        }
        write_name(&mut out, &self.name);
        out.extend(self.kind.number().to_be_bytes());
        out.extend(self.class);
        for record in answer.records.iter().chain(&answer.authority) {
            write_record(&mut out, &record.owner, record.kind.number(), record.ttl, &record.data);
        }
        if let Some(ttl) = answer.soa_ttl {
            let mut data = vec![0, 0];
            for number in [1, 3600, 600, 86_400, ttl] {
                data.extend(u32::to_be_bytes(number));
            }
            // Of the root, which is above every name.
            write_record(&mut out, &[], SOA, ttl, &data);
        }
        for record in &answer.additional {
            write_record(&mut out, &record.owner, record.kind.number(), record.ttl, &record.data);
        }
        out
    }

    /// An answer with the question's id, followed by the octets `rest`.
    pub fn raw_answer(&self, rest: &[u8]) -> Vec<u8> {
        [&self.id, rest].concat()
    }
}

/// The server's answer to a question.
#[derive(Debug, Default)]
pub struct Answer {
    pub code: u8,
    pub truncated: bool,
    pub records: Vec<Record>,
    /// Authority section, without the SOA.
    pub authority: Vec<Record>,
    pub additional: Vec<Record>,
    /// True to leave out the bit AA.
    pub is_foreign: bool,
    /// True to set the bit AD, if the question has it.
    pub is_signed: bool,
    /// Octets sent instead of a message.
    pub raw: Option<Vec<u8>>,
    /// TTL of the SOA in negative answers.
    pub soa_ttl: Option<u32>,
}

/// Authentic data (RFC 4035 section 3.2.3), in the fourth octet.
const AD: u8 = 0x20;
pub const SERVFAIL: u8 = 2;
pub const NXDOMAIN: u8 = 3;
const SOA: u16 = 6;
const UDP_BYTES_WITHOUT_EDNS: usize = 512;

/// A record with its data in wire format.
#[derive(Debug, Clone)]
pub struct Record {
    pub owner: Labels,
    pub kind: Kind,
    pub ttl: u32,
    pub data: Vec<u8>,
}

/// Appends a name.
pub fn write_name(out: &mut Vec<u8>, name: &[Vec<u8>]) {
    for label in name {
        assert!((1..64).contains(&label.len()), "a label has 1 to 63 octets: {label:?}");
        out.push(label.len() as u8);
        out.extend(label);
    }
    out.push(0);
}

fn write_record(out: &mut Vec<u8>, owner: &[Vec<u8>], kind: u16, ttl: u32, data: &[u8]) {
    write_name(out, owner);
    out.extend(kind.to_be_bytes());
    out.extend([0, 1]);
    out.extend(ttl.to_be_bytes());
    out.extend(u16::try_from(data.len()).expect("a test has no record of 65,536 octets").to_be_bytes());
    out.extend(data);
}

fn read_name(message: &[u8], at: &mut usize) -> Option<Labels> {
    let mut name = Labels::new();
    loop {
        let length = usize::from(*message.get(*at)?);
        *at += 1;
        match length {
            0 => return Some(name),
            1..64 => name.push(message.get(*at..*at + length)?.to_vec()),
            _ => return None,
        }
        *at += length;
    }
}

fn read_u16(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?))
}
