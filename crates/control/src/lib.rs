//! Requests to a running server and its answers, as they cross the control socket.
//!
//! For any client: the command line, HTTP, an operator's own program. A request is one line of JSON, its answer one or
//! several; the last line has `done` or `error`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cluster;
mod logins;
mod mail;
mod of_tenant;
mod request;
mod route;
mod waiting;
mod which;

pub use cluster::{
    CheckedNode, ClusterCheck, ClusterOrder, ClusterStatus, MemberStatus, NodeAnswers, NodeState, NodeStatus,
    ShardOpening, ShardRole, ShardStatus, UnansweredNode,
};
pub use logins::{ClientLine, LoginLine, LoginPurpose, LoginsLine};
pub use mail::{AddedMail, MailAnswer, MailCommand, MailDone, MailPiece, MailRow, PIECE_BYTES_MAX};
pub use of_tenant::NotOfTenant;
pub use posthaste_notify::suppression::{Suppressed, SuppressionFilter, SuppressionSource};
pub use posthaste_shaping::explain::{Defaults, Explained};
pub use request::{DeliveredMail, MessagePlace, Request, SUBJECTS_MAX, SentRequest};
pub use route::{MailSender, NotSent, OutboundRoute, RouteFinder};
pub use waiting::{CountLine, HeldBy, RoomLine, SummaryEnd, WaitState, WaitingLine};
pub use which::{By, Doing, Named, Which};

/// The name of the socket in the data directory.
pub const SOCKET: &str = "control.sock";

#[cfg(test)]
mod tests {
    use posthaste_spool::Lsn;
    use serde::Serialize;

    use super::*;

    #[test]
    fn requests_are_what_the_manual_says() {
        let read = |text: &str| serde_json::from_str::<Request>(text);
        let of = Which { domain: Some("there.example".into()), ..Which::default() };
        let list = Request::List { of, limit: None, after: None };
        assert_eq!(read(r#"{"ask":"list","of":{"domain":"there.example"}}"#).unwrap(), list);
        assert_eq!(serde_json::to_string(&list).unwrap(), r#"{"ask":"list","of":{"domain":"there.example"}}"#);
        let forget = Request::ForgetGuesses { of: vec!["192.0.2.1".into()] };
        assert_eq!(read(r#"{"ask":"forget-guesses","of":["192.0.2.1"]}"#).unwrap(), forget);
        assert!(read(r#"{"ask":"list","off":{}}"#).is_err() && read(r#"{"ask":"nothing"}"#).is_err());
        for wrong in [
            r#"{"ask":"suspensions","of":{}}"#,
            r#"{"ask":"logins","x":1}"#,
            r#"{"ask":"list","of":[]}"#,
            r#"{"ask":"resume","scope":[null,null,"a.example"]}"#,
            r#"{"ask":"suppress","entries":[["a@b.example"]]}"#,
            r#"{"ask":"subjects","of":[["1","x"]]}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let sent = |text: &str| serde_json::from_str::<SentRequest>(text);
        assert!(sent(r#"["suspensions"]"#).is_err() && sent(r#"{"ask":"suspensions"}"#).is_ok());
    }

    #[test]
    fn a_number_of_a_message_is_a_string_of_all_its_digits() {
        for number in [0, 7, u64::MAX] {
            let text = format!(r#"{{"ask":"cat","message":"{number}","header":true}}"#);
            let request = Request::Cat { message: Lsn::new(number), header: true };
            assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
        }
        for wrong in ["7", "\"\"", "\"-1\"", "\"18446744073709551616\"", "null"] {
            let text = format!(r#"{{"ask":"cat","message":{wrong}}}"#);
            assert!(serde_json::from_str::<Request>(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn commands_about_mail_are_short_lines() {
        fn text(line: &impl Serialize) -> String {
            serde_json::to_string(line).unwrap()
        }
        let open = MailCommand::Open { mailbox: "a/b".into(), make: true };
        assert_eq!(text(&open), r#"{"open":{"mailbox":"a/b","make":true}}"#);
        assert_eq!(text(&MailCommand::Mailboxes), r#""mailboxes""#);
        assert_eq!(text(&MailPiece::Data(3)), r#"{"data":3}"#);
        assert_eq!(text(&MailPiece::End), r#""end""#);
        assert_eq!(text(&MailAnswer::Done(MailDone { uid: 7, ..MailDone::default() })), r#"{"done":{"uid":7}}"#);
        assert_eq!(text(&MailAnswer::Refused("no".into())), r#"{"refused":"no"}"#);
    }

    #[test]
    fn lines_about_logins_are_told_apart() {
        let client = ClientLine { client: "192.0.2.1".into(), wrong: 3, turned_away: false, secs: 600 };
        let login = LoginLine {
            login: "ann@example.org".into(),
            tenant: None,
            scram: true,
            last_use: Some(1),
            last_to: Some(LoginPurpose::Send),
            last_from: None,
            remembered: false,
            wrong: 0,
            slow: false,
        };
        for line in [LoginsLine::Client(client), LoginsLine::Login(login)] {
            let text = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<LoginsLine>(&text).unwrap(), line, "{text}");
        }
    }
}
