//! A containerd that belongs to one test.
//!
//! It runs in a mount namespace and a process namespace of its own, and in the network namespace of the
//! testbed's node. With its first process, the kernel ends all containers and removes all mounts, also
//! if the test is killed. Only empty cgroups can remain then.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shunt_testbed::{Netns, TempDir, eventually};

const PROGRAMS: [&str; 4] = ["containerd", "ctr", "containerd-shim-runc-v2", "runc"];

/// containerd's namespace, which is the parent of its cgroups, too.
const NAMESPACE: &str = "shunt-test";

/// A running containerd.
pub(crate) struct Containerd {
    process: Child,
    scratch: TempDir,
}

impl Containerd {
    /// Returns why this machine cannot run containers.
    pub(crate) fn missing() -> Option<String> {
        if !nix::unistd::geteuid().is_root() {
            return Some("containerd needs root".to_owned());
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there =
            |name: &&&str| std::env::split_paths(&path).any(|it| it.join(name).is_file());
        let missing = PROGRAMS.iter().find(|name| !is_there(name))?;
        Some(format!("there is no {missing}; Debian has it in containerd or runc"))
    }

    /// Starts one in this network namespace, which is the host network of its containers.
    pub(crate) fn start(netns: &Netns) -> Result<Self> {
        let scratch = TempDir::new()?;
        let config = scratch.path().join("config.toml");
        let folder = scratch.path().display();
        // Version 2 is what versions 1 and 2 of containerd read.
        let text = format!(
            "version = 2\nroot = \"{folder}/root\"\nstate = \"{folder}/state\"\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = \"{folder}/containerd.sock\"\n\
             [ttrpc]\naddress = \"{folder}/containerd.sock.ttrpc\"\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"{folder}/opt\"\n"
        );
        fs::write(&config, text)?;
        let log = fs::File::create(scratch.path().join("containerd.log"))?;
        // Shims make their sockets in /run.
        let script = "mount -t tmpfs shunt-test /run && exec containerd --config \"$1\"";
        let process = netns
            .command("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", script, "sh"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start containerd")?;
        let containerd = Self { process, scratch };
        containerd.wait("containerd", || containerd.ctr(&["version"]).is_ok())?;
        Ok(containerd)
    }

    /// A folder for files of the test, which ends with containerd.
    pub(crate) fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// What its client prints with these arguments.
    pub(crate) fn ctr(&self, arguments: &[impl AsRef<str>]) -> Result<String> {
        let mut ctr = Command::new("ctr");
        ctr.arg("--address").arg(self.folder().join("containerd.sock"));
        ctr.args(["--namespace", NAMESPACE]).args(arguments.iter().map(AsRef::as_ref));
        let Output { status, stdout, stderr } = ctr.output()?;
        let printed = String::from_utf8([stdout, stderr].concat())?;
        ensure!(status.success(), "{ctr:?}: {status}\n{printed}");
        Ok(printed)
    }

    /// Waits for a condition.
    pub(crate) fn wait(&self, what: &str, condition: impl Fn() -> bool) -> Result<()> {
        eventually(what, || Ok(condition().then_some(()))).with_context(|| self.logs())
    }

    /// Where a container that prints to `ctr` does so: they do not share /run.
    pub(crate) fn fifo_dir(&self) -> String {
        format!("--fifo-dir={}", self.folder().join("fifo").display())
    }

    /// Where the log of the container is to be.
    pub(crate) fn log_uri(&self) -> String {
        format!("file://{}", self.folder().join("shunt.log").display())
    }

    /// What containerd and the container have logged.
    pub(crate) fn logs(&self) -> String {
        ["containerd.log", "shunt.log"]
            .map(|name| fs::read_to_string(self.folder().join(name)).unwrap_or_default())
            .concat()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // The first process of the process namespace. Its parent waits for it, and then ends.
        let unshare = self.process.id();
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"));
        match children.ok().and_then(|children| children.trim().parse().ok()) {
            Some(first) => _ = kill(Pid::from_raw(first), Signal::SIGKILL),
            None => _ = self.process.kill(),
        }
        let _ = self.process.wait();
        // There can be one in each of several hierarchies of cgroups.
        let script =
            format!("rmdir /sys/fs/cgroup/{NAMESPACE} /sys/fs/cgroup/*/{NAMESPACE} 2>/dev/null");
        let _ = Command::new("sh").args(["-c", &script]).status();
    }
}
