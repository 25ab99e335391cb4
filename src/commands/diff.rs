//! `shunt diff`: compares the plan with the tables in the kernel. Writes nothing to the kernel.

use std::fmt;
use std::time::Duration;

use anyhow::anyhow;
use nfnetlink::nft::Socket;
use serde_json::{Value, json};
use shunt_core::model::Family;

use super::args::{Diff, Format, Moment};
use super::changes::Changes;
use super::{objects, with};
use crate::agent::kernel_errors::explain;
use crate::agent::{Failure, logging, netns};
use crate::dataplane::{Place, Side, compare};
use crate::serve::escape;
use crate::serve::query::Selection;

/// The exit codes, as documented: those of `diff`.
const DIFFERENT: u8 = 1;
const NOT_COMPARED: u8 = 2;
/// The exit code if a frontend loses service, by the files of `--with` or since `--at`.
const LOSES_SERVICE: u8 = 3;

/// The number of comparisons with the kernel until two of them agree, and the pause between them.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(200);

/// Prints the differences.
pub(super) fn diff(arguments: &Diff) -> Result<(), Failure> {
    let compared = match arguments.at {
        Some(at) => since(arguments, at),
        None => reader(arguments).and_then(|reader| match arguments.with.is_empty() {
            true => with_kernel(arguments, &reader),
            false => with_files(arguments, &reader),
        }),
    };
    match compared {
        Ok((text, code)) => {
            super::print(&text)?;
            if code == 0 { Ok(()) } else { Err(Failure::Result(code)) }
        }
        Err(input @ (Failure::Configuration(_) | Failure::Input(_))) => Err(input),
        Err(error) => {
            tracing::error!("cannot compare: {error}");
            Err(Failure::Result(NOT_COMPARED))
        }
    }
}

/// Returns what the files of `--with` would change as text or JSON, and the exit code.
fn with_files(arguments: &Diff, reader: &objects::Reader) -> Result<(String, u8), Failure> {
    let mut objects = reader.read(&Selection::All)?;
    let (_, now) = objects.planned();
    let examples = with::apply(&arguments.with, &mut objects)?;
    let (_, then) = objects.planned();
    let mut what_if = Changes::new(&now, &then, &examples);
    if let (true, Some(context)) = (reader.is_agent(), then.node_context()) {
        let addresses = Family::ALL.map(|family| context.node_port_addresses(family));
        let addresses = addresses.into_iter().flatten().flatten().collect();
        what_if.look_for_taken(&Changes::new_node_ports(&now, &then), &addresses);
    }
    written(arguments, &what_if)
}

/// Returns what has changed since a time as text or JSON, and the exit code.
fn since(arguments: &Diff, at: Moment) -> Result<(String, u8), Failure> {
    logging::start_with(&arguments.logging);
    netns::enter(arguments.netns.as_deref())?;
    let mut objects = objects::with_history(&arguments.manifests)?;
    let (_, now) = objects.planned();
    objects::rewind(&mut objects, at)?;
    let (_, then) = objects.planned();
    written(arguments, &Changes::new(&then, &now, &[]))
}

fn written(arguments: &Diff, changes: &Changes) -> Result<(String, u8), Failure> {
    let text = match arguments.output {
        Format::Text => changes.to_string(),
        Format::Json => super::json(changes)?,
    };
    Ok((text, if changes.loses_service() { LOSES_SERVICE } else { 0 }))
}

fn reader(arguments: &Diff) -> Result<objects::Reader, Failure> {
    netns::enter(arguments.netns.as_deref())?;
    let from = objects::From {
        with: &[],
        at: None,
        manifests: &arguments.manifests,
        settings: &arguments.settings,
        logging: &arguments.logging,
        is_offline: false,
    };
    from.start()
}

/// Compares the tables with the plan, and returns the differences as text or JSON, and the exit code. The agent may commit meanwhile, and a listing during the
/// resize of a large set lacks elements. So a difference counts if it is found twice.
fn with_kernel(arguments: &Diff, reader: &objects::Reader) -> Result<(String, u8), Failure> {
    let mut kernel = Socket::open().map_err(|error| explain(&error))?;
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let objects = reader.read(&Selection::All)?;
        let (_, desired) = objects.planned();
        let places = compare(&mut kernel, &desired).map_err(|error| explain(&error))?;
        if !places.is_empty() && last.as_ref() != Some(&places) {
            last = Some(places);
            std::thread::sleep(PAUSE);
            continue;
        }
        let refused = objects.status.rules.quarantined.len();
        let quarantine = (refused > 0)
            .then(|| format!("the kernel refuses {refused} frontends, which `shunt status` names"));
        let comparison = Comparison {
            frontends: desired.frontends().len(),
            places,
            notes: quarantine.into_iter().collect(),
        };
        let text = match arguments.output {
            Format::Text => comparison.to_string(),
            Format::Json => super::json(&comparison.json())?,
        };
        return Ok((text, if comparison.is_same() { 0 } else { DIFFERENT }));
    }
    Err(anyhow!("the tables or the plan changed during {ATTEMPTS} comparisons; repeat the command")
        .into())
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

    /// Returns the comparison as JSON, as `docs/json.md` documents it.
    fn json(&self) -> Value {
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
