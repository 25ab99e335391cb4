//! Manifests with mistakes in them: the mistake is named, the object is left out, and everything
//! else is programmed, at the start and while the agent runs.

use anyhow::Result;
use shunt_testbed::{Agent, EndpointSlice, Host, Protocol, Service};

use crate::world::{CLUSTER_CIDR, SHUNT, World, manifest, on_all_protocols};

struct Mistake {
    /// The name of the file without `.yaml`, also that of the object in it.
    name: &'static str,
    /// What the file starts with. A sound Service follows, unless the file is one mistake.
    content: fn(&Host) -> String,
    /// Whether the whole file is beyond reading.
    whole_file: bool,
    /// What one line of the log must contain besides the name of the file.
    named: &'static [&'static str],
}

/// A Service with one port; nothing answers at its address when it is left out.
fn service(name: &str, ip: &str) -> Service {
    Service::new(name).cluster_ips(&[ip]).port("tcp", Protocol::Tcp, 80)
}

/// The slice of [`service`].
fn slice(name: &str, pod: &Host) -> EndpointSlice {
    EndpointSlice::v4(name).port("tcp", Protocol::Tcp, 8080).hosts(&[pod])
}

/// The address of objects that are left out for another reason than their address.
const LEFT_OUT: &str = "10.96.0.40";

const MISTAKES: [Mistake; 8] = [
    Mistake {
        name: "wrong-address",
        content: |pod| {
            let slice = slice("wrong-address", pod);
            format!("{}{slice}", service("wrong-address", "10.96.0.400"))
        },
        whole_file: false,
        named: &["default/wrong-address", "clusterIP", "10.96.0.400"],
    },
    Mistake {
        name: "port-zero",
        content: |pod| {
            let service = Service::new("port-zero").cluster_ips(&[LEFT_OUT]);
            let service = service.port("tcp", Protocol::Tcp, 0);
            format!("{service}{}", slice("port-zero", pod))
        },
        whole_file: false,
        named: &["default/port-zero", "port"],
    },
    Mistake {
        name: "unknown-kind",
        content: |_| "---\napiVersion: v1\nkind: Gadget\nmetadata: {name: gadget}\n".to_owned(),
        whole_file: false,
        named: &["Gadget"],
    },
    Mistake {
        name: "taken-address",
        // The newer of two Services with the same address.
        content: |pod| {
            let service = service("taken-address", "10.96.0.10")
                .metadata("creationTimestamp: 2999-01-01T00:00:00Z");
            format!("{service}{}", slice("taken-address", pod))
        },
        whole_file: false,
        named: &["default/taken-address", "clusterIPs", "10.96.0.10", "default/web"],
    },
    Mistake {
        name: "no-target-port",
        content: |pod| {
            let slice = EndpointSlice::v4("no-target-port").hosts(&[pod]).to_string();
            let slice = slice.replace("ports: []", "ports:\n- {name: tcp, protocol: TCP}");
            format!("{}{slice}", service("no-target-port", "10.96.0.41"))
        },
        whole_file: false,
        named: &["default/no-target-port-v4", "port"],
    },
    Mistake {
        name: "long-name",
        content: |_| service(&"n".repeat(300), LEFT_OUT).to_string(),
        whole_file: false,
        named: &["nnnnnnnn", "name"],
    },
    Mistake {
        name: "garbage",
        content: |_| "\u{1}{[%&*!: garbage\n".repeat(10 * 1024 * 1024 / 18),
        whole_file: true,
        named: &[],
    },
    Mistake { name: "not-text", content: |_| "\0".repeat(1000), whole_file: true, named: &[] },
];

impl Mistake {
    /// The mistake, with a sound Service `beside` in the same file.
    fn content(&self, world: &World) -> String {
        let mistake = (self.content)(&world.lab.pod2);
        if self.whole_file {
            return mistake;
        }
        let beside =
            on_all_protocols(Service::new("beside"), 80, None).cluster_ips(&["10.96.0.50"]);
        format!("{mistake}{}", manifest(&beside, "beside", &[&world.lab.pod1]))
    }

    fn file(&self) -> String {
        format!("{}.yaml", self.name)
    }

    /// What one line of the log must contain.
    fn words(&self) -> Vec<&str> {
        [self.name, ".yaml"].into_iter().chain(self.named.iter().copied()).collect()
    }

    /// Checks everything that must be true once the agent has seen the file.
    fn check(&self, world: &World, agent: &Agent) -> Result<()> {
        agent.wait_for_log(&self.words())?;
        let node = world.lab.from(&world.lab.node);
        if !self.whole_file {
            node.tcp("10.96.0.50:80").eventually().reaches(&["pod-1"]);
        }
        node.tcp(format!("{LEFT_OUT}:80")).unhandled();
        world.assert_web_works();
        assert!(agent.is_running(), "{}", self.name);
        // What is wrong with one manifest is not wrong with the agent.
        assert_eq!(agent.http_status("/healthz")?, 200, "{}", self.name);
        Ok(())
    }
}

#[test]
fn mistakes_that_are_there_at_the_start() -> Result<()> {
    for mistake in MISTAKES {
        let world = World::with_web()?;
        world.manifests.write(&mistake.file(), mistake.content(&world))?;
        let agent = world.start()?;
        mistake.check(&world, &agent)?;
        agent.stop()?;
    }
    Ok(())
}

#[test]
fn mistakes_that_come_later() -> Result<()> {
    let world = World::with_web()?;
    let agent = world.start()?;
    for mistake in MISTAKES {
        world.manifests.write(&mistake.file(), mistake.content(&world))?;
        mistake.check(&world, &agent)?;
        world.manifests.remove(&mistake.file())?;
        let client = world.lab.from(&world.lab.client);
        client.tcp("10.96.0.50:80").eventually().unhandled();
    }
    agent.stop()
}

/// All at once, and for a run that ends by itself.
#[test]
fn many_bad_manifests_leave_good_ones_in_force() -> Result<()> {
    let world = World::with_web()?;
    for mistake in MISTAKES {
        world.manifests.write(&mistake.file(), (mistake.content)(&world.lab.pod2))?;
    }
    let output = world.agent(CLUSTER_CIDR)?.once()?;
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{log}", output.status);
    for mistake in MISTAKES {
        let words = mistake.words();
        let complaint = log.lines().find(|line| words.iter().all(|word| line.contains(word)));
        assert!(complaint.is_some(), "no word about {} in\n{log}", mistake.name);
    }
    world.assert_web_works();
    Ok(())
}

/// The older of two Services keeps an address, whichever came first in the directory.
#[test]
fn the_older_service_keeps_its_address() -> Result<()> {
    for (created, winner) in [("2000-01-01T00:00:00Z", "pod-2"), ("2999-01-01T00:00:00Z", "pod-1")]
    {
        let world = World::new()?;
        let service = |name: &str, created: &str| {
            service(name, "10.96.0.60").metadata(&format!("creationTimestamp: {created}"))
        };
        let first = service("first", "2020-01-01T00:00:00Z");
        let second = service("second", created);
        let (one, two) = (slice("first", &world.lab.pod1), slice("second", &world.lab.pod2));
        world.manifests.write("1.yaml", format!("{first}{one}"))?;
        world.manifests.write("2.yaml", format!("{second}{two}"))?;
        let agent = world.start()?;
        let client = world.lab.from(&world.lab.client);
        client.tcp("10.96.0.60:80").reaches(&[winner]);

        // The other one takes over.
        let (file, heir) =
            if winner == "pod-1" { ("1.yaml", "pod-2") } else { ("2.yaml", "pod-1") };
        world.manifests.remove(file)?;
        client.tcp("10.96.0.60:80").eventually().reaches(&[heir]);
        agent.stop()?;
    }
    Ok(())
}

#[test]
fn a_network_namespace_that_is_not_there() -> Result<()> {
    let output = std::process::Command::new(SHUNT)
        .args(["run", "--once", "--netns", "/proc/self/fd/9999", "--manifests", "/"])
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert_eq!(log.lines().count(), 1, "one clear sentence:\n{log}");
    assert!(log.contains("/proc/self/fd/9999"), "{log}");
    Ok(())
}

#[test]
fn without_the_capability_the_agent_says_so() -> Result<()> {
    let world = World::with_web()?;
    let without = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"];
    let output = world.agent(CLUSTER_CIDR)?.wrapper(&without).once()?;
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.lines().any(|line| line.contains("CAP_NET_ADMIN")), "{log}");
    Ok(())
}

#[test]
fn manifests_that_are_not_there() -> Result<()> {
    let world = World::new()?;
    let missing = world.manifests.path().join("missing");
    let output = Agent::builder(SHUNT, &world.lab.node).manifests(&missing).once()?;
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains(&missing.display().to_string()), "{log}");
    Ok(())
}
