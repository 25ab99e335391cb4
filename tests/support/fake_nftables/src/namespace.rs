//! The nf_tables of a namespace that does not exist, and the sockets that speak to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nfnetlink::message::{Message, messages};
use nfnetlink::nft::{
    self, Counter, DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTable, DumpedTimeouts,
    Error, FinishedBatch, Generation, Kernel, TABLE_OWNER, TABLE_PERSIST, TableFamily,
};
use nix::errno::Errno;

use crate::objects::{Element, Table, Tables};
use crate::transaction::{Transaction, number};
use crate::twin;
use crate::uapi::{BATCH_GENID, TABLE_F_MASK};

/// The nf_tables of a namespace that does not exist. A copy is another handle to the same.
#[derive(Clone)]
pub struct Namespace {
    state: Arc<Mutex<State>>,
}

/// What kernels have of nf_tables, or have not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// The flags of tables (`NFT_TABLE_F_*`) that are known.
    pub table_flags: u32,
    /// Objects `ct timeout` (`CONFIG_NF_CONNTRACK_TIMEOUT`).
    pub timeouts: bool,
    /// What there is for IPv6.
    pub ipv6: Ipv6,
}

/// What a kernel has of nf_tables for IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv6 {
    /// All that there is for IPv4.
    Present,
    /// Tables, but no type of base chains: a kernel before 6.8 without `CONFIG_NF_TABLES_IPV6`.
    TablesOnly,
    /// Not even tables: such a kernel from 6.8 on (`nft_supported_family`).
    Absent,
}

impl Default for Features {
    /// Those of the newest kernel.
    fn default() -> Features {
        Features { table_flags: TABLE_F_MASK, timeouts: true, ipv6: Ipv6::Present }
    }
}

struct State {
    tables: Tables,
    generation: u32,
    next_port: u32,
    features: Features,
    refuse: Option<Box<Refuse>>,
    twin: Option<Twin>,
}

/// Opens a socket of the kernel's nf_tables.
type Twin = Arc<dyn Fn() -> nft::Socket + Send + Sync>;

/// What the kernel would say to a new element, by the name of the set and the key.
pub(crate) type Refuse = dyn Fn(&str, &[u8]) -> Option<Errno> + Send;

impl Namespace {
    /// One without tables. The generation is that of a new namespace of the kernel.
    #[must_use]
    pub fn new() -> Namespace {
        Namespace::with(1, None)
    }

    /// One without tables like that of the kernel, in which `open` opens sockets: it gets the same
    /// transactions, and the test fails if it answers or lists anything else.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn beside(
        open: impl Fn() -> nft::Socket + Send + Sync + 'static,
    ) -> Result<Namespace, Error> {
        let generation = open().generation()?.id;
        Ok(Namespace::with(generation, Some(Arc::new(open))))
    }

    fn with(generation: u32, twin: Option<Twin>) -> Namespace {
        let (tables, features) = Default::default();
        let state = State { tables, generation, next_port: 1_000, features, refuse: None, twin };
        Namespace { state: Arc::new(Mutex::new(state)) }
    }

    /// From now on has these features only, as an older kernel.
    pub fn limit(&self, features: Features) {
        self.lock().features = features;
    }

    /// Opens a socket.
    #[must_use]
    pub fn open(&self) -> Socket {
        let mut state = self.lock();
        state.next_port += 1;
        let twin = state.twin.clone().map(|open| open());
        let port = twin.as_ref().map_or(state.next_port, nft::Socket::port);
        Socket { port, namespace: self.clone(), twin }
    }

    /// Opens a socket with that netlink port, which no other one may have.
    #[must_use]
    pub fn open_at(&self, port: u32) -> Socket {
        Socket { port, namespace: self.clone(), twin: None }
    }

    /// From now on refuses new elements for which there is an error: for want of memory, say.
    pub fn refuse(&self, what: impl Fn(&str, &[u8]) -> Option<Errno> + Send + 'static) {
        self.lock().refuse = Some(Box::new(what));
    }

    /// From now on refuses nothing any more that the kernel would not.
    pub fn relent(&self) {
        self.lock().refuse = None;
    }

    /// Adds an element as a packet does (`dynset`), where the map is and does not have it: without a
    /// transaction, and nobody is told.
    pub fn learn(&self, family: TableFamily, table: &str, map: &str, key: &[u8], data: &[u8]) {
        let mut state = self.lock();
        let table = state.tables.0.get_mut(&(family_number(family), table.to_owned()));
        let Some(map) = table.and_then(|table| table.set_mut(map)) else { return };
        if !map.elements.contains_key(key) {
            map.insert(Element::learned(key, data));
        }
    }

    /// Counts a packet of so many bytes at an element, as a lookup of a rule does.
    pub fn count(&self, family: TableFamily, table: &str, map: &str, key: &[u8], bytes: u64) {
        let mut state = self.lock();
        let table = state.tables.0.get_mut(&(family_number(family), table.to_owned()));
        let element =
            table.and_then(|table| table.set_mut(map)).and_then(|map| map.elements.get_mut(key));
        if let Some(Counter { packets, bytes: sum }) = element.and_then(|it| it.counter.as_mut()) {
            *packets += 1;
            *sum += bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Namespace {
    fn default() -> Namespace {
        Namespace::new()
    }
}

/// A socket of a [`Namespace`]; what it owns is an orphan, or gone, when it is dropped.
pub struct Socket {
    namespace: Namespace,
    port: u32,
    /// The socket of the kernel that gets the same transactions.
    twin: Option<nft::Socket>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        drop(self.twin.take());
        self.close();
    }
}

impl Socket {
    /// What becomes of tables when the socket of their owner closes (`nft_rcv_nl_event`).
    fn close(&self) {
        let mut state = self.namespace.lock();
        let is_own = |table: &Table| table.head.owner == Some(self.port);
        let persists = |table: &Table| table.head.flags & TABLE_PERSIST != 0;
        state.tables.0.retain(|_, table| !is_own(table) || persists(table));
        for table in state.tables.0.values_mut().filter(|table| is_own(table)) {
            table.head.owner = None;
            table.head.flags &= !TABLE_OWNER;
        }
    }

    /// Hands a table to `look`; `None` if there is none of that name.
    fn look<R>(
        &self,
        family: TableFamily,
        name: &str,
        look: impl FnOnce(&Table) -> R,
    ) -> Option<R> {
        let key = (family_number(family), name.to_owned());
        self.namespace.lock().tables.0.get(&key).map(look)
    }

    /// A copy of all elements, so that whoever looks at them can speak to the namespace meanwhile.
    fn listed(&self, family: TableFamily, table: &str, set: &str) -> Result<Vec<Element>, Error> {
        let copy = |found: &Table| Some(found.set(set)?.elements.values().cloned().collect());
        self.look(family, table, copy).flatten().ok_or(missing("list elements"))
    }
}

/// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
fn family_number(family: TableFamily) -> u8 {
    match family {
        TableFamily::Ip => libc::NFPROTO_IPV4 as u8,
        TableFamily::Ip6 => libc::NFPROTO_IPV6 as u8,
    }
}

/// What a listing answers that asks for the content of something that is not there.
fn missing(request: &'static str) -> Error {
    Error::Request { request, errno: Errno::ENOENT }
}

impl Socket {
    fn apply(&mut self, batch: &FinishedBatch) -> Result<(), Error> {
        let mut state = self.namespace.lock();
        let messages: Vec<Message<'_>> = messages(batch.bytes()).collect();
        let [begin, messages @ .., end] = &messages[..] else {
            return Err(Error::Malformed("a transaction without beginning or end"));
        };
        assert_eq!(i32::from(begin.kind), libc::NFNL_MSG_BATCH_BEGIN);
        assert_eq!(i32::from(end.kind), libc::NFNL_MSG_BATCH_END);
        // 0 is no generation, and asks for none (`nf_tables_valid_genid`).
        let wanted = number(&begin.attrs(), BATCH_GENID).filter(|id| *id != 0);
        if wanted.is_some_and(|id| id != state.generation) {
            return Err(Error::StaleGeneration);
        }
        let (tables, changed) = Transaction::run(
            &state.tables,
            self.port,
            state.features,
            state.refuse.as_deref(),
            messages,
        )
        .map_err(|refused| {
            let refusal =
                |r: &crate::transaction::Refused| batch.refusal(r.sequence, r.errno, r.offset);
            Error::Refused(refused.iter().map(refusal).collect())
        })?;
        state.tables = tables;
        if changed {
            state.generation = state.generation.wrapping_add(1).max(1);
        }
        Ok(())
    }
}

impl Kernel for Socket {
    fn commit(&mut self, batch: &FinishedBatch) -> Result<(), Error> {
        let answer = self.apply(batch);
        if let Some(mut kernel) = self.twin.take() {
            twin::compare(&mut kernel, self, batch, &answer);
            self.twin = Some(kernel);
        }
        answer
    }

    fn generation(&mut self) -> Result<Generation, Error> {
        let id = self.namespace.lock().generation;
        Ok(Generation { id, pid: std::process::id(), process: "fake".to_owned() })
    }

    fn port(&self) -> u32 {
        self.port
    }

    fn reconnect(&mut self) -> Result<(), Error> {
        *self = self.namespace.open();
        Ok(())
    }

    fn table(&mut self, family: TableFamily, table: &str) -> Result<Option<DumpedTable>, Error> {
        Ok(self.look(family, table, |found| found.head.clone()))
    }

    fn chains(&mut self, family: TableFamily, table: &str) -> Result<Vec<DumpedChain>, Error> {
        let heads = |found: &Table| found.chains.iter().map(|chain| chain.head.clone()).collect();
        Ok(self.look(family, table, heads).unwrap_or_default())
    }

    fn sets(&mut self, family: TableFamily, table: &str) -> Result<Vec<DumpedSet>, Error> {
        self.look(family, table, |found| found.sets.iter().map(|set| set.head.clone()).collect())
            .ok_or(missing("list sets"))
    }

    fn timeouts(&mut self, family: TableFamily, table: &str) -> Result<Vec<DumpedTimeouts>, Error> {
        Ok(self.look(family, table, |found| found.timeouts(table)).unwrap_or_default())
    }

    fn rules(&mut self, family: TableFamily, table: &str) -> Result<Vec<DumpedRule>, Error> {
        let heads = |found: &Table| {
            let rules = found.chains.iter().flat_map(|chain| &chain.rules);
            rules.map(|rule| rule.head.clone()).collect()
        };
        Ok(self.look(family, table, heads).unwrap_or_default())
    }

    fn elements(
        &mut self,
        family: TableFamily,
        table: &str,
        set: &str,
        each: &mut dyn FnMut(DumpedElement<'_>),
    ) -> Result<(), Error> {
        let listed = self.listed(family, table, set)?;
        listed.iter().filter_map(Element::dumped).for_each(each);
        Ok(())
    }

    fn lookup(
        &mut self,
        family: TableFamily,
        table: &str,
        set: &str,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, DumpedElement<'_>),
    ) -> Result<(), Error> {
        self.look(family, table, |found| {
            let set = found.set(set)?;
            for (place, key) in keys.iter().enumerate() {
                let held = if set.has_ranges() { set.holding(key) } else { set.elements.get(*key) };
                if let Some(element) = held.and_then(Element::dumped) {
                    each(place, element);
                }
            }
            Some(())
        });
        Ok(())
    }
}
