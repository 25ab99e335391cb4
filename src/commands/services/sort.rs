//! The order of Services in a picture.

use std::cmp::Ordering;
use std::slice::from_ref;

use clap::ValueEnum;

use super::{Frontend, Picture};

/// The order of Services, and of the frontends of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// By namespace and name, and in the order of `spec.ports`.
    Name,
    /// Most new connections a second first, which needs --watch; then most connections.
    Rate,
    /// Most new connections first.
    Connections,
}

impl Picture {
    /// Sorts the Services, which are in the order of their names.
    pub fn sort(&mut self, sort: Sort) {
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
