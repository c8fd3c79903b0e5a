//! Descriptors that the parent process left open.

use std::io;

/// Closes inherited descriptors, except the standard ones, in programs started from now on. Descriptors opened by this
/// process are marked when opened.
///
/// # Errors
/// The kernel is older than 5.11.
#[allow(unsafe_code, reason = "descriptors that nobody owns have no safe name")]
pub fn close_inherited_on_exec() -> io::Result<()> {
    // SAFETY: closes nothing in this process; the flag changes what a program sees that is executed.
    let done = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC.cast_signed()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
