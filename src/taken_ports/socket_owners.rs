//! The processes that hold sockets, as far as `/proc` shows them. A container without `hostPID` sees
//! its own processes only.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;

use serde::{Deserialize, Serialize};

/// A process that holds a socket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// The process ID.
    pub process: u32,
    /// The name of the program (`/proc/PID/comm`).
    pub name: String,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.name, self.process)
    }
}

/// Returns the visible process that holds each of the sockets with these inodes. Of several, the one
/// whose parent does not: children inherit sockets, if only until they run another program.
///
/// Reads the descriptors of all processes.
#[must_use]
pub fn owners(inodes: &BTreeSet<u32>) -> BTreeMap<u32, Process> {
    if inodes.is_empty() {
        return BTreeMap::new();
    }
    let mut holders: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let pids = fs::read_dir("/proc").into_iter().flatten();
    for pid in pids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok()) {
        for file in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(file.path()) else { continue };
            let inode = target.to_str().and_then(|target| {
                target.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u32>().ok()
            });
            if let Some(inode) = inode.filter(|it| inodes.contains(it)) {
                holders.entry(inode).or_default().push(pid);
            }
        }
    }
    let eldest = |holders: Vec<u32>| {
        let is_eldest = |pid: &&u32| parent(**pid).is_some_and(|it| !holders.contains(&it));
        holders.iter().find(is_eldest).copied()
    };
    let holders = holders.into_iter();
    let named = holders.filter_map(|(inode, pids)| {
        let process = eldest(pids)?;
        // Any bytes.
        let name = fs::read(format!("/proc/{process}/comm")).ok()?;
        let name = String::from_utf8_lossy(&name).trim_end().to_owned();
        Some((inode, Process { process, name }))
    });
    named.collect()
}

/// Returns the parent of a process; `None` if the process has ended.
fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn owner_of_an_own_socket_is_this_process() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let link =
            fs::read_link(format!("/proc/self/fd/{}", listener.as_raw_fd())).expect("a link");
        let link = link.to_str().expect("text").to_owned();
        let inode = link.trim_start_matches("socket:[").trim_end_matches(']');
        let inode: u32 = inode.parse().expect("an inode");
        let found = owners(&BTreeSet::from([inode]));
        assert_eq!(found.get(&inode).map(|it| it.process), Some(std::process::id()));
        assert_eq!(owners(&BTreeSet::new()), BTreeMap::new());
    }
}
