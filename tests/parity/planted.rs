//! Planted differences, which the comparison must find, and chance, which it must not report.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Result, bail, ensure};
use shunt_fake_apiserver::Kubernetes;
use shunt_testbed::{EndpointSlice, Protocol, Random, Service};

use crate::difference::{Cell, Compared, Round, Tally, differences};
use crate::exceptions::reason_of_flow;
use crate::flows::{self, Objects, Observed, State};
use crate::targets::Target;
use crate::world::World;

const CELLS: usize = 700;
const SEEDS: u64 = 20;

/// The outcomes of a cell on one side; each is as likely as the others.
type Outcomes = Vec<&'static str>;

/// Two sides without a network.
struct Made {
    random: Random,
    cells: Vec<Cell>,
    /// The outcomes of each cell, the reference's first.
    outcomes: Vec<[Outcomes; 2]>,
    /// How many of a thousand answers are lost while many questions are open.
    lost: usize,
}

impl Made {
    /// The same on both sides: cells with one outcome and cells with up to five.
    fn new(seed: u64) -> Self {
        const SERVERS: [&str; 5] = ["a←1", "b←1", "c←1", "d←2", "silence"];
        let cells = (0..CELLS).map(|n| Cell {
            origin: ["client", "node"][n % 2],
            target: Target {
                protocol: Protocol::Tcp,
                to: SocketAddr::from(([10, 0, 0, 1], n as u16)),
                service: format!("s{}", n % 2),
                sticky: false,
                pods: BTreeSet::new(),
            },
        });
        let outcomes = (0..CELLS).map(|n| {
            let same = match n % 6 {
                0 => vec!["port-unreachable"],
                1 => vec!["silence"],
                more => SERVERS[..more].to_vec(),
            };
            [same.clone(), same]
        });
        let (cells, outcomes) = (cells.collect(), outcomes.collect());
        Self { random: Random::new(seed), cells, outcomes, lost: 0 }
    }

    fn differences(mut self) -> Result<Vec<String>> {
        let all = self.cells.clone();
        let found = differences(&all, |cells, round| Ok(self.ask(cells, round)))?;
        Ok(found.iter().map(ToString::to_string).collect())
    }

    fn ask(&mut self, cells: &[Cell], round: Round) -> Vec<Compared> {
        let lost = if round.at_once > 200 { self.lost } else { 0 };
        let compared = cells.iter().map(|cell| {
            let outcomes = &self.outcomes[usize::from(cell.target.to.port())];
            let tallies = outcomes.each_ref().map(|outcomes| {
                let mut tally = Tally::new();
                for _ in 0..round.times {
                    let is_lost = self.random.below(1000) < lost;
                    let fate = if is_lost { "silence" } else { self.random.one_of(outcomes) };
                    *tally.entry(fate.to_owned()).or_default() += 1;
                }
                tally
            });
            Compared::new(cell.clone(), tallies)
        });
        compared.collect()
    }
}

/// Two sides of which nothing was sampled are not equal: not when a cell that differs is asked again,
/// and not from the start.
pub(crate) fn cells_without_samples_are_found() -> Result<()> {
    for silent_from in [200, 500] {
        let mut made = Made::new(0);
        made.outcomes[0][1] = vec!["x←9"];
        let all = made.cells.clone();
        let compared = differences(&all, |cells, round| {
            let times = if round.at_once <= silent_from { 0 } else { round.times };
            Ok(made.ask(cells, Round { times, ..round }))
        });
        match compared {
            Err(error) => ensure!(error.to_string().contains("cells have samples"), "{error}"),
            Ok(found) => bail!("without samples {} cells differ", found.len()),
        }
    }
    Ok(())
}

/// Chance and lost answers are not differences. What is planted is found, and nothing else.
pub(crate) fn planted_cells_are_found() -> Result<()> {
    for seed in 0..SEEDS {
        let lossy = || Made { lost: 20, ..Made::new(seed) };
        let found = lossy().differences()?;
        ensure!(found.is_empty(), "seed {seed}: {found:#?}");

        // In the order of the cells, most of those that seem to differ come before this one.
        let mut made = lossy();
        let planted = CELLS - 1 - made.random.below(CELLS / 2);
        made.outcomes[planted][1] = vec!["x←9"];
        expect_one(seed, made, planted)?;

        // An endpoint that only one side chooses. These have two endpoints and more.
        let mut made = Made::new(seed);
        let planted = made.random.below(CELLS / 6) * 6 + 2 + made.random.below(4);
        made.outcomes[planted][(seed % 2) as usize].pop();
        expect_one(seed, made, planted)?;

        // The same endpoints, one of them twice as often.
        let mut made = Made::new(seed);
        for outcomes in made.outcomes.iter_mut().skip(4).step_by(6) {
            outcomes[1].insert(0, "a←1");
        }
        let found = made.differences()?;
        let expected = found.len() == 1 && found[0].starts_with("s0 | all | shares");
        ensure!(expected, "seed {seed}: {found:#?}");
    }
    Ok(())
}

/// 200 flows with equal pasts on both sides, whose new endpoints and replies are those of equal rules.
fn flows(random: &mut Random) -> [Vec<Observed>; 2] {
    [(); 2].map(|()| {
        let flow = |n: usize| {
            let muted = random.below(2) == 0;
            Observed {
                key: format!("flows {}", n % 40),
                protocol: if n % 40 < 20 { Protocol::Tcp } else { Protocol::Udp },
                half_open: n % 40 < 10,
                state: Some(State::Ready),
                elsewhere: false,
                muted,
                stays: random.below(2) == 0,
                reply: if muted { "silence" } else { "answered" }.to_owned(),
            }
        };
        (0..200).map(flow).collect()
    })
}

/// One flow of the agent that stays at an endpoint that is gone, or is silent or refused, beside
/// flows that get other endpoints by chance.
pub(crate) fn one_different_flow_is_found() -> Result<()> {
    let objects = Objects::new();
    for seed in 0..SEEDS / 4 {
        let mut random = Random::new(seed);
        let [reference, shunt] = flows(&mut random);
        let found = flows::differences(&reference, &shunt);
        ensure!(found.is_empty(), "seed {seed}: {found:#?}");
        for planted in 0..shunt.len() {
            let stuck: fn(&mut Observed) = |flow: &mut Observed| flow.state = Some(State::Absent);
            let elsewhere = |flow: &mut Observed| flow.elsewhere = true;
            let none = |flow: &mut Observed| flow.state = None;
            let refused = |flow: &mut Observed| flow.reply = "refused".to_owned();
            for plant in [stuck, elsewhere, none, refused] {
                let mut shunt = shunt.clone();
                plant(&mut shunt[planted]);
                let found = flows::differences(&reference, &shunt);
                let key = &shunt[planted].key;
                // The endpoints of the reference can all be muted, or none.
                let is_comparable = shunt[planted].state != Some(State::Ready)
                    || shunt[planted].elsewhere
                    || reference
                        .iter()
                        .any(|flow| flow.key == *key && flow.muted == shunt[planted].muted);
                let expected = usize::from(is_comparable);
                ensure!(found.len() == expected, "seed {seed}, {:?}: {found:#?}", shunt[planted]);
                let excused = found.iter().find_map(|found| reason_of_flow(found, &objects));
                ensure!(excused.is_none(), "{:?}: {excused:?}", shunt[planted]);
            }
        }
    }
    Ok(())
}

fn expect_one(seed: u64, made: Made, planted: usize) -> Result<()> {
    let (place, found) = (format!("10.0.0.1:{planted}/TCP"), made.differences()?);
    ensure!(found.len() == 1 && found[0].contains(&place), "seed {seed}: {found:#?}, not {place}");
    Ok(())
}

/// One rule in the node of the agent, which drops the packets of a single cell.
pub(crate) fn a_planted_rule_is_found(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    let lab = &world.shunt.lab;
    for (number, policy) in [(11, "Cluster"), (12, "Local"), (13, "Cluster"), (14, "Local")] {
        let name = format!("s{number}");
        let service = Service::everywhere(&name, number);
        world.put(service.spec(&format!("externalTrafficPolicy: {policy}")))?;
        world.put(EndpointSlice::of(&name, &lab.pods()))?;
    }
    let cells = world.cells()?;
    ensure!(cells.len() > 500, "only {} cells", cells.len());
    lab.node.nft(
        "table inet planted {
             chain c {
                 type filter hook prerouting priority -350
                 ip6 saddr 2001:db8:2::20 ip6 daddr 2001:db8:51::14 udp dport 80 drop
             }
         }",
    )?;
    let found = world.differences(&cells)?;
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    let place = "s14 | node-2 | [2001:db8:51::14]:80/UDP |";
    ensure!(found.len() == 1 && found[0].starts_with(place), "{found:#?}, not {place}");
    Ok(())
}

/// A rule in the node of the agent that drops the answers of pods to UDP flows.
pub(crate) fn a_planted_silence_is_found(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    world.shunt.lab.node.nft(
        "table inet planted {
             chain c {
                 type filter hook prerouting priority -350
                 ip saddr 10.244.0.0/16 udp sport 8081 drop
             }
         }",
    )?;
    // The first flows of this seed are UDP over IPv4.
    let Err(error) = flows::play(&world, 2, 1) else { bail!("it is not found") };
    let text = format!("{error:#}");
    let found = text.contains("shunt: endpoint Some(Ready)") && text.contains("silence");
    ensure!(found, "another error: {text}");
    Ok(())
}
