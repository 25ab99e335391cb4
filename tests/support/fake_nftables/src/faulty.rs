//! A kernel that fails when it is told to.

use nfnetlink::nft::{
    DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTable, DumpedTimeouts, Error,
    FinishedBatch, Generation, Kernel, TableFamily,
};

/// What a kernel is asked for.
#[derive(Clone, Copy)]
pub enum Call<'a> {
    /// To commit a transaction.
    Commit(&'a FinishedBatch),
    /// The generation.
    Generation,
    /// A new connection.
    Reconnect,
    /// A list of tables, chains, sets, rules or elements.
    List,
    /// Elements by their keys.
    Lookup,
}

/// What becomes of a call.
pub enum Fault {
    /// It fails, and does nothing.
    Before(Error),
    /// It does what it should, and then fails: the answer of a transaction is lost, or a listing
    /// turns out to be worth nothing at its end.
    After(Error),
    /// A list of elements has some of them twice and others not at all, as while the kernel makes a
    /// hash table larger.
    Torn,
}

/// A kernel that fails when it is told to.
pub struct Faulty<K> {
    kernel: K,
    decide: Box<dyn FnMut(Call<'_>) -> Option<Fault> + Send>,
}

impl<K: Kernel> Faulty<K> {
    /// Lets `decide` look at each call first; it may also do something to the kernel by another
    /// socket.
    pub fn new(
        kernel: K,
        decide: impl FnMut(Call<'_>) -> Option<Fault> + Send + 'static,
    ) -> Faulty<K> {
        Faulty { kernel, decide: Box::new(decide) }
    }

    fn call<T>(
        &mut self,
        call: Call<'_>,
        perform: impl FnOnce(&mut K) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let fault = (self.decide)(call);
        self.suffer(fault, perform)
    }

    fn suffer<T>(
        &mut self,
        fault: Option<Fault>,
        perform: impl FnOnce(&mut K) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match fault {
            None | Some(Fault::Torn) => perform(&mut self.kernel),
            Some(Fault::Before(error)) => Err(error),
            Some(Fault::After(error)) => perform(&mut self.kernel).and(Err(error)),
        }
    }

    /// Lists as [`Socket`](nfnetlink::nft::Socket) does, which repeats an interrupted dump.
    fn list<T>(&mut self, perform: impl Fn(&mut K) -> Result<T, Error>) -> Result<T, Error> {
        loop {
            match self.call(Call::List, &perform) {
                Err(Error::Interrupted) => {}
                result => return result,
            }
        }
    }
}

impl<K: Kernel> Kernel for Faulty<K> {
    fn commit(&mut self, batch: &FinishedBatch) -> Result<(), Error> {
        self.call(Call::Commit(batch), |kernel| kernel.commit(batch))
    }

    fn generation(&mut self) -> Result<Generation, Error> {
        self.call(Call::Generation, Kernel::generation)
    }

    fn port(&self) -> u32 {
        self.kernel.port()
    }

    fn reconnect(&mut self) -> Result<(), Error> {
        self.call(Call::Reconnect, Kernel::reconnect)
    }

    fn table(&mut self, family: TableFamily, table: &str) -> Result<Option<DumpedTable>, Error> {
        self.list(|kernel| kernel.table(family, table))
    }

    fn chains(&mut self, family: TableFamily, table: &str) -> Result<Vec<DumpedChain>, Error> {
        self.list(|kernel| kernel.chains(family, table))
    }

    fn sets(&mut self, family: TableFamily, table: &str) -> Result<Vec<DumpedSet>, Error> {
        self.list(|kernel| kernel.sets(family, table))
    }

    fn timeouts(&mut self, family: TableFamily, table: &str) -> Result<Vec<DumpedTimeouts>, Error> {
        self.list(|kernel| kernel.timeouts(family, table))
    }

    fn rules(&mut self, family: TableFamily, table: &str) -> Result<Vec<DumpedRule>, Error> {
        self.list(|kernel| kernel.rules(family, table))
    }

    fn elements(
        &mut self,
        family: TableFamily,
        table: &str,
        set: &str,
        each: &mut dyn FnMut(DumpedElement<'_>),
    ) -> Result<(), Error> {
        let fault = (self.decide)(Call::List);
        let is_torn = matches!(fault, Some(Fault::Torn));
        let mut listed = 0;
        let mut tearing = |element: DumpedElement<'_>| {
            let times = if is_torn { [2, 1, 0][listed % 3] } else { 1 };
            listed += 1;
            (0..times).for_each(|_| each(element));
        };
        self.suffer(fault, |kernel| kernel.elements(family, table, set, &mut tearing))
    }

    fn lookup(
        &mut self,
        family: TableFamily,
        table: &str,
        set: &str,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, DumpedElement<'_>),
    ) -> Result<(), Error> {
        self.call(Call::Lookup, |kernel| kernel.lookup(family, table, set, keys, each))
    }
}
