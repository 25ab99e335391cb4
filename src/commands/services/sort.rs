//! The order of Services in a picture.

use std::cmp::Reverse;
use std::slice::from_ref;

use super::{Frontend, Picture};
use crate::commands::args::Sort;

impl Picture {
    /// Sorts the Services, which are in the order of their names.
    pub(super) fn sort(&mut self, sort: Sort) {
        if sort == Sort::Name {
            return;
        }
        let key = |frontends: &[Frontend]| {
            let rates = frontends.iter().filter_map(|it| it.new_connections_per_second);
            let rate: f64 = if sort == Sort::Rate { rates.sum() } else { 0.0 };
            let connections: u64 = frontends.iter().filter_map(|it| it.new_connections).sum();
            // In thousandths.
            Reverse(((rate * 1e3) as u64, connections))
        };
        self.services.sort_by_key(|service| key(&service.frontends));
        for service in &mut self.services {
            service.frontends.sort_by_key(|frontend| key(from_ref(frontend)));
        }
    }
}
