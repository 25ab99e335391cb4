//! How the file may change, and what becomes of a change that cannot be used.

use anyhow::Result;
use nix::sys::signal::Signal;

use super::configured::{Configured, reloads};
use crate::world::status_text;

fn bit(bit: u8) -> String {
    format!("nftables: {{masqueradeBit: {bit}}}\n")
}

fn mark(bit: u8) -> String {
    format!("0x{:08x}", 1_u32 << bit)
}

#[test]
fn a_file_may_be_written_replaced_and_removed_for_a_while() -> Result<()> {
    let world = Configured::new(&bit(1))?;
    let agent = world.agent().start()?;
    world.config.write(&bit(2))?;
    world.wait_for_rules(&mark(2), true)?;
    world.config.replace(&bit(3))?;
    world.wait_for_rules(&mark(3), true)?;
    world.config.remove()?;
    agent.wait_for_log(&["ERROR", "the previous one stays", "cannot read"])?;
    world.wait_for_rules(&mark(3), true)?;
    world.config.write(&bit(4))?;
    world.wait_for_rules(&mark(4), true)?;
    agent.stop()
}

#[test]
fn a_mounted_config_map_is_followed() -> Result<()> {
    let world = Configured::new("")?;
    world.config.mount(1, &bit(1))?;
    let agent = world.agent().start()?;
    for version in 2..6 {
        world.config.mount(version.into(), &bit(version))?;
        world.wait_for_rules(&mark(version), true)?;
    }
    agent.stop()
}

#[test]
fn invalid_configuration_is_logged_and_changes_nothing() -> Result<()> {
    let world = Configured::new(&bit(1))?;
    let agent = world.agent().start()?;
    assert_eq!(reloads(&agent)?, (0.0, 0.0, true));

    world.config.write("nftables: {masqueradeBit: 32, masqueradeAll: 'yes'}\nmode: userspace\n")?;
    agent.wait_for_log(&["ERROR", "nftables.masqueradeBit", "write 0 to 31", "line=3"])?;
    agent.wait_for_log(&["ERROR", "nftables.masqueradeAll"])?;
    agent.wait_for_log(&["ERROR", "field=mode"])?;
    agent.wait_for_log(&["ERROR", "the previous one stays", "3 invalid values"])?;
    assert_eq!(reloads(&agent)?, (0.0, 1.0, false));
    let told = status_text(&world.lab.node)?;
    assert!(told.starts_with("WARNING  the last written configuration is not in"), "{told}");
    assert!(world.rules()?.contains(&mark(1)));

    world.config.write("{")?;
    agent.wait_for_log(&["ERROR", "not YAML or JSON"])?;
    // Back to what is in force: that is a success, too.
    world.config.write(&bit(1))?;
    agent.wait_for_log(&["reloaded the configuration; nothing has changed"])?;
    world.config.write(&format!("{}hostnameOveride: x\n", bit(2)))?;
    agent.wait_for_log(&["WARN", "did you mean hostnameOverride?"])?;
    agent.wait_for_log(&["applied", "changed=\"nftables.masqueradeBit\""])?;
    assert_eq!(reloads(&agent)?, (2.0, 2.0, true));
    world.wait_for_rules(&mark(2), true)?;
    let told = status_text(&world.lab.node)?;
    assert!(told.starts_with("OK  "), "{told}");
    agent.stop()
}

#[test]
fn sighup_reads_the_configuration_again() -> Result<()> {
    let world = Configured::new(&bit(1))?;
    let agent = world.agent().start()?;
    agent.signal(Signal::SIGHUP)?;
    agent.wait_for_log(&["reloaded the configuration; nothing has changed"])?;
    assert_eq!(reloads(&agent)?, (1.0, 0.0, true));
    assert!(agent.is_running());
    agent.stop()?;

    let agent = shunt_testbed::Agent::builder(crate::world::SHUNT, &world.lab.node)
        .manifests(&world.manifests)
        .start()?;
    agent.signal(Signal::SIGHUP)?;
    agent.wait_for_log(&["there is no --config"])?;
    agent.stop()
}
