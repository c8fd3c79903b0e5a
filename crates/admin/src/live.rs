//! Live events for open pages: server-sent events, read by `fetch`.
//!
//! Readers with the same view share one reading of the event log and its octets.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use posthaste_net::Phase;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use crate::answer::{self, Answer, RETRY_SECS};
use crate::arrival::Arrival;
use crate::body::AnswerBody;
use crate::guard::Credential;
use crate::shared::{Shared, unix_secs};
use crate::streams::{LOOK_INTERVAL, PIECES_MAX};
use crate::token::SESSION_PREFIX;
use crate::token::Token;
use crate::view::ServerView;

/// Streams events from now on, until the client disconnects, its token ends, or the server stops.
pub(crate) async fn follow<V: ServerView>(
    shared: &Arc<Shared<V>>,
    arrival: &Arrival,
    token: &Token,
    credential: Credential,
) -> Answer {
    let Some(place) = shared.streams.place(token.hash()) else {
        let why = "too many streams are open";
        return answer::later(StatusCode::TOO_MANY_REQUESTS, why, RETRY_SECS);
    };
    let tenant = token.tenant().map(str::to_owned);
    let events = match shared.streams.readings.join(tenant.as_ref()) {
        Some(events) => events,
        None => {
            let (looking, of) = (Arc::clone(shared), tenant.clone());
            let Ok(Some(events)) = spawn_blocking(move || looking.view.follow(of.as_deref())).await else {
                return answer::refused(StatusCode::NOT_FOUND, "the event log is off");
            };
            shared.streams.readings.begin(tenant, events)
        }
    };
    let (pieces, sent) = channel(PIECES_MAX);
    let (shared, phase, is_loopback) = (Arc::clone(shared), arrival.phase(), arrival.is_loopback);
    tokio::spawn(async move {
        let _place = place;
        let goes_on: GoesOn = Box::new(move || {
            let (shared, credential) = (Arc::clone(&shared), credential.clone());
            Box::pin(async move { shared.is_good(&credential, is_loopback).await })
        });
        send(events, &pieces, &|| phase.reached(Phase::Draining), goes_on).await;
    });
    let mut answer = answer::answer(StatusCode::OK, "text/event-stream", Bytes::new());
    // A web server in front that collects octets would show events late: nginx passes these on at once.
    answer.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    *answer.body_mut() = AnswerBody::live(sent);
    answer
}

/// Interval of keep-alive comments, which detect clients that have disconnected. The token is checked as often.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// True while the credential of a stream is valid.
type GoesOn = Box<dyn Fn() -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

/// Forwards pieces. A drain is noticed within [`LOOK_INTERVAL`], an expired token within [`ALIVE_INTERVAL`].
async fn send(
    mut events: broadcast::Receiver<Bytes>,
    pieces: &Sender<Bytes>,
    is_draining: &(dyn Fn() -> bool + Send + Sync),
    goes_on: GoesOn,
) {
    let mut heard = Instant::now();
    // The head goes out with it.
    if pieces.try_send(Bytes::from_static(b": events\n\n")).is_err() {
        return;
    }
    loop {
        let piece = match timeout(LOOK_INTERVAL, events.recv()).await {
            Ok(Ok(piece)) => Some(piece),
            // It is too slow, or the log is not read any more.
            Ok(Err(RecvError::Lagged(_) | RecvError::Closed)) => return,
            Err(_) => None,
        };
        if is_draining() {
            return;
        }
        if piece.is_none() && heard.elapsed() < ALIVE_INTERVAL && !pieces.is_closed() {
            continue;
        }
        if !goes_on().await {
            return;
        }
        heard = Instant::now();
        if pieces.try_send(piece.unwrap_or(Bytes::from_static(b":\n\n"))).is_err() {
            return;
        }
    }
}

impl<V: ServerView> Shared<V> {
    /// True if the credential of an open stream would still be accepted.
    async fn is_good(self: &Arc<Self>, credential: &Credential, is_loopback: bool) -> bool {
        let (Credential::Token(presented) | Credential::Cookie(presented)) = credential else { return false };
        if presented.starts_with(SESSION_PREFIX) {
            return self.of_session(presented, is_loopback).await.is_ok_and(|token| token.is_some());
        }
        let token = self.tokens.find(presented, unix_secs()).await;
        token.is_ok_and(|token| token.is_some()) || (is_loopback && self.of_password(presented).await.is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use tokio::time::sleep;

    use super::*;
    use crate::streams::{LiveStreams, Readings, STREAMS_MAX, TOKEN_STREAMS_MAX};
    use crate::view::FollowEvents;

    /// Three events, one a look, and how often it was looked.
    struct Some3(Arc<AtomicUsize>);

    impl FollowEvents for Some3 {
        fn read(&mut self, _: usize, _: usize) -> Vec<String> {
            let looks = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            if looks <= 3 { vec![format!("{{\"n\":{looks}}}\n")] } else { Vec::new() }
        }
    }

    fn is_good() -> GoesOn {
        Box::new(|| Box::pin(std::future::ready(true)))
    }

    #[test]
    fn streams_are_counted_by_token_and_in_all() {
        let streams = LiveStreams::default();
        let token = |number: u8| [number; 32];
        let own: Vec<_> = (0..TOKEN_STREAMS_MAX).map(|_| streams.place(&token(0)).unwrap()).collect();
        assert!(streams.place(&token(0)).is_none());
        let others: Vec<_> = (1..u8::MAX).map_while(|number| streams.place(&token(number))).collect();
        assert_eq!(own.len() + others.len(), STREAMS_MAX);
        drop(own);
        assert!(streams.place(&token(0)).is_some());
        drop(others);
        assert!(streams.open.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn five_pages_share_one_reading_and_its_pieces() {
        let (readings, looks) = (Readings::default(), Arc::new(AtomicUsize::new(0)));
        let mut pages = vec![readings.begin(None, Box::new(Some3(Arc::clone(&looks))))];
        pages.extend((1..5).map(|_| readings.join(None).unwrap()));
        assert!(readings.join(Some(&"acme".to_owned())).is_none(), "a tenant sees less");
        for expected in ["data: {\"n\":1}\n\n", "data: {\"n\":2}\n\n", "data: {\"n\":3}\n\n"] {
            let first = pages[0].recv().await.unwrap();
            assert_eq!(first, expected);
            for page in &mut pages[1..] {
                assert_eq!(page.recv().await.unwrap().as_ptr(), first.as_ptr(), "the same octets");
            }
        }
        assert_eq!(looks.load(Ordering::Relaxed), 3, "one look each time");
        drop(pages);
        while readings.join(None).is_some() {
            sleep(LOOK_INTERVAL).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_with_its_token() {
        let (pieces, mut sent) = channel(PIECES_MAX);
        let is_good = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&is_good);
        let events = Readings::default().begin(None, Box::new(Some3(Arc::default())));
        let sending = tokio::spawn(async move {
            let goes_on: GoesOn = Box::new(move || Box::pin(std::future::ready(asked.load(Ordering::Relaxed))));
            send(events, &pieces, &|| false, goes_on).await;
        });
        for expected in [": events\n\n", "data: {\"n\":1}\n\n", "data: {\"n\":2}\n\n", "data: {\"n\":3}\n\n", ":\n\n"] {
            assert_eq!(sent.recv().await.as_deref(), Some(expected.as_bytes()));
        }
        is_good.store(false, Ordering::Relaxed);
        assert_eq!(sent.recv().await, None);
        sending.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_notices_a_drain_with_its_next_look() {
        let (pieces, mut sent) = channel(PIECES_MAX);
        let is_draining = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&is_draining);
        let (_reading, events) = broadcast::channel(PIECES_MAX);
        let sending = tokio::spawn(async move {
            send(events, &pieces, &|| asked.load(Ordering::Relaxed), is_good()).await;
        });
        assert!(sent.recv().await.is_some());
        let begun = Instant::now();
        is_draining.store(true, Ordering::Relaxed);
        assert_eq!(sent.recv().await, None);
        assert!(begun.elapsed() <= LOOK_INTERVAL, "{:?}", begun.elapsed());
        sending.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_dropped_and_holds_nobody_up() {
        struct Endless;
        impl FollowEvents for Endless {
            fn read(&mut self, _: usize, _: usize) -> Vec<String> {
                vec!["{}".to_owned()]
            }
        }
        let readings = Readings::default();
        let (pieces, _unread) = channel(PIECES_MAX);
        let events = readings.begin(None, Box::new(Endless));
        let mut other = readings.join(None).unwrap();
        let sending = tokio::spawn(async move {
            send(events, &pieces, &|| false, is_good()).await;
            pieces.capacity()
        });
        for _ in 0..20 {
            other.recv().await.unwrap();
        }
        assert_eq!(sending.await.unwrap(), 0);
    }
}
