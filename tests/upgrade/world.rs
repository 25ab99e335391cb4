//! What every scenario starts from: the testbed, and agents of both versions.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use shunt_core::plan::LAYOUT_COMMENT;
pub(crate) use shunt_fake_apiserver::everything as text;
use shunt_testbed::{
    Agent, AgentBuilder, CLUSTER_CIDR, Echo, EndpointSlice, Host, ManifestDir, Node, Service,
    TempDir, Topology,
};

/// The folder of the previous version: its agent `shunt`, and its files in `source`.
const PREVIOUS: &str = "SHUNT_PREVIOUS";

const TARGET: u16 = 8080;
pub(crate) const PODS: [&str; 3] = ["pod-1", "pod-2", "pod-3"];
pub(crate) const CLUSTER_IP: &str = "10.96.0.10:80";

/// Returns the folder of the previous version, or why there is none.
pub(crate) fn previous() -> Result<PathBuf, String> {
    let folder = env::var_os(PREVIOUS).map(PathBuf::from);
    let folder = folder.filter(|folder| folder.join("shunt").is_file());
    folder.ok_or_else(|| format!("{PREVIOUS} names no other version; run `cargo xtask upgrade`"))
}

/// One of the two versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Previous,
    Current,
}

impl Version {
    /// An upgrade and a downgrade, and the former again with what the latter has left.
    pub(crate) const THERE_AND_BACK: [Self; 4] =
        [Self::Previous, Self::Current, Self::Previous, Self::Current];

    pub(crate) fn other(self) -> Self {
        if self == Self::Previous { Self::Current } else { Self::Previous }
    }

    /// Reads a file of the repository, as of this version.
    pub(crate) fn read(self, path: &str) -> Result<String> {
        let folder = match (self, previous()) {
            (Self::Previous, Ok(folder)) => folder.join("source"),
            _ => Path::new(env!("CARGO_MANIFEST_DIR")).to_owned(),
        };
        let path = folder.join(path);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

/// The agent of this build.
const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");

/// The version and the layout of this build, and those of another one.
pub(crate) const VERSION: [&str; 2] = [env!("CARGO_PKG_VERSION"), "0.0.9"];
const LAYOUT: [&str; 2] = [LAYOUT_COMMENT, "shunt layout 1"];

/// Where this build has its version and its layout: one search for all tests, since it takes seconds.
static PLACES: LazyLock<[Vec<usize>; 2]> = LazyLock::new(|| {
    let program = fs::read(SHUNT).unwrap_or_default();
    [VERSION, LAYOUT].map(|[own, _]| {
        let windows = program.windows(own.len()).enumerate();
        windows.filter(|(_, bytes)| *bytes == own.as_bytes()).map(|(at, _)| at).collect()
    })
});

/// Another build: this one, where the version, and the layout if it is `other_layout`, are others.
fn build_with(folder: &Path, other_layout: bool) -> Result<PathBuf> {
    let mut program = fs::read(SHUNT)?;
    let constants = [VERSION, LAYOUT].into_iter().zip(&*PLACES);
    for ([own, other], places) in constants.take(1 + usize::from(other_layout)) {
        ensure!(own.len() == other.len() && own != other, "{own:?} for {other:?}");
        ensure!(!places.is_empty(), "{SHUNT} has no text {own:?}");
        for at in places {
            program[*at..at + own.len()].copy_from_slice(other.as_bytes());
        }
    }
    let (written, path) = (folder.join("written"), folder.join("shunt"));
    fs::write(&written, program)?;
    fs::set_permissions(&written, fs::metadata(SHUNT)?.permissions())?;
    // What this process has open to be written cannot be executed, nor what its children have that are
    // about to execute something else.
    let copied = Command::new("cp").arg("--preserve=mode").arg(written).arg(&path).status()?;
    ensure!(copied.success(), "cp: {copied}");
    Ok(path)
}

/// The testbed with servers in all pods, a directory of manifests, and the agent of the previous version.
pub(crate) struct World {
    pub(crate) lab: Topology,
    pub(crate) manifests: ManifestDir,
    previous: PathBuf,
    _folder: TempDir,
    _servers: Vec<Echo>,
}

impl World {
    /// With a Service that has every kind of frontend in both families, and these fields.
    pub(crate) fn new(fields: &str) -> Result<Self> {
        let lab = Topology::new()?;
        let servers = lab.serve(TARGET)?;
        let manifests = ManifestDir::new()?;
        manifests.write("node.yaml", Node::of(&lab.node))?;
        let web = Service::everywhere("web", 10);
        let web = web.metadata("creationTimestamp: 2020-01-01T00:00:00Z");
        let web = if fields.is_empty() { web } else { web.spec(fields) };
        manifests.write("web.yaml", web)?;
        let folder = TempDir::new()?;
        let previous = match previous() {
            Ok(folder) => folder.join("shunt"),
            Err(_) => build_with(folder.path(), true)?,
        };
        let world = Self { lab, manifests, previous, _folder: folder, _servers: servers };
        world.set_endpoints(&world.lab.pods())?;
        Ok(world)
    }

    /// With another version that has the layout of this one.
    pub(crate) fn with_unchanged_layout() -> Result<Self> {
        let mut world = Self::new("")?;
        world.previous = build_with(world._folder.path(), false)?;
        Ok(world)
    }

    fn binary(&self, version: Version) -> &Path {
        match version {
            Version::Previous => &self.previous,
            Version::Current => Path::new(SHUNT),
        }
    }

    /// Replaces the endpoints of the Service.
    pub(crate) fn set_endpoints(&self, pods: &[&Host]) -> Result<()> {
        self.manifests.write("web-slices.yaml", EndpointSlice::of("web", pods))
    }

    /// An agent of this version with [`CLUSTER_CIDR`] and more settings.
    pub(crate) fn agent(&self, version: Version, settings: &str) -> Result<AgentBuilder> {
        let agent = Agent::builder(self.binary(version), &self.lab.node).manifests(&self.manifests);
        agent.config(&format!("{CLUSTER_CIDR}{settings}"))
    }

    /// Runs a command of this version on the node, to its end.
    pub(crate) fn command(&self, version: Version, words: &[&str]) -> Result<Output> {
        let output = self.lab.node.command(self.binary(version)).args(words).output()?;
        ensure!(output.status.code().is_some(), "{version:?} {words:?}: {}", text(&output));
        Ok(output)
    }

    /// The names of all tables on the node, with their families, in alphabetical order.
    pub(crate) fn tables(&self) -> Result<Vec<String>> {
        let tables = self.lab.node.output("nft", &["list", "tables"])?;
        let names = tables.lines().map(|line| line.trim_start_matches("table ").to_owned());
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Asserts that the agent applies changes, in both families and for two protocols.
    #[track_caller]
    pub(crate) fn assert_changes_apply(&self) -> Result<()> {
        self.set_endpoints(&[&self.lab.pod2])?;
        let client = || self.lab.from(&self.lab.client);
        client().tcp("203.0.113.10:80").eventually().reaches(&["pod-2"]);
        client().tcp("[2001:db8:113::10]:80").eventually().reaches(&["pod-2"]);
        client().udp(CLUSTER_IP).eventually().reaches(&["pod-2"]);
        self.set_endpoints(&self.lab.pods())?;
        client().tcp("203.0.113.10:80").eventually().reaches(&PODS);
        client().tcp("[2001:db8:113::10]:80").eventually().reaches(&PODS);
        client().udp(CLUSTER_IP).eventually().reaches(&PODS);
        Ok(())
    }
}
