//! Reads the chains and sets that a judgement needs.

use std::collections::HashMap;
use std::rc::Rc;

use nix::errno::Errno;

use super::packet::View;
use super::set::{Definition, Listed, Set};
use super::walk::{Chain, MAX_RULES, Ruleset, walk};
use super::{JudgedPacket, Judgement};
use crate::attr::{Attr, Attrs, put_text};
use crate::message::put_netfilter_header;
use crate::nft::uapi::{
    NFTA_RULE_CHAIN, NFTA_RULE_TABLE, NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET,
    NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_NAME, NFTA_SET_TABLE, NFTA_TABLE_FLAGS, NFTA_TABLE_NAME,
    kind,
};
use crate::nft::{AttachedChain, DumpedRule, Error, Kernel as _, Socket, TABLE_DORMANT};
use crate::socket::{Bus, Request};

/// The judgement reads at most this many elements of one set: those of another proxy can have
/// hundreds of thousands.
const MAX_ELEMENTS: usize = 100_000;

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
            let judgement = judge_once(chain, packet);
            if self.generation()?.id == before {
                return judgement;
            }
        }
        Err(Error::Interrupted)
    }
}

fn judge_once(chain: &AttachedChain, packet: &JudgedPacket) -> Result<Judgement, Error> {
    let mut listing = Listing {
        family: chain.family.number(),
        table: &chain.table,
        chains: HashMap::new(),
        sets: HashMap::new(),
    };
    if listing.is_dormant()? {
        return Ok(Judgement::unseen(packet));
    }
    walk(&mut listing, &View::new(chain, packet), &chain.chain, chain.drops_by_default)
}

/// The listings of one judgement.
struct Listing<'a> {
    family: u8,
    table: &'a str,
    chains: HashMap<String, Rc<Chain>>,
    sets: HashMap<String, Option<Rc<Set>>>,
}

impl Ruleset for Listing<'_> {
    type Error = Error;

    fn chain(&mut self, name: &str) -> Result<Rc<Chain>, Error> {
        if let Some(chain) = self.chains.get(name) {
            return Ok(Rc::clone(chain));
        }
        let body = |body: &mut Vec<u8>| {
            put_text(body, NFTA_RULE_TABLE, self.table);
            put_text(body, NFTA_RULE_CHAIN, name);
        };
        let mut rules = Vec::new();
        let complete = self.dump("list rules", libc::NFT_MSG_GETRULE, body, |attrs| {
            // Kernels that ignore the name of the chain in the request list the whole table.
            rules.extend(DumpedRule::parse(attrs).filter(|rule| rule.chain == name));
            rules.len() <= MAX_RULES
        })?;
        let chain = Rc::new(Chain { rules, complete });
        self.chains.insert(name.to_owned(), Rc::clone(&chain));
        Ok(chain)
    }

    fn set(&mut self, name: &str) -> Result<Option<Rc<Set>>, Error> {
        if let Some(set) = self.sets.get(name) {
            return Ok(set.clone());
        }
        let set = self.read_set(name)?.map(Rc::new);
        self.sets.insert(name.to_owned(), set.clone());
        Ok(set)
    }
}

impl Listing<'_> {
    fn read_set(&self, name: &str) -> Result<Option<Set>, Error> {
        let definition = |body: &mut Vec<u8>| {
            put_text(body, NFTA_SET_TABLE, self.table);
            put_text(body, NFTA_SET_NAME, name);
        };
        let set = self.single("read a set", libc::NFT_MSG_GETSET, definition, Definition::parse)?;
        let Some(definition) = set else { return Ok(None) };
        let body = |body: &mut Vec<u8>| {
            put_text(body, NFTA_SET_ELEM_LIST_TABLE, self.table);
            put_text(body, NFTA_SET_ELEM_LIST_SET, name);
        };
        let mut elements = Vec::new();
        let mut are_decoded = true;
        let complete = self.dump("list elements", libc::NFT_MSG_GETSETELEM, body, |attrs| {
            let list = attrs.find(NFTA_SET_ELEM_LIST_ELEMENTS);
            for element in list.iter().flat_map(Attr::children) {
                let element = Listed::parse(&element);
                are_decoded &= element.is_some();
                elements.extend(element);
            }
            elements.len() <= MAX_ELEMENTS
        })?;
        Ok(are_decoded.then(|| Set::new(definition, elements, complete)))
    }

    /// Returns true if the table is switched off.
    fn is_dormant(&self) -> Result<bool, Error> {
        let body = |body: &mut Vec<u8>| put_text(body, NFTA_TABLE_NAME, self.table);
        let flags = |attrs: &Attrs<'_>| attrs.find(NFTA_TABLE_FLAGS)?.be32();
        let flags = self.single("read a table", libc::NFT_MSG_GETTABLE, body, flags)?;
        Ok(flags.is_some_and(|flags| flags & TABLE_DORMANT != 0))
    }

    /// Reads one object.
    fn single<T>(
        &self,
        name: &'static str,
        message: i32,
        body: impl Fn(&mut Vec<u8>),
        parse: impl Fn(&Attrs<'_>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let request = Request { name, kind: kind(message), flags: 0 };
        let mut socket = crate::socket::Socket::open(Bus::Netfilter)?;
        let mut found = None;
        let body = |buffer: &mut Vec<u8>| {
            put_netfilter_header(buffer, self.family, 0);
            body(buffer);
        };
        match socket.request(request, body, |message| found = parse(&message.attrs())) {
            // The walk asks only for objects that rules name.
            Err(crate::Error::Refused { errno: Errno::ENOENT, .. }) => Ok(None),
            result => result.map(|()| found).map_err(Error::from),
        }
    }

    /// Dumps objects over a socket of its own, which may be closed in the middle of the listing:
    /// `each` returns false to end it. Returns true after a complete listing.
    fn dump(
        &self,
        name: &'static str,
        message: i32,
        body: impl Fn(&mut Vec<u8>),
        mut each: impl FnMut(&Attrs<'_>) -> bool,
    ) -> Result<bool, Error> {
        let list = Request::dump(name, kind(message));
        let mut socket = crate::socket::Socket::open(Bus::Netfilter)?;
        socket.start(list, |buffer| {
            put_netfilter_header(buffer, self.family, 0);
            body(buffer);
        })?;
        let (mut more, mut wanted) = (true, true);
        while more && wanted {
            more = socket.next_part(|message| wanted &= each(&message.attrs()))?;
        }
        Ok(!more)
    }
}
