//! Steps of an address look-up, for display.

use crate::aliases::AliasId;

/// One step of a look-up: `address` is replaced by all of `to`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressStep {
    /// The replaced address.
    pub address: String,
    /// The rule that replaces it.
    pub rule: Rule,
    /// Addresses. Empty: the mail is discarded or refused.
    pub to: Vec<String>,
}

/// Why an address is replaced by others.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// No domain given: the first one.
    FirstDomain,
    /// The normalised form.
    OneForm,
    /// The domain is an alias of ours.
    DomainAlias,
    /// The address without its detail.
    Detail,
    /// An alias.
    Alias,
    /// This pattern matches.
    Pattern(String),
    /// No user or alias has the address, so the catch-all applies.
    CatchAll,
}

impl Rule {
    /// Description of the rule in plain words.
    pub fn name(&self) -> &'static str {
        match self {
            Self::FirstDomain => "first domain",
            Self::OneForm => "one form",
            Self::DomainAlias => "domain alias",
            Self::Detail => "detail",
            Self::Alias => "alias",
            Self::Pattern(_) => "pattern",
            Self::CatchAll => "catch-all",
        }
    }
}

/// Receives the steps of a look-up; not used for arriving mail.
pub(crate) trait Trace {
    fn step(&mut self, step: impl FnOnce() -> AddressStep);

    /// An alias on the way.
    fn visit(&mut self, alias: AliasId) {
        let _ = alias;
    }
}

impl Trace for () {
    fn step(&mut self, _: impl FnOnce() -> AddressStep) {}
}

impl Trace for Vec<AddressStep> {
    fn step(&mut self, step: impl FnOnce() -> AddressStep) {
        self.push(step());
    }
}
