//! What an object costs between the connection and the model, in both encodings: bytes received,
//! allocations and CPU time. No server and no kernel take part.

use std::hint::black_box;
use std::time::{Duration, Instant};

use shunt::source::objects::{Kind, Names, from_json, from_protobuf};
use shunt_fake_apiserver::protobuf;

use super::table::{Figure, SHUNT, Table, Value};
use super::{Size, objects};

/// How often each decoding is timed.
const RUNS: usize = 21;
/// The endpoints of the slice of an event.
const EVENT_ENDPOINTS: u32 = 100;

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for &(services, endpoints) in if sizes.is_empty() { &[(1_000, 10)] } else { sizes } {
        let of_services = (0..services).map(|n| (Kind::Service, objects::service(n)));
        let of_slices = (0..services).map(|n| (Kind::EndpointSlice, objects::slice(n, endpoints)));
        let list: Vec<_> = of_services.chain(of_slices).collect();
        compare(table, "objects of both lists", (services, endpoints), &list);
    }
    let event = [(Kind::EndpointSlice, objects::slice(1, EVENT_ENDPOINTS))];
    compare(table, "object of a slice event", (1, EVENT_ENDPOINTS), &event);
}

fn compare(table: &mut Table, what: &str, size: Size, list: &[(Kind, serde_json::Value)]) {
    let json: Vec<(Kind, String)> = list.iter().map(|(kind, o)| (*kind, o.to_string())).collect();
    let encode = |(kind, object): &(Kind, serde_json::Value)| {
        (*kind, protobuf::object(fake(*kind), object).into())
    };
    let messages: Vec<(Kind, prost::bytes::Bytes)> = list.iter().map(encode).collect();
    let of_json = Cost::of(json.iter().map(|(_, text)| text.len()).sum(), |names| {
        for (kind, text) in &json {
            black_box(from_json(*kind, text, names).expect("an object"));
        }
    });
    let of_protobuf = Cost::of(messages.iter().map(|(_, message)| message.len()).sum(), |names| {
        for (kind, message) in &messages {
            black_box(from_protobuf(*kind, message.clone(), names).expect("an object"));
        }
    });
    let mut row = |unit: &str, n: usize, ours: Value, other: Value| {
        let figures = [Figure::new(SHUNT, ours, n), Figure::new("JSON", other, n)];
        table.figures(&format!("{what}: {unit}"), size, &figures);
    };
    row("bytes received", 1, Value::bytes(of_protobuf.bytes), Value::bytes(of_json.bytes));
    let (ours, other) = (of_protobuf.allocations, of_json.allocations);
    row("allocations", 1, Value::count(ours), Value::count(other));
    row("bytes allocated", 1, Value::bytes(of_protobuf.allocated), Value::bytes(of_json.allocated));
    row("CPU time", RUNS, Value::time(of_protobuf.time), Value::time(of_json.time));
}

/// What the decoding of some objects costs.
struct Cost {
    bytes: u64,
    allocations: u64,
    allocated: u64,
    time: Duration,
}

impl Cost {
    /// The names are known already, as in an agent that runs.
    fn of(bytes: usize, decode: impl Fn(&mut Names)) -> Cost {
        let mut names = Names::new();
        decode(&mut names);
        let counted = allocation_counter::measure(|| decode(&mut names));
        let mut times: Vec<Duration> = (0..RUNS)
            .map(|_| {
                let started = Instant::now();
                decode(&mut names);
                started.elapsed()
            })
            .collect();
        times.sort_unstable();
        Cost {
            bytes: bytes as u64,
            allocations: counted.count_total,
            allocated: counted.bytes_total,
            time: times[RUNS / 2],
        }
    }
}

fn fake(kind: Kind) -> shunt_fake_apiserver::Kind {
    match kind {
        Kind::Service => shunt_fake_apiserver::Kind::Service,
        Kind::EndpointSlice => shunt_fake_apiserver::Kind::EndpointSlice,
        Kind::Node => shunt_fake_apiserver::Kind::Node,
        Kind::ServiceCidr => shunt_fake_apiserver::Kind::ServiceCidr,
    }
}
