//! `cargo xtask vm-test`: the tests of the kernel and of packets, on kernels of distributions.
//!
//! Each kernel is booted in QEMU, on an emulated processor, with a first file system that has the
//! tests, the agent as it is released, and the kernel's own modules, none of which is loaded before
//! something asks for it. What runs inside is `vm-tests/`.

mod boot;
mod contents;
mod cpio;
mod features;
mod kernel;
mod machine;
mod modules;
mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use self::boot::{BOOTS, Boot};
use self::contents::Built;
use self::features::Table;
use self::kernel::{DEFAULT, Kernel, LINES, Line};
use self::machine::{Machine, Outcome};
use self::report::{Event, Report};
use crate::command::repository;
use crate::packages::{Installer, Purpose};
use crate::style::Style;
use crate::tree::Tree;

/// Where everything is kept: packages, logs, and what failed tests leave.
const FOLDER: &str = "target/vm-test";

/// How long the machine of a probe of KVM may take; one that works takes a few seconds.
const KVM_LIMIT: Duration = Duration::from_secs(30);

/// Arguments of `cargo xtask vm-test`.
#[derive(Args, Default)]
pub(crate) struct Arguments {
    /// A line of kernels (5.10, 5.14, 5.15, 6.1, 6.12, 7), a package with a kernel, or a folder with one; may be
    /// given several times [default: 6.1, 6.12 and 7]
    #[arg(long = "kernel", value_name = "LINE|PATH")]
    kernels: Vec<String>,

    /// Run only the tests whose names contain this
    #[arg(long, value_name = "TEST")]
    filter: Option<String>,

    /// Boot a kernel and open a shell in it
    #[arg(long)]
    shell: bool,

    /// Keep the first file systems of the machines
    #[arg(long)]
    keep: bool,

    /// Use the processor's own virtualization, if a kernel boots with it in time
    #[arg(long)]
    kvm: bool,

    /// Write docs/kernels.md anew, with what these kernels can
    #[arg(long)]
    write_docs: bool,

    /// How many seconds a machine may run
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    limit: u64,

    /// How many machines run at once [default: as many as there are processors]
    #[arg(long, value_name = "NUMBER")]
    jobs: Option<usize>,

    /// Run what is about the agent's times rather than the kernel with the last kernel only, as `cargo
    /// xtask ci` does
    #[arg(long)]
    once: bool,

    /// Where Debian and Ubuntu are, if not where this machine's apt has them: an address with folders
    /// `debian`, `debian-security` and `ubuntu`
    #[arg(long, value_name = "ADDRESS")]
    mirror: Option<String>,
}

impl Arguments {
    /// What is checked before a change is taken: what is tested where nothing is asked for.
    pub(crate) fn of_ci() -> Self {
        Self { limit: 900, once: true, ..Self::default() }
    }
}

/// A kernel, and what is to be done with it in one machine.
struct Job<'a> {
    kernel: &'a Kernel,
    /// The kernel's modules, as an archive.
    modules: &'a [u8],
    boot: &'a Boot,
    /// What init is to do.
    plan: String,
    machine: Machine,
}

/// Test the kernels that are asked for.
pub(crate) fn run(installer: &Installer, arguments: &Arguments) -> Result<()> {
    installer.ensure(&[Purpose::Build, Purpose::Test, Purpose::Vm])?;
    let folder = repository().join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let kernels = kernels(arguments, &folder)?;
    let built = Built::new()?;
    let mut common = Vec::new();
    cpio::write(&built.tree()?, &mut common).context("cannot write the first file system")?;
    println!("first file system: {:.0} MB", common.len() as f64 / 1e6);
    let mut modules = Vec::new();
    for kernel in &kernels {
        let mut tree = Tree::default();
        let count = modules::install(&kernel.modules, &mut tree)
            .with_context(|| format!("the modules of kernel {}", kernel.name))?;
        println!("kernel {}: {}, {count} modules", kernel.name, kernel.release);
        let mut archive = Vec::new();
        cpio::write(&tree, &mut archive).context("cannot write the kernel's modules")?;
        modules.push(archive);
    }

    let results = folder.join("results");
    let _ = fs::remove_dir_all(&results);
    let jobs = jobs(arguments, &kernels, &modules, &built.agent(), &results)?;
    if arguments.kvm {
        probe_kvm(&jobs[0], &common, &results)?;
    }
    if arguments.shell {
        return shell(&jobs[0], &common);
    }
    let workers = arguments.jobs.map_or_else(thread::available_parallelism, |jobs| {
        jobs.try_into().map_err(std::io::Error::other)
    })?;
    let started = Instant::now();
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<(usize, Result<Outcome>)>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..workers.get() {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(number) else { return };
                    let outcome = job.run(&common, arguments.keep);
                    let mut outcomes = outcomes.lock().unwrap_or_else(|it| it.into_inner());
                    outcomes.push((number, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap_or_else(|it| it.into_inner());
    outcomes.sort_by_key(|(number, _)| *number);
    let outcomes = outcomes.into_iter().map(|(_, outcome)| outcome).collect::<Result<Vec<_>>>()?;
    conclude(arguments, &jobs, &outcomes, started.elapsed())
}

/// The kernels that are asked for, ready to be booted.
fn kernels(arguments: &Arguments, folder: &Path) -> Result<Vec<Kernel>> {
    let default = DEFAULT.map(str::to_owned);
    let wanted = if arguments.kernels.is_empty() { &default[..] } else { &arguments.kernels };
    let mirror = arguments.mirror.as_deref();
    wanted
        .iter()
        .map(|wanted| match Line::named(wanted) {
            Some(line) => Kernel::of(line, folder, mirror),
            None if Path::new(wanted).exists() => Kernel::at(Path::new(wanted), folder),
            None => bail!(
                "there is no kernel {wanted}: it is no path, and the lines are {}",
                LINES.map(|line| line.name).join(", ")
            ),
        })
        .collect()
}

/// Every boot of every kernel, the longest first.
fn jobs<'a>(
    arguments: &Arguments,
    kernels: &'a [Kernel],
    modules: &'a [Vec<u8>],
    agent: &str,
    results: &Path,
) -> Result<Vec<Job<'a>>> {
    let mut jobs = Vec::new();
    for boot in &BOOTS {
        let skipped = match arguments.once && boot.is_about_the_agent {
            true => kernels.len().saturating_sub(1),
            false => 0,
        };
        for (kernel, modules) in kernels.iter().zip(modules).skip(skipped) {
            let name = format!("{} {}", kernel.name, boot.name);
            let folder = results.join(&kernel.name).join(boot.name);
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
            let machine = Machine {
                name,
                image: kernel.image.clone(),
                initramfs: folder.join("initramfs"),
                arguments: boot.kernel_arguments.to_owned(),
                kvm: arguments.kvm,
                folder,
                limit: Duration::from_secs(arguments.limit),
            };
            let plan = boot.plan(agent, arguments.filter.as_deref());
            jobs.push(Job { kernel, modules, boot, plan, machine });
        }
    }
    Ok(jobs)
}

impl Job<'_> {
    /// Boot the machine and hear it out; what tests left is written beside its logs.
    fn run(&self, common: &[u8], keep: bool) -> Result<Outcome> {
        let style = Style::of_stdout();
        let name = style.bold(format!("[{}]", self.machine.name));
        self.prepare(common, &self.plan)?;
        println!("{name} booting");
        let started = Instant::now();
        let outcome = self.machine.run(|report, event| {
            let seconds = started.elapsed().as_secs();
            match event {
                Event::Booted => println!("{name} booted after {seconds} s"),
                Event::Failed { run, test } => {
                    println!("{name} {}", style.red(format!("{run}: {test} FAILED")));
                }
                Event::Ended { run } => {
                    // Once more below, also for what did not end.
                    let _ = self.write_log(&report.runs[run]);
                    println!("{name} {} (at {seconds} s)", report.runs[run].summary());
                }
            }
        });
        if !keep {
            let _ = fs::remove_file(&self.machine.initramfs);
        }
        let outcome = outcome?;
        self.write_logs(&outcome.report)?;
        Ok(outcome)
    }

    fn prepare(&self, common: &[u8], plan: &str) -> Result<()> {
        let mut tree = Tree::default();
        tree.file("plan", plan)?;
        let mut archive = Vec::new();
        cpio::write(&tree, &mut archive)?;
        machine::write_initramfs(&self.machine.initramfs, &[common, self.modules, &archive])
    }

    fn write_log(&self, run: &report::Run) -> Result<()> {
        let file = self.machine.folder.join(format!("{}.log", run.name));
        fs::write(&file, run.lines.join("\n") + "\n")
            .with_context(|| format!("cannot write {}", file.display()))
    }

    fn write_logs(&self, report: &Report) -> Result<()> {
        report.runs.iter().try_for_each(|run| self.write_log(run))?;
        for (name, content) in &report.files {
            // Names come from inside; they shall lead nowhere else.
            let parts = Path::new(name).components();
            let plain = parts.clone().all(|part| matches!(part, std::path::Component::Normal(_)));
            ensure!(plain, "a machine sent a file {name}");
            let file = self.machine.folder.join(name);
            let folder = file.parent().map(PathBuf::from).unwrap_or_default();
            fs::create_dir_all(folder)
                .and_then(|()| fs::write(&file, content))
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }
}

/// Sums up, and fails unless all is well.
fn conclude(
    arguments: &Arguments,
    jobs: &[Job<'_>],
    outcomes: &[Outcome],
    took: Duration,
) -> Result<()> {
    let style = Style::of_stdout();
    let mut broken = 0;
    println!();
    for (job, outcome) in jobs.iter().zip(outcomes) {
        let mut wrongs = outcome.report.wrongs(&job.boot.runs(), arguments.filter.is_some());
        wrongs.extend(outcome.wrongs.iter().cloned());
        let passed = outcome.report.passed();
        let (seconds, release) = (outcome.took.as_secs_f64(), &job.kernel.release);
        let verdict = if wrongs.is_empty() { style.green("ok") } else { style.red("failed") };
        let name = &job.machine.name;
        println!("{name:<14} {release:<28} {passed:>4} passed {seconds:>7.1} s  {verdict}");
        wrongs.iter().for_each(|wrong| println!("    {wrong}"));
        if !wrongs.is_empty() {
            println!("    logs: {}", style.dim(job.machine.folder.display()));
            broken += 1;
        }
    }
    println!("{:.1} s", took.as_secs_f64());
    if outcomes.iter().all(|outcome| outcome.report.results() == 0) {
        bail!("no test was run");
    }
    let features = features(arguments, jobs, outcomes);
    if broken > 0 {
        bail!("{broken} of {} machines failed", jobs.len());
    }
    features
}

/// Shows what the kernels of distributions can, and compares it with what is written about them.
fn features(arguments: &Arguments, jobs: &[Job<'_>], outcomes: &[Outcome]) -> Result<()> {
    let mut found = Table::default();
    for (job, outcome) in jobs.iter().zip(outcomes) {
        if !outcome.report.features.is_empty() && Line::named(&job.kernel.name).is_some() {
            found.set(&job.kernel.name, &outcome.report.features)?;
        }
    }
    if found.is_empty() {
        // No probe goes by the name that was asked for.
        return Ok(());
    }
    println!("\n{}", found.text());
    if arguments.write_docs {
        let mut table = Table::read()?;
        table.replace(found);
        return table.write();
    }
    found.check()
}

/// Boot a kernel with KVM and do nothing in it: where the machine is virtual itself, KVM may be there
/// and still not work.
fn probe_kvm(job: &Job<'_>, common: &[u8], results: &Path) -> Result<()> {
    let folder = results.join("kvm");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    job.prepare(common, "")?;
    let machine = Machine {
        name: "KVM".into(),
        folder,
        limit: KVM_LIMIT,
        image: job.machine.image.clone(),
        initramfs: job.machine.initramfs.clone(),
        arguments: String::new(),
        kvm: true,
    };
    let outcome = machine.run(|_, _| {})?;
    let mut wrongs = outcome.report.wrongs(&[], false);
    wrongs.extend(outcome.wrongs);
    ensure!(
        wrongs.is_empty(),
        "KVM does not work here: with it, kernel {} {}; leave out --kvm",
        job.kernel.release,
        wrongs.join(", ")
    );
    println!("KVM boots in {:.1} s", outcome.took.as_secs_f64());
    Ok(())
}

fn shell(job: &Job<'_>, common: &[u8]) -> Result<()> {
    job.prepare(common, "shell\n")?;
    println!("kernel {}; the tests are in /tests; Ctrl-A X ends QEMU", job.kernel.release);
    job.machine.shell()
}
