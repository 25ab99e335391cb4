//! ServiceCIDRs.

use shunt_core::model::Change;

use crate::source::spanned_yaml::At;

use super::diagnostics::Diagnostics;
use super::{Converted, Kind, Names, raw};

/// Converts a ServiceCIDR.
pub(super) fn service_cidr(raw: &raw::ServiceCidr, names: &mut Names) -> Converted {
    let mut findings = Diagnostics::default();
    let key = findings.key(Kind::ServiceCidr, &raw.metadata, names);
    let spec = At::top("spec");
    let effect = "this prefix is ignored";
    let nets = findings.nets(&raw.spec.cidrs, &spec.field("cidrs"), effect);
    let change = Change::ServiceCidr(key.name.name.clone(), nets);
    findings.finish(key, &raw.metadata, Some(change))
}
