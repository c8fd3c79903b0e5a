//! Headers and MIME, and what other readers say of them.

mod mime;
mod prop;
mod second_opinion;
