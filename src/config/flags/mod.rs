//! kube-proxy's flags as data: name, field of the configuration, and what its value must be beyond the
//! type of that field.

mod logging;
mod others;
mod settings;

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use super::fields::{self, FieldKind};
use super::{Configuration, Field, GoDuration};
use crate::source::spanned_yaml::{Diagnostic, Severity};

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
    beside_file: bool,
    /// Why it has no effect, if the field does not say so.
    reason: &'static str,
    /// True if its value does not become that of the field as it is.
    is_apart: bool,
    /// Accepts a value, or says why not, beyond the type of the field.
    check: fn(&str) -> Result<(), String>,
}

impl Flag {
    const fn new(
        name: &'static str,
        value: &'static str,
        field: &'static str,
        help: &'static str,
    ) -> Flag {
        Flag {
            name,
            value,
            field,
            help,
            beside_file: false,
            reason: "",
            is_apart: false,
            check: |_| Ok(()),
        }
    }

    const fn checked(self, check: fn(&str) -> Result<(), String>) -> Flag {
        Flag { check, ..self }
    }

    const fn apart(self) -> Flag {
        Flag { is_apart: true, ..self }
    }

    const fn beside_file(self) -> Flag {
        Flag { beside_file: true, ..self }
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

    /// Returns true if kube-proxy does not have the flag.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.field.starts_with("shunt.")
    }

    /// Returns true if commands without a configuration have the flag, too.
    #[must_use]
    pub fn is_logging(&self) -> bool {
        logging::FLAGS.iter().any(|flag| flag.name == self.name)
    }

    /// Returns true if the flag counts with a configuration file, too.
    #[must_use]
    pub fn counts_beside_file(&self) -> bool {
        self.beside_file || self.is_own() || self.is_logging()
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
    fn set(&self, configuration: &mut Configuration, value: Value) {
        // As for kube-proxy, an empty name does not override that of a file.
        let is_no_name = self.name == "hostname-override" && value == "";
        if self.is_apart || self.field.is_empty() || is_no_name {
            return;
        }
        match (configuration.entry(self.field), value) {
            (Value::Array(items), Value::Array(new)) => items.extend(new),
            (Value::Object(fields), Value::Object(new)) => fields.extend(new),
            (field, value) => *field = value,
        }
    }

    /// Returns the value in a file.
    fn parse(&self, text: &str) -> Result<Value, String> {
        (self.check)(text)?;
        let kind = match Field::at(self.field) {
            Some(field) => field.kind,
            None if self.is_switch() => FieldKind::Switch(false),
            None => FieldKind::Text(""),
        };
        kind.parse(text)
    }

    /// Validates a value by itself, without the other flags.
    ///
    /// # Errors
    /// The problem, for a person.
    pub fn check(&self, value: &str) -> Result<(), String> {
        self.parse(value).map(drop)
    }
}

/// Accepts a port, or 0.
fn port(text: &str) -> Result<(), String> {
    text.parse::<u16>().map(drop).map_err(|_| "not a number in the valid range".to_owned())
}

/// Accepts a duration that is not zero: in a file zero means the default, in a flag it is an error.
fn period(text: &str) -> Result<(), String> {
    match GoDuration::parse(text)?.is_zero() {
        true => Err("must be longer than zero".to_owned()),
        false => Ok(()),
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
        for (flag, field) in
            [("healthz-port", "healthzBindAddress"), ("metrics-port", "metricsBindAddress")]
        {
            let port = self.last(flag).and_then(|port| port.parse::<u16>().ok());
            let address = made.text(field).and_then(|address| address.parse::<IpAddr>().ok());
            match (port, address) {
                (Some(0), _) => made.put(field, ""),
                // kube-proxy's default address has a port, so that there another one has no effect.
                (Some(port), Some(ip)) => made.put(field, SocketAddr::new(ip, port).to_string()),
                _ => {}
            }
        }
        // The flags for iptables and for IPVS set the same two times, each in its mode.
        let mode = if made.text("mode") == Some("ipvs") { "ipvs" } else { "iptables" };
        for (flag, field) in
            [("sync-period", "nftables.syncPeriod"), ("min-sync-period", "nftables.minSyncPeriod")]
        {
            let time = self.last(&format!("{mode}-{flag}"));
            if let Some(time) = time.filter(|time| GoDuration::parse(time).is_ok()) {
                made.put(field, time);
            }
        }
        made
    }

    /// Applies the flags that count with a file to it, and warns of the others.
    pub(super) fn beside(
        &self,
        file: Configuration,
        problems: &mut Vec<Diagnostic>,
    ) -> Configuration {
        let made = self.apply(Flag::counts_beside_file, file, problems);
        for (flag, value) in self.0.iter().filter(|(flag, _)| !flag.counts_beside_file()) {
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
        mut made: Configuration,
        problems: &mut Vec<Diagnostic>,
    ) -> Configuration {
        let mut idle: Vec<String> = Vec::new();
        for (flag, text) in self.0.iter().filter(|(flag, _)| counts(flag)) {
            match flag.parse(text) {
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
            problems.push(Diagnostic::new(Severity::Note, "", note));
        }
        made
    }

    /// Replaces the name of a field by that of its flag.
    pub(super) fn rename(&self, field: &mut String) {
        let name = field.split('[').next().filter(|name| !name.is_empty());
        if let Some((flag, _)) = self.0.iter().rfind(|(flag, _)| Some(flag.field) == name) {
            *field = path(flag);
        }
    }
}

fn path(flag: &Flag) -> String {
    format!("--{}", flag.name)
}
