//! Generic netlink: families of messages to which the kernel gives numbers when their modules load.
//!
//! ```
//! use nfnetlink::generic::Generic;
//!
//! let mut generic = Generic::open()?;
//! // The family that knows the others is always there, and has a fixed number.
//! assert_eq!(generic.family("nlctrl")?, 0x10);
//! assert!(generic.family("no such family").is_err());
//! # Ok::<(), nfnetlink::Error>(())
//! ```

use crate::Error;
use crate::attr::put_text;
use crate::socket::{Bus, Request, Socket};

/// `include/uapi/linux/genetlink.h`.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_VERSION: u8 = 1;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// A socket to generic netlink.
#[derive(Debug)]
pub struct Generic(Socket);

impl Generic {
    /// Opens the socket.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel refuses a socket.
    pub fn open() -> Result<Generic, Error> {
        Socket::open(Bus::Generic).map(Generic)
    }

    /// Returns the number of a family. The kernel may load the family's module for that.
    ///
    /// # Errors
    /// [`Error::Request`] with `ENOENT` if there is none of that name.
    pub fn family(&mut self, name: &str) -> Result<u16, Error> {
        let find = Request { name: "find the family", kind: GENL_ID_CTRL, flags: 0 };
        let body = |body: &mut Vec<u8>| {
            put_header(body, CTRL_CMD_GETFAMILY, CTRL_VERSION);
            put_text(body, CTRL_ATTR_FAMILY_NAME, name);
        };
        let mut found = None;
        self.0.request(find, body, |message| {
            let id = message.attrs().find(CTRL_ATTR_FAMILY_ID);
            found = id.and_then(|id| id.payload.try_into().ok()).map(u16::from_ne_bytes);
        })?;
        found.ok_or(Error::Malformed("a family without a number"))
    }

    /// Sends a command without attributes. `name` describes it in errors.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn order(
        &mut self,
        name: &'static str,
        family: u16,
        command: u8,
        version: u8,
    ) -> Result<(), Error> {
        let order = Request { name, kind: family, flags: libc::NLM_F_ACK as u16 };
        self.0.request(order, |body| put_header(body, command, version), |_| {})
    }
}

/// Appends `struct genlmsghdr`.
fn put_header(body: &mut Vec<u8>, command: u8, version: u8) {
    body.extend_from_slice(&[command, version, 0, 0]);
}
