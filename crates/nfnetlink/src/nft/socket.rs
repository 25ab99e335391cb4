//! The netlink socket to nf_tables, which implements [`Kernel`].

use nix::errno::Errno;

use super::element::put_key;
use super::refusal::Answer;
use super::uapi::{
    NFTA_GEN_ID, NFTA_GEN_PROC_NAME, NFTA_GEN_PROC_PID, NFTA_LIST_ELEM, NFTA_OBJ_TABLE,
    NFTA_RULE_TABLE, NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_TABLE,
    NFTA_SET_TABLE, NFTA_TABLE_NAME, kind,
};
use super::{
    DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTable, DumpedTimeouts, Error,
    FinishedBatch, Generation, Kernel,
};
use crate::Family;
use crate::attr::{Attrs, nest, put_text};
use crate::message::{Message, put_netfilter_header};
use crate::socket::{self, Bus, Request};

/// The size of the receive buffer in bytes: the kernel can send one error per message of a
/// transaction.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;

/// The number of keys in one `send`: their answers must fit the receive buffer.
const KEYS: usize = 32;

/// A netlink socket to nf_tables in the network namespace of the thread that opened it. It may own
/// tables, so it never dumps: that is for the other socket.
#[derive(Debug)]
pub struct Socket {
    pub(super) connection: socket::NetlinkSocket,
    pub(super) dumps: socket::NetlinkSocket,
}

impl Socket {
    /// Opens the sockets in the network namespace of this thread.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel has no netlink for netfilter.
    pub fn open() -> Result<Socket, Error> {
        let open = || -> Result<socket::NetlinkSocket, Error> {
            let socket = socket::NetlinkSocket::open(Bus::Netfilter)?;
            socket.raise_receive_buffer(RECEIVE_BUFFER);
            Ok(socket)
        };
        Ok(Socket { connection: open()?, dumps: open()? })
    }

    /// Dumps the objects of a family for which `parse` returns a value. With `of`, an attribute and
    /// a table name, the kernel dumps the objects of that table only.
    fn list<T>(
        &mut self,
        name: &'static str,
        message: i32,
        family: Family,
        of: Option<(u16, &str)>,
        parse: impl Fn(&Attrs<'_>) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let body = |body: &mut Vec<u8>| {
            put_netfilter_header(body, family.number(), 0);
            if let Some((attribute, table)) = of {
                put_text(body, attribute, table);
            }
        };
        let dump = Request::dump(name, kind(message));
        self.dumps.list(dump, body, |message| parse(&message.attrs()))
    }

    /// Reads one object, which `of` names; `None` if there is none.
    pub(super) fn get<T>(
        &mut self,
        name: &'static str,
        message: i32,
        family: u8,
        of: impl FnOnce(&mut Vec<u8>),
        parse: impl Fn(&Attrs<'_>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let get = Request { name, kind: kind(message), flags: 0 };
        let body = |body: &mut Vec<u8>| {
            put_netfilter_header(body, family, 0);
            of(body);
        };
        let mut found = None;
        match self.connection.request(get, body, |message| found = parse(&message.attrs())) {
            Err(Error::Request { errno: Errno::ENOENT, .. }) => Ok(None),
            result => result.map(|()| found),
        }
    }
}

/// Decodes the elements in one message of a dump.
fn elements<'a>(message: &Message<'a>) -> impl Iterator<Item = DumpedElement<'a>> + use<'a> {
    let list = message.attrs().find(NFTA_SET_ELEM_LIST_ELEMENTS);
    let elements = list.map(|list| list.children()).into_iter().flatten();
    elements.filter_map(|element| DumpedElement::parse(&element))
}

/// Appends the attributes of a query for one element. An empty key asks for the catch-all element.
pub(super) fn put_query(body: &mut Vec<u8>, table: &str, set: &str, key: &[u8]) {
    put_text(body, NFTA_SET_ELEM_LIST_TABLE, table);
    put_text(body, NFTA_SET_ELEM_LIST_SET, set);
    nest(body, NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
        nest(list, NFTA_LIST_ELEM, |element| put_key(element, key));
    });
}

impl Kernel for Socket {
    fn commit(&mut self, batch: &FinishedBatch) -> Result<(), Error> {
        self.connection.send(batch.bytes())?;
        // nfnetlink is synchronous: all errors are in the receive buffer when `send` returns.
        // Without an error there, the commit succeeded.
        let mut refusals = Vec::new();
        let (mut stale, mut malformed) = (false, false);
        let lost = self.connection.drain(|message| {
            if i32::from(message.kind) != libc::NLMSG_ERROR {
                return;
            }
            match Answer::parse(&message) {
                None => malformed = true,
                Some(Answer { errno: 0, .. }) => {}
                Some(Answer { errno: libc::ERESTART, sequence: 0, .. }) => stale = true,
                Some(answer) => refusals.push(batch.refused(&answer)),
            }
        })?;
        if malformed {
            Err(Error::Malformed("a short error message"))
        } else if stale {
            Err(Error::StaleGeneration)
        } else if !refusals.is_empty() {
            Err(Error::Refused(refusals))
        } else if lost {
            Err(Error::Receive(Errno::ENOBUFS.into()))
        } else {
            Ok(())
        }
    }

    fn generation(&mut self) -> Result<Generation, Error> {
        let name = "read the generation";
        let found = self.get(name, libc::NFT_MSG_GETGEN, 0, |_| {}, Generation::parse)?;
        found.ok_or(Error::Malformed("a generation without an id"))
    }

    fn table(&mut self, family: Family, table: &str) -> Result<Option<DumpedTable>, Error> {
        let of = |body: &mut Vec<u8>| put_text(body, NFTA_TABLE_NAME, table);
        let message = libc::NFT_MSG_GETTABLE;
        self.get("read a table", message, family.number(), of, DumpedTable::parse)
    }

    fn chains(&mut self, family: Family, table: &str) -> Result<Vec<DumpedChain>, Error> {
        let parse = |attrs: &Attrs<'_>| DumpedChain::parse(attrs, table);
        self.list("list chains", libc::NFT_MSG_GETCHAIN, family, None, parse)
    }

    fn sets(&mut self, family: Family, table: &str) -> Result<Vec<DumpedSet>, Error> {
        let of = Some((NFTA_SET_TABLE, table));
        self.list("list sets", libc::NFT_MSG_GETSET, family, of, DumpedSet::parse)
    }

    fn timeouts(&mut self, family: Family, table: &str) -> Result<Vec<DumpedTimeouts>, Error> {
        let parse = |attrs: &Attrs<'_>| DumpedTimeouts::parse(attrs, table);
        let of = Some((NFTA_OBJ_TABLE, table));
        self.list("list objects", libc::NFT_MSG_GETOBJ, family, of, parse)
    }

    fn rules(&mut self, family: Family, table: &str) -> Result<Vec<DumpedRule>, Error> {
        let of = Some((NFTA_RULE_TABLE, table));
        self.list("list rules", libc::NFT_MSG_GETRULE, family, of, DumpedRule::parse)
    }

    fn elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        each: &mut dyn FnMut(DumpedElement<'_>),
    ) -> Result<(), Error> {
        let list = Request::dump("list elements", kind(libc::NFT_MSG_GETSETELEM));
        let body = |body: &mut Vec<u8>| {
            put_netfilter_header(body, family.number(), 0);
            put_text(body, NFTA_SET_ELEM_LIST_TABLE, table);
            put_text(body, NFTA_SET_ELEM_LIST_SET, set);
        };
        self.dumps.request(list, body, |message| elements(&message).for_each(&mut *each))
    }

    fn lookup(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, DumpedElement<'_>),
    ) -> Result<(), Error> {
        let mut failure = None;
        for (chunk, start) in keys.chunks(KEYS).zip((0..).step_by(KEYS)) {
            let body = |key: &&[u8], body: &mut Vec<u8>| {
                put_netfilter_header(body, family.number(), 0);
                put_query(body, table, set, key);
            };
            let answered = |place: usize, answer: Result<Message<'_>, Errno>| match answer {
                Ok(message) => elements(&message).for_each(|element| each(start + place, element)),
                // The kernel has one error for a missing element, set and table.
                Err(Errno::ENOENT) => {}
                Err(errno) => failure = Some(errno),
            };
            self.connection.request_all(kind(libc::NFT_MSG_GETSETELEM), chunk, body, answered)?;
        }
        let request = "look up an element";
        failure.map_or(Ok(()), |errno| Err(Error::Request { request, errno }))
    }

    fn port(&self) -> u32 {
        self.connection.port()
    }

    fn reconnect(&mut self) -> Result<(), Error> {
        *self = Socket::open()?;
        Ok(())
    }
}

impl Generation {
    /// Decodes the answer to `NFT_MSG_GETGEN`, or the kernel's event about a new generation.
    pub(super) fn parse(attrs: &Attrs<'_>) -> Option<Generation> {
        let process = attrs.text(NFTA_GEN_PROC_NAME).unwrap_or_default();
        Some(Generation {
            id: attrs.be32(NFTA_GEN_ID)?,
            pid: attrs.be32(NFTA_GEN_PROC_PID).unwrap_or(0),
            process: process.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_that_break_off_neither_block_others_nor_close_the_owner() -> anyhow::Result<()> {
        let netns = shunt_testbed::Netns::new()?;
        netns.nft("table ip t { set s { type ipv4_addr; elements = { 192.0.2.1 }; }; chain c { drop; }; }")?;
        netns.run(|| {
            let mut socket = Socket::open()?;
            let owner = socket.port();
            let list = Request::dump("list sets", kind(libc::NFT_MSG_GETSET));
            socket.dumps.start(list, |body| put_netfilter_header(body, Family::Ip.number(), 0))?;
            assert!(socket.table(Family::Ip, "t")?.is_some());
            assert_eq!(socket.chains(Family::Ip, "t")?.len(), 1);
            assert_eq!(socket.sets(Family::Ip, "t")?.len(), 1);
            assert_eq!(socket.rules(Family::Ip, "t")?.len(), 1);
            assert_eq!(socket.base_chains()?.len(), 0);
            let mut elements = 0;
            socket.elements(Family::Ip, "t", "s", &mut |_| elements += 1)?;
            assert_eq!(elements, 1);
            assert_eq!(socket.port(), owner);
            Ok(())
        })
    }
}
