//! When a call is to fail: in one thread, and as a file says whose path is in the environment.
#![allow(unsafe_code, reason = "functions of libc's")]

use std::ffi::CString;

/// The path that an environment variable names.
pub(crate) fn path(variable: &str) -> Option<CString> {
    CString::new(std::env::var(variable).ok()?).ok()
}

/// Whether this thread has the name, which ends with a zero.
pub(crate) fn is_thread(name: &[u8]) -> bool {
    let mut own = [0_u8; 16];
    // SAFETY: a name has 16 bytes at the most.
    unsafe { libc::prctl(libc::PR_GET_NAME, own.as_mut_ptr()) == 0 && own.starts_with(name) }
}
