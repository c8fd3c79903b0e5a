//! Header fields for message lists.

/// True for the fields that clients list: those of ENVELOPE, SORT and THREAD, and others that mail programs fetch for
/// all new mail.
pub fn is_listed_field(name: &[u8]) -> bool {
    const NAMES: [&str; 27] = [
        "From",
        "To",
        "Cc",
        "Bcc",
        "Sender",
        "Reply-To",
        "Subject",
        "Date",
        "Message-ID",
        "References",
        "In-Reply-To",
        "Content-Type",
        "Content-Transfer-Encoding",
        "MIME-Version",
        "Priority",
        "X-Priority",
        "Importance",
        "Newsgroups",
        "List-Id",
        "List-Unsubscribe",
        "List-Post",
        "X-Mailer",
        "User-Agent",
        "Disposition-Notification-To",
        "Autocrypt",
        "Authentication-Results",
        "X-Label",
    ];
    let is_spam_field = name.get(..7).is_some_and(|start| start.eq_ignore_ascii_case(b"X-Spam-"));
    is_spam_field || NAMES.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}
