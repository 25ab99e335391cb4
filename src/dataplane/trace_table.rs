//! The tables of `shunt trace`: whether a killed command has left one.

use nfnetlink::Family;
use nfnetlink::nft::{Batch, Error, Kernel};
use nfnetlink::socket::{Bus, sockets};

/// The name of the table.
pub(crate) const TABLE: &str = "shunt-trace";

/// The comment names the netlink port of the command, by which others see whether it still runs.
pub(crate) fn comment(port: u32) -> String {
    format!("{COMMENT}{port}")
}

/// The start of the table's comment.
const COMMENT: &str = "shunt trace, netlink port ";

/// Returns true if a table of a killed command exists, false if there is no table.
pub(crate) fn orphan(kernel: &mut dyn Kernel, family: Family) -> Result<bool, Error> {
    let Some(found) = kernel.table(family, TABLE)? else { return Ok(false) };
    let port = found.comment.as_deref().and_then(|text| text.strip_prefix(COMMENT)?.parse().ok());
    // Without a list of sockets, a table without an owner counts as one of a killed command.
    let alive = sockets(Bus::Netfilter).unwrap_or_default();
    match found.owner.or(port.filter(|port| alive.contains_key(port))) {
        Some(port) => Err(Error::Owned { family, table: TABLE.to_owned(), port }),
        None => Ok(true),
    }
}

/// Deletes the tables of commands that were killed on kernels before 5.12. Returns their number.
///
/// # Errors
/// If the kernel refuses a listing or the deletion.
pub(crate) fn remove_orphans(kernel: &mut dyn Kernel) -> Result<usize, Error> {
    let mut batch = Batch::new(None);
    let mut count = 0;
    for family in [Family::Ip, Family::Ip6] {
        match orphan(kernel, family) {
            // A command that runs deletes its table itself.
            Ok(false) | Err(Error::Owned { .. }) => {}
            Ok(true) => {
                batch.delete_table(family, TABLE);
                count += 1;
            }
            Err(error) => return Err(error),
        }
    }
    if count > 0 {
        kernel.commit(&batch.finish())?;
    }
    Ok(count)
}
