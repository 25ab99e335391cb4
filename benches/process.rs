//! What the kernel tells about a process.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Bytes of memory, from `/proc/PID/status` (proc_pid_status(5)).
pub(crate) struct Memory {
    /// `VmRSS`.
    pub(crate) resident: u64,
    /// `RssFile`, a part of `VmRSS`.
    pub(crate) of_files: u64,
    /// `VmHWM`: the largest `VmRSS` so far.
    pub(crate) peak: u64,
}

/// How much memory a process uses.
pub(crate) fn memory(pid: i32) -> Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.map(|kib| kib * 1024).with_context(|| format!("no {name} of process {pid}"))
    };
    Ok(Memory { resident: field("VmRSS")?, of_files: field("RssFile")?, peak: field("VmHWM")? })
}

/// How long all threads of a process that there are now have been on a processor: the first number
/// of `schedstat`, in nanoseconds. Finer than the ticks in `stat`.
fn cpu_time(pid: i32) -> Result<Duration> {
    let mut total = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have just ended.
        let Ok(stat) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        let nanoseconds = stat.split_whitespace().next().and_then(|number| number.parse().ok());
        total += nanoseconds.unwrap_or(0_u64);
    }
    Ok(Duration::from_nanos(total))
}

/// The share of a core that a process uses for some time.
pub(crate) fn share(pid: i32, time: Duration) -> Result<f64> {
    let (before, started) = (cpu_time(pid)?, Instant::now());
    thread::sleep(time);
    Ok((cpu_time(pid)? - before).as_secs_f64() / started.elapsed().as_secs_f64())
}
