//! One virtual machine: QEMU, from its start to its end.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::report::{Event, Report};
use crate::command::command;

/// Memory of a machine, in MiB: the first file system is in it twice while the kernel unpacks it.
const MEMORY: u32 = 1024;

/// For every kernel. What protects a processor from its own speculation makes an emulated one slow, and
/// no kernel that has oopsed shall go on as if nothing had been. An emulated processor may stand still
/// while the real ones have other work: its counter of cycles is no clock then, and a lock that is held
/// for long is no mistake. Programs that always lie at the same addresses are translated once, not each
/// time they are started: a test with packets took a third less.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off audit=0 \
                                nokaslr norandmaps random.trust_cpu=on tsc=unstable nowatchdog";

/// What in a kernel's log means that it has a mistake, or that we have found one in it.
const ALARMS: [&str; 4] = ["Kernel panic", "BUG:", "WARNING: CPU", "Oops:"];

/// A machine that is about to be started.
pub(super) struct Machine {
    /// What it is called in the report.
    pub(super) name: String,
    /// The kernel.
    pub(super) image: PathBuf,
    /// The first file system.
    pub(super) initramfs: PathBuf,
    /// More arguments for the kernel.
    pub(super) arguments: String,
    /// Use the processor instead of an emulated one.
    pub(super) kvm: bool,
    /// Where its logs go.
    pub(super) folder: PathBuf,
    /// How long it may run.
    pub(super) limit: Duration,
}

/// How it went.
pub(super) struct Outcome {
    pub(super) report: Report,
    /// What is wrong with the machine itself, and not with the tests in it.
    pub(super) wrongs: Vec<String>,
    pub(super) took: Duration,
}

impl Machine {
    /// Run it to its end.
    pub(super) fn run(&self, tell: impl FnMut(&Report, Event) + Send) -> Result<Outcome> {
        let started = Instant::now();
        let console = self.folder.join("console.log");
        let mut qemu = self.command();
        qemu.arg("-serial").arg(format!("file:{}", console.display()));
        qemu.args(["-serial", "stdio"]).stdin(Stdio::null());
        qemu.stdout(Stdio::piped()).stderr(File::create(self.folder.join("qemu.log"))?);
        let mut child = qemu.spawn().context("cannot start qemu-system-x86_64")?;
        let port = child.stdout.take().context("QEMU has no output")?;
        let mut report = Report::default();
        let ended = AtomicBool::new(false);
        let (read, late) = thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let read = report.read(port, tell);
                ended.store(true, Ordering::Release);
                read
            });
            let late = self.wait(&mut child, started, &ended);
            (reader.join(), late)
        });
        // 0 also after a panic: whether the machine did all that it had to is in the report.
        let status = child.wait().context("cannot wait for QEMU")?;
        let mut wrongs = Vec::new();
        if late {
            wrongs.push(format!("it had not ended after {} s", self.limit.as_secs()));
        } else if !status.success() {
            let said = fs::read_to_string(self.folder.join("qemu.log")).unwrap_or_default();
            wrongs.push(format!("QEMU failed ({status}): {}", said.trim()));
        }
        match read {
            Ok(Ok(())) => {}
            Ok(Err(error)) => wrongs.push(format!("its report cannot be read: {error}")),
            Err(_) => wrongs.push("its report cannot be read".into()),
        }
        wrongs.extend(alarms(&console));
        Ok(Outcome { report, wrongs, took: started.elapsed() })
    }

    /// Connects this terminal with a shell in the machine.
    pub(super) fn shell(&self) -> Result<()> {
        let mut qemu = self.command();
        // Ctrl-C goes to the machine; Ctrl-A X ends QEMU.
        qemu.args(["-serial", "mon:stdio", "-serial"]);
        qemu.arg(format!("file:{}", self.folder.join("report").display()));
        qemu.status().context("cannot start qemu-system-x86_64").map(drop)
    }

    fn command(&self) -> Command {
        let mut qemu = command("qemu-system-x86_64");
        qemu.args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-nic",
            "none",
        ]);
        match self.kvm {
            true => qemu.args(["-accel", "kvm", "-cpu", "host"]),
            // Page tables of five levels cost an emulated processor much, and us they bring nothing.
            false => qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max,la57=off"]),
        };
        qemu.args(["-smp", "1", "-m", &MEMORY.to_string()]);
        qemu.arg("-kernel").arg(&self.image).arg("-initrd").arg(&self.initramfs);
        qemu.arg("-append").arg(format!("{KERNEL_ARGUMENTS} {}", self.arguments));
        qemu
    }

    /// Waits for the end, and brings it about where it does not come; whether it had to.
    fn wait(&self, child: &mut Child, started: Instant, ended: &AtomicBool) -> bool {
        // The report ends when QEMU does.
        while !ended.load(Ordering::Acquire) {
            if started.elapsed() > self.limit {
                let _ = child.kill();
                return true;
            }
            thread::sleep(Duration::from_millis(50));
        }
        false
    }
}

/// The lines of a console that say what must not happen.
fn alarms(console: &Path) -> Vec<String> {
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let alarming = text.lines().filter(|line| ALARMS.iter().any(|alarm| line.contains(alarm)));
    alarming.map(|line| format!("its kernel says: {}", line.trim())).take(3).collect()
}

/// Write the parts of a first file system into one file.
pub(super) fn write_initramfs(file: &Path, parts: &[&[u8]]) -> Result<()> {
    let mut output =
        File::create(file).with_context(|| format!("cannot make {}", file.display()))?;
    for part in parts {
        output.write_all(part).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}
