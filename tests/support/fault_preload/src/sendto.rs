//! What stands in for `sendto`.
#![allow(unsafe_code, reason = "a function of libc's, with its pointers")]

use std::ffi::{CString, c_int, c_void};
use std::mem;
use std::net::SocketAddr;
use std::ptr;
use std::slice;
use std::sync::OnceLock;

use libc::{sa_family_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::element::spoil;
use crate::when::{is_thread, path};

/// The environment variable with the frontends to be refused.
const REFUSE: &str = "SHUNT_REFUSE";
/// The environment variable with the path of a file that makes calls fail.
const FAIL: &str = "SHUNT_FAIL_SENDTO";
/// The thread whose calls fail.
const THREAD: &[u8] = b"unresponsive\0";

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
    if is_to_fail() {
        // SAFETY: each thread has a number of its own for errors.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        return -1;
    }
    // SAFETY: the caller vouches for it.
    let mut bytes = unsafe { slice::from_raw_parts(message.cast::<u8>(), length) }.to_vec();
    match spoil(&mut bytes, refused()) {
        0 => send(message),
        _ => send(bytes.as_ptr().cast()),
    }
}

/// Whether this call is to fail: as many do as the file has bytes.
fn is_to_fail() -> bool {
    static FILE: OnceLock<Option<CString>> = OnceLock::new();
    let Some(file) = FILE.get_or_init(|| path(FAIL)) else { return false };
    if !is_thread(THREAD) {
        return false;
    }
    // SAFETY: a status of zeros is one, and the path ends with a zero.
    unsafe {
        let mut status: libc::stat = mem::zeroed();
        libc::stat(file.as_ptr(), &raw mut status) == 0
            && status.st_size > 0
            && libc::truncate(file.as_ptr(), status.st_size - 1) == 0
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
