//! What no kernel does: its counters only grow.

use std::time::Duration;

use shunt_core::model::{Family, Protocol};
use shunt_core::plan::FrontendKey;

use super::rate;
use crate::dataplane::{FrontendVerdict, Installed, Verdicts};

#[test]
fn counter_that_is_smaller_than_before_counts_from_zero() {
    let key = FrontendKey::NodePort(Family::V4, Protocol::Tcp, 30_080);
    let main = Installed { connections: 10, ..Installed::default() };
    let before =
        Verdicts::from_iter([(key, FrontendVerdict { main, ..FrontendVerdict::default() })]);
    for now in [13, 3] {
        assert_eq!(rate(key, now, Some((&before, Duration::from_millis(500)))), Some(6.0));
    }
}
