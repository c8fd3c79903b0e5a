//! Zones in memory for tests.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use crate::{Dns, NoAnswer};

/// Records as `name kind data`. A name with `kind` `TIMEOUT` never answers.
pub(crate) struct Zone {
    records: BTreeMap<String, Vec<(String, String)>>,
    pub(crate) asked: AtomicUsize,
}

impl Zone {
    pub(crate) fn new<T: AsRef<str>>(lines: &[T]) -> Self {
        let mut records: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
        for line in lines {
            let mut parts = line.as_ref().splitn(3, ' ');
            let mut part = || parts.next().unwrap_or_default().to_owned();
            records.entry(part()).or_default().push((part(), part()));
        }
        Zone { records, asked: AtomicUsize::new(0) }
    }

    fn find<T>(&self, name: &str, kind: &str, read: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, NoAnswer> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let records = self.records.get(&name.to_ascii_lowercase()).ok_or(NoAnswer::NoSuchName)?;
        if records.iter().any(|(kind, _)| kind == "TIMEOUT") {
            return Err(NoAnswer::Temporary);
        }
        let found = records.iter().filter(|(of, _)| of == kind);
        Ok(found.filter_map(|(_, data)| read(data)).collect())
    }
}

impl Dns for Zone {
    async fn texts(&self, name: &str) -> Result<Arc<[String]>, NoAnswer> {
        self.find(name, "TXT", |data| Some(data.to_owned())).map(Arc::from)
    }

    async fn addresses(&self, name: &str, is_ipv6: bool) -> Result<Vec<IpAddr>, NoAnswer> {
        self.find(name, if is_ipv6 { "AAAA" } else { "A" }, |data| data.parse().ok())
    }

    async fn mail_hosts(&self, name: &str) -> Result<Vec<String>, NoAnswer> {
        self.find(name, "MX", |data| Some(data.to_owned()))
    }

    async fn names(&self, address: IpAddr) -> Result<Vec<String>, NoAnswer> {
        self.find(&address.to_string(), "PTR", |data| Some(data.to_owned()))
    }
}

/// The value of a future that is ready at once.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}
