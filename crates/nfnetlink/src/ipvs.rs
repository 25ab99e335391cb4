//! IPVS, by its socket options (`include/uapi/linux/ip_vs.h`).
#![allow(unsafe_code, reason = "setsockopt with options of IPVS, which nix does not have")]

use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// `IP_VS_SO_SET_FLUSH`.
const FLUSH: i32 = 64 + 1024 + 64 + 5;

/// Deletes all services of IPVS in the network namespace of this thread. Loads no module.
///
/// # Errors
/// `ENOPROTOOPT` without the module, `EPERM` without CAP_NET_ADMIN.
pub fn flush() -> io::Result<()> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: the descriptor is open, and the option has no value.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, FLUSH, std::ptr::null(), 0)
    };
    Errno::result(result)?;
    Ok(())
}
