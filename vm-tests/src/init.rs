//! The first process of the machine.

use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};

use crate::report::Report;

/// What to do, one thing a line: `env NAME VALUE`, `run NAME PROGRAM ARGUMENT…`, `shell`.
const PLAN: &str = "/plan";

/// Where tests leave what explains a failure.
const EVIDENCE: &str = "/evidence";

/// Does what the plan says. Ends the machine, not just the process.
pub(crate) fn main() -> ! {
    if let Err(error) = work() {
        eprintln!("init: {error:#}");
    }
    // With QEMU's `-no-reboot` this ends it, as a panic of the kernel would: the exit code says nothing,
    // the report everything.
    let _ = reboot(RebootMode::RB_AUTOBOOT);
    std::process::exit(1)
}

fn work() -> Result<()> {
    mount_all()?;
    let report = Report::open()?;
    let carried_out = carry_out(&report);
    match &carried_out {
        Ok(()) => report.say("done")?,
        Err(error) => report.say(&format!("broken {error:#}"))?,
    }
    report.flush()?;
    carried_out
}

fn mount_all() -> Result<()> {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("cannot mount {target}"))?;
    }
    Ok(())
}

fn carry_out(report: &Report) -> Result<()> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    report.say(&format!("kernel {}", release.trim()))?;
    fs::create_dir_all(EVIDENCE)?;
    let plan = fs::read_to_string(PLAN).with_context(|| format!("cannot read {PLAN}"))?;
    let mut environment: Vec<(&str, &str)> = vec![("SHUNT_LAB_EVIDENCE", EVIDENCE)];
    for line in plan.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["env", name, value] => environment.push((name, value)),
            ["run", name, program, ref arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).envs(environment.iter().copied());
                run(report, name, command)?;
                send_evidence(report, name)?;
            }
            ["shell"] => shell()?,
            _ => bail!("{PLAN} has a line that is not understood: {line}"),
        }
    }
    Ok(())
}

/// Runs a program, with its output as part of the report.
fn run(report: &Report, name: &str, mut command: Command) -> Result<()> {
    report.say(&format!("begin {name}"))?;
    let (output, input) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(input.try_clone()?).stderr(input);
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    // The command has the writing ends of the pipe, which must close for the output to end.
    drop(command);
    for line in BufReader::new(output).split(b'\n') {
        report.quote(&String::from_utf8_lossy(&line?))?;
    }
    let status = child.wait()?;
    report.say(&format!("end {name} {}", status.code().unwrap_or(-1)))
}

/// Sends what tests have left, and makes room for those of the next program.
fn send_evidence(report: &Report, run: &str) -> Result<()> {
    for test in sorted(Path::new(EVIDENCE))? {
        for file in sorted(&test)? {
            let name = file.strip_prefix(EVIDENCE).unwrap_or(&file).display().to_string();
            report.file(&format!("{run}/{}", name.replace(' ', "_")), &fs::read(&file)?)?;
        }
    }
    fs::remove_dir_all(EVIDENCE)?;
    fs::create_dir_all(EVIDENCE)?;
    Ok(())
}

fn sorted(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut paths: Vec<_> = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    paths.sort();
    Ok(paths)
}

/// A shell on the first serial port, for people.
fn shell() -> Result<()> {
    let console = OpenOptions::new().read(true).write(true).open("/dev/console")?;
    let mut shell = Command::new("setsid");
    shell.args(["-c", "sh", "-i"]).env("PS1", "vm# ");
    shell.stdin(console.try_clone()?).stdout(console.try_clone()?).stderr(console);
    shell.status().context("cannot start a shell")?;
    Ok(())
}
