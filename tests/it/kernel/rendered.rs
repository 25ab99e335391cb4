//! What `shunt render` prints is what is programmed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use shunt_testbed::Netns;

const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");
const EXAMPLES: [&str; 2] = ["examples/demo", "examples/services"];
/// Too long for a snapshot.
const SLOTS: &str = "tests/it/kernel/slots.yaml";

/// The manifests as `shunt` is to read them.
fn arguments(manifests: &[&str]) -> impl Iterator<Item = String> {
    let manifests = manifests.iter().flat_map(|path| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        ["--manifests".to_owned(), root.join(path).display().to_string()]
    });
    [
        "--hostname-override=node-1".to_owned(),
        "--proxy-mode=nftables".to_owned(),
        "--cluster-cidr=10.244.0.0/16,fd00:244::/48".to_owned(),
    ]
    .into_iter()
    .chain(manifests)
}

fn rendered(manifests: &[&str]) -> Result<String> {
    let output = Command::new(SHUNT).arg("render").args(arguments(manifests)).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// One example of each kind of Service, and what becomes of it. After a change that is meant, write
/// the file anew: `SHUNT_UPDATE_SNAPSHOT=1 cargo xtask test --test it kernel::rendered`, and read the
/// difference.
#[test]
fn the_examples_are_rendered_as_before() -> Result<()> {
    let snapshot = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/kernel/examples.nft");
    let rendered = rendered(&EXAMPLES)?;
    if std::env::var_os("SHUNT_UPDATE_SNAPSHOT").is_some() {
        std::fs::write(&snapshot, &rendered)?;
    }
    let wanted = std::fs::read_to_string(&snapshot).context("the snapshot")?;
    for (number, (new, old)) in rendered.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(new, old, "line {} of tests/it/kernel/examples.nft", number + 1);
    }
    assert_eq!(rendered.lines().count(), wanted.lines().count());
    Ok(())
}

#[test]
fn nft_loads_what_is_rendered_and_has_what_is_programmed() -> Result<()> {
    let (by_nft, by_us) = (Netns::new()?, Netns::new()?);
    let manifests = [&EXAMPLES[..], &[SLOTS]].concat();
    by_nft.output_with_input("nft", &["-f", "-"], &rendered(&manifests)?)?;
    let mut programmed = by_us.command(SHUNT);
    let programmed = programmed.args(["run", "--once"]).args(arguments(&manifests)).output()?;
    ensure!(programmed.status.success(), "{}", String::from_utf8_lossy(&programmed.stderr));
    let (by_nft, by_us) = (by_nft.ruleset()?, by_us.ruleset()?);
    for (theirs, ours) in by_nft.iter().zip(&by_us) {
        assert_eq!(theirs, ours);
    }
    assert_eq!(by_nft.len(), by_us.len());
    assert!(by_us.len() > 150, "the examples have become few");
    for choice in [r#""mod":251,"seed":1936225646"#, r#""field":"sport""#, r#""mod":256"#] {
        assert!(by_us.iter().any(|line| line.contains(choice)), "no {choice}");
    }
    Ok(())
}
