//! Two Services that want one frontend: the kind of frontend decides, then age, whatever came first.

use anyhow::Result;
use shunt_testbed::{Exposition, Host, METRICS_PORT, Protocol, Service};

use super::changes::Changes;
use crate::table::{Case, Frontend, Table};
use crate::world::{World, cluster_ip_service, manifest};

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claimant {
    Older,
    Newer,
}

use Claimant::{Newer, Older};

impl Claimant {
    /// The name of the older one comes later in the alphabet, so age decides and nothing else.
    fn name(self) -> &'static str {
        match self {
            Older => "z-older",
            Newer => "a-newer",
        }
    }

    fn file(self) -> String {
        format!("{}.yaml", self.name())
    }

    fn server(self) -> &'static str {
        match self {
            Older => "pod-1",
            Newer => "pod-2",
        }
    }

    /// The Service, with one frontend that the other has too and a ClusterIP besides.
    fn manifest(self, world: &World, contested: Frontend) -> String {
        let (year, number) = match self {
            Older => (2020, 1),
            Newer => (2021, 2),
        };
        let own = [format!("10.96.0.5{number}"), format!("fd00:96::5{number}")];
        let node_port = (contested == Frontend::NodePort).then_some(30080);
        let service = Service::new(self.name())
            .metadata(&format!("creationTimestamp: \"{year}-01-01T00:00:00Z\""));
        let service = crate::world::on_all_protocols(service, 80, node_port);
        let service = match contested {
            Frontend::ClusterIp => service.cluster_ips(&["10.96.0.10", "fd00:96::10"]),
            _ => service.cluster_ips(&[&own[0], &own[1]]),
        };
        let service = match contested {
            Frontend::ExternalIp => service.external_ips(&["198.51.100.10", "2001:db8:51::10"]),
            Frontend::LoadBalancer => service.load_balancer(&["203.0.113.10", "2001:db8:113::10"]),
            Frontend::ClusterIp | Frontend::NodePort => service,
        };
        manifest(&service, self.name(), &[self.host(world)])
    }

    fn host(self, world: &World) -> &Host {
        match self {
            Older => &world.lab.pod1,
            Newer => &world.lab.pod2,
        }
    }
}

struct Contest<'a> {
    world: &'a World,
    changes: Changes,
    frontend: Frontend,
}

impl Contest<'_> {
    fn appears(&self, claimant: Claimant) -> Result<()> {
        let manifest = claimant.manifest(self.world, self.frontend);
        self.changes.write(self.world, &claimant.file(), manifest)
    }

    fn goes(&self, claimant: Claimant) -> Result<()> {
        self.world.manifests.remove(&claimant.file())?;
        self.changes.settle(self.world)
    }

    #[track_caller]
    fn won_by(&self, claimant: Claimant, step: &str) -> Result<()> {
        let frontend = self.frontend;
        let step = format!("{frontend:?}, {step}");
        Table::ALL.check(&step, |case: Case| {
            if case.frontend == frontend {
                let client = self.world.lab.from(&self.world.lab.client);
                client.probe(case.protocol, case.address()).times(3).reaches(&[claimant.server()]);
            }
            Ok(())
        })
    }
}

#[test]
fn older_service_wins_contested_frontend_until_it_is_gone() -> Result<()> {
    let mut frontends: Vec<_> = Table::ALL.cases().iter().map(|c| c.frontend).collect();
    frontends.dedup();
    for frontend in frontends {
        for order in [[Older, Newer], [Newer, Older]] {
            let world = World::new()?;
            let mut contest = Contest { world: &world, changes: Changes::start(&world)?, frontend };
            contest.appears(order[0])?;
            contest.won_by(order[0], "alone")?;
            contest.appears(order[1])?;
            contest.won_by(Older, "both")?;
            contest.changes.agent()?.wait_for_log(&["z-older", "a-newer"])?;

            contest.changes.kill()?;
            contest.changes.restart(&world)?;
            contest.won_by(Older, "after a restart")?;

            contest.goes(Older)?;
            contest.won_by(Newer, "the older is gone")?;
            contest.appears(Older)?;
            contest.won_by(Older, "the older is back")?;
            contest.goes(Newer)?;
            contest.won_by(Older, "the newer is gone")?;
        }
    }
    Ok(())
}

/// Only what is contested is lost: other ports of the address, other frontends of the Service.
#[test]
fn losing_service_keeps_uncontested_frontends() -> Result<()> {
    let world = World::new()?;
    let changes = Changes::start(&world)?;
    let contest = Contest { world: &world, changes, frontend: Frontend::LoadBalancer };
    contest.appears(Newer)?;
    contest.appears(Older)?;
    for (to, server) in [
        ("10.96.0.51:80", "pod-1"),
        ("10.96.0.52:80", "pod-2"),
        ("[fd00:96::51]:80", "pod-1"),
        ("[fd00:96::52]:80", "pod-2"),
    ] {
        for protocol in Protocol::ALL {
            let client = world.lab.from(&world.lab.client);
            client.probe(protocol, to).times(3).reaches(&[server]);
        }
    }
    Ok(())
}

/// How one Service names the address of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grab {
    ExternalIp,
    Vip,
}

/// The ClusterIPs of a Service that others name as theirs.
const CONTESTED: [&str; 2] = ["10.96.0.10", "fd00:96::10"];

impl Grab {
    /// An older Service, first by name too, that names these addresses; on pod-2.
    fn manifest(self, world: &World, addresses: &[&str]) -> String {
        let service = cluster_ip_service("a-grabber", &["10.96.0.66", "fd00:96::66"])
            .metadata("creationTimestamp: \"2020-01-01T00:00:00Z\"");
        let service = match self {
            Grab::ExternalIp => service.external_ips(addresses),
            Grab::Vip => service.load_balancer(addresses),
        };
        manifest(&service, "a-grabber", &[&world.lab.pod2])
    }

    /// What the agent says of it.
    fn reason(self) -> &'static str {
        match self {
            Grab::ExternalIp => "ClusterIPs take precedence over ExternalIPs",
            Grab::Vip => "ClusterIPs take precedence over load-balancer VIPs",
        }
    }
}

/// The Service to which the ClusterIPs belong; on pod-1.
fn owner(world: &World) -> String {
    let service = cluster_ip_service("z-owner", &CONTESTED)
        .metadata("creationTimestamp: \"2021-01-01T00:00:00Z\"");
    manifest(&service, "z-owner", &[&world.lab.pod1])
}

/// From outside, from a pod and from the node, all connections reach this server.
#[track_caller]
fn all_reach(world: &World, addresses: &[&str], server: &str) {
    for address in addresses {
        let to =
            if address.contains(':') { format!("[{address}]:80") } else { format!("{address}:80") };
        for host in [&world.lab.client, &world.lab.pod1, &world.lab.pod2, &world.lab.node] {
            for protocol in Protocol::ALL {
                world.lab.from(host).probe(protocol, &to).times(3).reaches(&[server]);
            }
        }
    }
}

/// CVE-2020-8554's class: nobody takes the ClusterIP of another Service.
#[test]
fn cluster_ip_is_not_taken_by_an_older_service_that_names_it() -> Result<()> {
    for grab in [Grab::ExternalIp, Grab::Vip] {
        for owner_first in [true, false] {
            let world = World::new()?;
            let mut changes = Changes::start(&world)?;
            let grabber = grab.manifest(&world, &CONTESTED);
            if owner_first {
                changes.write(&world, "z-owner.yaml", owner(&world))?;
                changes.write(&world, "a-grabber.yaml", &grabber)?;
            } else {
                changes.write(&world, "a-grabber.yaml", &grabber)?;
                all_reach(&world, &CONTESTED, "pod-2");
                changes.write(&world, "z-owner.yaml", owner(&world))?;
            }
            all_reach(&world, &CONTESTED, "pod-1");
            let agent = changes.agent()?;
            agent.wait_for_log(&["default/a-grabber", "default/z-owner", grab.reason()])?;
            agent.wait_for_answer(METRICS_PORT, "/metrics", |answer| {
                let scraped = Exposition::parse(&answer.body).ok()?;
                let conflicts = scraped.value("shunt_frontend_conflicts", &[])?;
                // Two addresses, three protocols.
                (conflicts == 6.0).then_some(())
            })?;

            changes.kill()?;
            changes.restart(&world)?;
            all_reach(&world, &CONTESTED, "pod-1");

            // Again, with one that is only now given the address.
            changes.write(&world, "a-grabber.yaml", grab.manifest(&world, &[]))?;
            all_reach(&world, &CONTESTED, "pod-1");
            changes.write(&world, "a-grabber.yaml", &grabber)?;
            all_reach(&world, &CONTESTED, "pod-1");
            all_reach(&world, &["10.96.0.66", "fd00:96::66"], "pod-2");

            world.manifests.remove("z-owner.yaml")?;
            changes.settle(&world)?;
            all_reach(&world, &CONTESTED, "pod-2");
            changes.write(&world, "z-owner.yaml", owner(&world))?;
            all_reach(&world, &CONTESTED, "pod-1");
        }
    }
    Ok(())
}

#[test]
fn load_balancer_vip_is_not_taken_by_an_older_external_ip() -> Result<()> {
    const ADDRESSES: [&str; 2] = ["203.0.113.10", "2001:db8:113::10"];
    for owner_first in [true, false] {
        let world = World::new()?;
        let mut changes = Changes::start(&world)?;
        let service = cluster_ip_service("z-owner", &CONTESTED)
            .metadata("creationTimestamp: \"2021-01-01T00:00:00Z\"")
            .load_balancer(&ADDRESSES);
        let owner = manifest(&service, "z-owner", &[&world.lab.pod1]);
        let grabber = Grab::ExternalIp.manifest(&world, &ADDRESSES);
        let mut files = [("z-owner.yaml", &owner), ("a-grabber.yaml", &grabber)];
        if !owner_first {
            files.reverse();
        }
        for (file, content) in files {
            changes.write(&world, file, content)?;
        }
        all_reach(&world, &ADDRESSES, "pod-1");
        let reason = "load-balancer VIPs take precedence over ExternalIPs";
        changes.agent()?.wait_for_log(&["default/a-grabber", "default/z-owner", reason])?;
        changes.kill()?;
        changes.restart(&world)?;
        all_reach(&world, &ADDRESSES, "pod-1");
    }
    Ok(())
}

/// A Service may name its own ClusterIP: it keeps it all the same.
#[test]
fn cluster_ip_that_a_service_names_itself_stays_its_own() -> Result<()> {
    let world = World::new()?;
    let changes = Changes::start(&world)?;
    changes.write(&world, "a-grabber.yaml", Grab::Vip.manifest(&world, &CONTESTED))?;
    for own in [Grab::ExternalIp, Grab::Vip] {
        let service = cluster_ip_service("z-owner", &CONTESTED)
            .metadata("creationTimestamp: \"2021-01-01T00:00:00Z\"");
        let service = match own {
            Grab::ExternalIp => service.external_ips(&CONTESTED),
            Grab::Vip => service.load_balancer(&CONTESTED),
        };
        let manifest = manifest(&service, "z-owner", &[&world.lab.pod1]);
        changes.write(&world, "z-owner.yaml", manifest)?;
        all_reach(&world, &CONTESTED, "pod-1");
    }
    Ok(())
}
