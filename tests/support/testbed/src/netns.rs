//! Network namespaces without names: each lives as long as a file descriptor of this process.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use nfnetlink::nft::{Kernel as _, Socket};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use crate::evidence::{self, Evidence};
use crate::foreign_writer;

/// A network namespace that nobody but this process holds.
///
/// It has no entry in `/run/netns` and needs no mount, so it works in an unprivileged user
/// namespace, never collides with a parallel test, and is gone when the process is, however that
/// ends. Cloning makes a second handle to the same namespace.
#[derive(Clone)]
pub struct Netns {
    fd: Arc<OwnedFd>,
    /// How many transactions the foreign writer has committed in it.
    pub(crate) foreign_commits: Arc<AtomicU32>,
    /// Of a namespace made here, where it is wanted.
    _evidence: Option<Arc<Evidence>>,
}

impl Netns {
    /// Makes an empty namespace: only a loopback device, and that is down.
    pub fn new() -> Result<Self> {
        Self::named("namespace")
    }

    /// The same, with a name for the evidence that a failed test leaves, where the environment has
    /// `SHUNT_LAB_EVIDENCE`, the path of a folder for it.
    pub(crate) fn named(name: &str) -> Result<Self> {
        // `unshare` moves the calling thread, so it happens in one that is thrown away.
        let made = thread::spawn(|| -> Result<(OwnedFd, Option<OwnedFd>)> {
            unshare(CloneFlags::CLONE_NEWNET).context(
                "cannot make a network namespace: this needs root, or a user namespace \
                 (`unshare --user --map-root-user --net <command>`)",
            )?;
            let file = File::open("/proc/thread-self/ns/net")
                .context("cannot open the namespace just made")?;
            Ok((file.into(), evidence::listen()))
        });
        let (fd, packets) = join(made)?;
        let fd = Arc::new(fd);
        let evidence = packets.and_then(|packets| Evidence::new(name, Arc::clone(&fd), packets));
        let foreign_commits = Arc::default();
        Ok(Self { fd, foreign_commits, _evidence: evidence.map(Arc::new) })
    }

    /// The namespace that this process is in. In a virtual machine that is the machine's first one,
    /// with settings that no other has.
    pub fn own() -> Result<Self> {
        let file = File::open("/proc/self/ns/net").context("cannot open our own namespace")?;
        let foreign_commits = Arc::default();
        Ok(Self { fd: Arc::new(file.into()), foreign_commits, _evidence: None })
    }

    /// A path that names the namespace for other processes while this one lives, as
    /// `shunt run --netns` and `ip link set … netns` take it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()).into()
    }

    /// Runs `work` on a thread inside the namespace and returns what it returns. Sockets made
    /// there belong to the namespace for good, wherever they are used afterwards.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                setns(self.fd.as_fd(), CloneFlags::CLONE_NEWNET)
                    .context("cannot enter a network namespace")?;
                work()
            });
            // A failed assertion inside is a failed assertion of the caller.
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A command whose process runs inside the namespace.
    ///
    /// The process is killed when the *thread* that spawned it ends (`PR_SET_PDEATHSIG`), so that
    /// nothing outlives a killed test: wait for it on the same thread.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        leashed(program, Some(Arc::clone(&self.fd)))
    }

    /// A process with this name (`/proc/PID/comm`) that holds the socket.
    pub fn holder(&self, name: &str, socket: impl Into<OwnedFd>) -> Result<Holder> {
        const SCRIPT: &str = "printf %s \"$1\" > /proc/$$/comm; read -r _";
        let mut command = self.command("sh");
        command.args(["-c", SCRIPT, "sh", name]).stdin(Stdio::piped()).stdout(socket.into());
        let mut holder = Holder(command.spawn()?);
        let comm = format!("/proc/{}/comm", holder.id());
        while !fs::read(&comm)?.starts_with(name.as_bytes()) {
            if let Some(status) = holder.0.try_wait()? {
                bail!("the process that was to be {name:?} ended: {status}");
            }
            thread::yield_now();
        }
        Ok(holder)
    }

    /// Runs a program inside the namespace to its end and returns what it printed. An exit code
    /// other than 0 is an error that quotes stderr.
    pub fn output(&self, program: &str, args: &[&str]) -> Result<String> {
        self.output_with_input(program, args, "")
    }

    /// Like [`Netns::output`], with `input` on the program's standard input.
    pub fn output_with_input(&self, program: &str, args: &[&str], input: &str) -> Result<String> {
        let _turn = foreign_writer::turn(program);
        self.output_out_of_turn(program, args, input)
    }

    /// Like [`Netns::output_with_input`], for callers that hold the turn.
    pub(crate) fn output_out_of_turn(
        &self,
        program: &str,
        args: &[&str],
        input: &str,
    ) -> Result<String> {
        let mut child = self
            .command(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start `{program}`"))?;
        // Programs that fail early may not read everything; their message says more than EPIPE.
        let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("`{program} {}`: {}: {}", args.join(" "), output.status, stderr.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs commands of `ip` (one a line, without the word `ip`) in one process.
    pub fn ip(&self, commands: &str) -> Result<()> {
        self.output_with_input("ip", &["-batch", "-"], commands)
            .with_context(|| format!("ip batch:\n{commands}"))
            .map(drop)
    }

    /// Loads nftables rules given in the syntax of `nft -f`, as one transaction.
    pub fn nft(&self, rules: &str) -> Result<()> {
        self.output_with_input("nft", &["-f", "-"], rules)
            .with_context(|| format!("nft rules:\n{rules}"))
            .map(drop)
    }

    /// Writes values below `/proc/sys`, e.g. `("net/ipv4/ip_forward", "1")`.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.run(|| {
            for (name, value) in settings {
                fs::write(format!("/proc/sys/{name}"), value)
                    .with_context(|| format!("cannot set {name} to {value}"))?;
            }
            Ok(())
        })
    }

    /// The generation number of the namespace's nftables rules. Each committed transaction adds one,
    /// except those of the testbed's foreign writer; nothing else does.
    pub fn nft_generation(&self) -> Result<u32> {
        let _turn = foreign_writer::turn("nft");
        let generation = self.run(|| Ok(Socket::open()?.generation()?))?;
        Ok(generation.id - self.foreign_commits.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for Netns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Netns({})", self.path().display())
    }
}

/// The network namespace of the calling thread, as the inode of its file. In the testbed a thread
/// that changes its namespace does so before anything else, so that it is asked once.
pub(crate) fn current() -> Result<u64> {
    thread_local! {
        static CURRENT: Cell<Option<u64>> = const { Cell::new(None) };
    }
    if let Some(inode) = CURRENT.get() {
        return Ok(inode);
    }
    let file = fs::metadata("/proc/thread-self/ns/net")
        .context("cannot tell in which network namespace this is")?;
    CURRENT.set(Some(file.ino()));
    Ok(file.ino())
}

/// A process that holds a socket until this is dropped.
pub struct Holder(Child);

impl Holder {
    /// The process ID.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command whose process dies with the thread that spawns it, in a namespace if one is given.
pub(crate) fn leashed(program: impl AsRef<OsStr>, netns: Option<Arc<OwnedFd>>) -> Command {
    let mut command = Command::new(program);
    let prepare = move || {
        if let Some(fd) = &netns {
            setns(fd.as_fd(), CloneFlags::CLONE_NEWNET)?;
        }
        set_pdeathsig(Signal::SIGKILL)?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls on values captured before
    // the fork; it neither allocates nor takes a lock.
    #[allow(unsafe_code, reason = "only the child itself can do this, before exec")]
    unsafe {
        command.pre_exec(prepare);
    }
    command
}

/// The result of a thread; if it panicked, the panic goes on here.
fn join<T>(thread: thread::JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
