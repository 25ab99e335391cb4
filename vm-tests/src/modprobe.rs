//! The kernel asks user space for modules, by name or by alias, and user space answers by loading
//! them: here from the index that was made of the modules themselves (`xtask/src/vm/modules.rs`).

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write as _;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};

/// Lines `module NAME FILE DEPENDENCY…` and `alias PATTERN NAME`.
const INDEX: &str = "/lib/modules/index";

const COMMAND_LINE: &str = "/proc/cmdline";

/// Loads the modules that the kernel names: `modprobe -q -- NAME`.
pub(crate) fn main(arguments: &[String]) -> Result<()> {
    let index = fs::read_to_string(INDEX).with_context(|| format!("cannot read {INDEX}"))?;
    for wanted in arguments.iter().filter(|argument| !argument.starts_with('-')) {
        // What does not exist is no error: the kernel sees that nothing came, and says so.
        for name in resolve(&index, wanted) {
            load(&index, &name, &mut BTreeSet::new())
                .inspect_err(|error| log(&format!("modprobe {wanted}: {error:#}")))?;
        }
    }
    Ok(())
}

/// The kernel discards the output of a modprobe that it starts.
fn log(line: &str) {
    let log = fs::OpenOptions::new().append(true).open("/dev/kmsg");
    let _ = log.map(|mut log| writeln!(log, "{line}"));
}

/// The modules that go by this name or alias.
fn resolve(index: &str, wanted: &str) -> Vec<String> {
    let wanted = wanted.replace('-', "_");
    let mut names = Vec::new();
    for line in index.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["module", name, ..] if name == wanted => names.push(name.to_owned()),
            ["alias", pattern, name] if matches(&pattern.replace('-', "_"), &wanted) => {
                names.push(name.to_owned());
            }
            _ => {}
        }
    }
    names
}

/// Loads a module after those that it depends on.
fn load(index: &str, name: &str, seen: &mut BTreeSet<String>) -> Result<()> {
    if !seen.insert(name.to_owned()) {
        return Ok(());
    }
    let line = index.lines().find_map(|line| {
        let mut words = line.strip_prefix("module ")?.split(' ');
        (words.next()? == name).then_some(words)
    });
    let mut words = line.with_context(|| format!("{INDEX} has no module {name}"))?;
    let file = words.next().with_context(|| format!("{INDEX} names no file for {name}"))?;
    words.try_for_each(|dependency| load(index, dependency, seen))?;
    let module = File::open(file).with_context(|| format!("cannot open {file}"))?;
    let parameters = CString::new(parameters(&fs::read_to_string(COMMAND_LINE)?, name))?;
    match finit_module(&module, &parameters, ModuleInitFlags::empty()) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot load {name}")),
    }
}

/// What the kernel's command line says about a module, `MODULE.PARAMETER=VALUE`: user space has to
/// hand it over.
fn parameters(command_line: &str, module: &str) -> String {
    let of_module = command_line.split_whitespace().filter_map(|word| {
        let (name, parameter) = word.split_once('.')?;
        (name.replace('-', "_") == module).then_some(parameter)
    });
    of_module.collect::<Vec<_>>().join(" ")
}

/// Whether a pattern with `*` matches.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            (0..=text.len()).filter_map(|at| text.get(at..)).any(|text| matches(rest, text))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_by_name_and_by_alias() {
        let index = "module nf_tables /m/nf_tables.ko nfnetlink\n\
                     alias nfnetlink-subsys-10 nf_tables\n\
                     module veth /m/veth.ko\n\
                     alias pci:v00001AF4d*sv* veth\n";
        assert_eq!(resolve(index, "nf-tables"), ["nf_tables"]);
        assert_eq!(resolve(index, "nfnetlink-subsys-10"), ["nf_tables"]);
        assert_eq!(resolve(index, "pci:v00001AF4d00001000sv1"), ["veth"]);
        assert!(resolve(index, "nf").is_empty());
    }

    #[test]
    fn parameters_are_those_of_the_module() {
        let line = "console=ttyS0 nf-conntrack.hashsize=1 a.b=2 nf_conntrack.acct=1";
        assert_eq!(parameters(line, "nf_conntrack"), "hashsize=1 acct=1");
    }
}
