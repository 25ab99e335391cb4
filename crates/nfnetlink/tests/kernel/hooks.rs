//! The functions at a hook. Not every kernel lists them; each answer is a valid one.

use anyhow::Result;
use nfnetlink::hooks::{HookOwner, Hooks, Listed};
use nfnetlink::nft::NfProto;
use shunt_testbed::{Netns, record_not_run};

const FORWARD: u32 = 2;

#[test]
fn functions_are_listed_where_the_kernel_can() -> Result<()> {
    let netns = Netns::new()?;
    netns.nft(
        "table inet t {
            chain late { type filter hook forward priority 10; }
            chain early { type filter hook forward priority -10; }
        }",
    )?;
    for family in [NfProto::Ip, NfProto::Ip6] {
        let listed = netns.run(|| Ok(Hooks::open()?.list(family, FORWARD)?))?;
        match listed {
            Listed::Unsupported => {
                return record_not_run("kernel", 1, "the kernel does not list functions at hooks");
            }
            Listed::Functions(functions) => {
                let chains: Vec<_> = functions
                    .iter()
                    .filter_map(|it| match &it.owner {
                        Some(HookOwner::Chain { chain, .. }) => Some((it.priority, &chain[..])),
                        _ => None,
                    })
                    .collect();
                assert_eq!(chains, [(-10, "early"), (10, "late")]);
            }
        }
    }
    Ok(())
}

#[test]
fn unknown_hooks_are_not_supported() -> Result<()> {
    let netns = Netns::new()?;
    let listed = netns.run(|| Ok(Hooks::open()?.list(NfProto::Ip, 200)?))?;
    assert_eq!(listed, Listed::Unsupported);
    Ok(())
}
