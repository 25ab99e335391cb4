//! Asks the kernel whether it accepts shunt's tables, without a change that any packet meets.
//!
//! One transaction creates a table with everything, and the next one deletes it at once. (The kernel
//! validates rules as a whole only at a commit: without one, as for `nft --check`, Linux 6.18 accepts
//! masquerade in prerouting.) The table has a name of its own and is dormant: no packet meets its
//! base chains. Where the kernel can, the table belongs to the socket, and vanishes with it. The
//! kernel loads modules that the rules need, as for the agent itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nfnetlink::nft::{Batch, Elements, Error, Kernel, Refusal, TABLE_DORMANT, TABLE_OWNER};
use nix::errno::Errno;
use shunt_core::model::{Backend, Balancing, Family, Protocol};
use shunt_core::plan::{
    ChainName, Element, FrontendKey, GONE_ENDPOINTS, Key, NodeContext, Pools, Set, SourceRange,
    Value, base_chains, on_demand_chain,
};

use super::codec::{gone_set_type, push, set_type, table_family};
use super::translate::{base_chain, expressions};

/// Returns the kernel's refusals of shunt's rules of a family; empty if it accepts all.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn refused_rules(
    kernel: &mut dyn Kernel,
    node_context: &NodeContext,
    family: Family,
) -> Result<Vec<Refusal>, Error> {
    let table = table_family(family);
    // No other process uses this name: the netlink port is unique.
    let name = format!("shunt-check-{}", kernel.port());
    let mut refusals = Vec::new();
    // The table vanishes with the socket (Linux 5.12), if the process ends before the deletion.
    for owner in [TABLE_OWNER, 0] {
        let mut batch = Batch::new(None);
        batch.add_table(table, &name, TABLE_DORMANT | owner, &name);
        whole_table(node_context, family, &mut batch, &name);
        refusals = match kernel.commit(&batch.finish()) {
            Ok(()) => Vec::new(),
            Err(Error::Refused(refusals)) => refusals,
            Err(error) => return Err(error),
        };
        if !refusals.first().is_some_and(are_unknown_flags) {
            break;
        }
    }
    if refusals.is_empty() {
        let mut batch = Batch::new(None);
        batch.delete_table(table, &name);
        kernel.commit(&batch.finish())?;
    }
    Ok(refusals)
}

/// Returns true if the kernel refused a table because of its flags.
fn are_unknown_flags(refusal: &Refusal) -> bool {
    let is_about_table = refusal.object.is_empty() && refusal.operation == "add table";
    is_about_table && matches!(refusal.errno, Errno::EOPNOTSUPP | Errno::EINVAL)
}

/// Adds all sets, chains and rules of a family, chains of session affinity included, and an element
/// of each kind.
fn whole_table(node_context: &NodeContext, family: Family, batch: &mut Batch, name: &str) {
    let table = table_family(family);
    for set in Set::ALL {
        batch.add_set(table, name, set.name(), &set_type(family, set));
    }
    let mut on_demand = vec![
        ChainName::AffinityPostrouting,
        ChainName::AffinityInput,
        ChainName::AffinityTimeout(10_800),
        balancer(true),
    ];
    let (pools, balancing) = (Pools::Services, node_context.options.balancing);
    if balancing != Balancing::Random {
        on_demand.push(ChainName::Balancer { pools, balancing, affinity: false, count: 2 });
    }
    if node_context.options.reset_gone_endpoints {
        batch.add_set(table, name, GONE_ENDPOINTS, &gone_set_type(family));
        on_demand.extend(ChainName::FOR_GONE_ENDPOINTS);
    }
    if let Some(timeouts) = node_context.options.tcp_timeouts {
        batch.add_tcp_timeouts(table, name, &timeouts.name(), timeouts.seconds());
    }
    let mut chains = base_chains(node_context, family);
    chains.extend(on_demand.into_iter().filter_map(on_demand_chain));
    for chain in &chains {
        batch.add_chain(table, name, &chain.name.to_string(), chain.base.map(base_chain));
    }
    for chain in &chains {
        for rule in &chain.rules {
            let exprs = expressions(family, rule);
            batch.add_rule(table, name, &chain.name.to_string(), &exprs, rule.comment.as_deref());
        }
    }
    add_elements(family, batch, name);
}

fn balancer(affinity: bool) -> ChainName {
    let (pools, balancing) = (Pools::Services, Balancing::Random);
    ChainName::Balancer { pools, balancing, affinity, count: 1 }
}

fn add_elements(family: Family, batch: &mut Batch, name: &str) {
    // Addresses for documentation (RFC 5737, RFC 3849).
    let address: IpAddr = match family {
        Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let frontend = FrontendKey::Address(address, Protocol::Tcp, 80);
    let (goto, backend) = (Value::Goto(balancer(false)), Backend { address, port: 80 });
    let range = Key::Source(frontend, SourceRange { first: address, last: address });
    for (set, key, value) in [
        (Set::ClusterIps, Key::Address(address), None),
        (Set::ServiceIps, Key::Frontend(frontend), Some(goto)),
        (Set::Endpoints, Key::Pool(frontend, 0), Some(Value::Backend(backend))),
        (Set::AllowedSources, range, None),
    ] {
        let mut elements = Elements::new();
        push(&Element { set, key, value, comment: None }, None, &mut elements);
        batch.add_elements(table_family(family), name, set.name(), &elements);
    }
}

#[cfg(test)]
mod tests {
    use shunt_core::model::Store;
    use shunt_core::plan::Options;
    use shunt_fake_nftables::{Call, Fault, Faulty, Namespace};

    use super::*;

    #[test]
    fn the_refused_rule_is_named() {
        let refuse = |call: Call<'_>| {
            let Call::Commit(batch) = call else { return None };
            let refusals = (1..batch.messages()).map(|it| batch.refusal(it, Errno::ENOENT, None));
            let refusals = refusals.filter(|it| it.to_string().contains("masquerade fully"));
            let refusals: Vec<_> = refusals.collect();
            (!refusals.is_empty()).then_some(Fault::Before(Error::Refused(refusals)))
        };
        let node_context = NodeContext::of(&Store::new(), &Options::default(), "node-1");
        let mut kernel = Faulty::new(Namespace::new().open(), refuse);
        let refused = refused_rules(&mut kernel, &node_context, Family::V6).expect("an answer");
        let text = "masquerade fully-random`): No such file or directory (2)";
        assert!(refused[0].to_string().ends_with(text), "{}", refused[0]);
    }
}
