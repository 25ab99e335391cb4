//! What goes wrong, one thing after the other.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use shunt_fake_apiserver::{Answer, Fault, Kind, Verb};

use shunt_testbed::Random;

use crate::agents::{Agents, End};
use crate::cluster::Cluster;

/// How much there is, and for how long.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// The whole soak, but for what is before and after.
    pub(crate) lasts: Duration,
    /// Services that change.
    pub(crate) services: usize,
    /// Objects that are changed each second.
    pub(crate) changes_per_second: u32,
    /// Between two disturbances. One that takes time takes up to twice as long.
    pub(crate) step: Duration,
}

/// The number of different disturbances.
pub(crate) const KINDS: usize = ALL.len();

/// How often each thing happened.
pub(crate) type Counts = BTreeMap<&'static str, usize>;

/// Something that goes wrong.
#[derive(Clone, Copy)]
enum Disturbance {
    Cut,
    Away,
    Blocked,
    Forgetful,
    Refusing,
    Broken,
    Neighbour,
    Damage,
    Replaced(End),
    Overlapping(End),
}

use Disturbance::*;

/// The last four replace agents: in the first half only, so that the memory of one is seen for the second.
const ALL: [Disturbance; 12] = [
    Cut,
    Away,
    Blocked,
    Forgetful,
    Refusing,
    Broken,
    Neighbour,
    Damage,
    Replaced(End::Stopped),
    Replaced(End::Killed),
    Overlapping(End::Stopped),
    Overlapping(End::Killed),
];
/// Lets things go wrong for as long as the plan says; at the end all is repaired.
pub(crate) fn disturb(
    cluster: &Cluster,
    agents: &mut Agents,
    plan: &Plan,
    mut random: Random,
) -> Result<Counts> {
    let mut happened = Counts::new();
    let started = Instant::now();
    for (until, choices) in [(plan.lasts / 2, &ALL[..]), (plan.lasts, &ALL[..8])] {
        // Each once in any case, in an order of its own, then as it comes.
        let mut first = choices.to_vec();
        while !first.is_empty() || started.elapsed() < until {
            let disturbance = match first.len() {
                0 => *random.one_of(choices),
                left => first.swap_remove(random.below(left)),
            };
            let what = disturbance.happen(cluster, agents, plan, &mut random)?;
            *happened.entry(what).or_default() += 1;
            thread::sleep(plan.step);
            agents.sample()?;
        }
        // The one that stays shall be the only one, and own its tables as agents do.
        if until < plan.lasts {
            agents.replace(cluster, End::Stopped, true, Duration::ZERO)?;
            agents.current()?.wait_ready()?;
        }
    }
    Ok(happened)
}

impl Disturbance {
    /// Lets it happen, and repairs what would not repair itself. Returns what it is called.
    fn happen(
        self,
        cluster: &Cluster,
        agents: &mut Agents,
        plan: &Plan,
        random: &mut Random,
    ) -> Result<&'static str> {
        let (gate, standin, node) = (&cluster.gate, cluster.standin()?, &cluster.lab.node);
        let some_time = plan.step.mul_f64(0.02 * random.below(100) as f64);
        Ok(match self {
            Cut => {
                gate.cut();
                "API: connections cut"
            }
            Away => {
                gate.refuse()?;
                thread::sleep(some_time);
                gate.reopen()?;
                "API: away for some time"
            }
            Blocked => {
                gate.block();
                thread::sleep(some_time);
                gate.reopen()?;
                "API: nothing gets through for some time"
            }
            Forgetful => {
                gate.refuse()?;
                thread::sleep(some_time);
                standin.compact();
                gate.reopen()?;
                "API: restarted, history forgotten (410)"
            }
            Refusing => {
                let answers = [
                    Answer::Status(500),
                    Answer::RetryAfter(429, 1),
                    Answer::Status(410),
                    Answer::Body(b"{\"kind\": \"nonsense\"".to_vec()),
                    Answer::CutAfter(3_000),
                ];
                standin.misbehave(
                    Fault::new(random.one_of(&answers).clone()).on(Verb::Watch).times(4),
                );
                gate.cut();
                thread::sleep(some_time);
                standin.behave();
                "API: 500, 429, 410, garbage, half answers"
            }
            Broken => {
                // An agent that does not run cannot be disturbed.
                let _ =
                    standin.break_watches(*random.one_of(&[Kind::Service, Kind::EndpointSlice]));
                "API: watches broken off"
            }
            Neighbour => {
                for n in 0..5 {
                    node.nft(&format!(
                        "table inet neighbour {{ set s {{ type ipv4_addr; elements = {{ 192.0.2.{n} }}; }}; }}"
                    ))?;
                    node.nft("delete table inet neighbour")?;
                }
                "nftables: ten transactions of a neighbour"
            }
            Damage => {
                damage(cluster, plan, random);
                "nftables: another process tries to damage the tables"
            }
            Replaced(end) => {
                let owns = random.below(3) > 0;
                agents.replace(cluster, end, owns, some_time)?;
                match end {
                    End::Stopped => "agent: SIGTERM, started some time later",
                    End::Killed => "agent: SIGKILL, started some time later",
                }
            }
            Overlapping(end) => {
                let owns = random.below(3) > 0;
                agents.overlap(cluster, end, owns)?;
                match end {
                    End::Stopped => "agent: the next waits, SIGTERM",
                    End::Killed => "agent: the next waits, SIGKILL",
                }
            }
        })
    }
}

/// Changes elements of ours, except for those of Services that must not change. The kernel refuses
/// it while the agent owns the tables; else the agent repairs it.
fn damage(cluster: &Cluster, plan: &Plan, random: &mut Random) {
    let n = random.below(plan.services);
    let ip = format!("10.97.{}.{}", n / 250, 1 + n % 250);
    for command in [
        format!("delete element ip shunt cluster-ips {{ {ip} }}"),
        "add element ip shunt cluster-ips { 10.98.7.6 }".to_owned(),
        "add element ip shunt hairpin { 10.98.7.6 . 10.98.7.6 }".to_owned(),
        format!("delete element ip shunt service-ips {{ {ip} . udp . 80 }}"),
    ] {
        let _ = cluster.lab.node.nft(&command);
    }
}
