//! From samples of counters to rates and histories.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use foldhash::HashMap;
use shunt_core::plan::FrontendKey;

use crate::dataplane::{Verdict, Verdicts};

/// The time that a history covers.
const HISTORY: Duration = Duration::from_secs(60);

/// The Services with their counts, since the first sample.
#[derive(Debug)]
pub struct Model {
    /// The number of rates in a history.
    capacity: usize,
    counters: Option<HashMap<FrontendKey, u64>>,
    rows: BTreeMap<Box<str>, Row>,
    total: Totals,
}

/// A Service.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// `namespace/name`.
    pub service: Box<str>,
    /// The counts of all its frontends.
    pub totals: Totals,
}

/// Counts of new connections.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// The new connections a second between the last two samples.
    pub rate: f64,
    /// The new connections that the kernel had counted at the first sample, and those since.
    pub connections: u64,
    /// The rates of the last minute, oldest first.
    pub history: VecDeque<f64>,
}

impl Totals {
    fn add(&mut self, new: u64, elapsed: Option<Duration>, capacity: usize) {
        self.connections = self.connections.saturating_add(new);
        let Some(elapsed) = elapsed.filter(|elapsed| !elapsed.is_zero()) else { return };
        self.rate = new as f64 / elapsed.as_secs_f64();
        if self.history.len() == capacity {
            self.history.pop_front();
        }
        self.history.push_back(self.rate);
    }
}

impl Model {
    /// Makes an empty model for samples with this interval.
    #[must_use]
    pub fn new(interval: Duration) -> Model {
        let samples = HISTORY.as_secs_f64() / interval.as_secs_f64().max(0.1);
        Model {
            capacity: (samples.ceil() as usize).max(1),
            counters: None,
            rows: BTreeMap::new(),
            total: Totals::default(),
        }
    }

    /// Adds a sample, taken this time after the last one. A counter that is smaller than before has
    /// started from zero, and so has that of a new frontend.
    pub fn add(&mut self, verdicts: &Verdicts, elapsed: Duration) {
        let before = self.counters.take();
        let elapsed = before.as_ref().map(|_| elapsed);
        let mut services: BTreeMap<&str, u64> = BTreeMap::new();
        let mut counters = HashMap::default();
        counters.reserve(verdicts.len());
        for (key, verdict) in verdicts {
            let now = verdict.connections();
            let known = before.as_ref().and_then(|before| before.get(key)).copied().unwrap_or(0);
            *services.entry(service_of(verdict)).or_default() +=
                now.checked_sub(known).unwrap_or(now);
            counters.insert(*key, now);
        }
        self.counters = Some(counters);
        self.rows.retain(|name, _| services.contains_key(&**name));
        self.total.add(services.values().sum(), elapsed, self.capacity);
        for (name, new) in services {
            let row = self
                .rows
                .entry(name.into())
                .or_insert_with(|| Row { service: name.into(), totals: Totals::default() });
            row.totals.add(new, elapsed, self.capacity);
        }
    }

    /// Returns the counts of all Services together.
    #[must_use]
    pub fn total(&self) -> &Totals {
        &self.total
    }

    /// Returns the Services by name.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values()
    }

    /// Returns the number of rates in a full history.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

/// Returns `namespace/name` of a label `namespace/name:port`.
fn service_of(verdict: &Verdict) -> &str {
    match verdict.label.split_once(':') {
        Some((service, _)) => service,
        None if verdict.label.is_empty() => "(without a name)",
        None => &verdict.label,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use shunt_core::model::Protocol;

    use super::*;
    use crate::dataplane::Installed;

    /// Makes verdicts of frontends with these labels and counters.
    pub(crate) fn sample(frontends: &[(&str, u64)]) -> Verdicts {
        let frontends = (1_u16..).zip(frontends).map(|(port, (label, connections))| {
            let key = FrontendKey::Address([10, 96, 0, 1].into(), Protocol::Tcp, port);
            let main = Installed { exists: true, value: None, connections: *connections };
            let verdict = Verdict { main, label: (*label).into(), ..Verdict::default() };
            (key, verdict)
        });
        frontends.collect()
    }

    fn rates(model: &Model) -> Vec<(&str, f64, u64)> {
        let row = |row: &'_ Row| (row.totals.rate, row.totals.connections);
        model.rows().map(|it| (&*it.service, row(it).0, row(it).1)).collect()
    }

    #[test]
    fn rate_of_a_service_is_the_sum_of_its_frontends() {
        let mut model = Model::new(Duration::from_secs(1));
        model.add(
            &sample(&[("shop/a:http", 10), ("shop/a:https", 5), ("shop/b", 7)]),
            Duration::ZERO,
        );
        assert_eq!(rates(&model), [("shop/a", 0.0, 15), ("shop/b", 0.0, 7)]);
        assert!(model.total().history.is_empty());
        let two = Duration::from_secs(2);
        model.add(&sample(&[("shop/a:http", 14), ("shop/a:https", 7), ("shop/b", 8)]), two);
        assert_eq!(rates(&model), [("shop/a", 3.0, 21), ("shop/b", 0.5, 8)]);
        assert_eq!((model.total().rate, model.total().connections), (3.5, 29));
    }

    #[test]
    fn counter_that_is_smaller_than_before_counts_from_zero() {
        let mut model = Model::new(Duration::from_secs(1));
        let second = Duration::from_secs(1);
        for (counter, rate, total) in [(10, 0.0, 10), (4, 4.0, 14), (4, 0.0, 14), (5, 1.0, 15)] {
            model.add(&sample(&[("shop/a", counter)]), second);
            assert_eq!(rates(&model), [("shop/a", rate, total)]);
        }
        model.add(&sample(&[("shop/a", 5), ("shop/new", 2)]), second);
        assert_eq!(rates(&model), [("shop/a", 0.0, 15), ("shop/new", 2.0, 2)]);
        model.add(&sample(&[("shop/a", 5)]), second);
        assert_eq!(rates(&model), [("shop/a", 0.0, 15)]);
    }

    #[test]
    fn history_covers_a_minute() {
        let interval = Duration::from_secs(20);
        let mut model = Model::new(interval);
        assert_eq!(model.capacity(), 3);
        for counter in [0, 20, 60, 120, 200] {
            model.add(&sample(&[("shop/a", counter)]), interval);
        }
        let row = model.rows().next().expect("a row");
        assert_eq!(row.totals.history, [2.0, 3.0, 4.0]);
        assert_eq!(model.total().history, [2.0, 3.0, 4.0]);
    }
}
