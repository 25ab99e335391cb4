//! kube-proxy's flags as data: name, field of the configuration, and the change to it.

mod logging;
mod others;
mod settings;

use super::fields;
use super::raw::{Configuration, GoDuration, VModule};
use crate::source::spanned_yaml::{Diagnostic, FieldPath, Severity};

/// A flag of kube-proxy, or of shunt, that sets a field.
#[derive(Debug)]
pub struct Flag {
    /// Without dashes, as in `healthz-port`.
    pub name: &'static str,
    /// The placeholder in the help text; empty for a switch, which needs no value.
    pub value: &'static str,
    /// The field of the configuration; empty if there is none.
    pub field: &'static str,
    /// A sentence for `--help`.
    pub help: &'static str,
    /// True if the flag counts with a configuration file, too.
    pub beside_file: bool,
    /// True if kube-proxy does not have the flag.
    pub is_own: bool,
    /// True if commands without a configuration have the flag, too.
    pub is_logging: bool,
    /// Why it has no effect, if the field does not say so.
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
        Flag {
            name,
            value,
            field,
            help,
            beside_file: false,
            is_own: false,
            is_logging: false,
            reason: "",
            set,
        }
    }

    const fn beside_file(self) -> Flag {
        Flag { beside_file: true, ..self }
    }

    const fn own(self) -> Flag {
        Flag { is_own: true, beside_file: true, ..self }
    }

    const fn logging(self) -> Flag {
        Flag { is_logging: true, beside_file: true, ..self }
    }

    const fn without_effect(self, reason: &'static str) -> Flag {
        Flag { reason, ..self }
    }

    /// Iterates over all flags, in the order of the reference.
    pub fn all() -> impl Iterator<Item = &'static Flag> {
        settings::FLAGS.iter().chain(others::FLAGS).chain(logging::FLAGS)
    }

    /// Returns the flag of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Flag> {
        Flag::all().find(|flag| flag.name == name)
    }

    /// Returns true for a flag that needs no value, such as `--masquerade-all`.
    #[must_use]
    pub fn is_switch(&self) -> bool {
        self.value.is_empty()
    }

    /// Returns why the flag has no effect; `None` if it has one.
    #[must_use]
    pub fn without_effect_because(&self) -> Option<&'static str> {
        match self.reason {
            "" => fields::without_effect_because(self.field),
            reason => Some(reason),
        }
    }

    /// Validates a value by itself, without the other flags.
    ///
    /// # Errors
    /// The problem, for a person.
    pub fn check(&self, value: &str) -> Result<(), String> {
        (self.set)(&mut Draft::default(), value)
    }
}

/// A configuration that is being made from flags, with values that have no field in it.
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

/// The flags of a command line, in their order.
#[derive(Debug, Clone, Default)]
pub struct Flags(Vec<(&'static Flag, String)>);

impl Flags {
    /// Adds a flag with its value. A flag that comes again overrides, or extends a list.
    pub fn push(&mut self, flag: &'static Flag, value: impl Into<String>) {
        self.0.push((flag, value.into()));
    }

    /// Returns true if there is no flag.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the last value of the flag of that name.
    #[must_use]
    pub fn last(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().rfind(|(flag, _)| flag.name == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Adds the flags of another command line behind these.
    pub fn extend(&mut self, other: &Flags) {
        self.0.extend_from_slice(&other.0);
    }

    /// Makes a configuration of flags without a file.
    pub(super) fn alone(&self, problems: &mut Vec<Diagnostic>) -> Draft {
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

    /// Applies the flags that count with a file to it, and warns of the others.
    pub(super) fn beside(&self, file: Configuration, problems: &mut Vec<Diagnostic>) -> Draft {
        let mut draft = Draft { configuration: file, ..Draft::default() };
        self.apply(|flag| flag.beside_file, &mut draft, problems);
        for (flag, value) in self.0.iter().filter(|(flag, _)| !flag.beside_file) {
            let reason = match flag.field {
                "" => "has no effect with --config".to_owned(),
                field => format!("has no effect with --config; write {field} into the file"),
            };
            let problem = Diagnostic::new(Severity::Warning, path(flag), reason);
            problems.push(problem.with_value(value));
        }
        draft
    }

    fn apply(
        &self,
        counts: impl Fn(&Flag) -> bool,
        draft: &mut Draft,
        problems: &mut Vec<Diagnostic>,
    ) {
        let mut idle: Vec<String> = Vec::new();
        for (flag, value) in self.0.iter().filter(|(flag, _)| counts(flag)) {
            if let Err(reason) = (flag.set)(draft, value) {
                let problem = Diagnostic::new(Severity::Error, path(flag), reason);
                problems.push(problem.with_value(value));
            } else if let Some(reason) = flag.without_effect_because() {
                idle.push(format!("--{} ({reason})", flag.name));
            }
        }
        if !idle.is_empty() {
            idle.dedup();
            let note = format!("flags accepted without effect: {}", idle.join(", "));
            problems.push(Diagnostic::new(Severity::Note, FieldPath::default(), note));
        }
    }

    /// Replaces the name of a field by that of its flag.
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

/// Sets a field to a truth value.
fn switch(field: &mut bool, value: &str) -> Result<(), String> {
    *field = parse_bool(value)?;
    Ok(())
}

/// Parses a truth value as Go's `strconv.ParseBool` does.
///
/// # Errors
/// The values to write instead.
pub fn parse_bool(value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("not a truth value; write true or false".to_owned()),
    }
}

fn number<T: std::str::FromStr>(field: &mut Option<T>, value: &str) -> Result<(), String> {
    *field = Some(value.parse().map_err(|_| "not a number in the valid range".to_owned())?);
    Ok(())
}

fn duration(field: &mut Option<GoDuration>, value: &str) -> Result<(), String> {
    *field = Some(GoDuration::parse(value)?);
    Ok(())
}

/// Parses a duration that must not be zero: in a file zero means the default, in a flag it is an
/// error.
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
    // Flags come before the file.
    field.splice(0..0, items);
    Ok(())
}

/// Accepts any value.
fn ignored(_: &mut Draft, _: &str) -> Result<(), String> {
    Ok(())
}

/// Accepts any truth value.
fn ignored_switch(_: &mut Draft, value: &str) -> Result<(), String> {
    parse_bool(value).map(drop)
}
