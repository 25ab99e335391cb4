//! Single elements by their keys.

use anyhow::Result;
use nfnetlink::Family;
use nfnetlink::nft::{Age, Counter, ElementData, Error, Kernel as _, Socket};
use nix::errno::Errno;
use shunt_testbed::Netns;

const RULES: &str = "table ip t {
    chain web {}
    map frontends {
        type ipv4_addr . inet_service : verdict
        counter
        elements = { 10.0.0.1 . 80 counter packets 7 bytes 420 comment \"shop/web:http\" : goto web,
                     10.0.0.2 . 80 : drop }
    }
    map endpoints { type ipv4_addr : ipv4_addr; elements = { 10.0.0.1 : 192.0.2.7 } }
    set sources {
        type ipv4_addr . ipv4_addr; flags interval
        elements = { 10.0.0.1 . 192.0.2.0/24 comment \"ranges\" }
    }
    set ranges { type ipv4_addr; flags interval; elements = { 192.0.2.16/28 } }
    set limited {
        type ipv4_addr; limit rate over 1/second counter
        elements = { 10.0.0.1 limit rate over 1/second counter packets 2 bytes 120 }
    }
    map affinity {
        type ipv4_addr : ipv4_addr; flags dynamic, timeout; size 10
        elements = { 192.0.2.9 timeout 1h expires 30m : 10.1.0.1 }
    }
}";

/// Runs a test with these rules and a socket in a namespace of their own.
fn with_rules(test: impl FnOnce(&mut Socket) -> Result<()> + Send) -> Result<()> {
    let netns = Netns::new()?;
    netns.nft(RULES)?;
    netns.run(|| test(&mut Socket::open()?))
}

/// An element that was found: its data as text.
#[derive(Debug, Clone, PartialEq)]
struct Element {
    key: Vec<u8>,
    key_end: Option<Vec<u8>>,
    data: Option<String>,
    comment: Option<String>,
    age: Option<Age>,
    counter: Option<Counter>,
}

fn lookup(socket: &mut Socket, set: &str, keys: &[&[u8]]) -> Result<Vec<Option<Element>>, Error> {
    let mut all = vec![None; keys.len()];
    socket.lookup(Family::Ip, "t", set, keys, &mut |place, found| {
        all[place] = Some(Element {
            key: found.key.to_vec(),
            key_end: found.key_end.map(<[u8]>::to_vec),
            data: found.data.map(|data| match data {
                ElementData::Value(bytes) => format!("{bytes:?}"),
                ElementData::Verdict(verdict) => verdict.to_string(),
            }),
            comment: found.comment.map(str::to_owned),
            age: found.age,
            counter: found.counter,
        });
    })?;
    Ok(all)
}

#[test]
fn elements_are_found_by_their_keys() -> Result<()> {
    with_rules(|socket| {
        let (first, second) = ([10, 0, 0, 1, 0, 80, 0, 0], [10, 0, 0, 2, 0, 80, 0, 0]);
        let missing = [10, 0, 0, 3, 0, 80, 0, 0];
        let found = lookup(socket, "frontends", &[&missing, &first, &missing, &second])?;
        let [None, Some(found), None, Some(other)] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(found.key, first);
        assert_eq!(found.data.as_deref(), Some("goto web"));
        assert_eq!(found.counter, Some(Counter { packets: 7, bytes: 420 }));
        assert_eq!(found.comment.as_deref(), Some("shop/web:http"));
        assert_eq!(other.data.as_deref(), Some("drop"));
        assert_eq!(other.counter, Some(Counter::default()));

        let found = lookup(socket, "endpoints", &[&[10, 0, 0, 1]])?;
        let data = found[0].as_ref().and_then(|element| element.data.as_deref());
        assert_eq!(data, Some("[192, 0, 2, 7]"));
        assert_eq!(lookup(socket, "endpoints", &[])?, []);

        // The kernel has the counter in a list if it is not alone.
        let found = lookup(socket, "limited", &[&[10, 0, 0, 1]])?;
        let counter = found[0].as_ref().and_then(|element| element.counter);
        assert_eq!(counter, Some(Counter { packets: 2, bytes: 120 }));
        Ok(())
    })
}

#[test]
fn range_is_found_by_a_key_inside_it() -> Result<()> {
    with_rules(|socket| {
        let inside = [10, 0, 0, 1, 192, 0, 2, 200];
        let found = lookup(socket, "sources", &[&inside, &[10, 0, 0, 2, 192, 0, 2, 200]])?;
        let [Some(range), None] = &found[..] else { panic!("{found:?}") };
        assert_eq!(range.key, [10, 0, 0, 1, 192, 0, 2, 0]);
        assert_eq!(range.key_end.as_deref(), Some(&[10, 0, 0, 1, 192, 0, 2, 255][..]));
        assert_eq!(range.comment.as_deref(), Some("ranges"));

        let found = lookup(socket, "ranges", &[&[192, 0, 2, 20], &[192, 0, 2, 32]])?;
        let [Some(range), None] = &found[..] else { panic!("{found:?}") };
        assert_eq!(range.key, [192, 0, 2, 16]);
        Ok(())
    })
}

#[test]
fn remaining_time_of_an_element_is_read() -> Result<()> {
    with_rules(|socket| {
        let found = lookup(socket, "affinity", &[&[192, 0, 2, 9]])?;
        let age = found[0].as_ref().and_then(|element| element.age).expect("an element that ages");
        assert_eq!(age.timeout, 3_600_000);
        assert!(age.left > 1_000_000 && age.left <= 1_800_000, "{age:?}");
        Ok(())
    })
}

#[test]
fn many_keys_are_looked_up_at_once() -> Result<()> {
    with_rules(|socket| {
        let keys: Vec<[u8; 4]> = (0..1_000_u32).map(|n| (0x0a00_0001 + n).to_be_bytes()).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let found = lookup(socket, "endpoints", &keys)?;
        assert!(found[0].is_some() && found[1..].iter().all(Option::is_none));
        Ok(())
    })
}

#[test]
fn missing_sets_have_no_element_and_wrong_keys_are_errors() -> Result<()> {
    with_rules(|socket| {
        for (table, set) in [("t", "nothing"), ("nothing", "endpoints")] {
            socket.lookup(Family::Ip, table, set, &[&[0; 4]], &mut |_, _| panic!("found"))?;
        }
        let refused = socket.lookup(Family::Ip, "t", "endpoints", &[&[0; 8]], &mut |_, _| {});
        assert!(matches!(refused, Err(Error::Request { errno: Errno::EINVAL, .. })), "{refused:?}");
        Ok(())
    })
}

#[test]
fn commits_of_others_do_not_interrupt_a_lookup() -> Result<()> {
    use std::sync::atomic::{AtomicBool, Ordering};

    use nfnetlink::nft::Batch;

    let netns = Netns::new()?;
    netns.nft(RULES)?;
    // So many sets that the kernel lists them in several parts.
    let sets: String = (0..600).map(|n| format!("add set ip t s{n} {{ type mark; }}\n")).collect();
    netns.nft(&sets)?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            netns.run(|| {
                let mut socket = Socket::open()?;
                while !done.load(Ordering::Relaxed) {
                    let mut batch = Batch::new(None);
                    batch.add_table(Family::Ip, "other", 0, "");
                    batch.delete_table(Family::Ip, "other");
                    socket.commit(&batch.finish())?;
                }
                Ok(())
            })
        });
        let looked = netns.run(|| {
            let mut socket = Socket::open()?;
            for _ in 0..200 {
                assert_eq!(lookup(&mut socket, "endpoints", &[&[10, 0, 0, 9]])?, [None]);
            }
            Ok(())
        });
        done.store(true, Ordering::Relaxed);
        writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        looked
    })
}
