//! Dialogues of sessions, for `trace --live` at the control socket. Without followers, a session only reads one number.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use posthaste_relay::sender::Witnesses;
use posthaste_smtp::driver::IpNet;
use posthaste_smtp::{Side, Witness};
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Followers of live dialogues. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Live(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    count: AtomicUsize,
    serial: AtomicU64,
    onlookers: Mutex<Vec<Onlooker>>,
    /// Octets of lines kept by sessions until they have named a recipient.
    kept_bytes: AtomicUsize,
}

/// Selects the dialogues for a follower.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shown {
    pub inbound: bool,
    pub outbound: bool,
    pub peer: Option<IpNet>,
    /// Address in lower case.
    pub recipient: Option<String>,
}

#[derive(Debug, Clone)]
struct Onlooker {
    number: u64,
    shown: Shown,
    lines: Sender<Value>,
    dropped: Arc<AtomicU64>,
}

/// Lines for one follower, who is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Watching {
    live: Live,
    number: u64,
    pub lines: Receiver<Value>,
    /// Number of dropped lines since the last call.
    dropped: Arc<AtomicU64>,
}

impl Live {
    fn onlookers(&self) -> MutexGuard<'_, Vec<Onlooker>> {
        self.0.onlookers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows dialogues of sessions that begin from now on.
    pub fn watch(&self, shown: Shown) -> Watching {
        let (sender, lines) = channel(LINES_MAX);
        let number = self.0.serial.fetch_add(1, Ordering::Relaxed);
        let dropped = Arc::<AtomicU64>::default();
        self.onlookers().push(Onlooker { number, shown, lines: sender, dropped: dropped.clone() });
        self.0.count.fetch_add(1, Ordering::Relaxed);
        Watching { live: self.clone(), number, lines, dropped }
    }

    /// The witness of a session, if anybody follows.
    pub fn session(
        &self,
        is_inbound: bool,
        peer: Option<IpAddr>,
        name: impl Fn() -> String,
    ) -> Option<Arc<dyn Witness>> {
        if self.0.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let fits = |onlooker: &&Onlooker| {
            let Shown { inbound, outbound, peer: of, .. } = &onlooker.shown;
            (if is_inbound { *inbound } else { *outbound })
                && of.is_none_or(|of| peer.is_some_and(|peer| of.contains(&peer)))
        };
        let onlookers: Vec<(Onlooker, bool)> =
            self.onlookers().iter().filter(fits).map(|it| (it.clone(), it.shown.recipient.is_none())).collect();
        if onlookers.is_empty() {
            return None;
        }
        let id = self.0.serial.fetch_add(1, Ordering::Relaxed);
        let heard = Mutex::new(Heard { shared: self.0.clone(), onlookers, before: VecDeque::new() });
        Some(Arc::new(Session { id, is_inbound, name: name(), heard }))
    }
}

impl Witnesses for Live {
    fn session(&self, host: &str, address: IpAddr) -> Option<Arc<dyn Witness>> {
        self.session(false, Some(address), || format!("{host} ({address})"))
    }
}

impl Watching {
    /// Number of lines dropped since the last call.
    pub fn dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.live.0.count.fetch_sub(1, Ordering::Relaxed);
        self.live.onlookers().retain(|onlooker| onlooker.number != self.number);
    }
}

/// A followed session.
#[derive(Debug)]
struct Session {
    id: u64,
    is_inbound: bool,
    name: String,
    heard: Mutex<Heard>,
}

#[derive(Debug)]
struct Heard {
    shared: Arc<Shared>,
    /// Followers, each with true once the session matches its recipient.
    onlookers: Vec<(Onlooker, bool)>,
    /// Lines so far, for followers whose filter is not decided yet.
    before: VecDeque<(usize, Value)>,
}

impl Heard {
    /// Stores a line. Beyond the limit of the session, or of all sessions together, drops the session's oldest line.
    fn keep(&mut self, line: Value, bytes: usize) {
        self.shared.kept_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.before.push_back((bytes, line));
        let is_over = |heard: &Self| {
            heard.before.len() > BEFORE_MAX || heard.shared.kept_bytes.load(Ordering::Relaxed) > KEPT_BYTES_MAX
        };
        while is_over(self)
            && let Some((bytes, _)) = self.before.pop_front()
        {
            self.shared.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn forget(&mut self) {
        let bytes = self.before.drain(..).map(|(bytes, _)| bytes).sum();
        self.shared.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Witness for Session {
    fn line(&self, said_by: Side, line: &str) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let text: String = line.chars().take(CHARS_MAX).collect();
        let line = json!({
            "time_us": u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
            "session": self.id,
            "direction": if self.is_inbound { "in" } else { "out" },
            "peer": self.name,
            "said_by": if said_by == Side::Client { "client" } else { "server" },
            "line": text,
        });
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        // They may have gone since the session began.
        heard.onlookers.retain(|(onlooker, _)| !onlooker.lines.is_closed());
        let Heard { onlookers, before, .. } = &mut *heard;
        let lower = text.to_lowercase();
        let is_rcpt = said_by == Side::Client && lower.starts_with("rcpt ");
        for (onlooker, is_shown) in onlookers.iter_mut() {
            let names = |recipient: &String| is_rcpt && lower.contains(&format!("<{recipient}>"));
            if !*is_shown && onlooker.shown.recipient.as_ref().is_some_and(names) {
                *is_shown = true;
                before.iter().for_each(|(_, line)| onlooker.tell(line));
            }
            if *is_shown {
                onlooker.tell(&line);
            }
        }
        if onlookers.iter().any(|(_, is_shown)| !is_shown) {
            heard.keep(line, text.len() + self.name.len() + LINE_BYTES);
        } else {
            heard.forget();
        }
    }
}

impl Onlooker {
    fn tell(&self, line: &Value) {
        if self.lines.try_send(line.clone()).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Maximum waiting lines for a follower; further ones are dropped.
const LINES_MAX: usize = 4096;
/// Maximum lines of a session until it names a recipient.
const BEFORE_MAX: usize = 100;
/// Approximate maximum of bytes for all sessions together.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// Approximate memory of a line besides its texts.
const LINE_BYTES: usize = 600;
/// Maximum characters of one line.
const CHARS_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(watching: &mut Watching) -> Vec<String> {
        std::iter::from_fn(|| watching.lines.try_recv().ok())
            .map(|line| line["line"].as_str().unwrap().into())
            .collect()
    }

    fn peer(last: u8) -> Option<IpAddr> {
        Some([192, 0, 2, last].into())
    }

    #[test]
    fn a_session_is_shown_to_those_who_want_it() {
        let live = Live::default();
        let name = || "x".to_owned();
        assert!(live.session(true, peer(1), name).is_none(), "nobody looks on");
        let both = Shown { inbound: true, outbound: true, ..Shown::default() };
        let mut all = live.watch(both.clone());
        let mut net =
            live.watch(Shown { outbound: false, peer: Some("192.0.2.1/32".parse().unwrap()), ..both.clone() });
        let mut ann = live.watch(Shown { recipient: Some("ann@there.example".into()), ..both.clone() });
        let first = live.session(true, peer(1), name).unwrap();
        let second = live.session(false, peer(1), name).unwrap();
        first.line(Side::Client, "EHLO a");
        first.line(Side::Client, "RCPT TO:<bob@there.example>");
        second.line(Side::Client, "EHLO b");
        second.line(Side::Client, "RCPT TO:<Ann@There.example> NOTIFY=NEVER");
        second.line(Side::Server, "250 ok");
        assert_eq!(lines(&mut all).len(), 5);
        assert_eq!(lines(&mut net), ["EHLO a", "RCPT TO:<bob@there.example>"]);
        assert_eq!(lines(&mut ann), ["EHLO b", "RCPT TO:<Ann@There.example> NOTIFY=NEVER", "250 ok"]);
        for _ in 0..LINES_MAX + 3 {
            first.line(Side::Server, "250 ok");
        }
        assert_eq!((all.dropped(), all.dropped()), (3, 0), "who is slow misses some, and hears how many");
        drop((all, net, ann));
        assert!(live.session(true, peer(1), name).is_none());
        first.line(Side::Server, "221 to nobody");
    }

    #[test]
    fn what_all_sessions_keep_is_bounded_and_goes_with_the_onlooker() {
        let live = Live::default();
        let shown = Shown { inbound: true, recipient: Some("ann@there.example".into()), ..Shown::default() };
        let kept = || live.0.kept_bytes.load(Ordering::Relaxed);
        let watching = live.watch(shown.clone());
        let sessions: Vec<_> = (0..250).map(|_| live.session(true, peer(1), || "x".to_owned()).unwrap()).collect();
        for session in &sessions {
            (0..100).for_each(|_| session.line(Side::Client, &"x".repeat(900)));
            assert!(kept() <= KEPT_BYTES_MAX);
        }
        assert!(kept() > KEPT_BYTES_MAX / 2);
        drop(watching);
        sessions.iter().for_each(|session| session.line(Side::Client, "NOOP"));
        assert_eq!(kept(), 0);
        let mut watching = live.watch(shown);
        let session = live.session(true, peer(1), || "x".to_owned()).unwrap();
        session.line(Side::Client, "EHLO a");
        session.line(Side::Client, "RCPT TO:<ann@there.example>");
        assert_eq!(lines(&mut watching), ["EHLO a", "RCPT TO:<ann@there.example>"], "there is room again");
        assert_eq!(kept(), 0);
    }
}
