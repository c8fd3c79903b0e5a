//! Earliest attempt and expiry of a request's mail.

use posthaste_smtp::command::parse_date_time;
use serde::Deserialize;

/// Times of a request, in seconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The earliest attempt. Earlier the mail waits in the queue.
    pub first_attempt: Option<i64>,
    /// Expiry: the mail is returned to the sender.
    pub expires: Option<i64>,
}

/// `schedule` of a request: the supported keys of KumoMTA's scheduling header.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduleBody {
    first_attempt: Option<String>,
    expires: Option<String>,
}

impl Schedule {
    /// # Errors
    /// An invalid time, or mail that would expire before it could be sent.
    pub(crate) fn new(body: ScheduleBody) -> Result<Self, String> {
        let time = |key: &str, text: Option<String>| {
            let wrong = || format!("schedule.{key}: a time such as 2027-01-02T03:04:05Z is needed");
            text.map(|text| parse_date_time(&text).ok_or_else(wrong)).transpose()
        };
        let first_attempt = time("first_attempt", body.first_attempt)?;
        let expires = time("expires", body.expires)?;
        match (first_attempt, expires) {
            (Some(first), Some(last)) if last <= first => {
                Err("schedule.expires: the mail would expire before it could be sent".to_owned())
            }
            _ => Ok(Self { first_attempt, expires }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_has_times_in_their_order() {
        let check = |json: &str, expected: Result<(Option<i64>, Option<i64>), &str>| {
            let read = crate::json::read(json.as_bytes()).and_then(Schedule::new);
            match (read, expected) {
                (Ok(Schedule { first_attempt, expires }), Ok(expected)) => {
                    assert_eq!((first_attempt, expires), expected, "{json}");
                }
                (Err(why), Err(expected)) => assert!(why.contains(expected), "{json}: {why}"),
                (read, _) => panic!("{json}: {read:?}"),
            }
        };
        check("{}", Ok((None, None)));
        check(r#"{"first_attempt":null,"expires":null}"#, Ok((None, None)));
        check(r#"{"first_attempt":"1970-01-01T01:00:00+01:00"}"#, Ok((Some(0), None)));
        check(r#"{"first_attempt":"1970-01-01T00:00:01Z","expires":"1970-01-01T00:00:02.5Z"}"#, Ok((Some(1), Some(2))));
        check(
            r#"{"first_attempt":"1970-01-01T00:00:01Z","expires":"1970-01-01T00:00:01Z"}"#,
            Err("schedule.expires: the mail would expire"),
        );
        check(r#"{"first_attempt":"tomorrow"}"#, Err("schedule.first_attempt: a time such as"));
        check(r#"{"expires":"2027-02-30T00:00:00Z"}"#, Err("schedule.expires: a time such as"));
        check(r#"{"expires":7}"#, Err("expires: expected a string, found a number"));
        check(r#"{"dow":"Mon"}"#, Err("there is no key `dow`; there are first_attempt, expires"));
    }
}
