//! Later release and earlier expiry of mail: FUTURERELEASE (RFC 4865) and XEXPIRES.

use posthaste_smtp::command::Hold;
use posthaste_smtp::{MailFrom, Reply};

/// Refuses a message that expires before it may leave, at `now`, in seconds since 1970. The session has checked the
/// announced limit of the hold.
pub(crate) fn check(mail: &MailFrom, now: i64) -> Result<(), Reply> {
    let (hold, _) = times(mail, now);
    match mail.expires {
        Some(expires) if expires <= now.saturating_add(hold.into()) => {
            Err(Reply::new(501, "5.4.7", "The message would expire before it could be sent"))
        }
        _ => Ok(()),
    }
}

/// Seconds until it may be sent, and until it is given up; 0 if unset.
pub(crate) fn times(mail: &MailFrom, now: i64) -> (u32, u32) {
    let until = |at: i64| u32::try_from(at.saturating_sub(now).max(0)).unwrap_or(u32::MAX);
    let hold = match mail.hold {
        Some(Hold::For(secs)) => secs,
        Some(Hold::Until(at)) => until(at),
        None => 0,
    };
    // Whatever became too late meanwhile is given up at once.
    (hold, mail.expires.map_or(0, |at| until(at).max(1)))
}

#[cfg(test)]
mod tests {
    use posthaste_smtp::ReversePath;

    use super::*;

    #[test]
    fn times_are_counted_from_now() {
        let now = 1_000_000;
        let verdict = |hold, expires| {
            let mail = MailFrom { hold, expires, ..MailFrom::new(ReversePath::Null) };
            (times(&mail, now), check(&mail, now).map_err(|reply| reply.enhanced().unwrap().detail))
        };
        assert_eq!(verdict(None, None), ((0, 0), Ok(())));
        assert_eq!(verdict(Some(Hold::For(100)), None), ((100, 0), Ok(())));
        assert_eq!(verdict(Some(Hold::Until(now + 100)), Some(now + 101)), ((100, 101), Ok(())));
        assert_eq!(verdict(Some(Hold::Until(0)), None), ((0, 0), Ok(())), "at once");
        assert_eq!(verdict(Some(Hold::For(50)), Some(now + 50)), ((50, 50), Err(7)));
        assert_eq!(verdict(None, Some(now - 1)), ((0, 1), Err(7)));
        assert_eq!(verdict(Some(Hold::Until(i64::MAX)), None).0, (u32::MAX, 0));
        assert_eq!(verdict(Some(Hold::Until(i64::MIN)), Some(i64::MIN)).0, (0, 1));
    }
}
