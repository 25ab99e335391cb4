//! Removal of the leftovers of kube-proxy's IPVS mode, by generic netlink and rtnetlink.

use std::io;

use nfnetlink::generic::Generic;
use nfnetlink::route::delete_link;

use super::{IPVS_INTERFACE, IPVS_SERVICES, has_ipvs_interface, ipvs_services};

/// `include/uapi/linux/ip_vs.h`.
const IPVS_GENL_NAME: &str = "IPVS";
const IPVS_GENL_VERSION: u8 = 1;
const IPVS_CMD_FLUSH: u8 = 17;

/// The result of [`remove_ipvs`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemovedIpvs {
    /// The number of IPVS services.
    pub services: usize,
    /// True if the interface `kube-ipvs0` existed.
    pub interface: bool,
}

/// Removes all services of IPVS and the interface `kube-ipvs0` from the network namespace of this
/// thread, if the interface exists. Without it, services of IPVS belong to other programs.
///
/// # Errors
/// The error of the kernel. Services may be removed by then.
pub fn remove_ipvs() -> io::Result<RemovedIpvs> {
    if !has_ipvs_interface() {
        return Ok(RemovedIpvs::default());
    }
    // Asking for the family would load the module.
    let services = if std::fs::exists(IPVS_SERVICES)? {
        let services = ipvs_services();
        let mut generic = Generic::open()?;
        let family = generic.family(IPVS_GENL_NAME)?;
        generic.order("flush IPVS", family, IPVS_CMD_FLUSH, IPVS_GENL_VERSION)?;
        services
    } else {
        0
    };
    delete_link(IPVS_INTERFACE)?;
    Ok(RemovedIpvs { services, interface: true })
}
