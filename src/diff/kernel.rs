//! The differences between the kernel's tables and the plan, for people and programs.

use std::fmt;

use serde_json::{Value, json};

use crate::dataplane::{Place, Side};
use crate::escape;

/// The result of a comparison with the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelComparison {
    /// The number of planned frontends.
    pub frontends: usize,
    /// The places that differ.
    pub places: Vec<Place>,
    /// What a reader should know about the differences.
    pub notes: Vec<String>,
}

impl KernelComparison {
    /// Returns true if nothing differs.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the comparison as JSON, as `docs/diff.md` documents it.
    #[must_use]
    pub fn json(&self) -> Value {
        let differences: Vec<Value> = self
            .places
            .iter()
            .map(|place| {
                let lines = |of: fn(&Side) -> Option<&String>| -> Vec<&String> {
                    place.lines.iter().filter_map(of).collect()
                };
                json!({
                    "family": place.family.to_string(),
                    "place": place.name,
                    "kernel": lines(|line| match line {
                        Side::Kernel(text) => Some(text),
                        Side::Plan(_) => None,
                    }),
                    "plan": lines(|line| match line {
                        Side::Plan(text) => Some(text),
                        Side::Kernel(_) => None,
                    }),
                })
            })
            .collect();
        let [kernel, plan] = self.counts();
        json!({
            "summary": {"frontends": self.frontends, "onlyKernel": kernel, "onlyPlan": plan},
            "differences": differences,
            "notes": self.notes,
        })
    }

    /// Returns the numbers of lines that only the kernel has, and only the plan.
    fn counts(&self) -> [usize; 2] {
        let lines = self.places.iter().flat_map(|place| &place.lines);
        let kernel = lines.clone().filter(|line| matches!(line, Side::Kernel(_))).count();
        [kernel, lines.count() - kernel]
    }
}

impl fmt::Display for KernelComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_same() {
            let frontends = self.frontends;
            writeln!(f, "no differences: the kernel holds the plan ({frontends} frontends)")?;
        } else {
            let [kernel, plan] = self.counts();
            writeln!(
                f,
                "not planned, in the kernel (-): {kernel}; planned, not in the kernel (+): {plan}"
            )?;
        }
        for note in &self.notes {
            writeln!(f, "note: {}", escape::line(note))?;
        }
        let mut family = None;
        for place in &self.places {
            if family != Some(place.family) {
                family = Some(place.family);
                let word = crate::dataplane::table_family(place.family);
                writeln!(f, "\ntable {word} {}", shunt_core::plan::TABLE)?;
            }
            writeln!(f, "  {}", escape::line(&place.name))?;
            for line in &place.lines {
                match line {
                    Side::Kernel(text) => writeln!(f, "  - {}", escape::line(text))?,
                    Side::Plan(text) => writeln!(f, "  + {}", escape::line(text))?,
                }
            }
        }
        Ok(())
    }
}
