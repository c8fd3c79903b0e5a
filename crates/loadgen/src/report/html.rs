//! The report as one page.

use super::Report;

impl Report {
    /// One page that needs nothing else.
    pub fn to_html(&self) -> String {
        String::new()
    }
}
