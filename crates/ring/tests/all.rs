//! The ring through its interface, one thing in each file.

mod damage;
mod prop;
mod ring;
