//! The findings of an explanation: a stable code for programs, and a sentence for people.

use std::fmt;

use serde::Serialize;

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The code.
    pub code: Code,
    /// The finding as text: what is so, and what to do.
    pub text: String,
}

impl Finding {
    /// Makes a finding.
    pub fn new(code: Code, text: impl Into<String>) -> Finding {
        Finding { code, text: text.into() }
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// A finding's code. The words are an interface: new ones may come, existing ones stay.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $word)] $name,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &[Code] = &[$(Code::$name,)*];

            /// Returns the word in JSON.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Code::$name => $word,)*
                }
            }
        }
    };
}

codes! {
    /// The Service port has no endpoint at all.
    NoEndpoints = "no-endpoints",
    /// The Service port has endpoints, but none is ready.
    EndpointsNotReady = "endpoints-not-ready",
    /// All ready endpoints have the weight 0.
    EndpointsDrained = "endpoints-drained",
    /// The EndpointSlices list only addresses of the other family.
    EndpointsOtherFamily = "endpoints-other-family",
    /// The policy is Local, and no endpoint is on this node.
    NoLocalEndpoints = "no-local-endpoints",
    /// `loadBalancerSourceRanges` do not contain the source.
    SourceNotAllowed = "source-not-allowed",
    /// The Service owns the address, but not the port or protocol.
    PortNotInService = "port-not-in-service",
    /// The address is in `spec.externalIPs`, which a feature gate turns off.
    ExternalIpsIgnored = "external-ips-ignored",
    /// The address is in a ServiceCIDR, but belongs to no Service.
    AddressWithoutService = "address-without-service",
    /// Another Service owns the frontend.
    ClaimedByOtherService = "claimed-by-other-service",
    /// The kernel refuses the frontend.
    Quarantined = "quarantined",
    /// The kernel's tables differ from the plan.
    KernelDiffers = "kernel-differs",
    /// Changes wait for a commit, or nothing is committed yet.
    NotCommittedYet = "not-committed-yet",
    /// The API server does not answer; the objects may be old.
    ApiStale = "api-stale",
    /// The Service is headless.
    IgnoredHeadless = "ignored-headless",
    /// The Service has the type ExternalName.
    IgnoredExternalName = "ignored-external-name",
    /// The Service belongs to another proxy.
    IgnoredOtherProxy = "ignored-other-proxy",
    /// The Service is invalid.
    IgnoredInvalid = "ignored-invalid",
    /// The Service has no ClusterIP, or none of the family.
    NoClusterIp = "no-cluster-ip",
    /// No Service has this name.
    NoSuchService = "no-such-service",
    /// The EndpointSlices have other port names than the Service port.
    WrongPortName = "wrong-port-name",
    /// The EndpointSlices have the port with another protocol.
    SelectsOtherProtocol = "selects-other-protocol",
    /// The address of a load balancer has the `ipMode` `Proxy`.
    IpModeProxy = "ip-mode-proxy",
    /// The node port is not served on this address of the node.
    NodePortAddressNotSelected = "node-port-address-not-selected",
    /// Another process listens on the node port.
    NodePortTaken = "node-port-taken",
    /// The agent's proxy serves the node port on a loopback address.
    LoopbackProxy = "loopback-proxy",
    /// Another process holds the node port on a loopback address.
    LoopbackPortTaken = "loopback-port-taken",
    /// The protocol is not TCP, UDP or SCTP.
    NotAServiceProtocol = "not-a-service-protocol",
    /// An endpoint did not answer.
    EndpointNotAnswering = "endpoint-not-answering",
    /// An endpoint refused the probe.
    EndpointRefuses = "endpoint-refuses",
    /// No route leads to an endpoint, or its neighbour does not answer.
    EndpointUnreachable = "endpoint-unreachable",
    /// Connection tracking is full.
    ConntrackFull = "conntrack-full",
    /// kube-proxy or its rules are on this node.
    KubeProxyPresent = "kube-proxy-present",
    /// A chain of another program may drop the packet.
    ForeignDropPossible = "foreign-drop-possible",
    /// A chain of another program may translate the packet before shunt's chains.
    ForeignTranslationPossible = "foreign-translation-possible",
    /// Another program translated the probe to an address that is not an endpoint.
    ForeignTranslation = "foreign-translation",
    /// Another program excludes the packet from connection tracking and translation.
    Untracked = "untracked",
    /// A chain of another program drops the packet.
    ForeignDrop = "foreign-drop",
    /// A pod reaches itself, and nothing masquerades the connection.
    HairpinWithoutMasquerade = "hairpin-without-masquerade",
    /// A result depends on something unknown.
    Assumed = "assumed",
    /// One of the frontends of a Service could not be explained.
    NotExplained = "not-explained",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
