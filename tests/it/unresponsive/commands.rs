//! What the commands say about an endpoint that does not answer.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::reload::Changing;
use super::scene::{Scene, connect_all, endpoint, kill, revive, times};
use crate::world::SHUNT;

const VIP: &str = "10.96.0.10:80";
const SILENT: &str = "10.244.1.21:8080";

fn text(scene: &Scene, arguments: &[&str]) -> Result<String> {
    let output = scene.world.lab.node.command(SHUNT).args(arguments).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.stdout.is_empty(), "{arguments:?}: {errors}");
    Ok(String::from_utf8(output.stdout)?)
}

fn json(scene: &Scene, arguments: &[&str]) -> Result<Value> {
    let text = text(scene, arguments)?;
    serde_json::from_str(&text).with_context(|| format!("{arguments:?}: {text}"))
}

/// Returns the ClusterIP of the first family in the picture of the Service, and the silent endpoint.
fn pictured(scene: &Scene) -> Result<(Value, Value)> {
    let mut picture = json(scene, &["services", "default/web", "-o", "json"])?;
    let frontends = picture["services"][0]["frontends"].as_array_mut().context("no frontends")?;
    let vip = frontends
        .iter()
        .find(|it| it["address"] == "10.96.0.10" && it["protocol"] == "TCP")
        .context("no such frontend")?;
    Ok((vip.clone(), endpoint_of(&vip["endpoints"])?))
}

fn endpoint_of(endpoints: &Value) -> Result<Value> {
    let endpoints = endpoints.as_array().context("no endpoints")?;
    let silent = endpoints.iter().find(|it| it["address"] == "10.244.1.21");
    Ok(silent.context("no such endpoint")?.clone())
}

fn explained(scene: &Scene) -> Result<Value> {
    let from = scene.world.lab.pod2.ipv4[0].to_string();
    json(scene, &["explain", "--from", &from, "--to", VIP, "--output", "json"])
}

#[test]
fn commands_name_the_endpoint_that_does_not_answer() -> Result<()> {
    let changing = Changing::start("observe")?;
    let scene = &changing.scene;
    let lab = &scene.world.lab;
    let (vip, pod3) = pictured(scene)?;
    assert_eq!((&vip["state"], &vip["endpointsUnresponsive"]), (&"ok".into(), &0.into()));
    assert!(pod3["unresponsive"].is_null());
    kill(&lab.pod3)?;
    scene.wait("found", |scene| {
        let _ = connect_all(&times(4, &lab.pod2, VIP)?, Duration::from_millis(1_500));
        Ok(scene.in_state("unresponsive")? == [endpoint(&lab.pod3)])
    })?;

    let (vip, pod3) = pictured(scene)?;
    assert_eq!(vip["state"], "endpoint-unresponsive", "{vip:#}");
    let counts = ["endpointsUsed", "endpointsListed", "endpointsUnresponsive", "endpointsEjected"];
    assert_eq!(counts.map(|name| vip[name].as_u64()), [3, 3, 1, 0].map(Some), "{vip:#}");
    let reason = vip["reason"].as_str().context("no reason")?;
    assert!(reason.contains(SILENT) && reason.contains("ejectUnresponsive"), "{reason}");
    assert_eq!((&pod3["used"], &pod3["why"]), (&true.into(), &Value::Null));
    assert_eq!(pod3["unresponsive"]["reason"], "silentHost", "{pod3:#}");
    assert!(pod3["unresponsive"]["since"].is_string());
    // UDP has no SYNs.
    let udp = text(scene, &["services"])?;
    let udp: Vec<&str> = udp.lines().filter(|it| it.contains("10.96.0.10:80/UDP")).collect();
    assert!(udp.iter().all(|line| line.trim_end().ends_with("ok")), "{udp:?}");
    let wide = text(scene, &["services", "-o", "wide"])?;
    assert!(wide.contains("endpoint-unresponsive") && wide.contains(&format!("{SILENT} for")));
    let detailed = text(scene, &["services", "default/web"])?;
    assert!(detailed.contains("33.3 %; no answer for"), "{detailed}");
    let explanation = explained(scene)?;
    assert_eq!(explanation["verdict"], "unknown", "{explanation:#}");
    assert_eq!(explanation["findings"][0]["code"], "endpoint-unresponsive", "{explanation:#}");
    let silent = endpoint_of(&explanation["endpoints"])?;
    assert_eq!(silent["obstacleSource"], "agent", "{silent:#}");
    assert_eq!(silent["unresponsive"]["reason"], "silentHost");

    changing.set("on")?;
    scene.wait_ejected(&[endpoint(&lab.pod3)])?;
    let (vip, pod3) = pictured(scene)?;
    assert_eq!(vip["state"], "endpoint-ejected", "{vip:#}");
    assert_eq!(counts.map(|name| vip[name].as_u64()), [2, 3, 0, 1].map(Some), "{vip:#}");
    assert_eq!((&pod3["used"], &pod3["why"]), (&false.into(), &"ejected".into()));
    let table = text(scene, &["services"])?;
    let is_marked =
        |line: &str| line.contains("10.96.0.10:80/TCP") && line.contains("endpoint-ejected");
    assert!(table.lines().any(is_marked), "{table}");
    let explanation = explained(scene)?;
    assert_eq!(explanation["verdict"], "delivered", "{explanation:#}");
    let finding = &explanation["findings"][0];
    assert_eq!(finding["code"], "endpoint-ejected", "{explanation:#}");
    let said = finding["text"].as_str().context("no text")?;
    assert!(said.contains(SILENT) && said.contains("other endpoints have its slots"), "{said}");
    let status = text(scene, &["status"])?;
    assert!(status.contains(SILENT) && status.contains("; 1 Service has ejected it"), "{status}");

    revive(&lab.pod3)?;
    scene.wait_ejected(&[])?;
    scene.wait_state("unresponsive", &[])?;
    let (vip, pod3) = pictured(scene)?;
    assert_eq!(vip["state"], "ok", "{vip:#}");
    assert!(pod3["unresponsive"].is_null());
    assert_eq!(explained(scene)?["verdict"], "delivered");
    Ok(())
}
