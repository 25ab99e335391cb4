//! A containerd that belongs to one test.
//!
//! It runs in a mount namespace and a process namespace of its own, and in the network namespace of the
//! testbed's node. With its first process, the kernel ends all containers and removes all mounts, also
//! if the test is killed. Only empty cgroups remain then, which the next run removes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use shunt_testbed::{Netns, Scratch, patience};

use crate::cri::Cri;

/// How long containerd may take for what it does at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// The programs that a containerd needs, and `cc` for the image of pods.
const PROGRAMS: [&str; 6] = ["containerd", "ctr", "containerd-shim-runc-v2", "runc", "tar", "cc"];

/// The image of a pod without containers.
const PAUSE: &str = "localhost/shunt-test/pause:1";

/// How names of this test's cgroups begin. The process number follows.
const CGROUP: &str = "shunt-container-test-";

/// A running containerd, with the image of pods.
pub(crate) struct Containerd {
    /// The client of its runtime interface.
    pub(crate) cri: Cri,
    process: Child,
    scratch: Scratch,
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
        Some(format!("there is no {missing}; Debian has it in containerd, runc, tar or gcc"))
    }

    /// Starts one in this network namespace, which is the host network of its pods.
    pub(crate) fn start(netns: &Netns) -> Result<Self> {
        remove_cgroups(|process| !Path::new("/proc").join(process).exists())?;
        let scratch = Scratch::new()?;
        let config = scratch.path().join("config.toml");
        fs::write(&config, configuration(scratch.path()))?;
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
        let cri = Cri::new(&socket(scratch.path()))?;
        let containerd = Self { cri, process, scratch };
        containerd.wait("containerd", || Ok(containerd.cri.is_up()))?;
        containerd.import_pause().context("cannot make the image of pods")?;
        Ok(containerd)
    }

    /// A folder for files of the test, which ends with containerd.
    pub(crate) fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// The parent of the cgroups of this test's containers.
    pub(crate) fn cgroup(&self) -> String {
        format!("/{CGROUP}{}", std::process::id())
    }

    /// Imports an archive, which has an image of this name.
    pub(crate) fn import(&self, archive: &Path, name: &str) -> Result<()> {
        let mut ctr = Command::new("ctr");
        ctr.arg("--address").arg(socket(self.folder())).args(["--namespace", "k8s.io"]);
        output(ctr.args(["images", "import", "--no-unpack"]).arg(archive))?;
        self.wait(name, || self.cri.has_image(name))
    }

    /// Makes an image with a program that waits, as archives of `docker save` have it.
    fn import_pause(&self) -> Result<()> {
        let folder = self.folder().join("pause");
        fs::create_dir(&folder)?;
        let source = folder.join("pause.c");
        fs::write(&source, "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")?;
        let program = folder.join("pause");
        output(Command::new("cc").arg("-static").arg("-o").arg(&program).arg(&source))?;
        let tar = |archive: &str, files: &[&str]| {
            let archive = folder.join(archive);
            output(Command::new("tar").arg("-C").arg(&folder).arg("-cf").arg(archive).args(files))
        };
        tar("layer.tar", &["pause"])?;
        let sum = output(Command::new("sha256sum").arg(folder.join("layer.tar")))?;
        let diff_id = format!("sha256:{}", sum.split(' ').next().unwrap_or_default());
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let config = json!({
            "architecture": architecture, "os": "linux",
            "config": { "Entrypoint": ["/pause"] },
            "rootfs": { "type": "layers", "diff_ids": [diff_id] },
        });
        fs::write(folder.join("config.json"), config.to_string())?;
        let manifest =
            json!([{ "Config": "config.json", "RepoTags": [PAUSE], "Layers": ["layer.tar"] }]);
        fs::write(folder.join("manifest.json"), manifest.to_string())?;
        tar("image.tar", &["manifest.json", "config.json", "layer.tar"])?;
        self.import(&folder.join("image.tar"), PAUSE)
    }

    /// Waits for a condition.
    fn wait(&self, what: &str, condition: impl Fn() -> Result<bool>) -> Result<()> {
        let start = Instant::now();
        while !condition()? {
            ensure!(start.elapsed() < patience(PATIENCE), "no {what}\n{}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// What containerd has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder().join("containerd.log")).unwrap_or_default()
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
        let own = std::process::id().to_string();
        // A cgroup can be removed a moment after the end of its last process.
        let start = Instant::now();
        while remove_cgroups(|process| process == own).is_err() && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("containerd.sock")
}

/// containerd's configuration, in the form that versions 1 and 2 read. Its files are on whatever
/// `/tmp` is, so it copies images instead of using overlayfs. A machine that is a container itself may
/// not lower the score of the kernel's OOM killer.
fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        r#"version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/containerd.sock"
[ttrpc]
  address = "{folder}/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"#
    )
}

/// Removes the cgroups of processes of this test, in all hierarchies.
fn remove_cgroups(of: impl Fn(&str) -> bool) -> Result<()> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = folders(root)?.into_iter().chain([root.to_owned()]);
    for hierarchy in hierarchies {
        for cgroup in folders(&hierarchy)? {
            let name = cgroup.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.strip_prefix(CGROUP).is_some_and(&of) {
                remove_cgroup(&cgroup)?;
            }
        }
    }
    Ok(())
}

fn remove_cgroup(cgroup: &Path) -> Result<()> {
    for inner in folders(cgroup)? {
        remove_cgroup(&inner)?;
    }
    fs::remove_dir(cgroup).with_context(|| format!("cannot remove {}", cgroup.display()))
}

fn folders(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path).with_context(|| format!("cannot list {}", path.display()))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    Ok(paths
        .filter(|path| path.as_ref().map_or(true, |path| path.is_dir()))
        .collect::<Result<_, _>>()?)
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
