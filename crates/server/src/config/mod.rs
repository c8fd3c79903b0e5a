//! The configuration in use: certificates, keys, passwords and the other files that it names, and the rights of the process.

pub(crate) mod acme;
pub(crate) mod certificate_lists;
pub(crate) mod certificates;
pub(crate) mod dkim;
pub(crate) mod engine_login;
pub(crate) mod error;
pub(crate) mod expiry;
pub(crate) mod first_password;
pub(crate) mod forward;
pub(crate) mod own_certificates;
pub(crate) mod own_domains;
pub(crate) mod privileges;
pub(crate) mod resolver;
pub(crate) mod self_made;
pub(crate) mod start_files;
