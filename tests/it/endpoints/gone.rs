//! Established connections to an endpoint that terminated and is gone: with `resetGoneEndpoints`, the
//! client's next packet is answered by a reset.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use shunt_testbed::{Agent, EndpointSlice, Exposition, Host, METRICS_PORT, Protocol, Service};

use super::changes::{DYING, READY, SERVING, slices_of};
use crate::reload::configured::{ConfigFile, wait_until};
use crate::table::{Case, Table};
use crate::world::{CLUSTER_CIDR, TARGET, World, run_shunt, status_text, target_ports, web};

const TCP: Table = Table::ALL.on(&[Protocol::Tcp]);

/// How long an answer may take that comes at once.
const AT_ONCE: Duration = Duration::from_secs(10);
/// How long a client waits that gets no answer.
const SILENCE: Duration = Duration::from_millis(300);

const ON: &str = "shunt: {resetGoneEndpoints: true}\n";

/// The world with an agent that resets connections.
struct Resetting {
    world: World,
    config: ConfigFile,
    agent: Option<Agent>,
}

impl Resetting {
    /// With the Service that [`web`] describes, on the first pod.
    fn new() -> Result<Self> {
        Self::with(ON, web())
    }

    fn with(settings: &str, service: Service) -> Result<Self> {
        let world = World::new()?;
        world.manifests.write("web.yaml", service)?;
        world
            .manifests
            .write("slices.yaml", slices_of("web", "all", &[(&world.lab.pod1, READY)]))?;
        let config = ConfigFile::new(&format!("{CLUSTER_CIDR}{settings}"))?;
        let mut resetting = Self { world, config, agent: None };
        resetting.start()?;
        Ok(resetting)
    }

    fn start(&mut self) -> Result<()> {
        let config = self.config.path().display().to_string();
        self.agent = Some(self.world.plain_agent().arg("--config").arg(config).start()?);
        Ok(())
    }

    fn kill(&mut self) -> Result<()> {
        self.agent.take().context("no agent")?.kill()
    }

    fn configure(&self, settings: &str) -> Result<()> {
        self.config.replace(&format!("{CLUSTER_CIDR}{settings}"))
    }

    fn endpoints(&self, endpoints: &[(&Host, &str)]) -> Result<()> {
        self.world.manifests.write("slices.yaml", slices_of("web", "all", endpoints))
    }

    /// Waits until new connections reach these pods only.
    fn wait_for_pods(&self, pods: &[&str]) {
        for to in ["10.96.0.10:80", "[fd00:96::10]:80"] {
            let client = self.world.lab.from(&self.world.lab.client);
            client.tcp(to).eventually().reaches(pods);
        }
    }

    /// The first pod terminates, and then it is gone.
    fn end_first_pod(&self) -> Result<()> {
        let lab = &self.world.lab;
        self.endpoints(&[(&lab.pod1, SERVING), (&lab.pod2, READY)])?;
        self.wait_for_pods(&["pod-2"]);
        vanish(&self.world, &lab.pod1)?;
        self.endpoints(&[(&lab.pod2, READY)])
    }

    fn wait_for_resets(&self, pod: &Host, there: bool) -> Result<()> {
        for ip in pod.ips() {
            wait_until(&format!("resets for {ip}: {there}"), || {
                Ok(gone(&self.world)?.contains(&format!("{ip} . {TARGET}")) == there)
            })?;
        }
        Ok(())
    }

    /// Opens a connection for every cell of the table from outside, from a pod and from the node.
    fn connect(&self, table: Table) -> Result<Vec<Client>> {
        let lab = &self.world.lab;
        let mut clients = Vec::new();
        for case in table.cases() {
            for host in [&lab.client, &lab.pod2, &lab.node] {
                let client = Client::open(case, host);
                clients.push(client.with_context(|| format!("{case} from {host}"))?);
            }
        }
        Ok(clients)
    }
}

/// The gone endpoints in the kernel, as nft prints them; empty without the set.
fn gone(world: &World) -> Result<String> {
    let rules = world.rules()?;
    let sets = rules.split("set gone-endpoints {").skip(1);
    Ok(sets.map(|set| set.split("\t}").next().unwrap_or_default()).collect())
}

/// The address of the pod answers nothing any more, and the node has no route to it.
fn vanish(world: &World, pod: &Host) -> Result<()> {
    pod.nft(
        "table inet vanished {
             chain input { type filter hook input priority 0; policy drop; }
             chain output { type filter hook output priority 0; policy drop; }
         }",
    )?;
    for ip in pod.ips() {
        // As Calico has for the addresses of a node that no pod has.
        world.lab.node.ip(&format!("route replace blackhole {ip} metric 1"))?;
    }
    Ok(())
}

/// The pod is back, with the same address.
fn come_back(world: &World, pod: &Host) -> Result<()> {
    for ip in pod.ips() {
        world.lab.node.ip(&format!("route del blackhole {ip} metric 1"))?;
    }
    pod.nft("delete table inet vanished")
}

/// An established connection.
struct Client {
    what: String,
    stream: TcpStream,
}

impl Client {
    fn open(case: Case, host: &Host) -> Result<Self> {
        Self::open_to(format!("{case} from {host}"), host, case.address())
    }

    fn open_to(what: String, host: &Host, to: SocketAddr) -> Result<Self> {
        let stream = host.run(|| Ok(TcpStream::connect_timeout(&to, AT_ONCE)?))?;
        stream.set_read_timeout(Some(AT_ONCE))?;
        let mut client = Self { what, stream };
        client.read()?;
        Ok(client)
    }

    fn read(&mut self) -> std::io::Result<String> {
        let mut buffer = [0; 1024];
        let length = self.stream.read(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    fn ask(&mut self, question: &str) -> std::io::Result<String> {
        self.stream.write_all(format!("{question}\n").as_bytes())?;
        self.read()
    }

    /// The server answers.
    fn works(&mut self, step: &str) -> Result<()> {
        let answer = self.ask(step).with_context(|| format!("{step}: {}", self.what))?;
        ensure!(answer.contains(step), "{step}: {}: {answer:?}", self.what);
        Ok(())
    }

    /// The next packet is answered by a reset.
    fn is_reset(&mut self) -> Result<()> {
        let began = Instant::now();
        match self.ask("are you there?") {
            Err(error) if error.raw_os_error() == Some(Errno::ECONNRESET as i32) => {}
            other => bail!("{}: {other:?} after {:?}", self.what, began.elapsed()),
        }
        Ok(())
    }

    /// The next packet is not answered.
    fn is_silent(&mut self) -> Result<()> {
        self.stream.set_read_timeout(Some(SILENCE))?;
        let answer = self.ask("are you there?");
        self.stream.set_read_timeout(Some(AT_ONCE))?;
        match answer {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            other => bail!("{}: {other:?}", self.what),
        }
    }
}

fn each(clients: &mut [Client], check: impl Fn(&mut Client) -> Result<()>) -> Result<()> {
    clients.iter_mut().try_for_each(check)
}

#[test]
fn connection_to_a_gone_endpoint_is_reset_at_its_next_packet() -> Result<()> {
    let resetting = Resetting::new()?;
    let lab = &resetting.world.lab;
    let mut clients = resetting.connect(TCP)?;
    resetting.endpoints(&[(&lab.pod1, SERVING), (&lab.pod2, READY)])?;
    resetting.wait_for_pods(&["pod-2"]);
    each(&mut clients, |client| client.works("terminating"))?;
    resetting.endpoints(&[(&lab.pod1, DYING), (&lab.pod2, READY)])?;
    resetting.end_first_pod()?;
    resetting.wait_for_resets(&lab.pod1, true)?;
    each(&mut clients, Client::is_reset)?;

    // New connections have the other pod, and UDP has no reset.
    resetting.wait_for_pods(&["pod-2"]);
    each(&mut resetting.connect(TCP)?, |client| client.works("new"))?;
    lab.from(&lab.client).udp("10.96.0.10:80").reaches(&["pod-2"]);
    assert!(!resetting.world.rules()?.contains("udp dport"));
    Ok(())
}

#[test]
fn connection_to_a_gone_endpoint_of_another_node_is_reset() -> Result<()> {
    let local = web().spec("externalTrafficPolicy: Local");
    let resetting = Resetting::with(ON, local)?;
    let lab = &resetting.world.lab;
    // From the pod and the node, the way to external frontends is the short circuit.
    resetting.endpoints(&[(&lab.pod3, READY)])?;
    resetting.wait_for_pods(&["pod-3"]);
    let mut clients = Vec::new();
    for case in TCP.cases() {
        for host in [&lab.pod2, &lab.node] {
            clients.push(Client::open(case, host)?);
        }
    }
    resetting.endpoints(&[(&lab.pod3, SERVING), (&lab.pod2, READY)])?;
    resetting.wait_for_pods(&["pod-2"]);
    each(&mut clients, |client| client.works("terminating"))?;
    vanish(&resetting.world, &lab.pod3)?;
    resetting.endpoints(&[(&lab.pod2, READY)])?;
    resetting.wait_for_resets(&lab.pod3, true)?;
    each(&mut clients, Client::is_reset)
}

/// Later, the option is on, and another endpoint ends: by then, resets for the first one would exist.
#[test]
fn without_the_option_nothing_is_reset() -> Result<()> {
    let resetting = Resetting::with("", web())?;
    let lab = &resetting.world.lab;
    let mut clients = resetting.connect(Table::CLUSTER_IPS.on(&[Protocol::Tcp]))?;
    resetting.end_first_pod()?;
    resetting.wait_for_pods(&["pod-2"]);
    let rules = resetting.world.rules()?;
    assert!(!rules.contains("gone-endpoints") && !rules.contains("tcp reset"), "{rules}");
    resetting.configure(ON)?;
    let agent = resetting.agent.as_ref().context("no agent")?;
    agent.wait_for_log(&["applied", "changed=\"shunt.resetGoneEndpoints\""])?;
    resetting.endpoints(&[(&lab.pod2, SERVING), (&lab.pod3, READY)])?;
    resetting.wait_for_pods(&["pod-3"]);
    resetting.endpoints(&[(&lab.pod3, READY)])?;
    resetting.wait_for_resets(&lab.pod2, true)?;
    resetting.wait_for_resets(&lab.pod1, false)?;
    each(&mut clients, Client::is_silent)
}

/// The second pod terminates at the same time, which shows when the agent has seen all of it.
#[test]
fn label_change_and_another_service_with_the_endpoint_keep_the_connection() -> Result<()> {
    let resetting = Resetting::new()?;
    let lab = &resetting.world.lab;
    let mut kept = resetting.connect(TCP)?;
    // A terminating endpoint that another Service still lists.
    let other = |endpoints: &[(&Host, &str)]| -> Result<()> {
        let slices = slices_of("other", "all", endpoints);
        let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: other}\n\
                       spec: {clusterIP: 10.96.0.78, ports: [{port: 80}]}\n";
        resetting.world.manifests.write("other.yaml", format!("{slices}{service}"))
    };
    resetting.endpoints(&[(&lab.pod3, READY)])?;
    resetting.wait_for_pods(&["pod-3"]);
    let mut shared = resetting.connect(TCP)?;
    each(&mut kept, |client| client.works("its label has changed"))?;

    resetting.endpoints(&[(&lab.pod2, READY)])?;
    resetting.wait_for_pods(&["pod-2"]);
    let mut witness = resetting.connect(Table::CLUSTER_IPS.on(&[Protocol::Tcp]))?;
    witness.retain(|client| !client.what.ends_with("from pod-2"));
    other(&[(&lab.pod3, SERVING)])?;
    resetting.endpoints(&[(&lab.pod2, SERVING), (&lab.pod3, SERVING), (&lab.pod1, READY)])?;
    resetting.wait_for_pods(&["pod-1"]);
    resetting.endpoints(&[])?;
    resetting.wait_for_resets(&lab.pod2, true)?;
    each(&mut witness, Client::is_reset)?;
    each(&mut kept, |client| client.works("without an endpoint"))?;
    each(&mut shared, |client| client.works("terminating elsewhere"))?;
    other(&[])?;
    resetting.wait_for_resets(&lab.pod3, true)?;
    each(&mut shared, Client::is_reset)?;
    each(&mut kept, |client| client.works("still"))
}

#[test]
fn address_that_is_an_endpoint_again_works_at_once() -> Result<()> {
    let resetting = Resetting::new()?;
    let lab = &resetting.world.lab;
    let mut clients = resetting.connect(TCP)?;
    let reset = clients.split_off(clients.len() / 2);
    resetting.end_first_pod()?;
    resetting.wait_for_resets(&lab.pod1, true)?;
    each(&mut { reset }, Client::is_reset)?;

    come_back(&resetting.world, &lab.pod1)?;
    // Not ready yet: its connections are none of the rules' business.
    resetting.endpoints(&[(&lab.pod1, "conditions: {ready: false}"), (&lab.pod2, READY)])?;
    resetting.wait_for_resets(&lab.pod1, false)?;
    assert!(!resetting.world.rules()?.contains("tcp reset"));
    each(&mut clients, |client| client.works("the address is back"))?;
    resetting.endpoints(&[(&lab.pod1, READY)])?;
    resetting.wait_for_pods(&["pod-1"]);
    each(&mut resetting.connect(TCP)?, |client| client.works("new"))
}

#[test]
fn ports_are_told_apart() -> Result<()> {
    let resetting = Resetting::new()?;
    let lab = &resetting.world.lab;
    let _other = shunt_testbed::Echo::on(&lab.pod1, TARGET + 1)?;
    let service = Service::new("next").cluster_ips(&["10.96.0.77", "fd00:96::77"]).port(
        "http",
        Protocol::Tcp,
        80,
    );
    let slices = EndpointSlice::pair("next", |slice| {
        slice.port("http", Protocol::Tcp, TARGET + 1).host(&lab.pod1, READY)
    });
    resetting.world.manifests.write("next.yaml", format!("{service}{slices}"))?;
    lab.from(&lab.client).tcp("10.96.0.77:80").eventually().reaches(&["pod-1"]);
    let to = "10.96.0.77:80".parse()?;
    let mut next = Client::open_to("the next port".to_owned(), &lab.client, to)?;
    let mut clients = resetting.connect(Table::CLUSTER_IPS.on(&[Protocol::Tcp]))?;
    resetting.endpoints(&[(&lab.pod1, SERVING), (&lab.pod2, READY)])?;
    resetting.wait_for_pods(&["pod-2"]);
    resetting.endpoints(&[(&lab.pod2, READY)])?;
    resetting.wait_for_resets(&lab.pod1, true)?;
    each(&mut clients, Client::is_reset)?;
    next.works("another port of the same address")
}

#[test]
fn option_is_turned_on_and_off_while_the_agent_runs() -> Result<()> {
    let resetting = Resetting::with("", web())?;
    let lab = &resetting.world.lab;
    let agent = || resetting.agent.as_ref().context("no agent");
    let mut clients = resetting.connect(TCP)?;
    let mut later = clients.split_off(clients.len() / 2);
    resetting.endpoints(&[(&lab.pod1, SERVING), (&lab.pod2, READY)])?;
    resetting.wait_for_pods(&["pod-2"]);
    resetting.configure(ON)?;
    agent()?.wait_for_log(&["applied", "changed=\"shunt.resetGoneEndpoints\""])?;
    resetting.end_first_pod()?;
    resetting.wait_for_resets(&lab.pod1, true)?;
    let metric = || -> Result<f64> {
        let scraped = Exposition::parse(&agent()?.http_get(METRICS_PORT, "/metrics")?.body)?;
        scraped.value("shunt_gone_endpoints", &[("ip_family", "IPv4")]).context("no metric")
    };
    wait_until("the metric", || Ok(metric()? == 1.0))?;
    let status = status_text(&lab.node)?;
    assert!(status.contains("gone-endpoints"), "{status}");
    each(&mut clients, Client::is_reset)?;

    resetting.configure("")?;
    wait_until("no resets", || {
        let rules = resetting.world.rules()?;
        Ok(!rules.contains("gone-endpoints") && !rules.contains("tcp reset"))
    })?;
    wait_until("the metric", || Ok(metric()? == 0.0))?;
    each(&mut later, Client::is_silent)
}

#[test]
fn restarted_agent_keeps_the_gone_endpoints_and_their_times() -> Result<()> {
    let mut resetting = Resetting::new()?;
    let mut clients = resetting.connect(TCP)?;
    resetting.end_first_pod()?;
    resetting.wait_for_resets(&resetting.world.lab.pod1, true)?;
    let mut later = clients.split_off(clients.len() / 2);
    resetting.kill()?;
    each(&mut clients, Client::is_reset)?;
    let elements = |text: String| -> Vec<String> {
        let times = text.split("expires ").skip(1);
        times.map(|it| it.split([' ', ',']).next().unwrap_or_default().to_owned()).collect()
    };
    let before = elements(gone(&resetting.world)?);
    resetting.start()?;
    resetting.wait_for_pods(&["pod-2"]);
    let after = elements(gone(&resetting.world)?);
    assert_eq!((before.len(), after.len()), (2, 2));
    let diff = run_shunt(
        &resetting.world.lab.node,
        &[
            "diff",
            "--manifests",
            &resetting.world.manifests.path().display().to_string(),
            "--config",
            &resetting.config.path().display().to_string(),
            "--hostname-override",
            &resetting.world.lab.node.name,
        ],
    )?;
    assert_eq!(diff.status.code(), Some(0), "{}", String::from_utf8_lossy(&diff.stdout));
    each(&mut later, Client::is_reset)?;

    // The address is an endpoint again while no agent runs.
    resetting.kill()?;
    let lab = &resetting.world.lab;
    come_back(&resetting.world, &lab.pod1)?;
    resetting.endpoints(&[(&lab.pod1, READY)])?;
    resetting.start()?;
    resetting.wait_for_pods(&["pod-1"]);
    assert_eq!(gone(&resetting.world)?, "");
    each(&mut resetting.connect(TCP)?, |client| client.works("new"))
}

/// A controller writes one slice after the other when it moves endpoints. Another endpoint ends later:
/// when there are resets for it, there would be some for the first one.
#[test]
fn terminating_endpoint_that_moves_to_another_slice_keeps_its_connections() -> Result<()> {
    let resetting = Resetting::new()?;
    let lab = &resetting.world.lab;
    let mut clients = resetting.connect(Table::CLUSTER_IPS.on(&[Protocol::Tcp]))?;
    let (ending, ready) = ((&lab.pod3, SERVING), (&lab.pod2, READY));
    resetting.endpoints(&[(&lab.pod1, SERVING), ending, ready])?;
    resetting.wait_for_pods(&["pod-2"]);
    resetting.endpoints(&[ending, ready])?;
    let second = |slice: EndpointSlice, family: &str| {
        target_ports(slice.name(&format!("web-second-{family}"))).host(&lab.pod1, SERVING)
    };
    let moved = format!(
        "{}{}",
        second(EndpointSlice::v4("web"), "v4"),
        second(EndpointSlice::v6("web"), "v6")
    );
    resetting.world.manifests.write("second.yaml", moved)?;
    resetting.endpoints(&[ready])?;
    resetting.wait_for_resets(&lab.pod3, true)?;
    resetting.wait_for_resets(&lab.pod1, false)?;
    each(&mut clients, |client| client.works("moved"))
}
