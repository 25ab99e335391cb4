//! The values of `process_*`. Each scrape reads them from the kernel.

use std::fs;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::unistd::{SysconfVar, sysconf};

/// Returns the current values by the names of the metrics; no value that the kernel does not tell.
pub(super) fn values() -> Vec<(&'static str, f64)> {
    // An unlimited one is the largest number.
    let limit = |resource| Some(getrlimit(resource).ok()?.0 as f64);
    let [virtual_bytes, resident_bytes] = [0, 1].map(memory);
    let values = [
        ("process_resident_memory_bytes", resident_bytes),
        ("process_virtual_memory_bytes", virtual_bytes),
        ("process_cpu_seconds_total", cpu_seconds()),
        ("process_open_fds", open_files()),
        ("process_max_fds", limit(Resource::RLIMIT_NOFILE)),
        ("process_virtual_memory_max_bytes", limit(Resource::RLIMIT_AS)),
    ];
    values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Returns the bytes in a field of `/proc/self/statm` (proc_pid_statm(5)).
fn memory(field: usize) -> Option<f64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = text.split(' ').nth(field)?.parse().ok()?;
    Some(pages * sysconf(SysconfVar::PAGE_SIZE).ok()?? as f64)
}

fn cpu_seconds() -> Option<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let times = [usage.user_time(), usage.system_time()];
    Some(times.iter().map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6).sum())
}

fn open_files() -> Option<f64> {
    let files = fs::read_dir("/proc/self/fd").ok()?.count();
    // One of them belongs to this listing.
    Some(files.saturating_sub(1) as f64)
}
