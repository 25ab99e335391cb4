//! Removal of the leftovers of kube-proxy's IPVS mode.

use std::io;

use nfnetlink::ipvs;
use nfnetlink::route::delete_link;

use super::{IPVS_INTERFACE, has_ipvs_interface, ipvs_services};

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
    let services = ipvs_services();
    if services > 0 {
        ipvs::flush()?;
    }
    delete_link(IPVS_INTERFACE)?;
    Ok(RemovedIpvs { services, interface: true })
}
