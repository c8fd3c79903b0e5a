//! The stored fields of a message in the text index.

use posthaste_text::Extracted;

/// Stored fields of a message, to show it and to match regular expressions and addresses.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Head {
    /// See [`Extracted`].
    pub from: String,
    /// See [`Extracted`].
    pub to: String,
    /// See [`Extracted`].
    pub cc: String,
    /// See [`Extracted`].
    pub bcc: String,
    /// See [`Extracted`].
    pub subject: String,
    /// See [`Extracted`].
    pub message_id: String,
    /// See [`Extracted`].
    pub list: String,
    /// See [`Extracted`].
    pub files: Vec<String>,
}

impl Head {
    pub(crate) fn of(message: &Extracted) -> Self {
        Self {
            from: message.from.clone(),
            to: message.to.clone(),
            cc: message.cc.clone(),
            bcc: message.bcc.clone(),
            subject: message.subject.clone(),
            message_id: message.message_id.clone(),
            list: message.list.clone(),
            files: message.files.clone(),
        }
    }

    /// Packs the values separated by NUL, which none contains: control characters were replaced on reading.
    pub(super) fn pack(&self) -> Vec<u8> {
        let mut packed = Vec::new();
        for value in [&self.from, &self.to, &self.cc, &self.bcc, &self.subject, &self.message_id, &self.list] {
            packed.extend_from_slice(value.as_bytes());
            packed.push(0);
        }
        packed.extend_from_slice(self.files.join("\0").as_bytes());
        packed
    }

    pub(crate) fn unpack(packed: &[u8]) -> Self {
        let mut values = packed.split(|&byte| byte == 0).map(|value| String::from_utf8_lossy(value).into_owned());
        let mut next = || values.next().unwrap_or_default();
        Self {
            from: next(),
            to: next(),
            cc: next(),
            bcc: next(),
            subject: next(),
            message_id: next(),
            list: next(),
            files: values.filter(|name| !name.is_empty()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_unpacks_to_what_was_packed() {
        let head = Head {
            from: "A <a@example.org>".to_owned(),
            subject: "S".to_owned(),
            files: vec!["a.txt".to_owned(), "b".to_owned()],
            ..Head::default()
        };
        assert_eq!(Head::unpack(&head.pack()), head);
        assert_eq!(Head::unpack(&Head::default().pack()), Head::default());
        assert_eq!(Head::unpack(b""), Head::default());
    }
}
