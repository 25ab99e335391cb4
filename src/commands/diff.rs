//! `shunt diff`: compares the plan with the tables in the kernel. Writes nothing to the kernel.

use std::fmt;

use anyhow::anyhow;
use nfnetlink::nft::Socket;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::args::Diff;
use super::changes::Changes;
use super::objects::{self, ObjectReader, settled};
use super::with::{self, Examples};
use crate::agent::kernel_errors::explain;
use crate::agent::{Failure, logging, netns};
use crate::dataplane::{Place, Side, compare};
use crate::serve::escape;
use crate::serve::query::Selection;
use crate::serve::status::Time;

/// The exit codes, as documented: those of `diff`.
const DIFFERENT: u8 = 1;
const NOT_COMPARED: u8 = 2;
/// The exit code if a frontend loses service, by the files of `--with` or since `--at`.
const LOSES_SERVICE: u8 = 3;

/// Prints the differences.
pub(super) fn diff(arguments: &Diff) -> Result<(), Failure> {
    match compared(arguments) {
        Ok(0) => Ok(()),
        Ok(code) => Err(Failure::Result(code)),
        Err(input @ (Failure::Configuration(_) | Failure::Input(_))) => Err(input),
        Err(error) => {
            tracing::error!("cannot compare: {error}");
            Err(Failure::Result(NOT_COMPARED))
        }
    }
}

/// Prints the differences, and returns the exit code.
fn compared(arguments: &Diff) -> Result<u8, Failure> {
    logging::start_with(&arguments.objects.logging);
    netns::enter(arguments.netns.as_deref())?;
    if let Some(at) = arguments.objects.at {
        return since(arguments, at);
    }
    let reader = arguments.objects.start(false)?;
    match arguments.objects.with.is_empty() {
        true => with_kernel(arguments, &reader),
        false => with_files(arguments, &reader),
    }
}

/// Prints what has changed since a time.
fn since(arguments: &Diff, at: Time) -> Result<u8, Failure> {
    let mut objects = arguments.objects.with_history()?;
    let (_, now) = objects.planned();
    objects::rewind(&mut objects, at)?;
    let (_, then) = objects.planned();
    print(arguments, &Changes::new(&then, &now, &Examples::default()))
}

fn print(arguments: &Diff, changes: &Changes) -> Result<u8, Failure> {
    super::output(arguments.output, changes)?;
    Ok(if changes.loses_service() { LOSES_SERVICE } else { 0 })
}

/// Prints what the files of `--with` would change.
fn with_files(arguments: &Diff, reader: &ObjectReader) -> Result<u8, Failure> {
    let mut objects = reader.read(&Selection::All)?;
    let (_, now) = objects.planned();
    let examples = with::apply(&arguments.objects.with, &mut objects)?;
    let (_, then) = objects.planned();
    let mut changes = Changes::new(&now, &then, &examples);
    if reader.is_agent() {
        changes.look_for_taken(&now, &then);
    }
    print(arguments, &changes)
}

/// Compares the tables with the plan, and prints the differences.
fn with_kernel(arguments: &Diff, reader: &ObjectReader) -> Result<u8, Failure> {
    let mut kernel = Socket::open().map_err(explain)?;
    let look = || -> anyhow::Result<_> {
        let objects = reader.read(&Selection::All)?;
        let (_, desired) = objects.planned();
        let places = compare(&mut kernel, &desired).map_err(explain)?;
        let refused = objects.status.rules.quarantined.len();
        let quarantine = (refused > 0)
            .then(|| format!("the kernel refuses {refused} frontends: `shunt status` lists them"));
        let differs = (!places.is_empty()).then(|| places.clone());
        let frontends = desired.frontends().len();
        Ok((Comparison { frontends, places, notes: quarantine.into_iter().collect() }, differs))
    };
    let (comparison, is_certain) = settled(look)?;
    if !is_certain {
        let why = "the tables or the plan keep changing; repeat the command";
        return Err(anyhow!(why).into());
    }
    super::output(arguments.output, &comparison)?;
    Ok(if comparison.is_same() { 0 } else { DIFFERENT })
}

/// The result of a comparison with the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Comparison {
    /// The number of planned frontends.
    frontends: usize,
    /// The places that differ.
    places: Vec<Place>,
    /// What a reader should know about the differences.
    notes: Vec<String>,
}

impl Comparison {
    fn is_same(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the numbers of lines that only the kernel has, and only the plan.
    fn counts(&self) -> [usize; 2] {
        let lines = self.places.iter().flat_map(|place| &place.lines);
        let kernel = lines.clone().filter(|line| matches!(line, Side::Kernel(_))).count();
        [kernel, lines.count() - kernel]
    }
}

impl Serialize for Comparison {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let differences: Vec<Value> = self
            .places
            .iter()
            .map(|place| {
                let (mut kernel, mut plan) = (Vec::new(), Vec::new());
                for line in &place.lines {
                    match line {
                        Side::Kernel(text) => kernel.push(text),
                        Side::Plan(text) => plan.push(text),
                    }
                }
                let (family, name) = (place.family.to_string(), &place.name);
                json!({"family": family, "place": name, "kernel": kernel, "plan": plan})
            })
            .collect();
        let [kernel, plan] = self.counts();
        let document = json!({
            "summary": {"frontends": self.frontends, "onlyKernel": kernel, "onlyPlan": plan},
            "differences": differences,
            "notes": self.notes,
        });
        document.serialize(serializer)
    }
}

impl fmt::Display for Comparison {
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
