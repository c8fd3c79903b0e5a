//! A reader of MIME (RFC 2045 to 2047, 2231, 5322): see [`Message`].

mod address;
mod charset;
#[rustfmt::skip]
mod charset_tables;
mod date;
mod field;
mod flowed;
mod guess;
mod ids;
mod listed;
mod params;
mod part;
mod scan;
mod shifted;
mod stream;
mod subject;
mod transfer;
mod words;

pub use address::{AddressList, DecodedAddress, RawAddress, RawAddresses};
pub use charset::{Charset, decode_body};
pub use field::{Field, Header, HeaderFields};
pub use flowed::unflow;
pub use ids::{in_reply_to, message_id, references};
pub use listed::is_listed_field;
pub use params::{main_value, parameter, raw_parameters};
pub use part::{Message, Part, Parts};
pub use scan::{Kind, ScanLimits, ScanProblem};
pub use stream::{BLANKS_MAX, BrokenEncoding, TransferDecoder};
pub use subject::{BaseSubject, base_subject};
pub use transfer::{Encoding, base64, quoted_printable};
pub use words::{decode_text, unfold};
