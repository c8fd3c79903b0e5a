//! Any text as a policy of any sender: a verdict with a bounded number of questions, each of a name that DNS can have; never a panic.
#![no_main]

use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use libfuzzer_sys::fuzz_target;
use posthaste_authres::spf::{Question, check};
use posthaste_authres::{Dns, NoAnswer};

/// Every name has one of the texts; the letters of a name choose the rest.
struct World<'a> {
    texts: Vec<&'a str>,
    asked: AtomicUsize,
}

impl World<'_> {
    fn ask(&self, name: &str) -> usize {
        assert!(name.len() <= 253 && name.split('.').all(|label| (1..64).contains(&label.len())), "{name:?}");
        self.asked.fetch_add(1, Ordering::Relaxed) + name.len()
    }
}

impl Dns for World<'_> {
    async fn texts(&self, name: &str) -> Result<Arc<[String]>, NoAnswer> {
        let at = self.ask(name) % self.texts.len();
        Ok([self.texts[at].to_owned()].into())
    }

    async fn addresses(&self, name: &str, is_ipv6: bool) -> Result<Vec<IpAddr>, NoAnswer> {
        match self.ask(name) % 4 {
            0 => Err(NoAnswer::Temporary),
            1 => Err(NoAnswer::NoSuchName),
            _ if is_ipv6 => Ok(vec![[1; 16].into()]),
            _ => Ok(vec![[192, 0, 2, 1].into(), [192, 0, 2, 77].into()]),
        }
    }

    async fn mail_hosts(&self, name: &str) -> Result<Vec<String>, NoAnswer> {
        let count = self.ask(name) % 12;
        Ok((0..count)
            .map(|at| if at == 7 { "a..b".to_owned() } else { format!("mx{at}.{}", &name[..name.len().min(1)]) })
            .collect())
    }

    async fn names(&self, _: IpAddr) -> Result<Vec<String>, NoAnswer> {
        Ok(vec!["mx.example.org".to_owned(), "..".to_owned()])
    }
}

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let mut parts = text.splitn(3, '\n');
    let (helo, sender) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let texts = parts.next().unwrap_or_default().split('\n').collect();
    let world = World { texts, asked: AtomicUsize::new(0) };
    for ip in [IpAddr::from([192, 0, 2, 1]), IpAddr::from([1; 16])] {
        world.asked.store(0, Ordering::Relaxed);
        let question = Question { ip, helo, sender };
        let Poll::Ready(verdict) = pin!(check(&world, &question)).poll(&mut Context::from_waker(Waker::noop())) else {
            unreachable!("nothing waits");
        };
        assert!(world.asked.load(Ordering::Relaxed) <= 1 + 10 + 100 + 11, "{verdict:?}");
    }
});
