use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use super::names::domain;
use super::{Settings, SetupError};

/// Names with fixed addresses.
#[derive(Debug, Default)]
pub(super) struct Hosts(HashMap<String, Vec<IpAddr>>);

impl Hosts {
    pub(super) fn read(settings: &Settings) -> Result<Hosts, SetupError> {
        let mut hosts = Hosts::default();
        if let Some(path) = &settings.hosts_file {
            let text =
                std::fs::read_to_string(path).map_err(|error| SetupError::HostsFile { path: path.clone(), error })?;
            hosts.add_file(path, &text)?;
        }
        for (name, addresses) in &settings.hosts {
            let name = domain(name).ok_or_else(|| SetupError::HostName(name.clone()))?;
            hosts.0.insert(name, addresses.iter().map(IpAddr::to_canonical).collect());
        }
        Ok(hosts)
    }

    /// An address and its names in each line; a comment from `#` on (hosts(5)).
    fn add_file(&mut self, path: &Path, text: &str) -> Result<(), SetupError> {
        for (index, line) in text.lines().enumerate() {
            let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace().peekable();
            let Some(address) = words.next() else { continue };
            let address = address.parse::<IpAddr>().ok().filter(|_| words.peek().is_some());
            let address = address.ok_or_else(|| SetupError::HostsLine { path: path.to_owned(), line: index + 1 })?;
            for name in words {
                let name = domain(name).ok_or_else(|| SetupError::HostName(name.to_owned()))?;
                self.0.entry(name).or_default().push(address.to_canonical());
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Option<&[IpAddr]> {
        self.0.get(name).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Hosts, String> {
        let mut hosts = Hosts::default();
        hosts.add_file(Path::new("hosts"), text).map_err(|error| error.to_string()).map(|()| hosts)
    }

    #[test]
    fn a_file_has_lines_of_an_address_and_names() {
        let hosts = read("# mail\n\n192.0.2.1\tMX.example mx2.example # two\n::1 mx.example\n").unwrap();
        let addresses = |name| hosts.get(name).map(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(addresses("mx.example"), Some(vec!["192.0.2.1".to_owned(), "::1".to_owned()]));
        assert_eq!(addresses("mx2.example"), Some(vec!["192.0.2.1".to_owned()]));
        assert_eq!(addresses("mail"), None);
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        assert_eq!(read("\nmx.example 192.0.2.1").unwrap_err(), "hosts, line 2: not an address followed by names");
        assert_eq!(read("192.0.2.1 # mx").unwrap_err(), "hosts, line 1: not an address followed by names");
        assert_eq!(read("192.0.2.1 a..b").unwrap_err(), "`a..b` is not a host name");
    }
}
