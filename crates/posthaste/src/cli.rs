//! The commands and their options.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config_arg::ConfigArg;
use crate::{
    account, acme, addresses, cfind, cluster, complete, completions, count, dkim, dns, doctor, export, extract, find,
    import, index, info, load, logins, mailbox, new, page, password, query, queue, reply, report, route, search,
    sendmail, setup, show, sink, spool, suppression, tag, threads, token, trace, view,
};

/// A mail engine: receives mail, and answers 250 only when it is on stable storage.
#[derive(Parser)]
#[command(name = "posthaste", version, propagate_version = true)]
pub struct Cli {
    /// Commands that read a configuration have the same option themselves
    #[arg(long, value_name = "FILE", global = true, hide = true)]
    pub config: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Receive mail and deliver it into Maildirs until SIGTERM or Ctrl-C; SIGHUP reloads the configuration
    Serve(Serve),
    /// Test server: discard, store or refuse mail by rule
    Sink(Box<sink::SinkArgs>),
    /// Check this machine's settings and disk before you serve mail or measure; exit status 1 for a serious problem
    Doctor(doctor::DoctorArgs),
    /// Check or print the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show where mail for an address goes, step by step; exit status 1 if it is refused
    Route(route::RouteArgs),
    /// Read a password from the terminal or standard input and print its hash, for the file of passwords
    Password(password::PasswordArgs),
    /// Add, change, list and delete logins in the file of passwords
    #[command(subcommand)]
    Account(account::AccountCommand),
    /// Show the logins, their use, and clients that guess passwords, in a running server; exit status 1 if there are
    /// none
    Logins(logins::LoginsArgs),
    /// Make, list and remove tokens for HTTP: the API and the page
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Make, list and change the keys that sign mail (DKIM)
    #[command(subcommand)]
    Dkim(dkim::DkimCommand),
    /// Print and check the DNS records of a domain
    #[command(subcommand)]
    Dns(dns::DnsCommand),
    /// Set up this machine for the mail of a domain, with keys, a first login and the DNS records to add; a second run changes nothing
    Setup(Box<setup::SetupArgs>),
    /// Print a link that opens the page of a running server in a browser, once, within 10 minutes
    Page(page::PageArgs),
    /// Get certificates of a running server from its authority
    #[command(subcommand)]
    Acme(acme::AcmeCommand),
    /// Index Maildirs for `find`: everything the first time, then only changes
    Index(index::Index),
    /// Find messages in the index
    Find(find::Find),
    /// Find conversations in the index
    Threads(threads::Threads),
    /// Show a message
    View(view::View),
    /// List or save a message's attachments
    Extract(extract::Extract),
    /// List the addresses in messages and how often they occur
    #[command(alias = "address")]
    Addresses(addresses::Addresses),
    /// Add, remove, list, dump and restore tags
    Tag(tag::Tag),
    /// Save, list and delete queries for use as `query:NAME`
    Query(query::QueryArgs),
    /// Find conversations, and print them as `notmuch search` does
    Search(search::Search),
    /// Print messages, whole threads or a part, as `notmuch show` does
    Show(show::Show),
    /// Print a reply template, as `notmuch reply` does
    Reply(reply::Reply),
    /// Count messages, as `notmuch count` does
    Count(count::Count),
    /// Bring the search index up to date, as `notmuch new` does
    New(new::New),
    /// List addresses that match a pattern, as `mu cfind` does
    Cfind(cfind::Cfind),
    /// Show what is in the search index
    Info(info::Info),
    /// Print a shell completion script
    Completions(completions::Completions),
    /// Print what the last word of a line may become; for the scripts that `completions` prints
    #[command(hide = true)]
    Complete(complete::Complete),
    /// Send a message from standard input, as the sendmail of other mail servers does; it waits for the server if that is down
    Sendmail(sendmail::Sendmail),
    /// Show and change the queue of mail for other hosts, in a running server
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    /// Show what happened to a message, from the event log, or sessions of a running server; exit status 1 if nothing fits
    Trace(trace::Trace),
    /// Show and change the list of addresses to which nothing is sent, in a running server
    #[command(subcommand)]
    Suppression(suppression::SuppressionCommand),
    /// Show and move the shards of a node of a cluster, in a running server
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Show the mailboxes of an account: messages, UIDs, keywords
    #[command(subcommand)]
    Mailbox(mailbox::MailboxCommand),
    /// Import mail of other programs into an account: a Maildir, an mbox file, .eml files; safe to repeat after an interrupt
    Import(import::ImportArgs),
    /// Write an account's mail into a Maildir or an mbox file; safe to repeat after an interrupt
    Export(export::ExportArgs),
    /// Inspect, verify, repair or export a spool
    #[command(subcommand)]
    Spool(spool::SpoolCommand),
    /// Load a server with mail and measure throughput, latency and errors
    Load(Box<load::Load>),
    /// Compare or render reports of `load`
    #[command(subcommand)]
    Report(report::ReportCommand),
}

impl Command {
    /// True if it reads the server's configuration.
    pub fn has_config(&self) -> bool {
        matches!(
            self,
            Self::Serve(_)
                | Self::Doctor(_)
                | Self::Config(_)
                | Self::Account(_)
                | Self::Export(_)
                | Self::Import(_)
                | Self::Mailbox(_)
                | Self::Route(_)
                | Self::Queue(_)
                | Self::Suppression(_)
                | Self::Logins(_)
                | Self::Token(_)
                | Self::Dkim(_)
                | Self::Dns(_)
                | Self::Page(_)
                | Self::Acme(_)
                | Self::Cluster(_)
                | Self::Trace(_)
                | Self::Sendmail(_)
        )
    }

    /// True if it reads the search index.
    pub fn has_index(&self) -> bool {
        matches!(
            self,
            Self::Index(_)
                | Self::Find(_)
                | Self::Threads(_)
                | Self::View(_)
                | Self::Extract(_)
                | Self::Addresses(_)
                | Self::Tag(_)
                | Self::Query(_)
                | Self::Search(_)
                | Self::Show(_)
                | Self::Reply(_)
                | Self::Count(_)
                | Self::New(_)
                | Self::Cfind(_)
                | Self::Info(_)
        )
    }
}

#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    pub config: ConfigArg,
    /// Format of log lines; overrides the configuration
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<Format>,
    /// Write `ready` to this descriptor (3 or above) once all listeners are bound and the spool is replayed, as s6's notification-fd expects
    #[arg(long, value_name = "N")]
    pub ready_fd: Option<u32>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Format {
    Plain,
    Json,
}

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration and show where it is wrong; exit status 0: usable, perhaps with notes and warnings, 2: not usable
    Check {
        /// Path of the configuration, like --config FILE
        #[arg(conflicts_with = "config")]
        file: Option<PathBuf>,
        #[command(flatten)]
        config: ConfigArg,
    },
    /// Print the effective configuration, including defaults
    Show {
        #[command(flatten)]
        config: ConfigArg,
        /// Print JSON instead of TOML
        #[arg(long)]
        json: bool,
    },
}
