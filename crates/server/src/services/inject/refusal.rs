//! The refusal of a request.

use posthaste_inject::InvalidRequest;

use crate::services::renders::RenderFailure;

/// A refused request: none of its mail is received.
#[derive(Debug)]
pub(super) struct Refused {
    pub status: u16,
    pub why: String,
}

impl From<InvalidRequest> for Refused {
    fn from(error: InvalidRequest) -> Self {
        Self { status: 400, why: error.to_string() }
    }
}

impl From<RenderFailure> for Refused {
    fn from(failure: RenderFailure) -> Self {
        match failure {
            RenderFailure::Busy => Self { status: 503, why: "too many templates are rendered now".to_owned() },
            RenderFailure::Panicked => Self { status: 500, why: "the request could not be read".to_owned() },
        }
    }
}
