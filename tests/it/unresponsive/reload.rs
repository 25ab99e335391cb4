//! A changed mode in the configuration file, while the agent runs.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::scene::{Scene, at_once, connect_all, endpoint, kill, revive, times};
use crate::reload::configured::{ConfigFile, reloads, wait_until};
use crate::world::World;

const VIP: &str = "10.96.0.10:80";

/// A scene whose mode can change.
pub(super) struct Changing {
    pub(super) scene: Scene,
    config: ConfigFile,
}

fn settings(mode: &str) -> String {
    format!("clusterCIDR: 10.244.0.0/16,fd00:10:244::/56\nshunt: {{ejectUnresponsive: {mode}}}\n")
}

impl Changing {
    pub(super) fn start(mode: &str) -> Result<Changing> {
        let (world, config) = (World::with_web()?, ConfigFile::new(&settings(mode))?);
        let path = config.path().display().to_string();
        let agent = world.plain_agent().arg("--config").arg(path).start()?;
        Ok(Changing { scene: Scene { world, agent }, config })
    }

    pub(super) fn set(&self, mode: &str) -> Result<()> {
        let (before, ..) = reloads(&self.scene.agent)?;
        self.config.replace(&settings(mode))?;
        wait_until("reloaded", || Ok(reloads(&self.scene.agent)?.0 > before))?;
        ensure!(self.scene.status()?["mode"] == mode);
        Ok(())
    }

    /// Waits until table and thread exist, or do not.
    fn wait_for_search(&self, exists: bool) -> Result<()> {
        wait_until(&format!("the search exists: {exists}"), || {
            let tables = self.scene.world.lab.node.output("nft", &["list", "tables"])?;
            let tasks = fs::read_dir(format!("/proc/{}/task", self.scene.agent.pid()))?;
            // A thread may end between the listing and the look at its name.
            let names = tasks.flatten().map(|it| fs::read_to_string(it.path().join("comm")));
            let is_running = names.flatten().any(|name| name.trim() == "unresponsive");
            Ok(tables.contains("shunt-unresponsive") == exists && is_running == exists)
        })
    }

    /// Returns the elements of the map of endpoints, in order.
    fn endpoints(&self) -> Result<Vec<String>> {
        let node = &self.scene.world.lab.node;
        let listed = node.output("nft", &["list", "map", "ip", "shunt", "endpoints"])?;
        let mut lines: Vec<String> =
            listed.lines().map(|line| line.trim().trim_end_matches(',').to_owned()).collect();
        lines.sort_unstable();
        Ok(lines)
    }
}

#[test]
fn mode_changes_while_the_agent_runs() -> Result<()> {
    let changing = Changing::start("off")?;
    changing.wait_for_search(false)?;
    let scene = &changing.scene;
    let lab = &scene.world.lab;
    let before = changing.endpoints()?;

    changing.set("observe")?;
    changing.wait_for_search(true)?;
    kill(&lab.pod3)?;
    scene.wait("found", |scene| {
        // One of three connections hangs.
        let _ = connect_all(&times(4, &lab.pod2, VIP)?, Duration::from_millis(1_500));
        Ok(scene.in_state("unresponsive")? == [endpoint(&lab.pod3)])
    })?;
    assert_eq!(changing.endpoints()?, before);

    // What observe has found is ejected without another hint.
    changing.set("on")?;
    scene.wait_ejected(&[endpoint(&lab.pod3)])?;
    assert_ne!(changing.endpoints()?, before);
    connect_all(&times(12, &lab.pod2, VIP)?, at_once())?;

    // A change of other fields leaves it ejected.
    changing.config.replace(&format!("{}oomScoreAdj: 7\n", settings("on")))?;
    scene.agent.wait_for_log(&["changed=\"oomScoreAdj\""])?;
    assert_eq!(scene.in_state("ejected")?, [endpoint(&lab.pod3)]);

    changing.set("observe")?;
    scene.wait_ejected(&[])?;
    assert_eq!(scene.in_state("unresponsive")?, [endpoint(&lab.pod3)]);
    assert_eq!(changing.endpoints()?, before);

    changing.set("on")?;
    scene.wait_ejected(&[endpoint(&lab.pod3)])?;
    changing.set("off")?;
    changing.wait_for_search(false)?;
    scene.wait_ejected(&[])?;
    wait_until("restored", || Ok(changing.endpoints()? == before))?;
    assert_eq!(scene.status()?["endpoints"].as_array().context("no endpoints")?.len(), 0);
    assert_eq!(scene.metric("shunt_endpoints_unresponsive")?, 0.0);

    // A search that follows another one begins with nothing.
    changing.set("on")?;
    changing.wait_for_search(true)?;
    scene.connect_until_ejected(&times(12, &lab.pod2, VIP)?, &[endpoint(&lab.pod3)])?;
    revive(&lab.pod3)?;
    scene.wait_ejected(&[])
}

/// Each mode replaces the one before, however fast they follow each other.
#[test]
fn last_of_many_modes_counts() -> Result<()> {
    let changing = Changing::start("on")?;
    changing.wait_for_search(true)?;
    for mode in ["off", "on", "off", "observe", "off", "on", "off"] {
        changing.set(mode)?;
    }
    changing.wait_for_search(false)?;
    for mode in ["on", "off", "observe", "off", "on"] {
        changing.set(mode)?;
    }
    changing.wait_for_search(true)?;
    let lab = &changing.scene.world.lab;
    let calls = times(12, &lab.pod2, VIP)?;
    changing.scene.warm_up(&calls)?;
    kill(&lab.pod3)?;
    changing.scene.connect_until_ejected(&calls, &[endpoint(&lab.pod3)])?;
    assert!(!changing.scene.agent.log().contains("cannot look for endpoints"));
    Ok(())
}

#[test]
fn flag_overrides_the_file_at_a_reload() -> Result<()> {
    let (world, config) = (World::with_web()?, ConfigFile::new(&settings("observe"))?);
    let path = config.path().display().to_string();
    let agent = world.plain_agent().arg("--config").arg(path).arg("--eject-unresponsive=off");
    let scene = Scene { agent: agent.start()?, world };
    let changing = Changing { scene, config };
    changing.config.replace(&settings("on"))?;
    wait_until("reloaded", || Ok(reloads(&changing.scene.agent)?.0 > 0.0))?;
    assert_eq!(changing.scene.status()?["mode"], "off");
    changing.wait_for_search(false)?;
    Ok(())
}
