//! The header of a message in transit.

/// Header fields as received.
#[derive(Default)]
pub(crate) struct HeaderFields {
    /// One after the other.
    octets: Vec<u8>,
    /// The end of each.
    ends: Vec<usize>,
}

impl HeaderFields {
    pub(crate) fn push(&mut self, field: &[u8]) {
        self.octets.extend_from_slice(field);
        self.ends.push(self.octets.len());
    }

    pub(crate) fn bytes(&self) -> usize {
        self.octets.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn at(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.octets[start..self.ends[index]]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.at(index))
    }
}
