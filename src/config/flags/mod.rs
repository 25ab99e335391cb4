//! kube-proxy's flags as data: what each is called, which field of the configuration it stands for,
//! and what it does to it.

mod logging;
mod others;
mod settings;

use super::fields;
use super::raw::{Configuration, GoDuration, VModule};
use crate::document::{FieldPath, Problem, Severity};

/// A flag of kube-proxy.
#[derive(Debug)]
pub struct Flag {
    /// Its name, without dashes.
    pub name: &'static str,
    /// The name of its value in a help text; empty for a switch, which may stand without a value.
    pub value: &'static str,
    /// The field of the configuration that it stands for; empty if there is none.
    pub field: &'static str,
    /// What it does, in a sentence.
    pub help: &'static str,
    /// It counts beside a configuration file, too.
    pub beside_file: bool,
    /// It is about logs, and commands without a configuration have it, too.
    pub is_logging: bool,
    /// Why it does nothing, if that is not for its field to say.
    reason: &'static str,
    set: fn(&mut Draft, &str) -> Result<(), String>,
}

impl Flag {
    const fn new(
        name: &'static str,
        value: &'static str,
        field: &'static str,
        set: fn(&mut Draft, &str) -> Result<(), String>,
        help: &'static str,
    ) -> Flag {
        Flag { name, value, field, help, beside_file: false, is_logging: false, reason: "", set }
    }

    const fn beside_file(self) -> Flag {
        Flag { beside_file: true, ..self }
    }

    const fn logging(self) -> Flag {
        Flag { is_logging: true, beside_file: true, ..self }
    }

    const fn without_effect(self, reason: &'static str) -> Flag {
        Flag { reason, ..self }
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = &'static Flag> {
        settings::FLAGS.iter().chain(others::FLAGS).chain(logging::FLAGS)
    }

    /// The flag of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Flag> {
        Flag::all().find(|flag| flag.name == name)
    }

    /// True for a flag that may stand without a value, as `--masquerade-all` may.
    #[must_use]
    pub fn is_switch(&self) -> bool {
        self.value.is_empty()
    }

    /// Why it does nothing; none if it does something.
    #[must_use]
    pub fn without_effect_because(&self) -> Option<&'static str> {
        match self.reason {
            "" => fields::without_effect_because(self.field),
            reason => Some(reason),
        }
    }

    /// Says what is wrong with a value, as far as can be said without the other flags.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, value: &str) -> Result<(), String> {
        (self.set)(&mut Draft::default(), value)
    }
}

/// What flags ask for: a configuration, and what has no field in it.
#[derive(Debug, Clone, Default)]
pub(super) struct Draft {
    pub(super) configuration: Configuration,
    pub(super) master: Option<String>,
    healthz_port: Option<u16>,
    metrics_port: Option<u16>,
    iptables: Periods,
    ipvs: Periods,
}

/// The flags for iptables and for IPVS set the same two times, each in its mode.
#[derive(Debug, Clone, Default)]
struct Periods {
    sync: Option<GoDuration>,
    min_sync: Option<GoDuration>,
}

/// Flags as they were given, in their order.
#[derive(Debug, Clone, Default)]
pub struct Flags(Vec<(&'static Flag, String)>);

impl Flags {
    /// Adds a flag with its value.
    pub fn push(&mut self, flag: &'static Flag, value: impl Into<String>) {
        self.0.push((flag, value.into()));
    }

    /// Adds flags.
    pub fn extend(&mut self, other: &Flags) {
        self.0.extend_from_slice(&other.0);
    }

    /// The configuration that the flags alone describe.
    pub(super) fn alone(&self, problems: &mut Vec<Problem>) -> Draft {
        let mut draft = Draft::default();
        self.apply(|_| true, &mut draft, problems);
        let ports = [
            (draft.healthz_port, &mut draft.configuration.healthz_bind_address),
            (draft.metrics_port, &mut draft.configuration.metrics_bind_address),
        ];
        for (port, address) in ports {
            match (port, &address) {
                (Some(0), _) => *address = Some(String::new()),
                // kube-proxy's default address has a port, so that there another one has no effect.
                (Some(port), Some(ip)) if ip.parse::<std::net::IpAddr>().is_ok() => {
                    let ip = if ip.contains(':') { format!("[{ip}]") } else { ip.clone() };
                    *address = Some(format!("{ip}:{port}"));
                }
                _ => {}
            }
        }
        let ipvs = draft.configuration.mode.as_deref() == Some("ipvs");
        let periods = if ipvs { &draft.ipvs } else { &draft.iptables };
        draft.configuration.nftables.sync_period = periods.sync;
        draft.configuration.nftables.min_sync_period = periods.min_sync;
        draft
    }

    /// What a file says, with the flags that count beside it. It warns of the others.
    pub(super) fn beside(&self, file: Configuration, problems: &mut Vec<Problem>) -> Draft {
        let mut draft = Draft { configuration: file, ..Draft::default() };
        self.apply(|flag| flag.beside_file, &mut draft, problems);
        for (flag, value) in self.0.iter().filter(|(flag, _)| !flag.beside_file) {
            let reason = match flag.field {
                "" => "has no effect beside --config".to_owned(),
                field => format!("has no effect beside --config; write {field} into the file"),
            };
            let problem = Problem::new(Severity::Warning, path(flag), reason);
            problems.push(problem.with_value(value));
        }
        draft
    }

    fn apply(
        &self,
        counts: impl Fn(&Flag) -> bool,
        draft: &mut Draft,
        problems: &mut Vec<Problem>,
    ) {
        let mut idle: Vec<String> = Vec::new();
        for (flag, value) in self.0.iter().filter(|(flag, _)| counts(flag)) {
            if let Err(reason) = (flag.set)(draft, value) {
                let problem = Problem::new(Severity::Error, path(flag), reason);
                problems.push(problem.with_value(value));
            } else if let Some(reason) = flag.without_effect_because() {
                idle.push(format!("--{} ({reason})", flag.name));
            }
        }
        if !idle.is_empty() {
            idle.dedup();
            let note = format!("flags that are accepted without effect: {}", idle.join(", "));
            problems.push(Problem::new(Severity::Note, FieldPath::default(), note));
        }
    }

    /// Calls a field by the name of the flag that was given for it.
    pub(super) fn rename(&self, field: &mut FieldPath) {
        let written = field.to_string();
        let name = written.split('[').next().filter(|name| !name.is_empty());
        if let Some((flag, _)) = self.0.iter().rev().find(|(flag, _)| Some(flag.field) == name) {
            *field = path(flag);
        }
    }
}

fn path(flag: &Flag) -> FieldPath {
    FieldPath::top(&format!("--{}", flag.name))
}

fn text(field: &mut Option<String>, value: &str) -> Result<(), String> {
    *field = Some(value.to_owned());
    Ok(())
}

/// Go's `strconv.ParseBool`.
fn switch(field: &mut bool, value: &str) -> Result<(), String> {
    *field = parse_bool(value)?;
    Ok(())
}

/// Reads a truth value as Go does.
///
/// # Errors
/// What to write instead.
pub fn parse_bool(value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("not a truth value; write true or false".to_owned()),
    }
}

fn number<T: std::str::FromStr>(field: &mut Option<T>, value: &str) -> Result<(), String> {
    *field = Some(value.parse().map_err(|_| "not a number that fits here".to_owned())?);
    Ok(())
}

fn duration(field: &mut Option<GoDuration>, value: &str) -> Result<(), String> {
    *field = Some(GoDuration::parse(value)?);
    Ok(())
}

/// For what must not be zero: in a file zero means the default, in a flag it is a mistake.
fn period(field: &mut Option<GoDuration>, value: &str) -> Result<(), String> {
    duration(field, value)?;
    match field {
        Some(period) if period.is_zero() => Err("must be longer than zero".to_owned()),
        _ => Ok(()),
    }
}

fn list(field: &mut Vec<String>, value: &str) -> Result<(), String> {
    field.extend(value.split(',').filter(|item| !item.is_empty()).map(str::to_owned));
    Ok(())
}

fn vmodule(field: &mut Vec<VModule>, value: &str) -> Result<(), String> {
    let item = |item: &str| {
        let (pattern, level) = item.split_once('=')?;
        Some(VModule { file_pattern: pattern.to_owned(), verbosity: level.parse().ok()? })
    };
    let items: Option<Vec<VModule>> =
        value.split(',').filter(|part| !part.is_empty()).map(item).collect();
    let items = items.ok_or("not a list such as pattern=2,other=4")?;
    // What flags say comes before what the file says.
    field.splice(0..0, items);
    Ok(())
}

/// A value that nobody reads.
fn ignored(_: &mut Draft, _: &str) -> Result<(), String> {
    Ok(())
}

/// A truth value that nobody reads.
fn ignored_switch(_: &mut Draft, value: &str) -> Result<(), String> {
    parse_bool(value).map(drop)
}
