//! What stands in for `clock_gettime`.
#![allow(unsafe_code, reason = "a function of libc's, with its pointers")]

use std::ffi::{CString, c_int};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{clockid_t, timespec};

use crate::when::{is_thread, path};

/// The environment variable with the path of a file that stops the clock.
const STOP: &str = "SHUNT_STOP_CLOCK";
/// The thread that it is stopped for.
const THREAD: &[u8] = b"dataplane\0";

/// As in libc, but for the call that is to fail.
///
/// # Safety
/// As in libc: the pointer must be valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    static STOPPED: AtomicBool = AtomicBool::new(false);
    if is_to_stop() && !STOPPED.swap(true, Ordering::Relaxed) {
        return -1;
    }
    // SAFETY: the pointer is the caller's.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as c_int }
}

fn is_to_stop() -> bool {
    static FILE: OnceLock<Option<CString>> = OnceLock::new();
    let Some(file) = FILE.get_or_init(|| path(STOP)) else { return false };
    // SAFETY: the path ends with a zero.
    is_thread(THREAD) && unsafe { libc::access(file.as_ptr(), libc::F_OK) == 0 }
}
