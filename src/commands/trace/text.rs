//! The report as text for people.

use std::fmt;

use super::TraceReport;
use crate::serve::escape;

impl fmt::Display for TraceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TraceReport { source, destination, protocol, .. } = self;
        let origin = match &self.input {
            Some(interface) => format!("arrived on {interface}"),
            None => "sent by this node".to_owned(),
        };
        writeln!(f, "{source} -> {destination} {}, {origin}", protocol.to_uppercase())?;
        let mut hook = "";
        for step in &self.steps {
            if step.hook != hook {
                hook = &step.hook;
                writeln!(f, "  {hook}")?;
            }
            let place = format!("{} {} {}", step.family, step.table, step.chain);
            let rule = match (&step.rule, step.handle) {
                (Some(rule), _) => rule.clone(),
                (None, Some(handle)) => format!("rule {handle}"),
                (None, None) => "policy".to_owned(),
            };
            write!(f, "    {:<28} {}", escape::line(&place), escape::line(&rule))?;
            if !rule.ends_with(&step.verdict) && step.verdict != "continue" {
                write!(f, " -> {}", escape::line(&step.verdict))?;
            }
            if let Some(comment) = &step.comment {
                write!(f, "  # {}", escape::line(comment))?;
            }
            writeln!(f)?;
            if let Some((map, service)) =
                step.element.as_deref().and_then(|element| element.split_once(' '))
            {
                let service = escape::line(service);
                writeln!(f, "    {:<28} frontend {service} (element of {map})", "")?;
            }
            if let Some(backend) = step.backend {
                writeln!(f, "    {:<28} endpoint {backend}", "")?;
            }
        }
        let to = self.backend.unwrap_or(self.destination);
        match self.outcome {
            "delivered" => {
                write!(f, "  DELIVERED to {to}")?;
                if let Some(output) = &self.output {
                    write!(f, " by {output}")?;
                }
                if let Some(source) = self.translated_source {
                    write!(f, ", as {source}")?;
                }
                if self.answered == Some(true) {
                    write!(f, "; a reply came back")?;
                }
            }
            outcome => {
                write!(f, "  {}", outcome.to_uppercase())?;
                if let Some(by) = &self.by {
                    write!(f, " by {}", escape::line(by))?;
                }
            }
        }
        if let Some(reason) = &self.reason {
            let separator = if self.outcome == "delivered" { "; " } else { ": " };
            write!(f, "{separator}{}", escape::line(reason))?;
        }
        writeln!(f)
    }
}
