//! Limits and threads of the agent's own process.

use std::fs;

use anyhow::Context;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::config::OOM_SCORE_ADJ;

/// Sets how readily the kernel kills this process when memory is short. Only root may lower the
/// value.
pub(super) fn set_oom_score_adj(score: i16) {
    // Not /proc/thread-self: the score belongs to the process (`proc_oom_score_adj_operations`).
    const FILE: &str = "/proc/self/oom_score_adj";
    let wanted = score.to_string();
    if fs::read_to_string(FILE).is_ok_and(|now| now.trim() == wanted) {
        return;
    }
    match fs::write(FILE, &wanted) {
        Ok(()) => tracing::debug!(score, "set {FILE}"),
        // The default is not an explicit request, so this is no warning.
        Err(error) if score == OOM_SCORE_ADJ => {
            tracing::info!(score, "cannot set {FILE}, it keeps its value: {error}");
        }
        Err(error) => tracing::warn!(
            value = score,
            field = "oomScoreAdj",
            "cannot set {FILE}: {error}; the kernel may kill this process when memory is short (a \
             lower value needs CAP_SYS_RESOURCE)"
        ),
    }
}

/// Raises the soft limit of open files to the hard limit, like Go's runtime: listeners and
/// connections are files, too.
pub(super) fn allow_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        tracing::debug!(%error, "cannot raise the limit of open files");
    }
}

/// Starts a thread of that name.
///
/// # Errors
/// If the system refuses to start a thread.
pub(super) fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .with_context(|| format!("cannot start the thread \"{name}\""))?;
    Ok(())
}
