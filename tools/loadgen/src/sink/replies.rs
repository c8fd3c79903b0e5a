//! Typical refusals of mail providers, by provider, stage and kind, for rules without texts of their own.
//!
//! The wording follows the documentation of each provider for postmasters, or its known answers; addresses and session
//! ids in them are made up. Codes and enhanced codes are the ones that a sender's software acts on.

use serde::Deserialize;

use super::stage::Stage;

/// The provider whose refusals are imitated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// Postfix and its like.
    #[default]
    Generic,
    /// Gmail and Google Workspace.
    Google,
    /// Outlook.com and Microsoft 365.
    Microsoft,
    /// Yahoo and AOL.
    Yahoo,
}

/// The 4yz answers of a provider at a stage. Never empty.
pub fn tempfail(provider: Provider, stage: Stage) -> &'static [&'static str] {
    use Provider::{Generic, Google, Microsoft, Yahoo};
    match (provider, stage) {
        (Google, Stage::Connect | Stage::Ehlo) => &[
            "421 4.7.0 [192.0.2.1] Our system has detected an unusual rate of unsolicited mail originating from your IP address. To protect our users from spam, mail sent from your IP address has been temporarily rate limited. gsmtp",
            "421 4.7.0 Try again later, closing connection. gsmtp",
        ],
        (Google, Stage::Mail) => &["421 4.7.0 Temporary System Problem. Try again later. gsmtp"],
        (Google, Stage::Rcpt) => &[
            "450 4.2.1 The user you are trying to contact is receiving mail at a rate that prevents additional messages from being delivered. Please resend your message at a later time. gsmtp",
            "452 4.2.2 The recipient's inbox is out of storage space. gsmtp",
            "451 4.3.0 Mail server temporarily rejected message. gsmtp",
        ],
        (Google, Stage::Data | Stage::EndOfData) => &[
            "421 4.7.28 Gmail has detected an unusual rate of unsolicited mail originating from your IP address. To protect our users from spam, mail sent from your IP address has been temporarily rate limited. gsmtp",
            "421 4.7.26 Your email has been rate limited because it is unauthenticated. gsmtp",
            "451 4.3.0 Mail server temporarily rejected message. gsmtp",
        ],
        (Microsoft, Stage::Connect | Stage::Ehlo) => &[
            "451 4.7.650 The mail server [192.0.2.1] has been temporarily rate limited due to IP reputation. For e-mail delivery information, see https://postmaster.live.com (S775)",
            "421 4.3.2 The maximum number of concurrent server connections has exceeded a limit, closing transmission channel",
        ],
        (Microsoft, Stage::Mail) => &["451 4.7.500 Server busy. Please try again later from [192.0.2.1]. (S77719)"],
        (Microsoft, Stage::Rcpt) => &[
            "450 4.7.26 Service does not accept messages that fail authentication at this time",
            "452 4.5.3 Too many recipients",
            "452 4.2.2 Mailbox full",
            "432 4.3.2 STOREDRV; Recipient thread limit exceeded",
        ],
        (Microsoft, Stage::Data | Stage::EndOfData) => &[
            "451 4.7.500 Server busy. Please try again later from [192.0.2.1]. (AS77713)",
            "452 4.3.1 Insufficient system resources",
        ],
        (Yahoo, Stage::Connect | Stage::Ehlo | Stage::Mail) => &[
            "421 4.7.0 [TSS04] Messages from 192.0.2.1 temporarily deferred due to unexpected volume or user complaints - 4.16.55.1; see https://postmaster.yahooinc.com/error-codes",
            "421 4.7.1 [TS03] All messages from 192.0.2.1 will be permanently deferred; Retrying will NOT succeed. See https://postmaster.yahooinc.com/error-codes",
        ],
        (Yahoo, Stage::Rcpt) => {
            &["450 4.2.1 User is receiving mail too quickly", "451 4.3.2 Resources temporarily unavailable. [#4.16.1]"]
        }
        (Yahoo, Stage::Data | Stage::EndOfData) => {
            &["451 4.7.1 Message temporarily deferred - [170]", "451 4.3.2 Internal error reading data"]
        }
        (Generic, Stage::Connect) => {
            &["421 4.3.2 All server ports are busy", "421 4.7.0 Error: too many connections from 192.0.2.1"]
        }
        (Generic, Stage::Ehlo) => &["450 4.7.1 Helo command rejected: Host not found"],
        (Generic, Stage::Mail) => &[
            "450 4.1.8 Sender address rejected: Domain not found",
            "451 4.3.0 Temporary lookup failure",
            "452 4.3.1 Insufficient system storage",
        ],
        (Generic, Stage::Rcpt) => &[
            "450 4.2.0 Recipient address rejected: Greylisted, see http://postgrey.schweikert.ch/help/",
            "450 4.7.1 Service temporarily unavailable; rate limit exceeded",
            "451 4.3.0 Temporary lookup failure",
            "452 4.2.2 Mailbox full",
        ],
        (Generic, Stage::Data) => &["451 4.3.0 Error: queue file write error", "452 4.3.1 Insufficient system storage"],
        (Generic, Stage::EndOfData) => &[
            "451 4.7.1 Service unavailable - try again later",
            "451 4.3.0 Error: queue file write error",
            "452 4.3.1 Insufficient system storage",
        ],
    }
}

/// The 5yz answers of a provider at a stage. Never empty.
pub fn permfail(provider: Provider, stage: Stage) -> &'static [&'static str] {
    use Provider::{Generic, Google, Microsoft, Yahoo};
    match (provider, stage) {
        (Google, Stage::Connect | Stage::Ehlo | Stage::Mail) => &[
            "550 5.7.1 [192.0.2.1] The IP you're using to send mail is not authorized to send email directly to our servers. Please use the SMTP relay at your service provider instead. gsmtp",
        ],
        (Google, Stage::Rcpt) => &[
            "550 5.1.1 The email account that you tried to reach does not exist. Please try double-checking the recipient's email address for typos or unnecessary spaces. gsmtp",
            "550 5.2.1 The email account that you tried to reach is inactive. gsmtp",
            "552 5.2.2 The recipient's inbox is out of storage space and inactive. gsmtp",
        ],
        (Google, Stage::Data | Stage::EndOfData) => &[
            "550 5.7.1 [192.0.2.1] Gmail has detected that this message is likely unsolicited mail. To reduce the amount of spam sent to Gmail, this message has been blocked. gsmtp",
            "550 5.7.26 Your email has been blocked because the sender is unauthenticated. Gmail requires all senders to authenticate with either SPF or DKIM. gsmtp",
            "552 5.3.4 Your message exceeded Google's message size limits. gsmtp",
        ],
        (Microsoft, Stage::Connect | Stage::Ehlo | Stage::Mail) => &[
            "550 5.7.1 Unfortunately, messages from [192.0.2.1] weren't sent. Please contact your Internet service provider since part of their network is on our block list (S3140).",
            "550 5.7.606 Access denied, banned sending IP [192.0.2.1]",
        ],
        (Microsoft, Stage::Rcpt) => &[
            "550 5.5.0 Requested action not taken: mailbox unavailable (S2017062302).",
            "550 5.4.1 Recipient address rejected: Access denied.",
            "550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient not found by SMTP address lookup",
        ],
        (Microsoft, Stage::Data | Stage::EndOfData) => &[
            "550 5.7.515 Access denied, sending domain does not meet the required authentication level.",
            "554 5.2.2 mailbox full; STOREDRV.Deliver.Exception:QuotaExceededException",
        ],
        (Yahoo, Stage::Connect | Stage::Ehlo | Stage::Mail) => &[
            "553 5.7.1 [BL21] Connections will not be accepted from 192.0.2.1, because the ip is in Spamhaus's list; see https://postmaster.yahooinc.com/error-codes",
        ],
        (Yahoo, Stage::Rcpt) => {
            &["554 5.1.1 delivery error: dd This user doesn't have a yahoo.com account [0] - mta4321.mail.example"]
        }
        (Yahoo, Stage::Data | Stage::EndOfData) => &[
            "554 5.7.9 Message not accepted for policy reasons. See https://postmaster.yahooinc.com/error-codes",
            "554 5.7.1 Message not allowed - [PH01] Email not accepted for policy reasons.",
        ],
        (Generic, Stage::Connect) => &[
            "554 5.7.1 Service unavailable; Client host [192.0.2.1] blocked using zen.spamhaus.org",
            "521 5.3.2 This host does not accept mail",
        ],
        (Generic, Stage::Ehlo) => &["550 5.7.1 Helo command rejected: You are not who you say"],
        (Generic, Stage::Mail) => &[
            "550 5.7.1 Sender address rejected: Access denied",
            "550 5.7.23 Message rejected due to: SPF fail - not authorized",
        ],
        (Generic, Stage::Rcpt) => &[
            "550 5.1.1 Recipient address rejected: User unknown in virtual mailbox table",
            "552 5.2.2 Mailbox is over quota",
            "554 5.7.1 Relay access denied",
        ],
        (Generic, Stage::Data) => &["554 5.7.1 Data command rejected: Improper use of SMTP command pipelining"],
        (Generic, Stage::EndOfData) => &[
            "554 5.7.1 Spam message rejected",
            "550 5.7.1 Message content rejected: virus found",
            "552 5.3.4 Message size exceeds fixed limit",
        ],
    }
}

/// Answers to a client that is greylisted.
pub fn greylisted(provider: Provider) -> &'static str {
    match provider {
        Provider::Google => "451 4.7.1 Greylisting in action, please come back later. gsmtp",
        Provider::Microsoft => "451 4.7.500 Server busy. Please try again later",
        Provider::Yahoo => "451 4.7.1 Message temporarily deferred - [160]",
        Provider::Generic => "450 4.2.0 Recipient address rejected: Greylisted, please try again later",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::verdict::parse_reply;

    #[test]
    fn every_text_is_a_reply_of_its_kind() {
        for provider in [Provider::Generic, Provider::Google, Provider::Microsoft, Provider::Yahoo] {
            assert!(parse_reply(greylisted(provider)).expect("a reply").is_transient());
            for stage in Stage::ALL {
                assert!(!tempfail(provider, stage).is_empty() && !permfail(provider, stage).is_empty());
                for text in tempfail(provider, stage) {
                    let reply = parse_reply(text).expect("a reply");
                    assert!(reply.is_transient() && reply.enhanced().is_some(), "{text}");
                }
                for text in permfail(provider, stage) {
                    let reply = parse_reply(text).expect("a reply");
                    assert!(reply.is_permanent() && reply.enhanced().is_some(), "{text}");
                }
            }
        }
    }
}
