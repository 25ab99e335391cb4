//! The parts of `docs/scale.md`: the measured cost of fleets of clients, and larger fleets that follow
//! from it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};

use super::figure::{Row, Unit, grouped};
use super::{Figures, Run};

pub(crate) const SECTION: &str = "fleet";
const NOTHING: &str = "Not measured yet.";

/// Numbers of nodes that were not measured.
const NODES: [u32; 2] = [1_000, 5_000];

/// The figure of a cost that is too uncertain.
const NOISE: &str = "noise";
/// A line with a larger deviation is not continued.
const MAX_DEVIATION: f64 = 0.25;

/// What follows a line: when, and what is measured. Processor time is no evidence of a difference between
/// clients, so it is not continued.
const LINES: [(&str, &str); 2] = [("start", BYTES), ("change", BYTES)];
const BYTES: &str = "bytes sent";
/// The rate of changes is a setting of the run, and the text names it.
const SETTING: &str = "changes a second";

type Size = (u32, u32);

/// A figure of a fleet.
struct Point<'a> {
    /// `start` or `change`.
    when: &'a str,
    what: &'a str,
    clients: u32,
    row: &'a Row,
}

impl<'a> Point<'a> {
    /// Splits the words of a row, such as `start, 50 clients: bytes sent`.
    fn of(row: &'a Row) -> Result<Self> {
        let words = || {
            let (head, what) = row.what.split_once(" clients: ")?;
            let (when, clients) = head.split_once(", ")?;
            Some(Self { when, what, clients: clients.parse().ok()?, row })
        };
        words().with_context(|| format!("section {SECTION}: row {:?} has other words", row.what))
    }
}

/// A cost that grows with the number of clients.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    /// The cost without clients.
    alone: f64,
    per_client: f64,
    /// The largest distance of a measured cost from the line, as a share of the clients' cost there;
    /// or the spread of the cost without clients, as a share of the clients' cost of the largest fleet.
    /// Infinite if the measured costs do not grow.
    deviation: f64,
}

impl Line {
    /// Fits a line by least squares. It goes through the mean of the costs without clients.
    fn fit(alone: &[f64], points: &[(f64, f64)]) -> Self {
        // A start without clients is not measured: it costs nothing.
        let mean = alone.iter().sum::<f64>() / alone.len().max(1) as f64;
        let weight: f64 = points.iter().map(|(clients, _)| clients * clients).sum();
        let moment: f64 = points.iter().map(|(clients, cost)| clients * (cost - mean)).sum();
        let per_client = moment / weight;
        let distance = |(clients, cost): &(f64, f64)| {
            let expected = per_client * clients;
            ((cost - mean - expected) / expected).abs()
        };
        let distance = points.iter().map(distance).fold(0.0, f64::max);
        let largest = points.iter().map(|(clients, _)| *clients).fold(0.0, f64::max);
        let [lowest, highest] = [f64::min, f64::max]
            .map(|choose| alone.iter().copied().reduce(choose).unwrap_or_default());
        let spread = (highest - lowest) / (per_client * largest);
        let deviation = if per_client > 0.0 { distance.max(spread) } else { f64::INFINITY };
        Self { alone: mean, per_client, deviation }
    }

    /// Returns the text of a cost, unless the line is too uncertain to be continued.
    fn text(self, clients: u32, text: impl FnOnce(f64) -> String) -> String {
        if self.deviation > MAX_DEVIATION { NOISE.to_owned() } else { text(self.at(clients)) }
    }

    fn at(self, clients: u32) -> f64 {
        self.alone + self.per_client * f64::from(clients)
    }
}

/// All figures of fleets with one size of the cluster.
struct Fleet<'a> {
    size: Size,
    points: Vec<Point<'a>>,
    subjects: Vec<&'a str>,
}

impl<'a> Fleet<'a> {
    fn all(figures: &'a Figures) -> Result<Vec<Self>> {
        let mut all: Vec<Self> = Vec::new();
        for row in figures.section(SECTION) {
            let point = Point::of(row)?;
            let at = all.iter().position(|fleet| fleet.size == (row.services, row.endpoints));
            let at = at.unwrap_or_else(|| {
                all.push(Self {
                    size: (row.services, row.endpoints),
                    points: Vec::new(),
                    subjects: Vec::new(),
                });
                all.len() - 1
            });
            let fleet = &mut all[at];
            if !fleet.subjects.contains(&row.subject.as_str()) {
                fleet.subjects.push(&row.subject);
            }
            fleet.points.push(point);
        }
        Ok(all)
    }

    fn find(&self, when: &str, what: &str) -> impl Iterator<Item = &Point<'a>> {
        self.points.iter().filter(move |point| point.when == when && point.what == what)
    }

    /// The line of a subject, with its unit.
    fn line(&self, when: &str, what: &str, subject: &str) -> Option<(Line, Unit)> {
        let costs = |point: &Point<'_>| (f64::from(point.clients), point.row.value);
        let alone = self.find(when, what).filter(|point| point.clients == 0);
        let alone: Vec<f64> = alone.map(|point| point.row.value).collect();
        let is_its = |point: &&Point<'_>| point.clients > 0 && point.row.subject == subject;
        let points: Vec<&Point<'_>> = self.find(when, what).filter(is_its).collect();
        let unit = points.first()?.row.unit;
        let points: Vec<(f64, f64)> = points.into_iter().map(costs).collect();
        Some((Line::fit(&alone, &points), unit))
    }

    fn heading(&self) -> String {
        let (services, endpoints) = self.size;
        let services = grouped(services.into());
        format!("{services} Services with {endpoints} endpoints each:\n\n")
    }

    fn measured(&self) -> Result<String> {
        let mut text = self.heading();
        let numbers: BTreeSet<u32> = self.points.iter().map(|point| point.clients).collect();
        let heads: Vec<String> = numbers.iter().map(|number| format!("{number} clients")).collect();
        writeln!(text, "| measured | client | {} |", heads.join(" | "))?;
        writeln!(text, "| --- | --- |{}", " ---: |".repeat(numbers.len()))?;
        let mut kinds: Vec<(&str, &str)> = Vec::new();
        for when in ["start", "change"] {
            for point in self.points.iter().filter(|point| point.when == when) {
                if point.what != SETTING && !kinds.contains(&(when, point.what)) {
                    kinds.push((when, point.what));
                }
            }
        }
        for (when, what) in kinds {
            for subject in &self.subjects {
                let is_its = |point: &&Point<'_>| point.row.subject == *subject;
                if !self.find(when, what).any(|point| is_its(&point)) {
                    continue;
                }
                let cell = |clients: &u32| {
                    // Without clients, the cost is the same for all subjects.
                    let points = self.find(when, what).filter(|point| point.clients == *clients);
                    let points = points.filter(|point| is_its(point) || *clients == 0);
                    points.map(|point| point.row.text()).collect::<Vec<_>>().join("; ")
                };
                let cells: Vec<String> = numbers.iter().map(cell).collect();
                writeln!(text, "| {when}: {what} | {subject} | {} |", cells.join(" | "))?;
            }
        }
        Ok(text)
    }

    fn extrapolated(&self) -> Result<String> {
        let mut text = self.heading();
        let heads = NODES.map(|nodes| format!("**extrapolated:** {} nodes", grouped(nodes.into())));
        let head = "measured: each client | measured: largest deviation";
        writeln!(text, "| | client | {head} | {} |", heads.join(" | "))?;
        writeln!(text, "| --- | --- | ---: | ---: |{}", " ---: |".repeat(NODES.len()))?;
        for (when, what) in LINES {
            for subject in &self.subjects {
                let Some((line, unit)) = self.line(when, what, subject) else { continue };
                let (each, deviation) = if line.deviation.is_finite() {
                    (unit.text(line.per_client), Unit::Percent.text(line.deviation * 100.0))
                } else {
                    (NOISE.to_owned(), NOISE.to_owned())
                };
                let cells = NODES.map(|nodes| line.text(nodes, |cost| unit.text(cost))).join(" | ");
                writeln!(text, "| {when}: {what} | {subject} | {each} | {deviation} | {cells} |")?;
            }
        }
        Ok(text)
    }
}

/// Makes a part of the page from its name.
pub(crate) fn part(figures: &Figures, name: &str) -> Result<String> {
    let render = match name {
        "fleet" => Fleet::measured,
        "fleet extrapolated" => Fleet::extrapolated,
        _ => bail!("a part {name:?}: fleet and fleet extrapolated are known"),
    };
    let fleets = Fleet::all(figures)?;
    if fleets.is_empty() {
        return Ok(NOTHING.to_owned());
    }
    let mut parts = fleets.iter().map(render).collect::<Result<Vec<_>>>()?;
    if let Some(Run { machine, date }) = figures.runs.get(SECTION) {
        parts.push(format!("{date}: {machine}."));
    }
    Ok(parts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_goes_through_the_cost_without_clients() {
        let line = Line::fit(&[2.0, 4.0], &[(50.0, 103.0), (100.0, 203.0)]);
        // The costs without clients differ by 2, and 100 clients cost 200.
        assert_eq!(line, Line { alone: 3.0, per_client: 2.0, deviation: 0.01 });
        assert_eq!(line.at(0), 3.0);
        assert_eq!(line.at(5_000), 10_003.0);
    }

    #[test]
    fn deviation_is_that_of_the_point_farthest_from_the_line() {
        // Least squares: (1 * 1 + 2 * 4) / (1 + 4) = 1.8.
        let line = Line::fit(&[], &[(1.0, 1.0), (2.0, 4.0)]);
        assert!((line.per_client - 1.8).abs() < 1e-9, "{line:?}");
        assert!((line.deviation - 0.8 / 1.8).abs() < 1e-9, "{line:?}");
    }

    #[test]
    fn uncertain_line_is_not_continued() {
        for line in [Line::fit(&[], &[(1.0, 1.0), (2.0, 0.1)]), Line::fit(&[1.0], &[(1.0, 0.5)])] {
            assert_eq!(line.text(5_000, |cost| cost.to_string()), NOISE, "{line:?}");
        }
    }
}
