//! Accounts and orders.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::CertificateSigningRequestParams;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::Shared;
use crate::http::{Reply, Signed};
use crate::validate::Challenge;

/// State of the authority.
pub(crate) struct State {
    /// Thumbprints of their keys (RFC 7638).
    pub accounts: Vec<String>,
    pub orders: Vec<Order>,
    /// In seconds from now.
    pub validity: (i64, i64),
    pub renewal: Option<(i64, i64)>,
    numbers: u64,
}

impl Default for State {
    fn default() -> Self {
        Self { accounts: Vec::new(), orders: Vec::new(), validity: (-3600, 90 * 86_400), renewal: None, numbers: 0 }
    }
}

impl State {
    pub fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

/// An order for one name, with its one authorization.
pub(crate) struct Order {
    pub name: String,
    pub replaces: Option<String>,
    thumb: String,
    status: &'static str,
    /// The kind of the challenge that was tried, and the error.
    failed: Option<(String, String)>,
    chain: Option<String>,
}

impl Shared {
    /// Answers an unsigned request.
    pub fn get(&self, path: &str) -> Reply {
        let base = &self.base;
        match path {
            "/directory" => {
                let mut directory = json!({
                    "newNonce": format!("{base}/nonce"), "newAccount": format!("{base}/account"),
                    "newOrder": format!("{base}/order"),
                });
                if self.state().renewal.is_some() {
                    directory["renewalInfo"] = format!("{base}/renewal").into();
                }
                Reply::json(200, &directory)
            }
            "/nonce" => Reply::json(200, &Value::Null),
            _ if path.starts_with("/renewal/") => {
                let window = self.state().renewal.unwrap_or_default();
                let at = |from_now: i64| rfc3339(moment(from_now));
                Reply::json(200, &json!({ "suggestedWindow": { "start": at(window.0), "end": at(window.1) } }))
            }
            _ => Reply::problem("malformed", "there is no such path"),
        }
    }

    /// Answers a signed request.
    pub fn post(self: &Arc<Self>, path: &str, signed: &Signed) -> Reply {
        let base = &self.base;
        let mut parts = path.trim_start_matches('/').split('/');
        let (what, number) = (parts.next().unwrap_or(""), parts.next().and_then(|number| number.parse().ok()));
        if what == "account" {
            return self.new_account(signed);
        }
        let account = signed.header["kid"].as_str().and_then(|kid| kid.rsplit('/').next()?.parse::<usize>().ok());
        let thumb = account.and_then(|number| self.state().accounts.get(number).cloned());
        let Some(thumb) = thumb else { return Reply::problem("accountDoesNotExist", "who is this?") };
        match (what, number) {
            ("order", None) => self.new_order(signed, thumb),
            ("order", Some(number)) => self.order(number),
            ("authz", Some(number)) => self.authorization(number),
            ("challenge", Some(number)) => self.validate(number, parts.next().unwrap_or("")),
            ("finalize", Some(number)) => self.finalize(number, signed),
            ("chain", Some(number)) => {
                let body = self.state().orders[number].chain.clone().unwrap_or_default();
                Reply { status: 200, location: None, content_type: "application/pem-certificate-chain", body }
            }
            _ => Reply::problem("malformed", &format!("there is no {base}{path}")),
        }
    }

    fn new_account(&self, signed: &Signed) -> Reply {
        let jwk = &signed.header["jwk"];
        // In the order of RFC 7638 section 3.2.
        let canonical =
            format!("{{\"crv\":{},\"kty\":{},\"x\":{},\"y\":{}}}", jwk["crv"], jwk["kty"], jwk["x"], jwk["y"]);
        let mut state = self.state();
        state.accounts.push(URL_SAFE_NO_PAD.encode(digest(&SHA256, canonical.as_bytes())));
        let location = Some(format!("{}/account/{}", self.base, state.accounts.len() - 1));
        Reply { location, ..Reply::json(201, &json!({ "status": "valid" })) }
    }

    fn new_order(&self, signed: &Signed, thumb: String) -> Reply {
        let name = signed.payload["identifiers"][0]["value"].as_str().unwrap_or("").to_owned();
        let replaces = signed.payload["replaces"].as_str().map(str::to_owned);
        let mut state = self.state();
        state.orders.push(Order { name, replaces, thumb, status: "pending", failed: None, chain: None });
        let number = state.orders.len() - 1;
        drop(state);
        let location = Some(format!("{}/order/{number}", self.base));
        Reply { location, status: 201, ..self.order(number) }
    }

    fn order(&self, number: usize) -> Reply {
        let (base, state) = (&self.base, self.state());
        let Some(order) = state.orders.get(number) else {
            return Reply::problem("malformed", "there is no such order");
        };
        let mut body = json!({
            "status": order.status, "identifiers": [{ "type": "dns", "value": order.name }],
            "authorizations": [format!("{base}/authz/{number}")], "finalize": format!("{base}/finalize/{number}"),
        });
        if order.chain.is_some() {
            body["certificate"] = format!("{base}/chain/{number}").into();
        }
        if let Some(replaces) = &order.replaces {
            body["replaces"] = replaces.clone().into();
        }
        Reply::json(200, &body)
    }

    fn authorization(&self, number: usize) -> Reply {
        let state = self.state();
        let order = &state.orders[number];
        let status = match order.status {
            "pending" => "pending",
            "invalid" => "invalid",
            _ => "valid",
        };
        let challenges: Vec<Value> =
            ["tls-alpn-01", "http-01", "dns-01"].map(|kind| self.challenge(number, order, kind)).into();
        let identifier = json!({ "type": "dns", "value": order.name });
        Reply::json(200, &json!({ "status": status, "identifier": identifier, "challenges": challenges }))
    }

    fn challenge(&self, number: usize, order: &Order, kind: &str) -> Value {
        let url = format!("{}/challenge/{number}/{kind}", self.base);
        let mut challenge = json!({ "type": kind, "url": url, "token": token(number), "status": "pending" });
        if let Some((_, why)) = order.failed.as_ref().filter(|(of, _)| of == kind) {
            challenge["status"] = "invalid".into();
            challenge["error"] = json!({ "type": "urn:ietf:params:acme:error:unauthorized", "detail": why });
        }
        challenge
    }

    fn validate(&self, number: usize, kind: &str) -> Reply {
        let challenge = {
            let state = self.state();
            let order = &state.orders[number];
            let key_authorization = format!("{}.{}", token(number), order.thumb);
            Challenge { kind: kind.to_owned(), name: order.name.clone(), token: token(number), key_authorization }
        };
        let seen = (self.validation)(&challenge);
        let mut state = self.state();
        let order = &mut state.orders[number];
        order.status = if seen.is_ok() { "ready" } else { "invalid" };
        order.failed = seen.err().map(|why| (kind.to_owned(), why));
        // The error is in the authorization.
        Reply::json(
            200,
            &json!({
                "type": kind, "url": format!("{}/challenge/{number}/{kind}", self.base), "token": token(number), "status": "processing",
            }),
        )
    }

    fn finalize(&self, number: usize, signed: &Signed) -> Reply {
        let request = signed.payload["csr"].as_str().and_then(|csr| URL_SAFE_NO_PAD.decode(csr).ok());
        let request = request.and_then(|csr| CertificateSigningRequestParams::from_der(&csr.into()).ok());
        let Some(mut request) = request else { return Reply::problem("badCSR", "this is not a request") };
        let (from, to) = self.state().validity;
        (request.params.not_before, request.params.not_after) =
            (OffsetDateTime::from(moment(from)), OffsetDateTime::from(moment(to)));
        request.params.use_authority_key_identifier_extension = true;
        match request.signed_by(&self.issuer) {
            Ok(certificate) => {
                let mut state = self.state();
                (state.orders[number].chain, state.orders[number].status) = (Some(certificate.pem()), "valid");
            }
            Err(error) => return Reply::problem("badCSR", &error.to_string()),
        }
        self.order(number)
    }
}

fn token(number: usize) -> String {
    format!("token-of-order-{number}-for-tests")
}

fn moment(from_now: i64) -> SystemTime {
    let span = Duration::from_secs(from_now.unsigned_abs());
    if from_now < 0 { SystemTime::now() - span } else { SystemTime::now() + span }
}

/// Formats the time by RFC 3339, in whole seconds.
fn rfc3339(time: SystemTime) -> String {
    let secs = time.duration_since(SystemTime::UNIX_EPOCH).expect("a time after 1970").as_secs();
    let (days, secs) = (secs / 86_400, secs % 86_400);
    // Years that begin in March have the leap day at their end.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year, if month < 10 { month + 3 } else { month - 9 });
    let year = if month <= 2 { year + 1 } else { year };
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", secs / 3600, secs / 60 % 60, secs % 60)
}
