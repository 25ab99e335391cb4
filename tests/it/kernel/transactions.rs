//! The traps of nf_tables' transactions, each with a test that falls into it if we do.

use anyhow::Result;
use nfnetlink::nft::{Batch, Elements, Error, Kernel, Refusal, SetType, Socket, TableFamily};
use shunt_testbed::Netns;

const TABLE: &str = "test";

const NUMBERS: SetType = SetType::of(4, 4);

fn begin(kind: &SetType) -> Batch {
    let mut batch = Batch::new(None);
    batch.add_table(TableFamily::Ip, TABLE, 0, "a test");
    batch.add_set(TableFamily::Ip, TABLE, "numbers", kind);
    batch
}

fn numbers(range: std::ops::Range<u32>) -> Elements {
    let mut elements = Elements::new();
    range.for_each(|n| elements.push(&n.to_be_bytes(), None, Some("a comment of some length")));
    elements
}

fn count(socket: &mut Socket) -> Result<usize, Error> {
    let mut count = 0;
    socket.elements(TableFamily::Ip, TABLE, "numbers", &mut |_| count += 1)?;
    Ok(count)
}

/// True if this process may raise a socket's buffer beyond the system's limit. In a user namespace
/// it may not, and then a huge transaction has to be refused with a sentence that says so.
fn may_raise_buffers(result: &Result<(), Error>) -> bool {
    match result {
        Err(error @ Error::TooLarge { .. }) => {
            let text = error.to_string();
            assert!(text.contains("CAP_NET_ADMIN"), "{text}");
            false
        }
        _ => true,
    }
}

#[test]
fn a_transaction_of_many_messages_and_megabytes_is_applied_whole() -> Result<()> {
    const ELEMENTS: u32 = 150_000;
    let ns = Netns::new()?;
    ns.run(|| {
        let mut socket = Socket::open()?;
        let before = socket.generation()?.id;
        let mut batch = begin(&NUMBERS);
        batch.add_elements(TableFamily::Ip, TABLE, "numbers", &numbers(0..ELEMENTS));
        let batch = batch.finish();
        assert!(batch.bytes().len() > 4 << 20, "not larger than every default buffer");
        let result = socket.commit(&batch);
        if may_raise_buffers(&result) {
            result?;
            assert_eq!(count(&mut socket)?, ELEMENTS as usize);
            assert_eq!(socket.generation()?.id, before + 1);
        } else {
            assert_eq!(socket.generation()?.id, before);
        }
        Ok(())
    })
}

#[test]
fn an_error_in_the_middle_changes_nothing_and_is_named() -> Result<()> {
    let ns = Netns::new()?;
    ns.run(|| {
        let mut socket = Socket::open()?;
        socket.commit(&{
            let mut batch = begin(&NUMBERS);
            batch.add_elements(TableFamily::Ip, TABLE, "numbers", &numbers(0..3));
            batch.finish()
        })?;
        let generation = socket.generation()?.id;
        let mut batch = Batch::new(Some(generation));
        batch.add_elements(TableFamily::Ip, TABLE, "numbers", &numbers(10..2_000));
        let mut missing = numbers(10..12);
        missing.push(&0xdead_u32.to_be_bytes(), None, None);
        batch.delete_elements(TableFamily::Ip, TABLE, "numbers", &missing);
        batch.add_elements(TableFamily::Ip, TABLE, "numbers", &numbers(2_000..3_000));
        let error = socket.commit(&batch.finish()).expect_err("a missing element");
        let Error::Refused(refusals) = &error else { panic!("{error}") };
        let [refusal] = &refusals[..] else { panic!("{error}") };
        assert_eq!(refusal.errno, nix::errno::Errno::ENOENT);
        assert_eq!(refusal.object, "numbers");
        assert_eq!(refusal.operation, "delete an element of");
        assert!(refusal.keys.contains(&0xdead_u32.to_be_bytes().to_vec()), "{error}");
        assert!(error.to_string().contains("ip test numbers"), "{error}");
        assert_eq!(count(&mut socket)?, 3);
        assert_eq!(socket.generation()?.id, generation);
        Ok(())
    })
}

#[test]
fn a_stale_generation_is_told_apart_and_changes_nothing() -> Result<()> {
    let ns = Netns::new()?;
    ns.run(|| {
        let mut socket = Socket::open()?;
        socket.commit(&begin(&NUMBERS).finish())?;
        let generation = socket.generation()?.id;
        let batch = |generation| {
            let mut batch = Batch::new(Some(generation));
            batch.add_elements(TableFamily::Ip, TABLE, "numbers", &numbers(0..3));
            batch.finish()
        };
        let result = socket.commit(&batch(generation - 1));
        assert!(matches!(result, Err(Error::StaleGeneration)), "{result:?}");
        assert_eq!(count(&mut socket)?, 0);
        socket.commit(&batch(generation))?;
        assert_eq!(count(&mut socket)?, 3);
        Ok(())
    })
}

/// More than the receive buffer takes: the kernel says so once and then says nothing at all until
/// everything is read.
#[test]
fn refusals_that_overrun_the_socket_are_no_answers_to_what_is_asked_next() -> Result<()> {
    let ns = Netns::new()?;
    ns.run(|| {
        let mut socket = Socket::open()?;
        let mut batch = begin(&NUMBERS);
        for n in 0..20_000 {
            batch.delete_chain(TableFamily::Ip, TABLE, &format!("missing-{n}"));
        }
        let error = socket.commit(&batch.finish()).expect_err("missing chains");
        let some = |refusals: &Vec<Refusal>| {
            refusals.len() < 20_000 && refusals.iter().all(|one| one.object.starts_with("missing-"))
        };
        assert!(matches!(&error, Error::Refused(refusals) if some(refusals)), "{error}");
        assert!(error.to_string().len() < 1_000, "{error}");
        socket.generation()?;
        socket.commit(&begin(&NUMBERS).finish())?;
        assert_eq!(count(&mut socket)?, 0);
        Ok(())
    })
}
