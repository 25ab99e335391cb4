//! Registration of metrics, also of those with one value for each IP family.

use prometheus_client::encoding::EncodeMetric;
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::family::Family as Vector;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};
use shunt_core::model::Family;

/// Labels with static names and values.
pub(super) type Labels<const N: usize> = [(&'static str, &'static str); N];

pub(super) fn label(family: Family) -> (&'static str, &'static str) {
    ("ip_family", if family == Family::V4 { "IPv4" } else { "IPv6" })
}

/// Converts a count to the type of a gauge, saturating.
pub(super) fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Makes a histogram with kube-proxy's usual buckets: 1 ms, doubled up to 16 s.
pub(super) fn latency() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

/// Registers metrics of a node with these families.
pub(super) struct Register<'a> {
    pub(super) registry: &'a mut Registry,
    pub(super) families: &'a [Family],
}

impl Register<'_> {
    /// Registers a metric. The exposition adds `_total` to the name of a counter.
    pub(super) fn add<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.made(name, help, M::default())
    }

    /// Registers a metric that is made already.
    pub(super) fn made<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.registry.register(name, help, metric.clone());
        metric
    }

    /// Registers a vector with these values of a label, all at zero.
    pub(super) fn at_zero<M: Metric + TypedMetric + Clone + Default>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: &[&'static str],
    ) -> Vector<Labels<1>, M> {
        let vector: Vector<Labels<1>, M> = self.add(name, help);
        values.iter().for_each(|value| drop(vector.get_or_create(&[(label, *value)])));
        vector
    }

    /// Registers a vector with the label `ip_family` and its members.
    pub(super) fn per_family<M: Metric + TypedMetric + Clone + Default>(
        &mut self,
        name: &str,
        help: &str,
    ) -> PerFamily<M> {
        let vector = self.add(name, help);
        PerFamily::of(self.families, &vector, |family| [label(family)])
    }

    /// The same for histograms.
    pub(super) fn histograms(
        &mut self,
        name: &str,
        help: &str,
        make: fn() -> Histogram,
    ) -> PerFamily<Histogram> {
        let vector = self.made(name, help, Vector::new_with_constructor(make));
        PerFamily::of(self.families, &vector, |family| [label(family)])
    }
}

/// A metric with a member for each family of the node.
#[derive(Debug)]
pub(super) struct PerFamily<M>([Option<M>; 2]);

impl<M: EncodeMetric + TypedMetric + Clone> PerFamily<M> {
    /// Makes the members of a vector.
    pub(super) fn of<const N: usize>(
        families: &[Family],
        vector: &Vector<Labels<N>, M>,
        labels: impl Fn(Family) -> Labels<N>,
    ) -> PerFamily<M> {
        PerFamily(Family::ALL.map(|family| {
            let has = families.contains(&family);
            has.then(|| vector.get_or_create_owned(&labels(family)))
        }))
    }

    /// Returns the member of a family, unless the node lacks the family.
    pub(super) fn get(&self, family: Family) -> Option<&M> {
        self.0[family as usize].as_ref()
    }

    /// Iterates over the members.
    pub(super) fn iter(&self) -> impl Iterator<Item = &M> {
        self.0.iter().flatten()
    }
}

impl PerFamily<Gauge> {
    /// Sets the members to numbers in the order of [`Family::ALL`].
    pub(super) fn set(&self, numbers: [usize; 2]) {
        for (metric, number) in self.0.iter().zip(numbers) {
            if let Some(metric) = metric {
                metric.set(gauge(number));
            }
        }
    }
}
