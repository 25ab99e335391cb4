//! The agent is replaced by another build while there is traffic: nothing of it is lost.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use shunt_core::plan::LAYOUT_COMMENT;
use shunt_fake_apiserver::{Api, Case, both};
use shunt_testbed::{Agent, Protocol, Scratch, Traffic};

use crate::world::{SHUNT, World};

pub(crate) fn cases() -> Vec<Case> {
    both![another_version_takes_over_unnoticed, another_layout_replaces_the_tables_unnoticed,]
}

/// Questions of each flow before and after each step.
const BESIDE: usize = 20;

/// The version and the layout of this build, and those of the other one.
const VERSION: [&str; 2] = [env!("CARGO_PKG_VERSION"), "0.0.9"];
const LAYOUT: [&str; 2] = [LAYOUT_COMMENT, "shunt layout 1"];

/// Another build: the program in another file, where these constants are others.
struct Build {
    path: PathBuf,
    version: &'static str,
    layout: &'static str,
    _folder: Scratch,
}

impl Build {
    fn with(constants: &[[&'static str; 2]]) -> Result<Self> {
        let mut program = fs::read(SHUNT)?;
        for [own, other] in constants {
            ensure!(own.len() == other.len() && own != other, "{own:?} for {other:?}");
            let places = places(&program, own.as_bytes());
            ensure!(!places.is_empty(), "{SHUNT} has no text {own:?}");
            for place in places {
                program[place..place + own.len()].copy_from_slice(other.as_bytes());
            }
        }
        let folder = Scratch::new()?;
        let path = folder.path().join("shunt-next");
        fs::write(&path, program)?;
        fs::set_permissions(&path, fs::metadata(SHUNT)?.permissions())?;
        let constant = |of: [&'static str; 2]| of[usize::from(constants.contains(&of))];
        Ok(Self { path, version: constant(VERSION), layout: constant(LAYOUT), _folder: folder })
    }

    /// Asserts that this build works on the node.
    fn assert_acts(&self, world: &World) -> Result<()> {
        let told = crate::status::wait_for(world, &["OK"])?;
        ensure!(told.contains(&format!("shunt {}", self.version)), "{}: {told}", self.version);
        let table = world.lab.node.output("nft", &["list", "table", "ip", "shunt"])?;
        ensure!(table.contains(self.layout), "{}: {table}", self.layout);
        Ok(())
    }
}

/// Where a text begins.
fn places(program: &[u8], text: &[u8]) -> Vec<usize> {
    let starts = program.iter().enumerate().filter(|(_, byte)| **byte == text[0]);
    starts.map(|(at, _)| at).filter(|at| program[*at..].starts_with(text)).collect()
}

/// Replaces this build and another one by each other in all ways: one ends before the other starts, asked to
/// or killed, and the order of a rolling update with surge, in which the next one waits. `after` is called
/// when one has taken over. All packets are delivered, but for one while tables are replaced.
fn replace(
    world: &World,
    constants: &[[&'static str; 2]],
    flag: &str,
    after: impl Fn() -> Result<()>,
) -> Result<()> {
    let builds = [Build::with(&[])?, Build::with(constants)?];
    let start = |next: bool| {
        let build = &builds[usize::from(next)].path;
        world.agent_of(build, &world.kubeconfig)?.arg(flag).spawn()
    };
    let mut agent = start(false)?;
    agent.wait_ready()?;
    let lab = &world.lab;
    let mut flows = vec![
        (&lab.client, Protocol::Tcp, "10.96.0.10:80"),
        (&lab.client, Protocol::Tcp, "[2001:db8:2::10]:30080"),
        (&lab.client, Protocol::Udp, "203.0.113.10:80"),
        (&lab.pod2, Protocol::Tcp, "[fd00:96::10]:80"),
        (&lab.pod2, Protocol::Udp, "10.96.0.10:80"),
    ];
    let keeps_tables = !constants.contains(&LAYOUT);
    // Not where tables are replaced: of the node's connections to its own NodePort, one was refused in about
    // 90 replacements under load. A packet may be between the old base chain and the new one then, which is
    // not proved.
    if keeps_tables {
        flows.push((&lab.node, Protocol::Tcp, "192.0.2.10:30080"));
    }
    let traffic = Traffic::start(flows, Duration::from_millis(1))?;
    let mut next_build = true;
    for killed in [false, true] {
        for overlapping in [false, true] {
            traffic.more(BESIDE)?;
            let end = |agent: Agent| if killed { agent.kill() } else { agent.stop() };
            agent = if overlapping {
                let next = start(next_build)?;
                next.wait_for_log(&["another shunt (process", "waiting until it ends"])?;
                traffic.more(BESIDE)?;
                end(agent)?;
                next
            } else {
                end(agent)?;
                traffic.more(BESIDE)?;
                start(next_build)?
            };
            agent.wait_ready()?;
            builds[usize::from(next_build)].assert_acts(world)?;
            after()?;
            traffic.more(BESIDE)?;
            next_build = !next_build;
        }
    }
    let delivered = traffic.stop();
    if keeps_tables {
        delivered.all()?;
    } else {
        delivered.all_but_one_untranslated()?;
    }
    world.mark()?;
    agent.stop()
}

fn another_version_takes_over_unnoticed(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    world.start()?.stop()?;
    let generation = world.generation()?;
    replace(&world, &[VERSION], "--own-tables=false", || {
        assert_eq!(world.generation()?, generation, "something was written");
        Ok(())
    })
}

/// An upgrade to another layout of the tables, and the way back.
fn another_layout_replaces_the_tables_unnoticed(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    replace(&world, &[VERSION, LAYOUT], "--own-tables=true", || Ok(()))
}
