//! Another process that commits to nf_tables all the time, as CNI plugins, kubelet and iptables do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;

use crate::netns::Netns;

/// Set to run agents that share their tables, beside such a writer.
const VARIABLE: &str = "SHUNT_LAB_FOREIGN_WRITER";
/// Ten commits a second.
const PAUSE: Duration = Duration::from_millis(100);

/// `nft list` starts over whenever the generation changes, and large tables take it longer than the
/// pause. So a witness and the writer take turns.
pub(crate) fn turn(program: &str) -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let takes_turns = ["nft", "iptables-nft"].contains(&program) && ForeignWriter::is_wanted();
    takes_turns.then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The table of iptables-nft that it writes to, which stays; its rules change nothing for a packet.
pub(crate) const TABLE: &str = "raw";
/// One transaction that leaves nothing behind.
const COMMANDS: &str = "add table inet foreign; delete table inet foreign";

/// A thread that commits until it is dropped.
pub(crate) struct ForeignWriter {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ForeignWriter {
    /// True if the environment asks for one.
    pub(crate) fn is_wanted() -> bool {
        std::env::var_os(VARIABLE).is_some()
    }

    /// Starts to commit in a namespace.
    pub(crate) fn start(ns: &Netns) -> Result<Self> {
        let (ns, over) = (ns.clone(), Arc::new(AtomicBool::new(false)));
        let is_over = Arc::clone(&over);
        let has_iptables = ns.output("iptables-nft", &["--version"]).is_ok();
        let write = move || {
            for round in 0_u32.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                // What the commands say is no matter of the test; a namespace can end meanwhile.
                let action = if round % 2 == 0 { "-A" } else { "-D" };
                let rule = ["-w", "-t", TABLE, action, "PREROUTING", "-p", "tcp", "-j", "ACCEPT"];
                let (program, args, input) = match round % 4 {
                    2 | 3 if has_iptables => ("iptables-nft", &rule[..], ""),
                    _ => ("nft", &["-f", "-"][..], COMMANDS),
                };
                let turn = turn(program);
                if ns.output_out_of_turn(program, args, input).is_ok() {
                    ns.foreign_commits.fetch_add(1, Ordering::Relaxed);
                }
                drop(turn);
                thread::sleep(PAUSE);
            }
        };
        let thread = thread::Builder::new().name("foreign writer".into()).spawn(write)?;
        Ok(Self { over, thread: Some(thread) })
    }
}

impl Drop for ForeignWriter {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
