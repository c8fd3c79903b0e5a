//! Arguments of MAIL and RCPT: paths and the values of parameters.

use std::fmt;

use posthaste_message::address::{ForwardPath, ReversePath};

use super::hold::{Hold, date_time};

/// The value of BODY=.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BodyType {
    /// No BODY=, or 7BIT.
    #[default]
    SevenBit,
    /// 8BITMIME (RFC 6152).
    EightBitMime,
}

/// RET= (RFC 3461 section 4.3): the part of the message in a failure notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ret {
    /// The whole message.
    Full,
    /// The header only.
    Headers,
}

/// A MAIL command: the sender and its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailFrom {
    /// The sender.
    pub reverse_path: ReversePath,
    /// SIZE=: the message's size in octets, announced by the client (RFC 1870).
    pub size: Option<u64>,
    /// BODY=.
    pub body: BodyType,
    /// SMTPUTF8 (RFC 6531).
    pub smtputf8: bool,
    /// RET=.
    pub ret: Option<Ret>,
    /// ENVID=, validated xtext, still encoded (RFC 3461 section 4.4).
    pub envid: Option<String>,
    /// AUTH=, validated xtext, still encoded (RFC 4954 section 5).
    pub auth: Option<String>,
    /// HOLDFOR= or HOLDUNTIL= (RFC 4865).
    pub hold: Option<Hold>,
    /// XEXPIRES=, of this project: the time of giving up, in seconds since 1970.
    pub expires: Option<i64>,
}

impl MailFrom {
    /// A MAIL command without parameters, from a path or an [`Address`](crate::Address).
    pub fn new(reverse_path: impl Into<ReversePath>) -> Self {
        Self {
            reverse_path: reverse_path.into(),
            size: None,
            body: BodyType::default(),
            smtputf8: false,
            ret: None,
            envid: None,
            auth: None,
            hold: None,
            expires: None,
        }
    }

    /// True if a parameter needs an extension. BODY=7BIT does not count.
    pub fn has_parameters(&self) -> bool {
        self.body != BodyType::SevenBit
            || self.smtputf8
            || self.size.is_some()
            || self.ret.is_some()
            || self.envid.is_some()
            || self.auth.is_some()
            || self.hold.is_some()
            || self.expires.is_some()
    }
}

/// The command line without CRLF.
impl fmt::Display for MailFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MAIL FROM:{}", self.reverse_path)?;
        if let Some(size) = self.size {
            write!(f, " SIZE={size}")?;
        }
        if self.body == BodyType::EightBitMime {
            f.write_str(" BODY=8BITMIME")?;
        }
        if self.smtputf8 {
            f.write_str(" SMTPUTF8")?;
        }
        match self.ret {
            Some(Ret::Full) => f.write_str(" RET=FULL")?,
            Some(Ret::Headers) => f.write_str(" RET=HDRS")?,
            None => {}
        }
        if let Some(envid) = &self.envid {
            write!(f, " ENVID={envid}")?;
        }
        if let Some(auth) = &self.auth {
            write!(f, " AUTH={auth}")?;
        }
        if let Some(hold) = self.hold {
            write!(f, " {hold}")?;
        }
        self.expires.map_or(Ok(()), |expires| write!(f, " XEXPIRES={}", date_time(expires)))
    }
}

/// NOTIFY= (RFC 3461 section 4.1). All three false means NEVER.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Notify {
    /// Tell the sender of success.
    pub success: bool,
    /// Tell the sender of failure.
    pub failure: bool,
    /// Tell the sender of delay.
    pub delay: bool,
}

impl fmt::Display for Notify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(self.success, "SUCCESS"), (self.failure, "FAILURE"), (self.delay, "DELAY")];
        let chosen: Vec<_> = names.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
        f.write_str(if chosen.is_empty() { "NEVER".to_owned() } else { chosen.join(",") }.as_str())
    }
}

/// A RCPT command: a recipient and its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RcptTo {
    /// The recipient.
    pub forward_path: ForwardPath,
    /// NOTIFY=.
    pub notify: Option<Notify>,
    /// ORCPT=, `type;xtext`, validated, still encoded (RFC 3461 section 4.2).
    pub orcpt: Option<String>,
}

impl RcptTo {
    /// A RCPT command without parameters, for a path or an [`Address`](crate::Address).
    pub fn new(forward_path: impl Into<ForwardPath>) -> Self {
        Self { forward_path: forward_path.into(), notify: None, orcpt: None }
    }
}

/// The command line without CRLF.
impl fmt::Display for RcptTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RCPT TO:{}", self.forward_path)?;
        if let Some(notify) = self.notify {
            write!(f, " NOTIFY={notify}")?;
        }
        self.orcpt.as_ref().map_or(Ok(()), |orcpt| write!(f, " ORCPT={orcpt}"))
    }
}
