//! What stands in for `sendmsg`.
#![allow(unsafe_code, reason = "a function of libc's, with its pointers")]

use std::ffi::{CString, c_int};
use std::mem;
use std::net::SocketAddr;
use std::ptr;
use std::slice;
use std::sync::OnceLock;

use libc::{iovec, msghdr, sa_family_t, ssize_t};

use crate::element::spoil;
use crate::when::{is_thread, path};

/// The environment variable with the frontends to be refused.
const REFUSE: &str = "SHUNT_REFUSE";
/// The environment variable with the path of a file that makes calls fail.
const FAIL: &str = "SHUNT_FAIL_SENDMSG";
/// The thread whose calls fail.
const THREAD: &[u8] = b"unresponsive\0";

/// As in libc, but for what is to be refused.
///
/// # Safety
/// As in libc: the message and all that it points to must be valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendmsg(
    socket: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    if is_to_fail() {
        // SAFETY: each thread has a number of its own for errors.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        return -1;
    }
    let send = |message: *const msghdr| {
        // SAFETY: the message is the caller's, or a copy whose only part is alive until the return.
        let sent = unsafe { libc::syscall(libc::SYS_sendmsg, socket, message, flags) };
        sent as ssize_t
    };
    // SAFETY: the caller vouches for it.
    let Some(header) = (unsafe { message.as_ref() }) else { return send(message) };
    // SAFETY: the same.
    let Some(mut bytes) = (unsafe { netlink(header) }) else { return send(message) };
    if spoil(&mut bytes, refused()) == 0 {
        return send(message);
    }
    let mut part = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut copy = *header;
    copy.msg_iov = &raw mut part;
    copy.msg_iovlen = 1;
    send(&raw const copy)
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

/// The bytes of a message to netlink.
///
/// # Safety
/// All that the header points to must be valid.
unsafe fn netlink(header: &msghdr) -> Option<Vec<u8>> {
    let has_family = header.msg_namelen as usize >= size_of::<sa_family_t>();
    if header.msg_name.is_null() || !has_family || header.msg_iov.is_null() {
        return None;
    }
    // SAFETY: an address begins with its family, for which there is room.
    let family = unsafe { ptr::read_unaligned(header.msg_name.cast::<sa_family_t>()) };
    if c_int::from(family) != libc::AF_NETLINK {
        return None;
    }
    // SAFETY: the header says how many parts there are.
    let parts = unsafe { slice::from_raw_parts(header.msg_iov, header.msg_iovlen) };
    let mut bytes = Vec::new();
    for part in parts.iter().filter(|part| part.iov_len > 0) {
        // SAFETY: each part says how long it is.
        let part = unsafe { slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
        bytes.extend_from_slice(part);
    }
    Some(bytes)
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
