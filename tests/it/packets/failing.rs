//! System calls that fail under the running agent.

use anyhow::Result;

use crate::world::{CLUSTER_CIDR, World, manifest, web};

/// Calls of the thread that commits, an error of theirs, which calls fail, and what the log says. Each thread
/// counts its own; the main one ends with fewer, since an agent that cannot start exits.
const FAULTS: [(&str, &str, &str, Option<&str>); 9] = [
    ("sendto", "EINTR", "3..300", None),
    ("recvmsg", "EINTR", "3..300", None),
    ("sendto", "ENOBUFS", "2..4", Some("No buffer space")),
    ("recvmsg", "ENOBUFS", "2..4", Some("No buffer space")),
    ("sendto", "ENOMEM", "7..8", Some("Cannot allocate memory")),
    ("recvmsg", "ENOMEM", "15", Some("Cannot allocate memory")),
    // The socket is closed; one that is opened instead takes over at once.
    ("sendto", "EBADF", "6", None),
    ("sendto", "ENOTSOCK", "20", None),
    ("recvmsg", "EBADF", "16", None),
];

#[test]
fn the_agent_gets_over_system_calls_that_fail() -> Result<()> {
    let world = World::with_web()?;
    let pods = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
    let names = ["pod-1", "pod-2", "pod-3"];
    world.start()?.stop()?;
    for (number, (call, errno, when, said)) in FAULTS.into_iter().enumerate() {
        let count = 1 + number % 2;
        world.manifests.write("web.yaml", manifest(&web(), "web", &pods[..count]))?;
        let trace = format!("trace={call}");
        let inject = format!("inject={call}:error={errno}:when={when}");
        let trace_name = world.manifests.path().with_file_name("trace").display().to_string();
        // With `-D` the tracer is the child, so the process that was started becomes the agent.
        let strace =
            ["strace", "-D", "-f", "-yy", "-qq", "-o", &trace_name, "-e", &trace, "-e", &inject];
        let agent = world.agent(CLUSTER_CIDR)?.wrapper(&strace).start()?;
        if let Some(said) = said {
            agent.wait_for_log(&[said])?;
        }
        world.lab.from(&world.lab.client).tcp("10.96.0.10:80").reaches(&names[..count]);
        world.lab.from(&world.lab.pod2).udp("[fd00:96::10]:80").reaches(&names[..count]);
        agent.stop()?;
        let trace = std::fs::read_to_string(&trace_name)?;
        let failed = |line: &str| line.contains("NETLINK") && line.ends_with("(INJECTED)");
        assert!(trace.lines().any(failed), "{inject}: nothing failed in\n{trace}");
    }
    Ok(())
}
