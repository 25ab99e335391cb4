//! The targets without a fuzzer: all seeds, and seeds that were changed at random.

use std::fs;
use std::panic::catch_unwind;
use std::path::PathBuf;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use super::{TARGETS, Target};

/// How many times the seeds of each target are changed. `SHUNT_SOAK` is how many times as many, with
/// other random numbers each time.
const CASES: u32 = 400;

/// The seeds of a target: folders in the repository.
fn folders(target: &str) -> &'static [&'static str] {
    match target {
        "manifests" => {
            &["examples/demo", "examples/services", "tests/fixtures", "tests/fixtures/bad-input"]
        }
        "configuration" => &["tests/fixtures"],
        "objects" => &["tests/fixtures/api"],
        "protobuf" => &["tests/fixtures/api/protobuf", "tests/fixtures/api/protobuf/objects"],
        _ => &["tests/fixtures/netlink"],
    }
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut seeds = Vec::new();
    for folder in folders(target) {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                seeds.push(fs::read(&path).unwrap());
            }
        }
    }
    assert!(!seeds.is_empty(), "{target} has no seeds");
    seeds.sort();
    seeds
}

/// A change of some bytes.
#[derive(Debug, Clone)]
enum Edit {
    Put(Index, u8),
    /// A number where numbers are, at every fourth byte.
    Number(Index, u32),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    /// Something from here to there.
    Copy(Index, usize, Index),
    Cut(Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let place = any::<Index>;
    // What numbers, lengths and syntax are made of.
    let byte = || {
        prop_oneof![
            any::<u8>(),
            proptest::sample::select(b"\0\xff\x01\x80 \n\"{}[]:-#&*|/0".to_vec())
        ]
    };
    // The ends of what numbers can be, of either order of bytes.
    let number = proptest::sample::select(vec![0, 1, u32::MAX, i32::MAX as u32, 1 << 31, 0x80]);
    prop_oneof![
        8 => (place(), byte()).prop_map(|(at, byte)| Edit::Put(at, byte)),
        8 => (place(), number).prop_map(|(at, number)| Edit::Number(at, number)),
        3 => (place(), vec(byte(), 1..6)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        3 => (place(), 1..60_usize).prop_map(|(at, length)| Edit::Remove(at, length)),
        3 => (place(), 1..200_usize, place()).prop_map(|(from, length, to)| Edit::Copy(from, length, to)),
        1 => place().prop_map(Edit::Cut),
    ]
}

fn apply(edit: &Edit, bytes: &mut Vec<u8>) {
    let length = bytes.len();
    let up_to = |from: usize, count: usize| from..(from + count).min(length);
    match edit {
        _ if length == 0 => {}
        Edit::Put(at, byte) => bytes[at.index(length)] = *byte,
        Edit::Number(at, number) if length >= 4 => {
            let at = at.index(length / 4) * 4;
            bytes[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        }
        Edit::Number(..) => {}
        Edit::Insert(at, new) => {
            let at = at.index(length);
            bytes.splice(at..at, new.iter().copied());
        }
        Edit::Remove(at, count) => drop(bytes.drain(up_to(at.index(length), *count))),
        Edit::Copy(from, count, to) => {
            let part = bytes[up_to(from.index(length), *count)].to_vec();
            let at = to.index(length);
            bytes.splice(at..at, part);
        }
        Edit::Cut(at) => bytes.truncate(at.index(length)),
    }
}

fn check((name, target): Target) {
    let soak = std::env::var("SHUNT_SOAK").ok().and_then(|times| times.parse::<u32>().ok());
    let seed = shunt_testbed::seed(soak.is_none().then_some(0)).expect("SHUNT_SEED");
    let config = |cases| Config {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    };
    let seeds = seeds(name);
    seeds.iter().for_each(|seed| target(seed));
    let edits = (any::<Index>(), vec(edit(), 1..20));
    TestRunner::new(config(CASES * soak.unwrap_or(1)))
        .run(&edits, |(seed, edits)| {
            let mut bytes = seed.get(&seeds).clone();
            edits.iter().for_each(|edit| apply(edit, &mut bytes));
            catch_unwind(|| target(&bytes)).map_err(|_| {
                TestCaseError::fail(format!("{name} fails on {}", bytes.escape_ascii()))
            })
        })
        .unwrap_or_else(|failure| panic!("with SHUNT_SEED={seed}: {failure}"));
    TestRunner::new(config(Config::default().cases))
        .run(&vec(any::<u8>(), 0..300), |bytes| {
            target(&bytes);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("with SHUNT_SEED={seed}: {failure}"));
}

#[test]
fn any_manifest() {
    check(TARGETS[0]);
}

#[test]
fn any_configuration() {
    check(TARGETS[1]);
}

#[test]
fn any_answer_of_the_api_server() {
    check(TARGETS[2]);
}

#[test]
fn any_answer_of_the_api_server_in_protobuf() {
    check(TARGETS[3]);
}

#[test]
fn any_answer_of_the_kernel() {
    check(TARGETS[4]);
}
