//! The progress bar of long-running commands.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use posthaste_search::Progress;

pub fn progress_bar() -> ProgressBar {
    // Draws on a terminal only.
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len}  {per_sec}  {eta}") {
        bar.set_style(style);
    }
    bar
}

pub fn show(bar: &ProgressBar, progress: Progress) {
    match progress {
        Progress::Looking => bar.set_message("looking"),
        Progress::Reading { done, total, .. } => {
            bar.set_message("reading");
            bar.set_length(total);
            bar.set_position(done);
        }
        Progress::Committing => bar.set_message("writing"),
    }
}
