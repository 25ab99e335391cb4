//! Connections of a pod through its node: the time of the first answer, new connections a second on one
//! processor, round trips and bulk transfers of established ones. Beside shunt: the
//! real kube-proxy in its nftables and iptables modes, no rules at all, and connection tracking without
//! rules that any packet meets.
//!
//! Each has a small cluster of its own in the same process. They are measured in turns, round after
//! round, so that whatever else the machine does hits all alike. Client and server are on one
//! processor: otherwise the time is mostly that of waking up another one.

mod flows;
mod subjects;

use std::time::Duration;

use anyhow::Result;
use shunt_fake_apiserver::Kubernetes;

use self::subjects::Subject;
use super::Size;
use super::table::{Figure, Table, Unit, Value};

/// Services of so few endpoints that kube-proxy is done within minutes.
const SIZES: [Size; 3] = [(100, 2), (5_000, 2), (10_000, 2)];
/// Services among them whose endpoint answers. New connections go to each in turn, because rules of
/// iptables mode are in no particular order, and a packet meets all before its own.
const MEASURED: u16 = 100;
/// Rounds that are counted.
const ROUNDS: u16 = 25;

/// Times that are measured: the words of a row.
const TIMES: [&str; 6] = [
    "new TCP connection of a pod, SYN to SYN-ACK",
    "new UDP flow of a pod, first answer",
    "established TCP connection, round trip",
    "established UDP flow, round trip",
    "new TCP connection to a node port, SYN to SYN-ACK",
    "new UDP flow to a node port, first answer",
];

type OfRound = fn(&Round) -> f64;

/// Figures of a round that are not times, with their units.
const RATES: [(&str, Unit, OfRound); 2] = [
    ("new TCP connections a second, one processor", Unit::PerSecond, |round| round.rate),
    ("bulk transfer, one TCP stream, one processor", Unit::GigabitsPerSecond, |round| round.bulk),
];

/// The measurements of one round.
struct Round {
    /// In the order of [`TIMES`].
    times: [Vec<Duration>; TIMES.len()],
    /// New connections a second.
    rate: f64,
    /// Gigabits a second of one stream.
    bulk: f64,
}

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for size in if sizes.is_empty() { &SIZES[..] } else { sizes } {
        measure_size(table, *size).expect("round trips");
    }
}

fn measure_size(table: &mut Table, size: Size) -> Result<()> {
    assert!(size.0 >= u32::from(MEASURED), "needs at least {MEASURED} Services");
    let mut subjects = vec![subjects::shunt(size)?];
    match Kubernetes::installed_with(&["kube-proxy"]) {
        Ok(assets) => subjects.extend(subjects::kube_proxies(&assets, size)?),
        Err(reason) => {
            println!("kube-proxy beside shunt: not measured: {reason}");
            table.not_measured("connections", size, "kube-proxy: not measured, see above");
        }
    }
    subjects.extend([subjects::without_rules()?, subjects::tracked()?]);
    let mut rounds: Vec<Vec<Round>> = subjects.iter().map(|_| Vec::new()).collect();
    // The first round is not counted.
    for number in 0..=ROUNDS {
        for (subject, rounds) in subjects.iter_mut().zip(&mut rounds) {
            let round = subject.round(number)?;
            if number > 0 {
                rounds.push(round);
            }
        }
    }
    for (sort, words) in TIMES.iter().enumerate() {
        let mut figures = [50, 99].map(|percent| (percent, Vec::new()));
        for (Subject { name, .. }, rounds) in subjects.iter().zip(&rounds) {
            let mut times: Vec<_> = rounds.iter().flat_map(|r| &r.times[sort]).copied().collect();
            times.sort_unstable();
            for (percent, figures) in &mut figures {
                let at = times.get(times.len() * *percent / 100).copied().unwrap_or_default();
                figures.push(Figure::new(name, Value::time(at), times.len()));
            }
        }
        for (percent, figures) in figures {
            table.figures(&format!("{words}: {percent} %"), size, &figures);
        }
    }
    for (what, unit, number) in RATES {
        let median = |rounds: &Vec<Round>| {
            let mut numbers: Vec<f64> = rounds.iter().map(number).collect();
            numbers.sort_unstable_by(f64::total_cmp);
            Value { number: numbers.get(numbers.len() / 2).copied().unwrap_or_default(), unit }
        };
        let figures = subjects.iter().zip(&rounds);
        let figures: Vec<_> =
            figures.map(|(s, rounds)| Figure::new(s.name, median(rounds), rounds.len())).collect();
        table.figures(what, size, &figures);
    }
    Ok(())
}
