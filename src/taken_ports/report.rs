//! What the agent reports about node ports on which other processes listen.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use shunt_core::model::Protocol;

use super::conflict::NodePorts;
use super::taken_now;
use crate::taken_ports::socket_owners::Process;

/// What to do about a taken node port.
const REMEDY: &str = "move the process to another port, or give the Service another nodePort";

/// The node ports on which other processes listen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TakenPorts {
    /// Why the agent cannot look for such processes; `None` if it can.
    pub trouble: Option<String>,
    /// The node ports, in order.
    pub ports: Vec<TakenPort>,
}

impl TakenPorts {
    /// Looks at the sockets of this moment.
    #[must_use]
    pub fn of_now(node_ports: &NodePorts, addresses: &BTreeSet<IpAddr>) -> TakenPorts {
        match taken_now(node_ports, addresses) {
            Ok(ports) => TakenPorts { trouble: None, ports },
            Err(error) => TakenPorts { trouble: Some(error.to_string()), ports: Vec::new() },
        }
    }

    /// Returns the node port, if another process listens on it.
    #[must_use]
    pub fn find(&self, protocol: Protocol, port: u16) -> Option<&TakenPort> {
        let name = protocol_name(protocol);
        self.ports.iter().find(|it| it.port == port && it.protocol == name)
    }
}

/// Returns the name of a protocol as Services have it.
pub(super) fn protocol_name(protocol: Protocol) -> String {
    protocol.to_string().to_uppercase()
}

/// A node port on which another process listens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TakenPort {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The node port.
    pub port: u16,
    /// The Service, as `namespace/name`.
    pub service: String,
    /// The local addresses of the sockets.
    pub addresses: BTreeSet<IpAddr>,
    /// The processes, as far as the agent sees them.
    pub processes: BTreeSet<Process>,
}

impl TakenPort {
    /// Returns the processes as a subject with its verb: "nginx (process 7) listens".
    fn subject(&self) -> String {
        let processes: Vec<String> = self.processes.iter().map(ToString::to_string).collect();
        match &*processes {
            [] => "a process that the agent cannot see listens".to_owned(),
            [one] => format!("{one} listens"),
            all => format!("{} listen", all.join(", ")),
        }
    }

    /// Returns what to do. For a process that is not visible, first the command that finds it.
    #[must_use]
    pub fn remedy(&self) -> String {
        let letter = match self.protocol.as_str() {
            "UDP" => 'u',
            "SCTP" => 'S',
            _ => 't',
        };
        match self.processes.is_empty() {
            false => REMEDY.to_owned(),
            true => {
                let port = self.port;
                format!("find it on the node with ss -{letter}lnp 'sport = :{port}', then {REMEDY}")
            }
        }
    }
}

impl fmt::Display for TakenPort {
    /// Writes what happens as a sentence, without what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TakenPort { protocol, port, service, addresses, .. } = self;
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        write!(
            f,
            "{} on {}, {protocol} node port {port} of Service {service}; packets to this port of the \
             node go to the Service, not to the process",
            self.subject(),
            addresses.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(processes: &[(u32, &str)], addresses: &[&str]) -> TakenPort {
        let process =
            |(process, name): &(u32, &str)| Process { process: *process, name: (*name).to_owned() };
        TakenPort {
            protocol: "TCP".to_owned(),
            port: 30_080,
            service: "shop/web".to_owned(),
            addresses: addresses.iter().map(|it| it.parse().expect("an address")).collect(),
            processes: processes.iter().map(process).collect(),
        }
    }

    #[test]
    fn process_and_service_are_named() {
        assert_eq!(
            taken(&[(7, "nginx")], &["0.0.0.0", "::"]).to_string(),
            "nginx (process 7) listens on 0.0.0.0, ::, TCP node port 30080 of Service shop/web; \
             packets to this port of the node go to the Service, not to the process"
        );
        let two = taken(&[(7, "nginx"), (9, "envoy")], &["::"]).to_string();
        assert!(two.starts_with("nginx (process 7), envoy (process 9) listen on ::, TCP"), "{two}");
    }

    #[test]
    fn hidden_process_has_a_command_that_finds_it() {
        let mut hidden = taken(&[], &["0.0.0.0"]);
        assert!(hidden.to_string().starts_with("a process that the agent cannot see listens on"));
        assert!(hidden.remedy().starts_with("find it on the node with ss -tlnp 'sport = :30080'"));
        hidden.protocol = "UDP".to_owned();
        assert!(hidden.remedy().contains("ss -ulnp "), "{}", hidden.remedy());
    }
}
