//! The flags that kube-proxy has for fields of the configuration.

use crate::document::{FieldPath, Problem, Severity};

use super::LogFormat;
use super::raw::{Configuration, GoDuration};

/// Flags as they were given; absent ones are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--hostname-override`.
    pub hostname_override: Option<String>,
    /// `--bind-address`.
    pub bind_address: Option<String>,
    /// `--healthz-bind-address`; empty means no health server.
    pub healthz_bind_address: Option<String>,
    /// `--proxy-mode`.
    pub proxy_mode: Option<String>,
    /// `--masquerade-all`.
    pub masquerade_all: Option<bool>,
    /// `--cluster-cidr`.
    pub cluster_cidr: Option<String>,
    /// `--detect-local-mode`.
    pub detect_local_mode: Option<String>,
    /// `--pod-bridge-interface`.
    pub pod_bridge_interface: Option<String>,
    /// `--pod-interface-name-prefix`.
    pub pod_interface_name_prefix: Option<String>,
    /// `--nodeport-addresses`.
    pub nodeport_addresses: Vec<String>,
    /// `--iptables-sync-period`: of all modes, in spite of its name.
    pub sync_period: Option<String>,
    /// `--iptables-min-sync-period`: of all modes, in spite of its name.
    pub min_sync_period: Option<String>,
    /// `--logging-format`.
    pub logging_format: Option<LogFormat>,
    /// `-v`.
    pub verbosity: Option<u8>,
}

/// Which flag stands for which field.
const NAMES: [(&str, &str); 12] = [
    ("hostnameOverride", "--hostname-override"),
    ("bindAddress", "--bind-address"),
    ("healthzBindAddress", "--healthz-bind-address"),
    ("mode", "--proxy-mode"),
    ("nftables.masqueradeAll", "--masquerade-all"),
    ("clusterCIDR", "--cluster-cidr"),
    ("detectLocalMode", "--detect-local-mode"),
    ("detectLocal.bridgeInterface", "--pod-bridge-interface"),
    ("detectLocal.interfaceNamePrefix", "--pod-interface-name-prefix"),
    ("nodePortAddresses", "--nodeport-addresses"),
    ("nftables.syncPeriod", "--iptables-sync-period"),
    ("nftables.minSyncPeriod", "--iptables-min-sync-period"),
];

/// Calls a field by the name of its flag.
pub(super) fn name(field: &mut FieldPath) {
    let path = field.to_string();
    let path = path.split('[').next().unwrap_or_default();
    if let Some((_, flag)) = NAMES.iter().find(|(name, _)| *name == path) {
        *field = FieldPath::top(flag);
    }
}

impl Flags {
    /// Sets the fields whose flags count beside a file, and warns of the other flags.
    pub(super) fn override_file(&self, raw: &mut Configuration, problems: &mut Vec<Problem>) {
        self.override_always(raw);
        for (_, flag) in NAMES.iter().filter(|(field, _)| self.is_set(field)) {
            let reason = "has no effect beside --config; write it into the file";
            problems.push(Problem::new(Severity::Warning, FieldPath::top(flag), reason));
        }
    }

    fn override_always(&self, raw: &mut Configuration) {
        if self.hostname_override.is_some() {
            raw.hostname_override.clone_from(&self.hostname_override);
        }
        if let Some(format) = self.logging_format {
            raw.logging.format = Some(
                match format {
                    LogFormat::Text => "text",
                    LogFormat::Json => "json",
                }
                .into(),
            );
        }
        if let Some(verbosity) = self.verbosity {
            raw.logging.verbosity = Some(verbosity.into());
        }
    }

    fn is_set(&self, field: &str) -> bool {
        match field {
            "bindAddress" => self.bind_address.is_some(),
            "healthzBindAddress" => self.healthz_bind_address.is_some(),
            "mode" => self.proxy_mode.is_some(),
            "nftables.masqueradeAll" => self.masquerade_all.is_some(),
            "clusterCIDR" => self.cluster_cidr.is_some(),
            "detectLocalMode" => self.detect_local_mode.is_some(),
            "detectLocal.bridgeInterface" => self.pod_bridge_interface.is_some(),
            "detectLocal.interfaceNamePrefix" => self.pod_interface_name_prefix.is_some(),
            "nodePortAddresses" => !self.nodeport_addresses.is_empty(),
            "nftables.syncPeriod" => self.sync_period.is_some(),
            "nftables.minSyncPeriod" => self.min_sync_period.is_some(),
            _ => false,
        }
    }

    /// The configuration that the flags alone describe.
    pub(super) fn as_configuration(&self, problems: &mut Vec<Problem>) -> Configuration {
        let mut duration = |flag: &str, text: &Option<String>| {
            let text = text.as_ref()?;
            GoDuration::parse(text)
                .map_err(|reason| {
                    let problem = Problem::new(Severity::Error, FieldPath::top(flag), reason);
                    problems.push(problem.with_value(text));
                })
                .ok()
        };
        let mut raw = Configuration::default();
        raw.nftables.sync_period = duration("--iptables-sync-period", &self.sync_period);
        raw.nftables.min_sync_period =
            duration("--iptables-min-sync-period", &self.min_sync_period);
        raw.nftables.masquerade_all = self.masquerade_all.unwrap_or_default();
        raw.bind_address.clone_from(&self.bind_address);
        raw.healthz_bind_address.clone_from(&self.healthz_bind_address);
        raw.mode.clone_from(&self.proxy_mode);
        raw.cluster_cidr.clone_from(&self.cluster_cidr);
        raw.detect_local_mode.clone_from(&self.detect_local_mode);
        raw.detect_local.bridge_interface.clone_from(&self.pod_bridge_interface);
        raw.detect_local.interface_name_prefix.clone_from(&self.pod_interface_name_prefix);
        raw.node_port_addresses.clone_from(&self.nodeport_addresses);
        self.override_always(&mut raw);
        raw
    }
}
