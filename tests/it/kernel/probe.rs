//! What `shunt check` asks the kernel, and that nothing of it stays.

use anyhow::Result;
use nfnetlink::nft::{Batch, Kernel, Socket, TABLE_OWNER, TABLE_PERSIST, TableFamily};
use shunt::dataplane::{Abilities, refused_rules};
use shunt_core::model::{Change, Dirty, Family, ObjectName, Store};
use shunt_core::plan::{DetectLocal, NodeContext, NodePortAddresses, Options};
use shunt_testbed::Netns;

const TABLE: &str = "probe";

fn kernel(ns: &Netns) -> Result<Socket> {
    ns.run(|| Ok(Socket::open()?))
}

#[test]
fn no_rule_is_refused_for_any_configuration() -> Result<()> {
    let ns = Netns::new()?;
    let mut kernel = kernel(&ns)?;
    let mut store = Store::new();
    let cidrs = vec!["10.96.0.0/16".parse()?, "fd00:96::/108".parse()?];
    store.apply(
        Change::ServiceCidr(ObjectName::new("", "kubernetes"), cidrs),
        &mut Dirty::default(),
    );
    for detect_local in [
        DetectLocal::Off,
        DetectLocal::ClusterCidr(vec!["10.244.0.0/16".parse()?, "fd00:244::/48".parse()?]),
        DetectLocal::BridgeInterface("cni0".to_owned()),
        DetectLocal::InterfaceNamePrefix("veth".to_owned()),
    ] {
        for node_port_addresses in [
            NodePortAddresses::default(),
            NodePortAddresses { primary: false, nets: vec!["192.0.2.0/24".parse()?] },
        ] {
            let detect_local = detect_local.clone();
            let options = Options { detect_local, node_port_addresses, ..Options::default() };
            let node_context = NodeContext::of(&store, &options, "node-1");
            for family in Family::ALL {
                assert_eq!(refused_rules(&mut kernel, &node_context, family)?, []);
            }
        }
    }
    assert_eq!(ns.output("nft", &["list", "tables"])?, "");
    Ok(())
}

#[test]
fn owned_tables_are_found_where_the_kernel_takes_them() -> Result<()> {
    let ns = Netns::new()?;
    let mut kernel = kernel(&ns)?;
    let mut batch = Batch::new(None);
    batch.add_table(TableFamily::Ip, TABLE, TABLE_OWNER | TABLE_PERSIST, TABLE);
    let found = Abilities::ask(&mut kernel)?.owned_tables;
    assert_eq!(ns.output("nft", &["list", "tables"])?, "");
    assert_eq!(found, kernel.commit(&batch.finish()).is_ok());
    Ok(())
}
