//! Arguments of `shunt diff`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{Format, Logging, Settings};
use crate::kube_proxy::Mode;

/// Arguments of `shunt diff`.
#[derive(Debug, Args)]
pub struct Diff {
    /// Compare the plan with the rules of kube-proxy on this node, in its nftables mode or those of
    /// iptables-nft. The default is a comparison with shunt's own tables.
    #[arg(long, value_enum, value_name = "PROGRAM")]
    pub against: Option<Against>,
    /// Read the rules of this mode of kube-proxy. The default is the mode that has rules.
    #[arg(long, value_enum, value_name = "MODE", requires = "against")]
    pub kube_proxy_mode: Option<ModeName>,
    /// Plan the objects in this file or directory of YAML or JSON, by the flags of this command.
    /// Can be given several times. The default is the plan of the running agent.
    #[arg(long, value_name = "PATH")]
    pub manifests: Vec<PathBuf>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub output: Format,
    /// Work in this network namespace: a name as in `ip netns`, or a path.
    #[arg(long, value_name = "NAME|PATH")]
    pub netns: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub settings: Settings,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub logging: Logging,
}

/// The other side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Against {
    /// The rules of kube-proxy.
    KubeProxy,
}

/// A mode of kube-proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeName {
    /// kube-proxy's own nftables tables.
    Nftables,
    /// kube-proxy's chains in the tables of iptables-nft.
    Iptables,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Mode {
        match name {
            ModeName::Nftables => Mode::Nftables,
            ModeName::Iptables => Mode::Iptables,
        }
    }
}
