//! The text of a comparison, for people.

use std::fmt;

use super::{Comparison, Difference, Kind, Line};
use crate::escape;

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Comparison { mode, frontends, .. } = self;
        if self.is_same() {
            writeln!(
                f,
                "no differences: {frontends} frontends are as in kube-proxy ({mode} mode)"
            )?;
        } else {
            let settings = match self.settings.len() {
                0 => String::new(),
                1 => " and 1 setting".to_owned(),
                count => format!(" and {count} settings"),
            };
            writeln!(
                f,
                "{} of {frontends} frontends{settings} differ between kube-proxy ({mode} mode, -) \
                 and shunt (+)",
                self.differences.len(),
            )?;
        }
        for note in &self.notes {
            writeln!(f, "note: {}", escape::line(note))?;
        }
        if !self.settings.is_empty() {
            writeln!(f, "\nsettings")?;
        }
        for difference in &self.settings {
            let (family, setting, field) =
                (difference.family, difference.setting, difference.field);
            writeln!(f, "  {family}, {setting} ({field})")?;
            writeln!(f, "  - {}", escape::line(&difference.kube_proxy))?;
            writeln!(f, "  + {}", escape::line(&difference.shunt))?;
        }
        let services = self.differences.chunk_by(|one, other| one.label == other.label);
        services.into_iter().try_for_each(|service| write_service(f, service))
    }
}

/// Writes the differences of a service port. Frontends that differ in the same way share their
/// lines.
fn write_service(f: &mut fmt::Formatter<'_>, differences: &[Difference]) -> fmt::Result {
    let label = differences.first().map_or("", |difference| difference.label.as_str());
    let label = if label.is_empty() { "(unknown Service)" } else { label };
    writeln!(f, "\n{}", escape::line(label))?;
    let mut written = vec![false; differences.len()];
    for (index, difference) in differences.iter().enumerate() {
        if written[index] {
            continue;
        }
        let mut keys = Vec::new();
        for (other, written) in differences.iter().zip(&mut written).skip(index) {
            let is_alike = other.kind == difference.kind
                && other.lines == difference.lines
                && other.explanation == difference.explanation;
            if is_alike && !*written {
                *written = true;
                keys.push(other.key.to_string());
            }
        }
        let kind = match difference.kind {
            Kind::OnlyKubeProxy => ": only in kube-proxy",
            Kind::OnlyShunt => ": only in shunt",
            Kind::Outcome | Kind::Backends | Kind::Policy => "",
        };
        writeln!(f, "  {}{kind}", keys.join(", "))?;
        for line in &difference.lines {
            match line {
                Line::Removed(text) => writeln!(f, "  - {}", escape::line(text))?,
                Line::Added(text) => writeln!(f, "  + {}", escape::line(text))?,
            }
        }
        if let Some(explanation) = &difference.explanation {
            writeln!(f, "    {}", escape::line(explanation))?;
        }
    }
    Ok(())
}
