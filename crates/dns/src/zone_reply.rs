use std::net::IpAddr;

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::{Name, RData, Record};

use crate::names;

/// The answer of a zone's server, as far as it is trustworthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ZoneReply {
    /// Records of the name; empty if it exists without them.
    Records(Vec<RData>),
    /// The name is an alias of this one.
    Alias(String),
    /// A referral to other servers.
    Referral(Referral),
    /// NXDOMAIN.
    NoSuchName,
}

/// A delegation, with its servers and glue addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Referral {
    pub zone: String,
    pub hosts: Vec<(String, Vec<IpAddr>)>,
}

impl ZoneReply {
    /// Parses the answer of a server of `zone`, in the form of [`names::domain`].
    ///
    /// # Errors
    /// No answer to the question: an error, or neither authority nor a delegation below `zone`.
    pub fn read(answer: &Message, zone: &str) -> Result<ZoneReply, String> {
        let Some(query) = answer.queries.first() else { return Err("no question in the answer".to_owned()) };
        let code = answer.metadata.response_code;
        if code != ResponseCode::NoError && code != ResponseCode::NXDomain {
            return Err(code.to_string());
        }
        if !answer.metadata.authoritative {
            let referral = (code == ResponseCode::NoError).then(|| Referral::of(answer, query.name(), zone)).flatten();
            return referral.map(ZoneReply::Referral).ok_or_else(|| format!("it does not answer for {zone}"));
        }
        let of_name = || answer.answers.iter().filter(|record| record.name == *query.name());
        let records: Vec<RData> = of_name()
            .filter(|record| record.record_type() == query.query_type())
            .map(|record| record.data.clone())
            .collect();
        if !records.is_empty() {
            return Ok(ZoneReply::Records(records));
        }
        let alias = of_name().find_map(|record| match &record.data {
            RData::CNAME(target) => Some(&target.0),
            _ => None,
        });
        if let Some(target) = alias {
            let target = name_text(target).ok_or_else(|| "an alias without a host name".to_owned())?;
            return Ok(ZoneReply::Alias(target));
        }
        Ok(if code == ResponseCode::NXDomain { ZoneReply::NoSuchName } else { ZoneReply::Records(records) })
    }
}

impl Referral {
    /// NS records of a zone below `zone` and above `name`. A referral elsewhere comes from a lame server.
    fn of(answer: &Message, name: &Name, zone: &str) -> Option<Referral> {
        let above = Name::from_ascii(format!("{zone}.")).ok()?;
        let is_below = |owner: &Name| above.zone_of(owner) && above != *owner && owner.zone_of(name);
        let servers = || answer.authorities.iter().filter(|record| matches!(record.data, RData::NS(_)));
        let owner = servers().map(|record| &record.name).find(|owner| is_below(owner))?;
        let host = |record: &Record| {
            let host = host_text(&record.data)?;
            Some((host.clone(), glue(answer, &host)))
        };
        let hosts: Vec<_> = servers().filter(|record| record.name == *owner).filter_map(host).collect();
        Some(Referral { zone: name_text(owner)?, hosts }).filter(|referral| !referral.hosts.is_empty())
    }
}

fn glue(answer: &Message, host: &str) -> Vec<IpAddr> {
    let of_host = answer.additionals.iter().filter(|record| name_text(&record.name).as_deref() == Some(host));
    let address = |record: &Record| match &record.data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    };
    of_host.filter_map(address).take(GLUE_MAX).collect()
}

/// Maximum addresses of one server.
const GLUE_MAX: usize = 4;

/// The host in an NS, PTR, MX or SRV record. `None`: the root, or a name that no host can have.
pub(crate) fn host_text(data: &RData) -> Option<String> {
    match data {
        RData::NS(host) => name_text(&host.0),
        RData::PTR(host) => name_text(&host.0),
        RData::MX(mx) => name_text(&mx.exchange),
        RData::SRV(srv) => name_text(&srv.target),
        _ => None,
    }
}

/// `None`: labels with dots, control characters or the like.
pub(crate) fn name_text(name: &Name) -> Option<String> {
    let labels: Option<Vec<&str>> = name.iter().map(|label| std::str::from_utf8(label).ok()).collect();
    let labels = labels?;
    if labels.iter().any(|label| !label.is_ascii() || label.contains('.')) {
        return None;
    }
    names::domain(&labels.join("."))
}

pub(crate) fn text(data: &RData) -> Option<String> {
    let RData::TXT(text) = data else { return None };
    Some(String::from_utf8_lossy(&text.txt_data.concat()).into_owned())
}

pub(crate) fn address(data: &RData) -> Option<IpAddr> {
    match data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    }
}
