//! Reads the chains that a judgement needs, and looks keys up in sets.

use std::collections::HashMap;
use std::rc::Rc;

use nix::errno::Errno;

use super::packet::View;
use super::walk::{Found, MAX_RULES, Ruleset, walk};
use super::{JudgedPacket, Judgement};
use crate::attr::put_text;
use crate::message::{Message, put_netfilter_header};
use crate::nft::socket::put_query;
use crate::nft::uapi::{
    NFTA_RULE_CHAIN, NFTA_RULE_TABLE, NFTA_SET_NAME, NFTA_SET_TABLE, NFTA_TABLE_FLAGS,
    NFTA_TABLE_NAME, kind,
};
use crate::nft::{AttachedChain, DumpedRule, DumpedSet, Error, Kernel as _, Socket, TABLE_DORMANT};
use crate::socket::Request;

/// The number of attempts at a judgement that commits of other processes interrupt.
const ATTEMPTS: usize = 5;

impl Socket {
    /// Judges what a base chain of any program does with a packet: follows the packet through the
    /// rules, and through the chains and sets that they lead to. Properties of the packet that are
    /// not known, and matches that are not decoded, may leave it open.
    ///
    /// ```no_run
    /// use nfnetlink::nft::{JudgedPacket, Passing, Socket};
    ///
    /// let mut socket = Socket::open()?;
    /// let (client, endpoint) = ([10, 0, 0, 1].into(), [10, 244, 1, 2].into());
    /// let packet = JudgedPacket::new(6, client, endpoint, 8080);
    /// for chain in socket.base_chains()?.iter().filter(|chain| chain.hook_name() == "forward") {
    ///     match socket.judge(chain, &packet)?.passing {
    ///         Passing::Passes => {}
    ///         Passing::Drops(place) => println!("{chain} drops the packet: {place}"),
    ///         Passing::May { place, why } => println!("{chain} may drop it: {place}, {why}"),
    ///     }
    /// }
    /// # Ok::<(), nfnetlink::nft::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the kernel refuses a listing; [`Error::Interrupted`] if commits of other processes
    /// interrupt every attempt.
    pub fn judge(
        &mut self,
        chain: &AttachedChain,
        packet: &JudgedPacket,
    ) -> Result<Judgement, Error> {
        if !chain.family.sees(packet.family()) {
            return Ok(Judgement::unseen(packet));
        }
        for _ in 0..ATTEMPTS {
            let before = self.generation()?.id;
            let judgement = self.judge_once(chain, packet);
            if self.generation()?.id == before {
                return judgement;
            }
        }
        Err(Error::Interrupted)
    }

    fn judge_once(
        &mut self,
        chain: &AttachedChain,
        packet: &JudgedPacket,
    ) -> Result<Judgement, Error> {
        let (family, table) = (chain.family.number(), chain.table.as_str());
        let of = |body: &mut Vec<u8>| put_text(body, NFTA_TABLE_NAME, table);
        let flags = self.get("read a table", libc::NFT_MSG_GETTABLE, family, of, |attrs| {
            attrs.be32(NFTA_TABLE_FLAGS)
        })?;
        if flags.is_some_and(|flags| flags & TABLE_DORMANT != 0) {
            return Ok(Judgement::unseen(packet));
        }
        let mut tables = Table { socket: self, family, name: table, chains: HashMap::new() };
        walk(MAX_RULES, &mut tables, &View { packet, chain })
    }
}

/// A table during one judgement.
struct Table<'a> {
    socket: &'a mut Socket,
    family: u8,
    name: &'a str,
    chains: HashMap<String, Rc<[DumpedRule]>>,
}

impl Ruleset for Table<'_> {
    type Error = Error;

    fn chain(&mut self, name: &str) -> Result<Rc<[DumpedRule]>, Error> {
        if let Some(rules) = self.chains.get(name) {
            return Ok(Rc::clone(rules));
        }
        let list = Request::dump("list rules", kind(libc::NFT_MSG_GETRULE));
        let body = |body: &mut Vec<u8>| {
            put_netfilter_header(body, self.family, 0);
            put_text(body, NFTA_RULE_TABLE, self.name);
            put_text(body, NFTA_RULE_CHAIN, name);
        };
        let parse = |message: Message<'_>| DumpedRule::parse(&message.attrs());
        let rules: Rc<[DumpedRule]> = self.socket.dumps.list(list, body, parse)?.into();
        self.chains.insert(name.to_owned(), Rc::clone(&rules));
        Ok(rules)
    }

    fn set(&mut self, name: &str) -> Result<Option<DumpedSet>, Error> {
        let of = |body: &mut Vec<u8>| {
            put_text(body, NFTA_SET_TABLE, self.name);
            put_text(body, NFTA_SET_NAME, name);
        };
        self.socket.get("read a set", libc::NFT_MSG_GETSET, self.family, of, DumpedSet::parse)
    }

    fn find(&mut self, set: &str, key: &[u8]) -> Result<Option<Found>, Error> {
        let of = |body: &mut Vec<u8>| put_query(body, self.name, set, key);
        let message = libc::NFT_MSG_GETSETELEM;
        match self.socket.get("look up an element", message, self.family, of, Found::parse) {
            // Before Linux 5.13, sets have no element for all other keys.
            Err(Error::Request { errno: Errno::EINVAL, .. }) if key.is_empty() => Ok(None),
            found => found,
        }
    }
}
