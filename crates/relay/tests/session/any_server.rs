//! A property: with any server, each recipient of each message has exactly one fate, nothing is sent twice, and a fate
//! is true about the server.

use posthaste_random::Random;
use posthaste_relay::session::RecipientFate;
use posthaste_smtp::Protocol;

use crate::support::{Act, At, List, Script, message, send_all, settings};

const REPLIES: [&str; 16] = [
    "250 ok\r\n",
    "250 ok\r\n250 ok\r\n",
    "450 4.2.0 later\r\n",
    "452 many\r\n",
    "550 no\r\n",
    "552 5.3.4 big\r\n",
    "421 bye\r\n",
    "354 go\r\n",
    "354 go\r\n250 kept\r\n",
    "503 order\r\n",
    "250-a\r\n250-b\r\n250 c\r\n",
    "250-a\r\n550 b\r\n",
    "hello\r\n",
    "\r\n",
    "220 x\r\n",
    "250 no end",
];

fn any_script(random: &mut Random) -> Script {
    let stages = [At::Greeting, At::Ehlo, At::Rset, At::Mail, At::Rcpt, At::Data, At::Dot, At::Quit];
    let odd = (0..random.below(4)).map(|_| {
        let act = match random.below(10) {
            0 => Act::Close,
            1 => Act::Silence,
            _ => Act::Say(REPLIES[random.below(REPLIES.len() as u64) as usize].into()),
        };
        (stages[random.below(stages.len() as u64) as usize], random.below(6) as usize, act)
    });
    let mut script = Script { odd: odd.collect(), ..Script::default() };
    script.extensions = ["PIPELINING", "SIZE 100000", "8BITMIME", "LIMITS RCPTMAX=2"]
        .into_iter()
        .filter(|_| !random.one_in(3))
        .collect();
    match random.below(6) {
        0 => script.reads = random.below(700) as usize,
        1 => script.writes = random.below(500) as usize,
        _ => {}
    }
    script
}

#[tokio::test(start_paused = true)]
async fn each_recipient_has_one_fate_and_it_is_true() {
    let mut counts = [0; 6];
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let names = &["b", "c", "e"][..1 + random.below(3) as usize];
        let mut list = List { messages: (0..4).map(|key| message(key, names)).collect(), ..List::default() };
        let script = any_script(&mut random);
        let what = format!("seed {seed}: {:?}, {:?}", script.odd, script.extensions);
        let mut settings = settings();
        if random.one_in(4) {
            settings.protocol = Protocol::Lmtp;
        }
        let (_, seen) = send_all(script, &mut list, &settings).await;
        assert_eq!(list.fates.len(), 4 - list.messages.len(), "{what}");
        for (at, (key, fates)) in list.fates.iter().enumerate() {
            assert_eq!((*key, fates.len()), (at, names.len()), "{what}");
            let subject = format!("Subject: {key}\r\n");
            let kept: Vec<_> = seen.kept.iter().filter(|kept| kept.body.starts_with(subject.as_bytes())).collect();
            assert!(kept.len() <= 1, "{what}: sent twice");
            for fate in fates {
                let (number, is_true) = match fate {
                    RecipientFate::Delivered(_) => (0, !kept.is_empty()),
                    RecipientFate::NotSent(_) => (1, kept.is_empty()),
                    RecipientFate::Unknown(_) => (2, true),
                    RecipientFate::Deferred(..) => (3, true),
                    RecipientFate::Refused(..) => (4, true),
                    RecipientFate::TooMany(_) => {
                        (5, fates.iter().any(|fate| !matches!(fate, RecipientFate::TooMany(_))))
                    }
                };
                counts[number] += 1;
                assert!(is_true, "{what}: {fate:?}, {:?}", seen.kept);
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 50), "some fates hardly came: {counts:?}");
}
