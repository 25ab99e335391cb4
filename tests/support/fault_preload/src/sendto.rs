//! What stands in for `sendto`.
#![allow(unsafe_code, reason = "a function of libc's, with its pointers")]

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr;
use std::slice;
use std::sync::OnceLock;

use libc::{sa_family_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::element::spoil;

/// The environment variable with the frontends to be refused.
const REFUSE: &str = "SHUNT_REFUSE";

/// As in libc, but for what is to be refused.
///
/// # Safety
/// As in libc: the message and the address must be valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendto(
    socket: c_int,
    message: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_size: socklen_t,
) -> ssize_t {
    let send = |message: *const c_void| {
        // SAFETY: the message is the caller's, or a copy of the same length; the address is the caller's.
        let sent = unsafe {
            libc::syscall(libc::SYS_sendto, socket, message, length, flags, address, address_size)
        };
        sent as ssize_t
    };
    // SAFETY: the caller vouches for it.
    if !unsafe { is_netlink(address, address_size) } || message.is_null() {
        return send(message);
    }
    // SAFETY: the caller vouches for it.
    let mut bytes = unsafe { slice::from_raw_parts(message.cast::<u8>(), length) }.to_vec();
    match spoil(&mut bytes, refused()) {
        0 => send(message),
        _ => send(bytes.as_ptr().cast()),
    }
}

/// Whether an address is one of netlink's.
///
/// # Safety
/// An address that is not null must be valid.
unsafe fn is_netlink(address: *const sockaddr, size: socklen_t) -> bool {
    if address.is_null() || (size as usize) < size_of::<sa_family_t>() {
        return false;
    }
    // SAFETY: an address begins with its family, for which there is room.
    let family = unsafe { ptr::read_unaligned(address.cast::<sa_family_t>()) };
    c_int::from(family) == libc::AF_NETLINK
}

/// The frontends to be refused. What is none ends the program: a test that refuses nothing by mistake
/// should say so.
fn refused() -> &'static [SocketAddr] {
    static REFUSED: OnceLock<Vec<SocketAddr>> = OnceLock::new();
    REFUSED.get_or_init(|| {
        let named = std::env::var(REFUSE).unwrap_or_default();
        let frontend = |name: &str| name.parse().unwrap_or_else(|_| std::process::abort());
        named.split_whitespace().map(frontend).collect()
    })
}
