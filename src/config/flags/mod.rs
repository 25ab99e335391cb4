//! kube-proxy's flags as data: name, field of the configuration, and kind of value.

mod logging;
mod others;
mod settings;

use serde_json::{Value, json};

use super::fields;
use super::raw::{Configuration, GoDuration};
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
    /// True if its value does not become that of the field as it is.
    is_apart: bool,
    kind: Kind,
}

/// The kind of a flag's value.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Text,
    /// As for kube-proxy, an empty name does not override that of a file.
    Name,
    Switch,
    /// A whole number in this range.
    Number(i64, i64),
    Rate,
    Duration,
    /// A duration that must not be zero: in a file zero means the default, in a flag it is an error.
    Period,
    /// Texts with commas in between, which extend the list.
    List,
    /// A text that the function accepts.
    Word(fn(&str) -> Result<(), String>),
    /// Names with truth values, which extend the mapping.
    Gates,
    /// Patterns with levels, which come before those of a file.
    Patterns,
}

const NUMBER: Kind = Kind::Number(i32::MIN as i64, i32::MAX as i64);

impl Kind {
    /// Returns the value in a file.
    fn parse(self, text: &str) -> Result<Value, String> {
        let number = "not a number in the valid range";
        let items = text.split(',').filter(|item| !item.is_empty());
        match self {
            Kind::Text | Kind::Name => {}
            Kind::Word(check) => check(text)?,
            Kind::Switch => return parse_bool(text).map(Value::from),
            Kind::Number(from, to) => {
                let found = text.parse::<i64>().ok().filter(|found| (from..=to).contains(found));
                return found.map(Value::from).ok_or_else(|| number.to_owned());
            }
            Kind::Rate => {
                return text.parse::<f32>().map(Value::from).map_err(|_| number.to_owned());
            }
            Kind::Duration => drop(GoDuration::parse(text)?),
            Kind::Period if GoDuration::parse(text)?.is_zero() => {
                return Err("must be longer than zero".to_owned());
            }
            Kind::Period => {}
            Kind::List => return Ok(items.collect()),
            Kind::Gates => {
                let gate = |gate: &str| -> Result<(String, Value), String> {
                    let (name, on) = gate.split_once('=').ok_or("not a list such as Name=true")?;
                    Ok((name.trim().to_owned(), Value::from(parse_bool(on.trim())?)))
                };
                return items.map(gate).collect::<Result<_, _>>().map(Value::Object);
            }
            Kind::Patterns => {
                let pattern = |item: &str| {
                    let (pattern, level) = item.split_once('=')?;
                    let level = level.parse::<u32>().ok()?;
                    Some(json!({ "filePattern": pattern, "verbosity": level }))
                };
                let patterns = items.map(pattern).collect::<Option<_>>().map(Value::Array);
                return patterns.ok_or_else(|| "not a list such as pattern=2,other=4".to_owned());
            }
        }
        Ok(text.into())
    }
}

impl Flag {
    const fn new(
        name: &'static str,
        value: &'static str,
        field: &'static str,
        kind: Kind,
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
            is_apart: false,
            kind,
        }
    }

    const fn apart(self) -> Flag {
        Flag { is_apart: true, ..self }
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

    /// Sets the field, or extends it.
    fn set(&self, configuration: &mut Value, value: Value) {
        let is_no_name = matches!(self.kind, Kind::Name) && value == "";
        if self.is_apart || self.field.is_empty() || is_no_name {
            return;
        }
        let mut names = self.field.split('.');
        let Some(field) = names.try_fold(configuration, |value, name| match value {
            Value::Object(fields) => Some(fields.entry(name).or_insert(Value::Null)),
            _ => None,
        }) else {
            return;
        };
        match (field, value, self.kind) {
            (Value::Array(items), Value::Array(new), Kind::Patterns) => {
                drop(items.splice(0..0, new));
            }
            (Value::Array(items), Value::Array(new), _) => items.extend(new),
            (Value::Object(fields), Value::Object(new), _) => fields.extend(new),
            (field, value, _) => *field = value,
        }
    }

    /// Validates a value by itself, without the other flags.
    ///
    /// # Errors
    /// The problem, for a person.
    pub fn check(&self, value: &str) -> Result<(), String> {
        self.kind.parse(value).map(drop)
    }
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
    pub(super) fn alone(&self, problems: &mut Vec<Diagnostic>) -> Configuration {
        let mut made = self.apply(|_| true, Configuration::default(), problems);
        let ports = [
            (self.last("healthz-port"), &mut made.healthz_bind_address),
            (self.last("metrics-port"), &mut made.metrics_bind_address),
        ];
        for (port, address) in ports {
            match (port.and_then(|port| port.parse::<u16>().ok()), &address) {
                (Some(0), _) => *address = Some(String::new()),
                // kube-proxy's default address has a port, so that there another one has no effect.
                (Some(port), Some(ip)) if ip.parse::<std::net::IpAddr>().is_ok() => {
                    let ip = if ip.contains(':') { format!("[{ip}]") } else { ip.clone() };
                    *address = Some(format!("{ip}:{port}"));
                }
                _ => {}
            }
        }
        // The flags for iptables and for IPVS set the same two times, each in its mode.
        let mode = if made.mode.as_deref() == Some("ipvs") { "ipvs" } else { "iptables" };
        let time = |name: &str| GoDuration::parse(self.last(&format!("{mode}-{name}"))?).ok();
        made.nftables.sync_period = time("sync-period");
        made.nftables.min_sync_period = time("min-sync-period");
        made
    }

    /// Applies the flags that count with a file to it, and warns of the others.
    pub(super) fn beside(
        &self,
        file: Configuration,
        problems: &mut Vec<Diagnostic>,
    ) -> Configuration {
        let made = self.apply(|flag| flag.beside_file, file, problems);
        for (flag, value) in self.0.iter().filter(|(flag, _)| !flag.beside_file) {
            let reason = match flag.field {
                "" => "has no effect with --config".to_owned(),
                field => format!("has no effect with --config; write {field} into the file"),
            };
            let problem = Diagnostic::new(Severity::Warning, path(flag), reason);
            problems.push(problem.with_value(value));
        }
        made
    }

    fn apply(
        &self,
        counts: impl Fn(&Flag) -> bool,
        configuration: Configuration,
        problems: &mut Vec<Diagnostic>,
    ) -> Configuration {
        let mut made = serde_json::to_value(&configuration).unwrap_or_default();
        let mut idle: Vec<String> = Vec::new();
        for (flag, text) in self.0.iter().filter(|(flag, _)| counts(flag)) {
            match flag.kind.parse(text) {
                Ok(value) => flag.set(&mut made, value),
                Err(reason) => {
                    let problem = Diagnostic::new(Severity::Error, path(flag), reason);
                    problems.push(problem.with_value(text));
                    continue;
                }
            }
            if let Some(reason) = flag.without_effect_because() {
                idle.push(format!("--{} ({reason})", flag.name));
            }
        }
        if !idle.is_empty() {
            idle.dedup();
            let note = format!("flags accepted without effect: {}", idle.join(", "));
            problems.push(Diagnostic::new(Severity::Note, FieldPath::default(), note));
        }
        serde_json::from_value(made).unwrap_or(configuration)
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
    FieldPath::dotted(&format!("--{}", flag.name))
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
