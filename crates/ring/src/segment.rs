//! Reads a segment file by offset: in the ring, or as a pack.

use std::io;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::RingReadError;
use crate::file::{SegmentFile, Source, Staging};
use crate::layout::{BLOCK, FIRST_RECORD, Lsn, RECORD_HEADER, RecordHeader, SegmentHeader};
use crate::scan::{Gap, Located, scan};
use crate::window::Window;

/// Reads the records of one segment file. Clones share the descriptor.
#[derive(Clone)]
pub struct SegmentReader {
    file: Arc<SegmentFile>,
    header: SegmentHeader,
}

impl SegmentReader {
    /// Opens a segment file at any path for reading.
    ///
    /// # Errors
    /// An error of opening or reading; [`io::ErrorKind::InvalidData`] if neither copy of its header is intact.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = Arc::new(SegmentFile::open_to_read(path)?);
        let mut buffer = Staging::default();
        let blocks = buffer.aligned(FIRST_RECORD);
        let (len, _) = file.read_blocks(Source::Cache, blocks, 0)?;
        match SegmentHeader::decode_blocks(&blocks[..len]) {
            Some(header) => Ok(SegmentReader { file, header }),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "neither copy of the segment's header is whole")),
        }
    }

    pub(crate) fn new(file: Arc<SegmentFile>, header: SegmentHeader) -> Self {
        SegmentReader { file, header }
    }

    /// The segment's header.
    pub fn header(&self) -> &SegmentHeader {
        &self.header
    }

    /// The header of the record at `offset`; `None` if there is none, or it is damaged.
    ///
    /// # Errors
    /// An error of reading.
    pub fn record(&self, offset: u32) -> io::Result<Option<RecordHeader>> {
        let mut bytes = [0; RECORD_HEADER];
        match self.file.read_exact_at(&mut bytes, offset.into()) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            read => read.map(|()| RecordHeader::decode(&bytes, &self.header)),
        }
    }

    /// The head of the record at `offset`.
    ///
    /// # Errors
    /// [`RingReadError::HeadDamaged`] if its checksum does not match.
    pub fn head(&self, offset: u32, record: &RecordHeader) -> Result<Bytes, RingReadError> {
        let at = u64::from(offset) + RECORD_HEADER as u64;
        self.checked(record.lsn, at, record.head_len, record.head_crc)?.ok_or(RingReadError::HeadDamaged(record.lsn))
    }

    /// A part of the body of the record at `offset`; the range is cut at the body's end. The checksum of the whole body
    /// is verified first.
    ///
    /// # Errors
    /// [`RingReadError::BodyDamaged`] if the checksum does not match.
    pub fn body(&self, offset: u32, record: &RecordHeader, range: Range<u32>) -> Result<Bytes, RingReadError> {
        let at = u64::from(offset) + RECORD_HEADER as u64 + u64::from(record.head_len);
        let body = self.checked(record.lsn, at, record.body_len, record.body_crc)?;
        let body = body.ok_or(RingReadError::BodyDamaged(record.lsn))?;
        let end = (range.end as usize).min(body.len());
        Ok(body.slice((range.start as usize).min(end)..end))
    }

    /// Like [`body`](Self::body), for the whole body, but bypasses the page cache. Returns even damaged bytes, and true
    /// if their checksum matches. Unreadable sectors are zeros; a truncated file yields fewer bytes.
    ///
    /// # Errors
    /// [`RingReadError::Io`].
    pub fn body_again(&self, offset: u32, record: &RecordHeader) -> Result<(Bytes, bool), RingReadError> {
        let at = u64::from(offset) + RECORD_HEADER as u64 + u64::from(record.head_len);
        let io = |error| RingReadError::Io(record.lsn, error);
        self.file.forget_cached(at, record.body_len.into());
        let mut window = Window::new(&self.file, Source::Cache, 0).map_err(io)?;
        let body = Bytes::copy_from_slice(window.get(at, record.body_len as usize).map_err(io)?);
        let is_whole = body.len() == record.body_len as usize && crc32c::crc32c(&body) == record.body_crc;
        Ok((body, is_whole && window.unreadable.is_empty()))
    }

    /// Visits every record with an intact header and head, in file order, and returns the gaps. Bodies are not read.
    ///
    /// # Errors
    /// An error of reading, except for bad sectors, which are gaps.
    pub fn scan(&self, visit: &mut dyn FnMut(Located<'_>) -> ControlFlow<()>) -> io::Result<Vec<Gap>> {
        Ok(scan((&self.file, Source::Cache), &self.header, FIRST_RECORD as u64..u64::MAX, visit)?.gaps)
    }

    /// Searches a record from an anchor on; `None` if it is missing.
    pub(crate) fn find(&self, from: u32, lsn: Lsn) -> io::Result<Option<(u32, RecordHeader)>> {
        let mut window = Window::new(&self.file, Source::Cache, BLOCK)?;
        let mut at = u64::from(from);
        let mut previous = None;
        loop {
            let mut header = RecordHeader::decode(window.get(at, RECORD_HEADER)?, &self.header);
            if header.is_none() && previous.is_some() {
                at = at.next_multiple_of(BLOCK as u64);
                header = RecordHeader::decode(window.get(at, RECORD_HEADER)?, &self.header);
            }
            match header {
                Some(header) if header.lsn == lsn => return Ok(Some((at as u32, header))),
                Some(header) if header.lsn < lsn && previous.is_none_or(|previous| previous < header.lsn) => {
                    previous = Some(header.lsn);
                    at += header.span();
                }
                _ => return Ok(None),
            }
        }
    }

    fn checked(&self, lsn: Lsn, at: u64, len: u32, crc: u32) -> Result<Option<Bytes>, RingReadError> {
        let mut bytes = vec![0; len as usize];
        match self.file.read_exact_at(&mut bytes, at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read.map_err(|error| RingReadError::Io(lsn, error))?,
        }
        Ok((crc32c::crc32c(&bytes) == crc).then(|| bytes.into()))
    }
}
