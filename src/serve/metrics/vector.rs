//! Metrics with one value for each IP family.

use prometheus_client::encoding::EncodeMetric;
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Vector;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use shunt_core::model::Family;

/// Labels with static names and values.
pub(super) type Labels<const N: usize> = [(&'static str, &'static str); N];

/// Returns the value of the label `ip_family`.
pub(super) fn name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

pub(super) fn label(family: Family) -> (&'static str, &'static str) {
    ("ip_family", name(family))
}

/// Converts a count to the type of a gauge, saturating.
pub(super) fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Makes a histogram with kube-proxy's usual buckets: 1 ms, doubled up to 16 s.
pub(super) fn latency() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

/// Registers a counter. The exposition adds `_total` to its name.
pub(super) fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

/// Registers a gauge without labels.
pub(super) fn plain_gauge(registry: &mut Registry, name: &str, help: &str) -> Gauge {
    let gauge = Gauge::default();
    registry.register(name, help, gauge.clone());
    gauge
}

/// Registers a histogram without labels.
pub(super) fn histogram(
    registry: &mut Registry,
    name: &str,
    help: &str,
    histogram: Histogram,
) -> Histogram {
    registry.register(name, help, histogram.clone());
    histogram
}

/// Registers a vector without members.
pub(super) fn vector<const N: usize, M>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    make: fn() -> M,
) -> Vector<Labels<N>, M>
where
    M: EncodeMetric + TypedMetric + Clone + std::fmt::Debug + Send + Sync + 'static,
{
    let vector = Vector::new_with_constructor(make);
    registry.register(name, help, vector.clone());
    vector
}

/// A metric with a member for each family of the node.
#[derive(Debug)]
pub(super) struct PerFamily<M>([Option<M>; 2]);

impl<M> PerFamily<M>
where
    M: EncodeMetric + TypedMetric + Clone + std::fmt::Debug + Send + Sync + 'static,
{
    /// Registers a vector with the label `ip_family` and its members.
    pub(super) fn register(
        registry: &mut Registry,
        families: &[Family],
        name: &str,
        help: &str,
        make: fn() -> M,
    ) -> PerFamily<M> {
        PerFamily::of(families, &vector(registry, name, help, make), |family| [label(family)])
    }

    /// Makes the members of a vector with more labels.
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
    pub(super) fn set(&self, numbers: super::PerFamily) {
        for (metric, number) in self.0.iter().zip(numbers) {
            if let Some(metric) = metric {
                metric.set(gauge(number));
            }
        }
    }
}
