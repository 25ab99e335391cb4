//! Services without an endpoint for some traffic. They are normal in a cluster, so they are neither
//! problems nor warnings.

use std::fmt::{self, Formatter};

use serde::{Deserialize, Serialize};
use shunt_core::model::Store;
use shunt_core::plan::{self, NodeContext, plan_service};

use super::Families;
use crate::serve::escape;

/// The maximum number of names of a kind.
const MAX_NAMES: usize = 1_000;
/// The maximum number of names of a kind in the text.
const MAX_SHOWN: usize = 100;

/// The Services without an endpoint for some traffic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Unserved {
    /// The Services without any endpoint, which reject connections.
    pub without_endpoints: Lacking,
    /// Those with `internalTrafficPolicy: Local` and endpoints on other nodes only, which drop
    /// connections of pods and of the node.
    pub no_local_internal: Lacking,
    /// Those with `externalTrafficPolicy: Local` and endpoints on other nodes only, which drop
    /// connections from outside of the node.
    pub no_local_external: Lacking,
}

/// Services that lack endpoints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Lacking {
    /// The number of their ports without an endpoint, by family.
    pub service_ports: Families,
    /// Their names in order, the first 1 000, as `namespace/name`.
    pub services: Vec<String>,
}

impl Unserved {
    /// Returns the numbers, without names.
    pub(super) fn counts(counts: &plan::Unserved) -> Unserved {
        let lacking = |ports: [usize; 2]| Lacking { service_ports: ports.into(), services: vec![] };
        Unserved {
            without_endpoints: lacking(counts.without_endpoints),
            no_local_internal: lacking(counts.no_local_internal),
            no_local_external: lacking(counts.no_local_external),
        }
    }

    /// Adds the names, if there are any: plans the Services of the store again.
    pub fn name(&mut self, store: &Store, node_context: &NodeContext) {
        let Unserved { without_endpoints, no_local_internal, no_local_external } = self;
        let mut all = [without_endpoints, no_local_internal, no_local_external];
        if all.iter().all(|lacking| lacking.is_nothing()) {
            return;
        }
        for service in store.services() {
            let slices = store.slices(&service.name);
            let it = plan_service(service, slices, node_context).unserved;
            let counts = [it.without_endpoints, it.no_local_internal, it.no_local_external];
            for (lacking, count) in all.iter_mut().zip(counts) {
                if count != [0; 2] {
                    lacking.services.push(service.name.to_string());
                }
            }
        }
        for lacking in all {
            lacking.services.sort_unstable();
            lacking.services.truncate(MAX_NAMES);
        }
    }

    /// Writes a line for each kind that exists, with names if `verbose`.
    pub(super) fn describe(&self, f: &mut Formatter<'_>, verbose: bool) -> fmt::Result {
        const INTERNAL: &str = "internalTrafficPolicy Local, endpoints on other nodes";
        const EXTERNAL: &str = "externalTrafficPolicy Local, endpoints on other nodes";
        self.without_endpoints.describe(f, verbose, "no endpoint", "they reject connections")?;
        self.no_local_internal.describe(f, verbose, "no local", INTERNAL)?;
        self.no_local_external.describe(f, verbose, "no local", EXTERNAL)
    }
}

impl Lacking {
    fn is_nothing(&self) -> bool {
        self.service_ports == Families::default()
    }

    fn describe(
        &self,
        f: &mut Formatter<'_>,
        verbose: bool,
        name: &str,
        what: &str,
    ) -> fmt::Result {
        if self.is_nothing() {
            return Ok(());
        }
        let Families { v4, v6 } = self.service_ports;
        writeln!(f, "{name:<12} Service ports: {v4} IPv4, {v6} IPv6; {what}")?;
        if verbose {
            for service in self.services.iter().take(MAX_SHOWN) {
                writeln!(f, "{:<12} {}", "", escape::line(service))?;
            }
            if let more @ 1.. = self.services.len().saturating_sub(MAX_SHOWN) {
                writeln!(f, "{:<12} … and {more} more Services (-o json)", "")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use shunt_core::model::{Change, Dirty, ObjectName, Service};
    use shunt_core::plan::{Desired, Options};
    use shunt_fake_nftables::service;

    use super::*;

    #[test]
    fn names_are_in_order_and_bounded() {
        let (mut store, mut dirty) = (Store::new(), Dirty::default());
        for n in 0..1_200_u16 {
            let name = ObjectName::new("shop", format!("web-{n:04}"));
            store.apply(Change::service(Service { name, ..service(n) }), &mut dirty);
        }
        store.apply(Change::Synced, &mut dirty);
        let mut desired = Desired::new(Options::default(), "node-1");
        desired.update(&store, &dirty);
        let mut unserved = Unserved::counts(&desired.unserved());
        let count = Families { v4: 1_200, v6: 1_200 };
        assert_eq!(unserved.without_endpoints, Lacking { service_ports: count, services: vec![] });
        unserved.name(&store, desired.node_context().expect("a plan"));
        let names = &unserved.without_endpoints.services;
        assert_eq!(names.len(), MAX_NAMES);
        assert_eq!((&*names[0], &*names[999]), ("shop/web-0000", "shop/web-0999"));
        assert!(unserved.no_local_internal.is_nothing() && unserved.no_local_external.is_nothing());

        let rules = super::super::Rules { unserved, ..Default::default() };
        let status = super::super::Status { rules, ..Default::default() };
        let lines = |text: &str| text.matches("shop/web-").count();
        let verbose = format!("{status:#}");
        assert_eq!((lines(&status.to_string()), lines(&verbose)), (0, MAX_SHOWN));
        assert!(verbose.contains("… and 900 more Services (-o json)"));
    }
}
