//! `cargo xtask vm-test`: tests of the kernel and of packets on kernels of distributions.
//!
//! Each is booted in QEMU, on KVM or an emulated processor, from archives in memory: the tests, the agent, the
//! programs that they call, and the kernel's modules, none of which is loaded before something asks for it.
//! `init` is the first process there. `vm-tests/` has the tests that need a machine of their own.

mod kernel;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use self::kernel::Kernel;
use crate::command::{cargo, command, find, repository, run as run_command, stdout};
use crate::packages::{self, Installer};

/// Where everything is kept: kernels, logs, and what failed tests leave.
const FOLDER: &str = "target/vm-test";

/// For every kernel. What protects a processor from its own speculation makes an emulated one slow, whose
/// counter of cycles is no clock, either. Programs at the same addresses are translated once.
const ARGUMENTS: &str = "console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off audit=0 nokaslr \
    norandmaps random.trust_cpu=on tsc=unstable nowatchdog";

/// Without it, the kernel chooses a table of connection tracking that is too small for some tests.
const TABLE_SIZE: &str = "nf_conntrack.hashsize=65536";

/// What in a kernel's log means that it has a mistake, or that we have found one in it.
const ALARMS: [&str; 4] = ["Kernel panic", "BUG:", "WARNING: CPU", "Oops:"];

/// Programs that tests call.
const PROGRAMS: [&str; 19] = [
    "sh",
    "rm",
    "sleep",
    "ip",
    "nft",
    "conntrack",
    "strace",
    "setpriv",
    "setsid",
    "cat",
    "ls",
    "env",
    "mount",
    "mkdir",
    "uname",
    "stty",
    "tar",
    "modprobe",
    "ipvsadm",
];

/// What tests read.
const FILES: [&str; 5] = [
    "/etc/protocols",
    "/etc/services",
    "examples",
    "tests/fixtures",
    "tests/it/kernel/examples.nft",
];

/// A boot of each kernel: its name, arguments of the kernel, and what is run. The longest comes first.
type Boot = (&'static str, &'static str, &'static [Run]);
/// A name, a program, and its arguments.
type Run = (&'static str, &'static str, &'static str);

const TESTS: &str = "/tests/it";
const SCENARIOS: &str = "/tests/scenarios";
const OWN: &str = "/tests/shunt-vm";

/// The boot that every kernel has.
const KERNEL: &str = "kernel";

/// Of the tests with packets, those go through another expression, hook or kind of table each, and not those of
/// what the plan decides: an emulated processor takes twelve times as long.
const BOOTS: [Boot; 4] = [
    (
        "packets",
        TABLE_SIZE,
        &[(
            "scenarios",
            SCENARIOS,
            "--test-threads=1 --color=never --skip=kube- --skip=looks_like --skip=listed_on_another \
                 --skip=service_cidrs_come --skip=external_ips_may --skip=detection_of_one --skip=too_is_external \
                 --skip=refuses_2 --skip=itself_through_a_service_2 --skip=of_theirs_ --skip=is_touched_ \
                 --skip=masquerade_all --skip=without_detection --skip=one_family_or_two --skip=configuration_2 \
                 frontends:: policies::policies_decide_who_is_reached_and_whose_address_is_seen_1 \
                 load_balancers::ranges_change node_ports::an_interface flows::a_flow_ends_with_its_service \
                 affinity::session_ends connections::connection_to_a_gone_endpoint_is_reset_at_its_next_packet_1 \
                 commands::cleanup",
        )],
    ),
    (
        KERNEL,
        TABLE_SIZE,
        &[
            // First, because it wants to find a machine on which nothing was done.
            ("bare", OWN, "bare"),
            // Not those of `shunt render`, which are no matter of the kernel: nft 1.0.6 writes a conversion
            // that 6.12.117 rejects. Nor those of the sizes of tables, which take minutes, and of how nft lists.
            (
                "kernel",
                TESTS,
                "kernel:: --skip=kernel::rendered:: --skip=kernel::slots:: \
                 --skip=kernel::start::listing_by_object_is_that_of_the_ruleset",
            ),
            (
                "conntrack",
                TESTS,
                "conntrack:: \
                 --skip=conntrack::crowd::twenty_thousand_flows_are_sorted_out_whether_the_kernel_filters_or_not",
            ),
        ],
    ),
    ("without-ipv6", "ipv6.disable=1", &[("without-ipv6", OWN, "without-ipv6")]),
    // What the kernel chooses by itself is what a node falls to.
    ("after-boot", "", &[("after-boot", OWN, "after-boot")]),
];

/// Arguments of `cargo xtask vm-test`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A line of kernels (5.10, 5.14, 5.15, 6.1, 6.12, 7), or a folder with boot/ and lib/modules/; may be
    /// given several times
    #[arg(long = "kernel", value_name = "LINE|FOLDER", default_values = ["6.1", "6.12", "7"])]
    kernels: Vec<String>,

    /// Run only the tests whose names contain this
    #[arg(long, value_name = "TEST")]
    filter: Option<String>,

    /// How many seconds a machine may run
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    limit: u64,

    /// Boot the kernels between the first and the last once only, without packets
    #[arg(long)]
    short: bool,

    /// An address with folders `debian`, `debian-security` and `ubuntu`, if not where apt has them
    #[arg(long, value_name = "ADDRESS")]
    mirror: Option<String>,
}

impl Arguments {
    /// What is tested before a change is taken.
    pub(crate) fn of_ci() -> Self {
        let kernels = ["6.1", "6.12", "7"].map(str::to_owned).into();
        Self { kernels, filter: None, limit: 900, short: true, mirror: None }
    }
}

/// Tests the kernels that are asked for.
pub(crate) fn run(installer: &Installer, arguments: &Arguments) -> Result<()> {
    installer.ensure(&[packages::BUILD, packages::NAMESPACES, packages::TEST, packages::VM])?;
    let cache = repository().join(FOLDER);
    let results = cache.join("results");
    let _ = fs::remove_dir_all(&results);
    fs::create_dir_all(&results)?;
    let common = common(&results)?;
    let mut kernels = Vec::new();
    for wanted in &arguments.kernels {
        let kernel = Kernel::of(wanted, &cache, arguments.mirror.as_deref())?;
        let folder = results.join(&kernel.name).join("modules");
        fs::create_dir_all(&folder)?;
        kernel.install_modules(&folder)?;
        let modules = archive(&folder)?;
        println!("kernel {}: {}", kernel.name, kernel.release);
        kernels.push((kernel, modules));
    }
    let mut jobs = Vec::new();
    let last = kernels.len() - 1;
    for boot in &BOOTS {
        let wanted = |at: usize| boot.0 == KERNEL || !arguments.short || at == 0 || at == last;
        let kernels = kernels.iter().enumerate().filter(|(at, _)| wanted(*at));
        jobs.extend(kernels.map(|(_, (kernel, modules))| (boot, kernel, modules)));
    }
    let (next, page) = (Mutex::new(jobs.iter()), Mutex::new((String::new(), 0, 0)));
    let work = || -> Result<()> {
        loop {
            let Some((boot, kernel, modules)) = lock(&next).next() else { return Ok(()) };
            let started = Instant::now();
            let (passed, wrongs) =
                boot_machine(arguments, kernel, boot, [&common, modules], &results)?;
            let (name, release) = (&kernel.name, &kernel.release);
            let verdict = if wrongs.is_empty() { "ok".to_owned() } else { wrongs.join("; ") };
            let row = format!(
                "| {name} | {release} | {} | {passed} | {:.0} s | {verdict} |\n",
                boot.0,
                started.elapsed().as_secs_f64()
            );
            print!("{row}");
            let mut page = lock(&page);
            page.0 += &row;
            page.1 += passed;
            page.2 += usize::from(!wrongs.is_empty());
        }
    };
    thread::scope(|scope| {
        let workers = thread::available_parallelism()?.get();
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, Result<()>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().try_for_each(join)
    })?;
    let (rows, passed, broken) = &*lock(&page);
    let page = format!(
        "| kernel | release | boot | passed | time | |\n| --- |{}\n{rows}",
        " --- |".repeat(5)
    );
    println!("\n{page}");
    fs::write(results.join("results.md"), page)?;
    ensure!(*passed > 0, "no test was run");
    ensure!(
        *broken == 0,
        "{broken} of {} machines failed; logs are in {FOLDER}/results",
        jobs.len()
    );
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Boots a kernel. Returns how many tests passed, and what went wrong.
fn boot_machine(
    arguments: &Arguments,
    kernel: &Kernel,
    (boot, more, runs): &Boot,
    archives: [&PathBuf; 2],
    results: &Path,
) -> Result<(usize, Vec<String>)> {
    let folder = results.join(&kernel.name).join(boot);
    let plan = folder.join("plan");
    fs::create_dir_all(&plan)?;
    let mut text = String::new();
    for (name, program, words) in *runs {
        let words = match &arguments.filter {
            // Names that are given are alternatives, so the other suites are left out instead.
            Some(filter) if *program == TESTS => {
                let skipped = modules()?.into_iter().filter(|module| module != name);
                let skipped: String = skipped.map(|it| format!(" --skip={it}::")).collect();
                format!("{filter}{skipped}")
            }
            Some(filter) if *program == SCENARIOS => {
                format!("--test-threads=1 --color=never --skip=kube- {filter}")
            }
            Some(filter) => format!("{words} {filter}"),
            None => (*words).to_owned(),
        };
        text += &format!("run {name} {program} {words}\n");
    }
    fs::write(plan.join("plan"), text)?;
    let initramfs = folder.join("initramfs");
    run_command(
        shell("cat \"$1\" \"$2\" \"$3\" > \"$4\"")
            .args(archives)
            .arg(archive(&plan)?)
            .arg(&initramfs),
    )?;
    let file = |name: &str| format!("file:{}", folder.join(name).display());
    let mut qemu = command("timeout");
    qemu.args([
        "--kill-after=5",
        &arguments.limit.to_string(),
        "qemu-system-x86_64",
        "-nodefaults",
    ]);
    qemu.args(["-no-user-config", "-display", "none", "-no-reboot", "-nic", "none", "-m", "1024"]);
    let accelerator = if has_kvm() { "kvm" } else { "tcg,thread=multi" };
    // Page tables of five levels cost an emulated processor much.
    qemu.args(["-accel", accelerator, "-cpu", "max,la57=off"]);
    qemu.arg("-kernel").arg(kernel.image()?).arg("-initrd").arg(&initramfs);
    qemu.arg("-append").arg(format!("{ARGUMENTS} {more}")).args(["-serial", &file("console.log")]);
    qemu.args(["-serial", "stdio", "-serial", &file("evidence.tar")]);
    let log = File::create(folder.join("qemu.log"))?;
    let mut child = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn()?;
    let report = child.stdout.take().context("no output")?;
    let name = format!("{} {boot}", kernel.name);
    let mut lines = Vec::new();
    for line in BufReader::new(report).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
        if line.starts_with("== kernel") || line.ends_with("... FAILED") {
            println!("[{name}] {line}");
        }
        lines.push(line);
    }
    let status = child.wait()?;
    fs::write(folder.join("report.log"), lines.join("\n"))?;
    fs::remove_file(&initramfs)?;
    let names: Vec<&str> = runs.iter().map(|run| run.0).collect();
    let (passed, mut wrongs) = judge(&lines, &names, arguments.filter.is_some());
    match status.code() {
        Some(0) => {}
        Some(124) => wrongs.push(format!("it did not end within {} s", arguments.limit)),
        _ => wrongs.push(format!("QEMU failed ({status}), see qemu.log")),
    }
    let console = fs::read(folder.join("console.log"))?;
    let console = String::from_utf8_lossy(&console).into_owned();
    let alarming = console.lines().filter(|line| ALARMS.iter().any(|alarm| line.contains(alarm)));
    wrongs.extend(alarming.take(3).map(|line| format!("its kernel reports {}", line.trim())));
    Ok((passed, wrongs))
}

/// Whether guests may use this processor. A KVM without its help runs only kernels that were built for that.
fn has_kvm() -> bool {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let helps = processor.split_whitespace().any(|flag| matches!(flag, "vmx" | "svm"));
    helps && File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

/// Reads a report: how many tests passed, and what is wrong. Silence is wrong.
fn judge(lines: &[String], runs: &[&str], may_be_empty: bool) -> (usize, Vec<String>) {
    let (mut passed, mut wrongs) = (0, Vec::new());
    if !lines.iter().any(|line| line.starts_with("== kernel ")) {
        wrongs.push("it did not boot".to_owned());
    }
    for run in runs {
        let begin = format!("== begin {run}");
        let end = format!("== end {run} ");
        let lines = lines.iter().skip_while(|line| **line != begin);
        let of_run: Vec<&String> =
            lines.clone().take_while(|line| !line.starts_with(&end)).collect();
        let code = lines.clone().find_map(|line| line.strip_prefix(&end));
        let failed = of_run.iter().filter_map(|line| line.strip_suffix(" ... FAILED"));
        wrongs.extend(failed.map(|line| format!("{run}: {line} FAILED")));
        let summary = of_run.iter().filter_map(|line| line.strip_prefix("test result: ok. "));
        let counts: Vec<[usize; 3]> = summary.filter_map(self::counts).collect();
        let ours: usize = counts.iter().map(|counts| counts[0]).sum();
        passed += ours;
        match code {
            None => wrongs.push(format!("{run}: it did not end")),
            Some("0") if counts.is_empty() => wrongs.push(format!("{run}: it has no result")),
            Some("0") => {}
            Some(code) => wrongs.push(format!("{run}: exit code {code}")),
        }
        if counts.iter().any(|counts| counts[1..] != [0, 0]) {
            wrongs.push(format!("{run}: tests were not run"));
        }
        if ours == 0 && !may_be_empty {
            wrongs.push(format!("{run}: no test passed"));
        }
    }
    if lines.last().map(String::as_str) != Some("== done") {
        wrongs.push("it ended before everything was done".to_owned());
    }
    (passed, wrongs)
}

/// The numbers of passed, failed and ignored tests.
fn counts(result: &str) -> Option<[usize; 3]> {
    let mut numbers = result.split("; ").map_while(|part| part.split(' ').next()?.parse().ok());
    Some([numbers.next()?, numbers.next()?, numbers.next()?])
}

/// The modules of the test program: its suites.
fn modules() -> Result<Vec<String>> {
    let entries = fs::read_dir(repository().join("tests/it"))?.flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    Ok(folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// The archive of all that does not depend on the kernel.
fn common(results: &Path) -> Result<PathBuf> {
    // Of the whole workspace, as in `cargo xtask test`: other features would make another build. Not as it
    // is released, which takes minutes to build.
    let tests = built(&["test", "--no-run", "--test", "it", "--test", "scenarios"])?;
    let own = built(&["build", "--package=shunt-vm"])?;
    let program = |programs: &[(String, PathBuf)], name: &str| {
        let found = programs.iter().find(|program| program.0 == name);
        found
            .map(|program| program.1.clone())
            .with_context(|| format!("cargo has not built {name}"))
    };
    // The tests know the agent by the path of their own build.
    let agent = program(&tests, "shunt")?;
    let mut files = vec![
        (TESTS.to_owned(), program(&tests, "it")?),
        (SCENARIOS.to_owned(), program(&tests, "scenarios")?),
        (OWN.to_owned(), program(&own, "shunt-vm")?),
        (agent.display().to_string(), agent.clone()),
    ];
    for name in PROGRAMS {
        let path = find(name).with_context(|| format!("`{name}` not found"))?;
        files.push((format!("/usr/bin/{name}"), path));
    }
    let root = results.join("root");
    for folder in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "proc", "sys", "dev", "etc"] {
        fs::create_dir_all(root.join(folder))?;
    }
    for folder in ["bin", "sbin", "lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{folder}"), root.join(folder))?;
    }
    std::os::unix::fs::symlink("../bin/modprobe", root.join("usr/sbin/modprobe"))?;
    let mut libraries = BTreeSet::new();
    for (path, file) in files {
        let to = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(to.parent().context("no folder")?)?;
        run_command(command("strip").arg("--strip-debug").arg("-o").arg(to).arg(&file))?;
        let needed = stdout(command("ldd").arg(&file))?;
        libraries
            .extend(needed.split_whitespace().filter(|it| it.starts_with('/')).map(str::to_owned));
    }
    for library in libraries {
        let library = Path::new(&library);
        let folder = fs::canonicalize(library.parent().context("no folder")?)?;
        let to = root.join(folder.strip_prefix("/")?);
        fs::create_dir_all(&to)?;
        fs::copy(library, to.join(library.file_name().context("no name")?))?;
    }
    for file in FILES {
        // A path of the repository is the same there.
        let file = repository().join(file);
        run_command(command("cp").args(["-r", "--parents"]).arg(file).arg(&root))?;
    }
    // The tests and `shunt-vm` find the agent.
    let init =
        include_str!("init").replacen("export ", &format!("export SHUNT={} ", agent.display()), 1);
    fs::write(root.join("init"), init)?;
    run_command(command("chmod").arg("755").arg(root.join("init")))?;
    archive(&root)
}

/// Packs a folder as kernels unpack it.
fn archive(folder: &Path) -> Result<PathBuf> {
    let archive = folder.with_extension("cpio");
    let pack = "find . | cpio --quiet --create --format=newc --owner=0:0 > \"$1\"";
    run_command(shell(pack).arg(&archive).current_dir(folder))?;
    fs::remove_dir_all(folder)?;
    Ok(archive)
}

/// The programs that cargo builds with these arguments: names and paths.
fn built(arguments: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    let mut build = cargo();
    build.args(arguments).args(["--locked", "--message-format=json-render-diagnostics"]);
    let output = build.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("cargo {} failed", arguments.join(" "));
    }
    let mut programs = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: Value = serde_json::from_str(line)?;
        if let (Some(name), Some(path)) =
            (message["target"]["name"].as_str(), message["executable"].as_str())
        {
            programs.push((name.to_owned(), path.into()));
        }
    }
    Ok(programs)
}

/// A shell that runs these words; arguments follow.
fn shell(words: &str) -> Command {
    let mut shell = command("sh");
    shell.args(["-c", words, "sh"]);
    shell
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "== kernel 6.1\n== begin kernel\ntest a::b ... ok\ntest c ... ok\n\
        test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured\n== end kernel 0\n== done";

    fn wrongs(report: &str) -> Vec<String> {
        let lines: Vec<String> = report.lines().map(str::to_owned).collect();
        judge(&lines, &["kernel"], false).1
    }

    #[test]
    fn only_a_whole_report_is_good() {
        assert_eq!(wrongs(GOOD), [""; 0]);
        for end in 0..GOOD.len() - 1 {
            assert_ne!(wrongs(&GOOD[..end]), [""; 0], "{:?}", &GOOD[..end]);
        }
        for (good, bad) in [
            ("c ... ok", "c ... FAILED"),
            ("kernel 0", "kernel 139"),
            ("2 passed", "0 passed"),
            ("0 ignored", "1 ignored"),
            ("test result", "no result"),
        ] {
            assert_eq!(
                wrongs(&GOOD.replace(good, bad)).len(),
                1 + usize::from(good == "test result")
            );
        }
    }

    #[test]
    fn every_selected_test_exists() {
        for (_, program, words) in BOOTS.iter().flat_map(|boot| boot.2) {
            let names = words.split(' ').map(|it| it.trim_start_matches("--skip="));
            for name in names.filter(|it| *program == TESTS && !it.starts_with("--")) {
                let parts: Vec<&str> = name.split("::").collect();
                let exists = match parts[..] {
                    [suite, ""] => repository().join("tests/it").join(suite).is_dir(),
                    [suite, module, test] => {
                        let file = repository().join(format!("tests/it/{suite}/{module}.rs"));
                        let text = fs::read_to_string(file).unwrap();
                        test.is_empty() || text.contains(&format!("fn {test}()"))
                    }
                    _ => false,
                };
                assert!(exists, "{name}");
            }
        }
    }
}
