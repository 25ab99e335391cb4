//! What kubeadm and EKS have in kube-proxy's ConfigMaps, handed to the agent as it is.

use std::fs;
use std::path::Path;

use anyhow::Result;
use shunt_fake_apiserver::{Api, Case, both};
use shunt_testbed::{Agent, TempDir};

use crate::world::{SHUNT, WEB, World};

pub(crate) fn cases() -> Vec<Case> {
    both![configurations_of_kubeadm_and_eks_program_the_node]
}

/// The files, and where their DaemonSets mount the kubeconfig.
const CONFIGURATIONS: [(&str, &str); 2] = [
    // Beside the configuration, in the same ConfigMap.
    ("kubeadm-kube-proxy.yaml", "kubeconfig: /var/lib/kube-proxy/kubeconfig.conf\n"),
    // From a ConfigMap of its own.
    ("eks-kube-proxy.yaml", "kubeconfig: /var/lib/kube-proxy/kubeconfig\n"),
];

fn configurations_of_kubeadm_and_eks_program_the_node(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let scratch = TempDir::new()?;
    let file = scratch.path().join("config.conf");
    for (name, mounted) in CONFIGURATIONS {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let config = fs::read_to_string(fixtures.join(name))?;
        assert!(config.contains(mounted), "{config}");
        let own = format!("kubeconfig: {:?}\n", world.kubeconfig.path());
        fs::write(&file, config.replace(mounted, &own))?;
        // The arguments are those of the DaemonSet; the builder names the node as it does.
        let agent = Agent::builder(SHUNT, &world.lab.node)
            .arg(format!("--config={}", file.display()))
            .start()?;
        let pods = ["pod-1", "pod-2", "pod-3"];
        world.lab.from(&world.lab.client).tcp("192.0.2.10:30080").reaches(&pods);
        for to in WEB {
            world.lab.from(&world.lab.pod1).tcp(to).reaches(&pods);
        }
        let log = agent.log();
        // EKS's configuration has another mode, which a warning names.
        let warns = log.contains("WARN") && !name.starts_with("eks");
        assert!(!warns && !log.contains("ERROR"), "{name}: {log}");
        agent.stop()?;
    }
    Ok(())
}
