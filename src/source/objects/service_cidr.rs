//! ServiceCIDRs.

use shunt_core::model::Change;

use crate::source::spanned_yaml::{Diagnostics, parse_net};

use super::{Converted, Kind, Names, raw};

/// Converts a ServiceCIDR.
pub(super) fn service_cidr(raw: &raw::ServiceCidr, names: &mut Names) -> Converted {
    let mut findings = Diagnostics::default();
    let key = findings.key(Kind::ServiceCidr, &raw.metadata, names);
    let effect = "this prefix is ignored";
    let nets = findings.list(&raw.spec.cidrs, "spec.cidrs", parse_net, effect);
    let change = Change::ServiceCidr(key.name.clone(), nets);
    findings.finish(key, &raw.metadata, Some(change))
}
