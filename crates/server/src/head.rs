//! The header of a message as it comes: what the log tells of it, and the fields that are taken out or changed before it is stored.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_intake::PieceFilter;
use posthaste_message::rewrite::AddressMap;
use posthaste_message::{Edit, HeaderEditor, HeaderScan, RawField, Summary};

use crate::tenants::{LabelFields, Labels, name_in};

/// Sees all of a message.
pub(crate) struct Head {
    scan: HeaderScan,
    /// `None` for most messages.
    edits: Option<Box<Edits>>,
    hops_max: usize,
    heard: (Summary, HeaderLabels),
}

/// Why a header is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HeaderRefusal {
    /// Too many Received fields.
    Loop { hops: usize },
    /// A field that should name a tenant or a campaign.
    NoName { field: Arc<str> },
}

struct Edits {
    editor: HeaderEditor,
    rules: Rules,
}

/// Rules for fields.
struct Rules {
    fields: LabelFields,
    /// The map of addresses.
    canonical: Option<Arc<AddressMap>>,
    labels: Labels,
    /// A field that has no name in it.
    invalid: Option<Arc<str>>,
}

/// Labels from a header.
#[derive(Debug, Default)]
pub(crate) struct HeaderLabels {
    pub labels: Labels,
    /// A field that has no name in it.
    pub invalid: Option<Arc<str>>,
}

impl Head {
    /// Takes out `fields`, and changes addresses by `canonical`, if these are there. A message of `hops_max` hops is refused.
    pub fn new(
        scan: HeaderScan,
        hops_max: usize,
        fields: Option<LabelFields>,
        canonical: Option<Arc<AddressMap>>,
    ) -> Self {
        let is_edited = fields.is_some() || canonical.is_some();
        let edits = is_edited.then(|| {
            let fields = fields.unwrap_or_default();
            let rules = Rules { fields, canonical, labels: Labels::default(), invalid: None };
            Box::new(Edits { editor: HeaderEditor::default(), rules })
        });
        Self { scan, edits, hops_max, heard: Default::default() }
    }

    /// The findings, once all of the message was seen.
    pub fn heard(self) -> (Summary, HeaderLabels) {
        self.heard
    }
}

impl PieceFilter for Head {
    type Refusal = HeaderRefusal;

    fn push(&mut self, piece: Bytes) -> Bytes {
        let piece = match self.edits.as_deref_mut().filter(|edits| !edits.editor.is_over()) {
            Some(edits) => edits.push(&piece),
            None => piece,
        };
        self.scan.push(&piece);
        piece
    }

    fn end(&mut self) -> Result<Option<Bytes>, HeaderRefusal> {
        let mut rest = Vec::new();
        let said = match self.edits.take() {
            Some(mut edits) => {
                if !edits.editor.is_over() {
                    edits.editor.finish(&mut rest, &mut |field| edits.rules.edit(field));
                    self.scan.push(&rest);
                }
                HeaderLabels { labels: edits.rules.labels, invalid: edits.rules.invalid }
            }
            None => HeaderLabels::default(),
        };
        let summary = std::mem::take(&mut self.scan).finish();
        match &said.invalid {
            _ if summary.hops >= self.hops_max => return Err(HeaderRefusal::Loop { hops: summary.hops }),
            Some(field) => return Err(HeaderRefusal::NoName { field: field.clone() }),
            None => {}
        }
        self.heard = (summary, said);
        Ok((!rest.is_empty()).then(|| rest.into()))
    }
}

impl Edits {
    fn push(&mut self, piece: &Bytes) -> Bytes {
        let mut out = Vec::with_capacity(piece.len());
        let taken = self.editor.push(piece, &mut out, &mut |field| self.rules.edit(field));
        match piece.len() - taken {
            0 => out.into(),
            // A large body is not copied.
            rest if out.is_empty() => piece.slice(piece.len() - rest..),
            _ => {
                out.extend_from_slice(&piece[taken..]);
                out.into()
            }
        }
    }
}

impl Rules {
    fn edit(&mut self, field: &RawField<'_>) -> Edit {
        let is = |name: &Option<Arc<str>>| name.as_ref().is_some_and(|name| field.is(name));
        let (name, label) = match () {
            () if is(&self.fields.tenant) => (&self.fields.tenant, &mut self.labels.tenant),
            () if is(&self.fields.campaign) => (&self.fields.campaign, &mut self.labels.campaign),
            () if is(&self.fields.pool) => (&self.fields.pool, &mut self.labels.pool),
            () => {
                let other = self.canonical.as_ref().and_then(|map| map.field(field));
                return other.map_or(Edit::Keep, Edit::Replace);
            }
        };
        // The first counts.
        if label.is_none() {
            *label = if field.is_whole { name_in(field.value()) } else { None };
            if label.is_none() {
                self.invalid = self.invalid.take().or_else(|| name.clone());
            }
        }
        Edit::Remove
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> LabelFields {
        LabelFields {
            tenant: Some("X-Tenant".into()),
            campaign: Some("X-Campaign".into()),
            pool: Some("X-Pool".into()),
        }
    }

    /// The stored form of a message that comes in pieces, and its labels.
    fn stored(
        message: &[u8],
        piece: usize,
        fields: Option<LabelFields>,
    ) -> Result<(Vec<u8>, Summary, HeaderLabels), HeaderRefusal> {
        let (mut head, mut out) = (Head::new(HeaderScan::default(), 50, fields, None), Vec::new());
        message.chunks(piece).for_each(|part| out.extend(head.push(Bytes::copy_from_slice(part))));
        out.extend(head.end()?.unwrap_or_default());
        let (summary, said) = head.heard();
        Ok((out, summary, said))
    }

    #[test]
    fn labels_are_read_and_taken_out_however_a_message_is_cut() {
        let message = b"Received: x\r\nx-tenant: a\r\nMessage-ID: <1@x>\r\nX-Tenant: b\r\nX-Campaign:\r\n c\r\nX-POOL: p\r\n\r\nX-Tenant: d\r\n";
        for piece in 1..=message.len() {
            let (out, summary, said) = stored(message, piece, Some(fields())).unwrap();
            assert_eq!(out, b"Received: x\r\nMessage-ID: <1@x>\r\n\r\nX-Tenant: d\r\n", "{piece}");
            assert_eq!((summary.hops, summary.message_id.as_deref()), (1, Some("<1@x>")));
            assert_eq!((said.labels.tenant.as_deref(), said.labels.campaign.as_deref()), (Some("a"), Some("c")));
            assert_eq!(said.labels.pool.as_deref(), Some("p"));
            assert_eq!(said.invalid, None);
            assert_eq!(stored(message, piece, None).unwrap().0, message, "nothing is taken from others");
        }
    }

    #[test]
    fn a_label_that_is_no_name_is_told() {
        let refused = |field: &str| HeaderRefusal::NoName { field: field.into() };
        for value in ["", " a b", &" x".repeat(100_000)] {
            let stored = stored(format!("X-Tenant:{value}\r\n\r\n").as_bytes(), 1000, Some(fields()));
            assert_eq!(stored.unwrap_err(), refused("X-Tenant"));
        }
        assert_eq!(stored(b"X-Campaign: cut off", 3, Some(fields())).unwrap_err(), refused("X-Campaign"));
    }

    #[test]
    fn a_message_of_50_hops_is_in_a_loop() {
        let of = |hops: usize| stored(&b"Received: x\r\n".repeat(hops), 100, None);
        assert!(of(49).is_ok());
        assert_eq!(of(50).unwrap_err(), HeaderRefusal::Loop { hops: 50 });
    }
}
