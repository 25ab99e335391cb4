//! What the kernel tells about a process.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Bytes of memory, from `/proc/PID/status` (proc_pid_status(5)).
pub(crate) struct Memory {
    /// `VmRSS`.
    pub(crate) resident: u64,
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
    Ok(Memory { resident: field("VmRSS")?, peak: field("VmHWM")? })
}

/// How long a process and all its children, also those that ended, have been on a processor. Of
/// threads that run it is the first number of `schedstat`, in nanoseconds; of children that ended it
/// is in ticks of 10 ms.
pub(crate) fn cpu_time(pid: i32) -> Result<Duration> {
    let stat = Stat::of(pid).with_context(|| format!("no process {pid}"))?;
    let ended = Duration::from_millis(10) * u32::try_from(stat.ticks_of_ended_children)?;
    let running = children(pid)?.into_iter().map(time_of_threads).sum::<Duration>();
    Ok(time_of_threads(pid) + running + ended)
}

fn time_of_threads(pid: i32) -> Duration {
    let mut total = 0;
    // A process, or one of its threads, may have just ended.
    for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let Ok(stat) = fs::read_to_string(thread.path().join("schedstat")) else { continue };
        let nanoseconds = stat.split_whitespace().next().and_then(|number| number.parse().ok());
        total += nanoseconds.unwrap_or(0_u64);
    }
    Duration::from_nanos(total)
}

/// The fields of `/proc/PID/stat` that matter here.
struct Stat {
    parent: i32,
    ticks_of_ended_children: u64,
}

impl Stat {
    fn of(pid: i32) -> Option<Stat> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may contain anything: from the third field on.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let parent = i32::try_from(number(4)?).ok()?;
        Some(Stat { parent, ticks_of_ended_children: number(16)? + number(17)? })
    }
}

/// The processes that a process has started and that still run.
pub(crate) fn children(pid: i32) -> Result<Vec<i32>> {
    let processes = fs::read_dir("/proc")?.flatten();
    let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(processes.filter(|&child| Stat::of(child).is_some_and(|stat| stat.parent == pid)).collect())
}

/// The share of a core that a process and its children use for some time.
pub(crate) fn share(pid: i32, time: Duration) -> Result<f64> {
    let (before, started) = (cpu_time(pid)?, Instant::now());
    thread::sleep(time);
    let used = cpu_time(pid)?.saturating_sub(before);
    Ok(used.as_secs_f64() / started.elapsed().as_secs_f64())
}
