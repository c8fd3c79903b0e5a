//! Settings of an SMTP or LMTP session, combined from several sections.

use posthaste_smtp::server::Config as SmtpConfig;
use posthaste_units::A_YEAR;

use super::{Config, Listener, Network};

impl Config {
    /// Settings of a session of a client of `network` at a listener. Logins and DSN are left out: the server decides
    /// who is offered them.
    pub fn smtp_session(&self, listener: &Listener, network: Option<&Network>) -> SmtpConfig {
        let mut limits = listener.limits.over(&self.limits);
        let mut policy = listener.policy.over(&self.policy);
        if let Some(network) = network {
            (limits, policy) = (network.limits.over(&limits), network.policy.over(&policy));
        }
        SmtpConfig {
            protocol: listener.protocol.of_mail().unwrap_or_default(),
            limits: (&limits.session).into(),
            bare_newlines: policy.bare_newlines,
            forbidden_commands: policy.forbidden_commands,
            nul_octets: policy.nul_octets,
            long_lines: policy.long_lines,
            lenient_commands: policy.lenient_commands,
            ..SmtpConfig::new(&self.host_name)
        }
    }

    /// Settings for messages from programs on this machine, also by `sendmail -bs`. They are those of a client at a
    /// listener, with two differences. Only the memory of a transaction bounds the recipients. Refusals do not end a
    /// session, as it has one message.
    pub fn local_session(&self) -> SmtpConfig {
        let mut local = self.smtp_session(&Listener::default(), None);
        local.limits.recipients = usize::MAX;
        local.dsn = true;
        local.limits.future_release_secs = A_YEAR as u32;
        (local.limits.errors, local.limits.deferred_recipients) = (u32::MAX, u32::MAX);
        local
    }
}
