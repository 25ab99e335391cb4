//! Two Services that want one frontend: the older has it, whatever came first.

use anyhow::Result;
use shunt_lab::{Host, Protocol, Service};

use crate::table::{Case, Changes, Frontend, Scenario};
use crate::world::{World, manifest};

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
            Frontend::Vip => service.load_balancer(&["203.0.113.10", "2001:db8:113::10"]),
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
        Scenario::Conflict.check(&step, |case: Case| {
            if case.frontend == frontend {
                let client = self.world.lab.from(&self.world.lab.client);
                client.probe(case.protocol, case.address()?).times(3).reaches(&[claimant.server()]);
            }
            Ok(())
        })
    }
}

#[test]
fn the_older_service_has_what_two_want_and_the_other_takes_over() -> Result<()> {
    let mut frontends: Vec<_> = Scenario::Conflict.cases().iter().map(|c| c.frontend).collect();
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
fn the_loser_keeps_what_nobody_else_wants() -> Result<()> {
    let world = World::new()?;
    let changes = Changes::start(&world)?;
    let contest = Contest { world: &world, changes, frontend: Frontend::Vip };
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
