//! Service ports without an endpoint for some traffic. They are normal in a cluster, so they are neither
//! problems nor warnings.

use std::fmt::{self, Formatter};

use serde::{Deserialize, Serialize};
use shunt_core::plan;

use super::Families;

/// The Service ports without an endpoint for some traffic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Unserved {
    /// Those without any endpoint, which reject connections.
    pub without_endpoints: Lacking,
    /// Those with `internalTrafficPolicy: Local` and endpoints on other nodes only, which drop
    /// connections of pods and of the node.
    pub no_local_internal: Lacking,
    /// Those with `externalTrafficPolicy: Local` and endpoints on other nodes only, which drop
    /// connections from outside of the node.
    pub no_local_external: Lacking,
}

/// Service ports that lack endpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Lacking {
    /// Their number.
    pub service_ports: Families,
}

impl From<&plan::Unserved> for Unserved {
    fn from(counts: &plan::Unserved) -> Unserved {
        let lacking = |ports: [usize; 2]| Lacking { service_ports: ports.into() };
        Unserved {
            without_endpoints: lacking(counts.without_endpoints),
            no_local_internal: lacking(counts.no_local_internal),
            no_local_external: lacking(counts.no_local_external),
        }
    }
}

impl Unserved {
    /// Writes a line for each kind that exists.
    pub(super) fn describe(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (lacking, name, what) in [
            (self.without_endpoints, "no endpoint", "they reject connections"),
            (
                self.no_local_internal,
                "no local",
                "internalTrafficPolicy Local, endpoints on other nodes",
            ),
            (
                self.no_local_external,
                "no local",
                "externalTrafficPolicy Local, endpoints on other nodes",
            ),
        ] {
            let Families { v4, v6 } = lacking.service_ports;
            if v4 + v6 > 0 {
                writeln!(f, "{name:<12} Service ports: {v4} IPv4, {v6} IPv6; {what}")?;
            }
        }
        Ok(())
    }
}
