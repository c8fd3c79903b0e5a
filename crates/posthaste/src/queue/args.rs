//! Options that several commands share.

use clap::{Args, ValueEnum};
use posthaste_control::{By, Named, Which};
use posthaste_spool::Lsn;

use crate::config_arg::ConfigArg;

pub type AnyError = Box<dyn std::error::Error>;

#[derive(Clone, Copy, ValueEnum)]
pub enum ByArg {
    /// Their domain
    Domain,
    /// Whose mail it is
    Tenant,
    /// The mailing
    Campaign,
    /// The set of mail hosts
    Site,
}

impl ByArg {
    pub fn by(self) -> By {
        match self {
            Self::Domain => By::Domain,
            Self::Tenant => By::Tenant,
            Self::Campaign => By::Campaign,
            Self::Site => By::Site,
        }
    }
}

#[derive(Args)]
pub struct ServerArgs {
    #[command(flatten)]
    pub config: ConfigArg,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Default)]
pub struct WhichArgs {
    /// A message, such as 4711, or one of its recipients, such as 4711.0
    #[arg(value_name = "ID", value_parser = id)]
    pub id: Option<(Lsn, Option<u16>)>,
    /// From this sender; "" for notifications
    #[arg(long, value_name = "ADDRESS")]
    pub sender: Option<String>,
    /// To this recipient
    #[arg(long, value_name = "ADDRESS")]
    pub recipient: Option<String>,
    /// To this domain
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<String>,
    /// Of this tenant
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Of this campaign
    #[arg(long, value_name = "NAME")]
    pub campaign: Option<String>,
    /// Only held mail
    #[arg(long)]
    pub held: bool,
}

#[derive(Args)]
pub struct ActArgs {
    #[command(flatten)]
    pub which: WhichArgs,
    /// All that waits
    #[arg(long)]
    pub all: bool,
    /// The reason, for the log and for notices
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Args)]
#[group(required = true, multiple = true)]
pub struct ScopeArgs {
    /// Mail to this domain
    #[arg(long, value_name = "DOMAIN", conflicts_with = "site")]
    pub domain: Option<String>,
    /// Mail of this tenant; with a domain or a site only that to it
    #[arg(long, value_name = "NAME", conflicts_with = "campaign")]
    pub tenant: Option<String>,
    /// This campaign, of any tenant; with a domain or a site only its mail to it
    #[arg(long, value_name = "NAME")]
    pub campaign: Option<String>,
    /// Mail to this set of mail hosts, as the log names it
    #[arg(long, value_name = "HOSTS")]
    pub site: Option<String>,
}

pub fn id(text: &str) -> Result<(Lsn, Option<u16>), String> {
    let (message, number) = text.split_once('.').map_or((text, None), |(message, number)| (message, Some(number)));
    let wrong = || "an id is the number of a message, as `posthaste queue list` shows it".to_owned();
    let number = number.map(|number| number.parse().map_err(|_| wrong())).transpose()?;
    Ok((message.parse().map_err(|_| wrong())?, number))
}

impl WhichArgs {
    pub fn which(&self) -> Which {
        Which {
            message: self.id.map(|(message, _)| message),
            number: self.id.and_then(|(_, number)| number),
            sender: self.sender.clone(),
            recipient: self.recipient.clone(),
            domain: self.domain.clone(),
            tenant: self.tenant.clone(),
            campaign: self.campaign.clone(),
            held: self.held.then_some(true),
        }
    }
}

impl ScopeArgs {
    pub fn named(self) -> Named {
        let ScopeArgs { domain, tenant, campaign, site } = self;
        Named { tenant, campaign, domain, site }
    }
}
