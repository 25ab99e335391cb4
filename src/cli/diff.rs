//! `shunt diff`: compares the plan with what forwards packets now. Writes nothing to the kernel.

use std::time::Duration;

use anyhow::anyhow;
use nfnetlink::nft::Socket;
use shunt_core::plan::Desired;

use super::args::{Against, Diff, Format};
use super::kernel_errors::explain;
use super::{Failure, netns, objects};
use crate::dataplane::compare;
use crate::diff::{self, KernelComparison};
use crate::directory::Selection;
use crate::kube_proxy::{self, Unreadable};

/// The exit codes, as documented: those of `diff`.
const DIFFERENT: u8 = 1;
const NOT_COMPARED: u8 = 2;

/// The number of comparisons with the kernel until two of them agree, and the pause between them.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(200);

/// Prints the differences.
pub(super) fn diff(arguments: &Diff) -> Result<(), Failure> {
    match compared(arguments) {
        Ok((text, is_same)) => {
            super::print(&text)?;
            if is_same { Ok(()) } else { Err(Failure::Result(DIFFERENT)) }
        }
        Err(configuration @ Failure::Configuration(_)) => Err(configuration),
        Err(error) => {
            tracing::error!("cannot compare: {error}");
            Err(Failure::Result(NOT_COMPARED))
        }
    }
}

/// Returns the differences as text or JSON, and true if there is none.
fn compared(arguments: &Diff) -> Result<(String, bool), Failure> {
    netns::enter(arguments.netns.as_deref())?;
    let from = objects::From {
        manifests: &arguments.manifests,
        settings: &arguments.settings,
        logging: &arguments.logging,
        is_offline: false,
    };
    let reader = from.start()?;
    match arguments.against {
        None => with_kernel(arguments, &reader),
        Some(Against::KubeProxy) => {
            let (_, desired) = reader.read(&Selection::All)?.planned();
            Ok(against_kube_proxy(arguments, &desired)?)
        }
    }
}

/// Compares the tables with the plan. The agent may commit meanwhile, and a listing during the
/// resize of a large set lacks elements. So a difference counts if it is found twice.
fn with_kernel(arguments: &Diff, reader: &objects::Reader) -> Result<(String, bool), Failure> {
    let mut kernel = Socket::open().map_err(|error| explain(&error))?;
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let objects = reader.read(&Selection::All)?;
        let (_, desired) = objects.planned();
        let places = compare(&mut kernel, &desired).map_err(|error| explain(&error))?;
        if !places.is_empty() && last.as_ref() != Some(&places) {
            last = Some(places);
            std::thread::sleep(PAUSE);
            continue;
        }
        let refused = objects.status.rules.quarantined.len();
        let quarantine = (refused > 0)
            .then(|| format!("the kernel refuses {refused} frontends, which `shunt status` names"));
        let comparison = KernelComparison {
            frontends: desired.frontends().len(),
            places,
            notes: quarantine.into_iter().collect(),
        };
        let text = match arguments.output {
            Format::Text => comparison.to_string(),
            Format::Json => super::json(&comparison.json())?,
        };
        return Ok((text, comparison.is_same()));
    }
    Err(anyhow!("the tables or the plan changed during {ATTEMPTS} comparisons; repeat the command")
        .into())
}

fn against_kube_proxy(arguments: &Diff, desired: &Desired) -> anyhow::Result<(String, bool)> {
    let mut kernel = Socket::open().map_err(|error| explain(&error))?;
    let mode = arguments.kube_proxy_mode.map(Into::into);
    let forwarding = kube_proxy::forwarding(&mut kernel, mode).map_err(|error| match error {
        Unreadable::Nftables(error) => explain(&error).context("cannot read kube-proxy's rules"),
        other => other.into(),
    })?;
    let comparison = diff::against(&forwarding, desired);
    let text = match arguments.output {
        Format::Text => comparison.to_string(),
        Format::Json => super::json(&diff::json(&comparison))?,
    };
    Ok((text, comparison.is_same()))
}
