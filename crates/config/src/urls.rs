//! URLs of a configuration.

/// True if a URL contains a name or a password (RFC 3986 section 3.2.1). The page and `config show` show the
/// configuration, so it must not contain secrets.
pub(crate) fn has_login(url: &str) -> bool {
    let authority = url.split_once("//").map_or(url, |(_, rest)| rest).split(['/', '?', '#']).next();
    authority.is_some_and(|authority| authority.contains('@'))
}

/// The error about such a URL. It is reported at another key, as the line of this one contains the secret.
pub(crate) const NO_LOGIN: &str =
    "a URL here has no name and no password: whoever reads the configuration would have them";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_or_a_password_stands_before_the_host() {
        for url in ["https://a:b@h.example/", "https://a@h", "https://@h", "a:b@h", "https://a:b@h?x", "//a@h#x"] {
            assert!(has_login(url), "{url}");
        }
        for url in ["https://h.example/@a", "https://h?a@b", "https://h#a@b", "https://h:1/x@y", "", "h"] {
            assert!(!has_login(url), "{url}");
        }
    }
}
