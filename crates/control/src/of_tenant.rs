//! Restricts a request to the mail of one tenant.

use crate::request::Request;

/// Why a request is not answered to a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotOfTenant {
    /// The request names another tenant.
    Other,
    /// The request concerns the whole server.
    WholeServer,
}

impl Request {
    /// Restricts the request to the mail of one tenant. Requests for events, suspensions and message contents pass
    /// unchanged: their answers must leave out the mail of other tenants.
    ///
    /// # Errors
    /// [`NotOfTenant`]: a tenant may not make this request.
    pub fn of_tenant(mut self, tenant: &str) -> Result<Self, NotOfTenant> {
        let bind = |named: &mut Option<String>| match named {
            Some(other) if other != tenant => Err(NotOfTenant::Other),
            _ => {
                *named = Some(tenant.to_owned());
                Ok(())
            }
        };
        let bind_text = |named: &mut String| {
            if named.is_empty() || named == tenant {
                tenant.clone_into(named);
                Ok(())
            } else {
                Err(NotOfTenant::Other)
            }
        };
        match &mut self {
            Self::List { of, .. } | Self::Summary { of, .. } | Self::Count { of, .. } | Self::Act { of, .. } => {
                bind(&mut of.tenant)?;
            }
            // A campaign may have mail of others.
            Self::Suspend { scope, .. } | Self::Resume { scope } if scope.campaign.is_some() => {
                return Err(NotOfTenant::WholeServer);
            }
            Self::Suspend { scope, .. } | Self::Resume { scope } => bind(&mut scope.tenant)?,
            Self::Suppressions { of } => bind(&mut of.tenant)?,
            Self::Suppress { entries } => entries.iter_mut().try_for_each(|entry| bind_text(&mut entry.tenant))?,
            Self::Unsuppress { tenant: of, .. } => bind_text(of)?,
            Self::Suspensions { .. } | Self::Find { .. } | Self::Cat { .. } => {}
            // Mailboxes are of no tenant.
            Self::Mail { of } | Self::File { of, .. } if of.mailbox.is_empty() => {}
            Self::Mail { .. }
            | Self::File { .. }
            | Self::Subjects { .. }
            | Self::Search { .. }
            | Self::Export { .. }
            | Self::Import { .. }
            | Self::Trace { .. }
            | Self::Divert { .. }
            | Self::Undivert { .. }
            | Self::Diversions { .. }
            | Self::Explain { .. }
            | Self::ForgetMailbox { .. }
            | Self::Page { .. }
            | Self::Logins { .. }
            | Self::Domains {}
            | Self::Records { .. }
            | Self::Reload {}
            | Self::Account { .. }
            | Self::Acme { .. }
            | Self::Cluster { .. }
            | Self::ForgetGuesses { .. } => return Err(NotOfTenant::WholeServer),
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_request_of_a_tenant_selects_its_mail_alone() {
        let read = |text: Value| serde_json::from_value::<Request>(text).unwrap();
        let check = |asked: Value, expected: Result<Value, NotOfTenant>| {
            assert_eq!(read(asked.clone()).of_tenant("a"), expected.map(read), "{asked}");
        };
        let entry =
            |tenant: &str| json!({ "ask": "suppress", "entries": [{ "address": "x@y.example", "tenant": tenant }] });
        let at = |ask: &str, scope: Value| json!({ "ask": ask, "scope": scope, "secs": 60 });
        let resume = |scope: Value| json!({ "ask": "resume", "scope": scope });
        for ask in ["list", "summary", "suppressions"] {
            let of = |of: Value| json!({ "ask": ask, "of": of });
            check(json!({ "ask": ask }), Ok(of(json!({ "tenant": "a" }))));
            check(of(json!({ "tenant": "a" })), Ok(of(json!({ "tenant": "a" }))));
            check(of(json!({ "tenant": "b" })), Err(NotOfTenant::Other));
            check(of(json!({ "tenant": "" })), Err(NotOfTenant::Other));
        }
        for action in ["hold", "release", "flush", "requeue", "delete", "bounce"] {
            for ask in ["count", "act"] {
                let of = |of: Value| json!({ "ask": ask, "of": of, "action": action });
                check(of(json!({ "domain": "d" })), Ok(of(json!({ "domain": "d", "tenant": "a" }))));
                check(of(json!({ "tenant": "b" })), Err(NotOfTenant::Other));
            }
        }
        check(at("suspend", json!({})), Ok(at("suspend", json!({ "tenant": "a" }))));
        check(at("suspend", json!({ "domain": "d" })), Ok(at("suspend", json!({ "domain": "d", "tenant": "a" }))));
        check(at("suspend", json!({ "tenant": "b" })), Err(NotOfTenant::Other));
        check(at("suspend", json!({ "campaign": "c" })), Err(NotOfTenant::WholeServer));
        check(resume(json!({ "site": "s" })), Ok(resume(json!({ "site": "s", "tenant": "a" }))));
        check(resume(json!({ "campaign": "c" })), Err(NotOfTenant::WholeServer));
        check(entry(""), Ok(entry("a")));
        check(entry("b"), Err(NotOfTenant::Other));
        let unsuppress = |tenant: &str| json!({ "ask": "unsuppress", "tenant": tenant, "addresses": ["x@y.example"] });
        check(unsuppress(""), Ok(unsuppress("a")));
        check(unsuppress("b"), Err(NotOfTenant::Other));
        for same in [
            json!({ "ask": "suspensions" }),
            json!({ "ask": "find" }),
            json!({ "ask": "cat", "message": "1" }),
            json!({ "ask": "mail", "of": { "message": "1" } }),
            json!({ "ask": "file", "of": { "message": "1" }, "number": 0 }),
        ] {
            check(same.clone(), Ok(same));
        }
        let (scope, mailbox) = (json!({ "domain": "d" }), "example.org/ann/Maildir");
        for refused in [
            json!({ "ask": "mail", "of": { "message": "1", "mailbox": mailbox } }),
            json!({ "ask": "file", "of": { "message": "1", "mailbox": mailbox }, "number": 0 }),
            json!({ "ask": "subjects", "of": [] }),
            json!({ "ask": "search", "query": "x" }),
            json!({ "ask": "mail", "of": { "mailbox": mailbox, "name": "1.x" } }),
            json!({ "ask": "export", "of": {} }),
            json!({ "ask": "import" }),
            json!({ "ask": "trace", "inbound": true, "outbound": true }),
            json!({ "ask": "divert", "scope": scope, "to": "x", "secs": null }),
            json!({ "ask": "undivert", "scope": scope }),
            json!({ "ask": "diversions" }),
            json!({ "ask": "explain", "domain": "d" }),
            json!({ "ask": "forget-mailbox", "mailbox": "x" }),
            json!({ "ask": "page", "secs": 1 }),
            json!({ "ask": "logins" }),
            json!({ "ask": "domains" }),
            json!({ "ask": "records", "domain": "d" }),
            json!({ "ask": "forget-guesses", "of": [] }),
            json!({ "ask": "cluster" }),
        ] {
            check(refused, Err(NotOfTenant::WholeServer));
        }
    }
}
