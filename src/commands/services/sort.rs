//! The order of Services in a picture.

use std::cmp::Ordering;
use std::slice::from_ref;

use super::{Frontend, Picture};
use crate::commands::args::Sort;

impl Picture {
    /// Sorts the Services, which are in the order of their names.
    pub(super) fn sort(&mut self, sort: Sort) {
        let key = |frontends: &[Frontend]| {
            let rates = frontends.iter().filter_map(|it| it.new_connections_per_second);
            let rate: f64 = if sort == Sort::Rate { rates.sum() } else { 0.0 };
            let connections: u64 = frontends.iter().filter_map(|it| it.new_connections).sum();
            (rate, connections)
        };
        // A rate is a number.
        let higher = |one: &[Frontend], other: &[Frontend]| {
            key(other).partial_cmp(&key(one)).unwrap_or(Ordering::Equal)
        };
        if sort == Sort::Name {
            return;
        }
        self.services.sort_by(|one, other| higher(&one.frontends, &other.frontends));
        for service in &mut self.services {
            service.frontends.sort_by(|one, other| higher(from_ref(one), from_ref(other)));
        }
    }
}
