//! The values of `process_*`. Each scrape reads them from `/proc`.

use std::fs;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};

/// Returns the current values by the names of the metrics; no value that the kernel does not tell.
pub(super) fn values() -> Vec<(&'static str, f64)> {
    // An unlimited one is the largest number.
    let limit = |name, resource| Some((name, getrlimit(resource).ok()?.0 as f64));
    let stat = Stat::read().map(|stat| {
        [
            ("process_resident_memory_bytes", stat.resident_bytes),
            ("process_virtual_memory_bytes", stat.virtual_bytes),
            ("process_cpu_seconds_total", stat.cpu_seconds),
        ]
    });
    let others = [
        open_files().map(|count| ("process_open_fds", count)),
        limit("process_max_fds", Resource::RLIMIT_NOFILE),
        limit("process_virtual_memory_max_bytes", Resource::RLIMIT_AS),
    ];
    stat.into_iter().flatten().chain(others.into_iter().flatten()).collect()
}

/// The fields of `/proc/self/stat` (proc_pid_stat(5)).
#[derive(Debug, PartialEq)]
struct Stat {
    cpu_seconds: f64,
    /// Since the boot.
    start_seconds: f64,
    virtual_bytes: f64,
    resident_bytes: f64,
}

impl Stat {
    fn read() -> Option<Stat> {
        let number = |variable| Some(sysconf(variable).ok()?? as f64);
        let (ticks, page) = (number(SysconfVar::CLK_TCK)?, number(SysconfVar::PAGE_SIZE)?);
        Stat::parse(&fs::read_to_string("/proc/self/stat").ok()?, ticks, page)
    }

    /// `ticks` is the number of clock ticks per second, `page` the bytes of a page.
    fn parse(text: &str, ticks: f64, page: f64) -> Option<Stat> {
        // The name of the program is in parentheses and may contain any character.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // The first of them is the third field of the file.
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Stat {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            start_seconds: field(22)? / ticks,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * page,
        })
    }
}

/// Returns the start time of the process, in seconds since the Unix epoch.
pub(super) fn start_time() -> Option<f64> {
    let system = fs::read_to_string("/proc/stat").ok()?;
    let booted = system.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(booted.trim().parse::<f64>().ok()? + Stat::read()?.start_seconds)
}

fn open_files() -> Option<f64> {
    let files = fs::read_dir("/proc/self/fd").ok()?.count();
    // One of them belongs to this listing.
    Some(files.saturating_sub(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_whatever_the_program_is_called() {
        let text = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 5 0 1200 4096 3 1844";
        let expected = Stat {
            cpu_seconds: 2.0,
            start_seconds: 12.0,
            virtual_bytes: 4096.0,
            resident_bytes: 12288.0,
        };
        assert_eq!(Stat::parse(text, 100.0, 4096.0), Some(expected));
        assert_eq!(Stat::parse("7 (a) S 1", 100.0, 4096.0), None);
    }
}
