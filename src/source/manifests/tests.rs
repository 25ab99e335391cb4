//! Cases for reading files, for several files together, and for watching real directories.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;

use super::collection::{Collection, FileId};
use super::scan::Scanner;
use super::*;
use crate::source::objects::{Key, Kind};
use crate::source::spanned_yaml::Diagnostic;
use crate::source::spanned_yaml::tests::cases;

fn read(text: impl AsRef<[u8]>) -> Result<Manifest, Box<Diagnostic>> {
    let mut context = Context { node_name: "node-1".into(), ..Context::default() };
    parse(&Path::new("f.yaml").into(), text.as_ref(), &mut context)
}

/// A Service by name and last octet of its ClusterIP.
fn service(name: &str, octet: u32) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{clusterIP: 10.96.0.{octet}, ports: [{{port: 80}}]}}\n"
    )
}

/// Objects by name: the ClusterIP of Services, the word "there" for others.
fn say(changes: &[Change]) -> Vec<String> {
    let one = |change: &Change| {
        Some(match change {
            Change::Service(service) => format!("{} {}", service.name, service.cluster_ips[0]),
            Change::ServiceIgnored(name, _) | Change::Gone(Kind::Service, name) => {
                format!("{name} gone")
            }
            Change::Node(node) => format!("node {}", node.name),
            Change::Synced => "synced".into(),
            // What an earlier source has left is deleted at the start.
            Change::Listed(..) => return None,
            other => format!("{other:?}"),
        })
    };
    changes.iter().filter_map(one).collect()
}

fn said(manifest: &Manifest) -> Vec<String> {
    let objects = manifest.objects.iter();
    say(&objects.map(|o| o.change.clone().unwrap_or_else(|| o.key.gone())).collect::<Vec<_>>())
}

#[test]
fn all_forms_of_a_file_are_read() {
    let multi = format!("{}{}---\n# the end\n", service("a", 1), service("b", 2));
    assert_eq!(said(&read(multi).unwrap()), ["default/a 10.96.0.1", "default/b 10.96.0.2"]);
    let list = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "x"},
         "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-2"}}]}"#;
    let manifest = read(list).unwrap();
    assert_eq!(said(&manifest), ["x/a 10.96.0.1", "node node-1"]);
    assert_eq!(manifest.objects[1].line, 4);
    // As `kubectl get --raw` writes it.
    let typed_list = r#"{"kind": "ServiceList", "apiVersion": "v1", "items": [
        {"metadata": {"name": "a"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}}]}"#;
    assert_eq!(said(&read(typed_list).unwrap()), ["default/a 10.96.0.1"]);
    for nothing in ["", "# only a comment\n", "---\n---\n"] {
        assert!(read(nothing).unwrap().objects.is_empty());
    }
    let mixed = format!("apiVersion: apps/v1\nkind: Deployment\n{}", service("a", 1));
    let mixed = read(mixed).unwrap();
    assert_eq!(said(&mixed), ["default/a 10.96.0.1"]);
    assert_eq!((mixed.problems.len(), mixed.not_used.len()), (0, 1));
}

/// A list of objects that others use costs nothing; YAML costs its length in JSON.
#[test]
fn files_are_not_held_twice() {
    let item = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"b": "c"}}"#;
    let items = vec![item; 10_000];
    let json = format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{}]}}"#, items.join(","));
    let yaml = format!("kind: List\napiVersion: v1\nitems:\n- {}\n", items.join("\n- "));
    for (text, most) in [(json, 1.0), (yaml, 4.0)] {
        let memory = allocation_counter::measure(|| drop(read(&text).unwrap()));
        let times = memory.bytes_max as f64 / text.len() as f64;
        assert!(times < most, "{times} times the text");
    }
}

/// What a user sees, and what becomes of the objects: fields that a Service does not have are left out.
#[test]
fn objects_are_read_as_the_cases_say() {
    cases::check("objects.yaml", |text| match read(text) {
        Ok(manifest) => {
            let mut says: Vec<String> = manifest.problems.iter().map(ToString::to_string).collect();
            says.extend(manifest.not_used.iter().map(|kind| format!("not used: {kind}")));
            for Object { line, change, key } in manifest.objects {
                let text = format!("{:?}", change.unwrap_or_else(|| key.gone()));
                let fields =
                    text.split(", ").filter(|it| !it.ends_with("None") && !it.ends_with("[]"));
                says.push(format!("{line}: {}", fields.collect::<Vec<_>>().join(", ")));
            }
            says
        }
        Err(error) => vec![error.to_string()],
    });
    let long = read(format!("apiVersion: v1\nkind: {}", "x".repeat(10_000_000))).unwrap();
    assert!(long.problems.is_empty() && long.not_used.is_empty());
    let many = service("a", 1)
        .replace("ports:", &format!("externalIPs: [{}], ports:", "x, ".repeat(1000)));
    let problems = read(many).unwrap().problems;
    assert!(problems[50].to_string().contains("950 more problems"));
}

proptest! {
    /// Whatever order files are looked at in, the same comes out; and the changes of each round
    /// lead from what was known to what is there.
    #[test]
    fn changes_depend_on_content_only(
        rounds in proptest::collection::vec(
            proptest::collection::vec((0..4_usize, proptest::collection::vec((0..3_u32, 1..4_u32), 0..3)), 0..5),
            1..6,
        ),
    ) {
        let mut collection = Collection::default();
        let mut known: BTreeMap<Key, Change> = BTreeMap::new();
        let mut content: BTreeMap<usize, Vec<(u32, u32)>> = BTreeMap::new();
        for round in rounds {
            for (file, services) in round {
                let id = id(file);
                if services.is_empty() {
                    collection.files.remove(&id);
                } else {
                    collection.files.insert(id, manifest(&services));
                }
                content.insert(file, services);
            }
            for change in collection.finish().0 {
                match change {
                    Change::Service(service) => {
                        let key = Key { kind: Kind::Service, name: service.name.clone() };
                        known.insert(key, Change::service(service));
                    }
                    Change::Gone(Kind::Service, name) => {
                        let removed = known.remove(&Key { kind: Kind::Service, name });
                        prop_assert!(removed.is_some());
                    }
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            let mut fresh = Collection::default();
            for (file, services) in content.iter().rev() {
                fresh.files.insert(id(*file), manifest(services));
            }
            let known: Vec<Change> = known.values().cloned().collect();
            prop_assert_eq!(known, fresh.finish().0);
        }
    }
}

fn id(number: usize) -> FileId {
    FileId { root: 0, path: Path::new(&format!("{number}.yaml")).into() }
}

fn manifest(services: &[(u32, u32)]) -> Manifest {
    let text: String = services.iter().map(|(n, ip)| service(&format!("s{n}"), *ip)).collect();
    read(text).unwrap()
}

#[test]
fn the_last_of_several_definitions_counts() {
    let mut collection = Collection::default();
    collection.files.insert(id(2), manifest(&[(0, 3), (0, 2)]));
    collection.files.insert(id(1), manifest(&[(0, 1)]));
    let (changes, contests) = collection.finish();
    assert_eq!(say(&changes), ["default/s0 10.96.0.2"]);
    let contests: Vec<String> = contests.iter().map(ToString::to_string).collect();
    assert_eq!(
        contests,
        ["2.yaml:7: Service default/s0: the same object is also in 2.yaml:2, 1.yaml:2; the last \
             definition wins, by file name, then by line; remove the others"]
    );
    // Moving an object from one file to another changes nothing.
    collection.files.remove(&id(2));
    collection.files.insert(id(3), manifest(&[(0, 2)]));
    assert_eq!(collection.finish(), (vec![], vec![]));
    collection.files.remove(&id(3));
    let (changes, contests) = collection.finish();
    assert_eq!((say(&changes), contests), (vec!["default/s0 10.96.0.1".to_owned()], vec![]));
    collection.files.remove(&id(1));
    assert_eq!(say(&collection.finish().0), ["default/s0 gone"]);
}

#[test]
fn a_service_that_becomes_headless_or_wrong_is_gone() {
    let headless = "apiVersion: v1\nkind: Service\nmetadata: {name: s0}\nspec: {clusterIP: None}\n";
    let wrong = service("s0", 999);
    for then in [headless, &wrong] {
        let mut collection = Collection::default();
        collection.files.insert(id(1), manifest(&[(0, 1)]));
        collection.finish();
        collection.files.insert(id(1), read(then).unwrap());
        assert_eq!(say(&collection.finish().0), ["default/s0 gone"]);
    }
}

/// A directory that is watched.
struct Watched {
    directory: TempDir,
    batches: Receiver<Vec<Change>>,
}

impl Watched {
    fn new(prepare: impl FnOnce(&Path) -> PathBuf) -> Watched {
        let directory = tempfile::tempdir().unwrap();
        let path = prepare(directory.path());
        let watcher = Watcher::new(&[path], "node-1").unwrap();
        // The watcher goes on when a batch was taken, so that a test can hold it up.
        let (sender, batches) = sync_channel(0);
        std::thread::spawn(move || {
            let watch = watcher.run(|batch| match sender.send(batch.changes) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            });
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(watch)
        });
        Watched { directory, batches }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn next(&self) -> Vec<String> {
        say(&self.batches.recv_timeout(Duration::from_secs(20)).unwrap())
    }

    fn expect(&self, changes: &[&str]) {
        assert_eq!(self.next(), changes);
    }
}

#[test]
fn stdin_is_not_watched() {
    let error = Watcher::new(&["-".into()], "node-1").err().unwrap();
    assert!(error.to_string().contains("add --once"), "{error}");
}

#[test]
fn a_file_that_is_written_under_another_name_is_seen() {
    let elsewhere = tempfile::tempdir().unwrap();
    let target = elsewhere.path().join("real.yaml");
    fs::write(&target, service("a", 1)).unwrap();
    let watched = Watched::new(|directory| {
        let link = directory.join("link.yaml");
        symlink(&target, &link).unwrap();
        link
    });
    watched.expect(&["default/a 10.96.0.1", "synced"]);
    fs::write(&target, service("a", 2)).unwrap();
    watched.expect(&["default/a 10.96.0.2"]);
}

#[test]
fn files_in_a_directory_come_change_and_go() {
    let watched = Watched::new(|directory| {
        fs::write(directory.join("a.yaml"), service("a", 1)).unwrap();
        fs::write(directory.join(".hidden.yaml"), service("hidden", 9)).unwrap();
        fs::write(directory.join("a.yaml~"), service("backup", 9)).unwrap();
        fs::create_dir(directory.join("sub.yaml")).unwrap();
        directory.into()
    });
    watched.expect(&["default/a 10.96.0.1", "synced"]);

    watched.write("b.yml", &service("b", 2));
    watched.expect(&["default/b 10.96.0.2"]);

    // Replaced by rename, as editors and careful tools do.
    watched.write("a.tmp", &service("a", 3));
    fs::rename(watched.path("a.tmp"), watched.path("a.yaml")).unwrap();
    watched.expect(&["default/a 10.96.0.3"]);

    // A link to a file elsewhere.
    watched.write("elsewhere", &service("c", 4));
    symlink(watched.path("elsewhere"), watched.path("c.json")).unwrap();
    watched.expect(&["default/c 10.96.0.4"]);

    fs::remove_file(watched.path("a.yaml")).unwrap();
    watched.expect(&["default/a gone"]);
    fs::rename(watched.path("b.yml"), watched.path("b.off")).unwrap();
    watched.expect(&["default/b gone"]);
}

#[test]
fn a_broken_file_keeps_what_it_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let write = |text: &str| fs::write(path("a.yaml"), text).unwrap();
    write(&service("a", 1));
    let roots = [directory.path().to_owned()];
    let mut scanner = Scanner::new(&roots, "node-1").unwrap();
    let mut scan = || {
        assert!(scanner.scan(0));
        let problems = |name| {
            let file = FileId { root: 0, path: path(name).into() };
            let known = scanner.collection.files.get(&file).into_iter();
            known.flat_map(|manifest| &manifest.problems).map(ToString::to_string).collect()
        };
        let problems: [Vec<String>; 3] = ["a.yaml", "b.yaml", "c.yaml"].map(problems);
        (say(&scanner.changes()), problems.concat())
    };
    assert_eq!(scan(), (vec!["default/a 10.96.0.1".to_owned()], vec![]));
    write("kind: [");
    let (changes, problems) = scan();
    assert_eq!(changes, [""; 0]);
    assert!(problems[0].contains("a.yaml:1: not YAML or JSON"), "{problems:?}");
    let stays = "(the previous content of the file stays in effect)";
    assert!(problems[0].ends_with(stays), "{problems:?}");
    // Neither a pipe without a writer nor a dangling link blocks the scan.
    write(&service("a", 2));
    nix::unistd::mkfifo(&path("b.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    symlink("nowhere", path("c.yaml")).unwrap();
    let (changes, problems) = scan();
    assert_eq!(changes, ["default/a 10.96.0.2"]);
    assert!(problems[0].contains("not a regular file"), "{problems:?}");
    assert!(problems[1].contains("symbolic link to a missing"), "{problems:?}");
    // A directory that goes keeps what it said.
    fs::remove_dir_all(directory.path()).unwrap();
    assert!(!scanner.scan(0));
    let problem = scanner.root_problems[0].as_ref().unwrap().to_string();
    assert!(problem.contains("cannot read the path of the manifests"), "{problem}");
    assert_eq!(scanner.changes(), []);
}

#[test]
fn a_file_counts_when_its_writer_closes_it() {
    let watched = Watched::new(|directory| {
        fs::write(directory.join("a.yaml"), service("a", 1)).unwrap();
        directory.into()
    });
    watched.expect(&["default/a 10.96.0.1", "synced"]);
    let mut writer = fs::File::create(watched.path("a.yaml")).unwrap();
    let text = service("a", 2);
    let (half, rest) = text.as_bytes().split_at(30);
    writer.write_all(half).unwrap();
    watched.write("b.yaml", &service("b", 1));
    watched.expect(&["default/b 10.96.0.1"]);
    writer.write_all(rest).unwrap();
    drop(writer);
    watched.expect(&["default/a 10.96.0.2"]);
}

/// More events than the kernel's queue holds: the last ones are lost, the last state is not.
#[test]
fn a_flood_of_events_ends_in_what_is_there() {
    let watched = Watched::new(Path::to_owned);
    watched.expect(&["synced"]);
    for i in 0..8_000 {
        let name = format!("{}.yaml", i % 7);
        watched.write("new", &service("flood", i % 200 + 1));
        fs::rename(watched.path("new"), watched.path(&name)).unwrap();
        fs::remove_file(watched.path(&name)).unwrap();
    }
    watched.write("last.yaml", &service("flood", 250));
    let mut last = Vec::new();
    while last != ["default/flood 10.96.0.250"] {
        last = watched.next();
    }
}

#[test]
fn a_directory_that_goes_keeps_what_it_said_until_it_is_back() {
    let watched = Watched::new(|directory| {
        let path = directory.join("manifests");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("a.yaml"), service("a", 1)).unwrap();
        fs::write(path.join("b.yaml"), service("b", 1)).unwrap();
        path
    });
    watched.expect(&["default/a 10.96.0.1", "default/b 10.96.0.1", "synced"]);

    fs::rename(watched.path("manifests"), watched.path("old")).unwrap();
    fs::create_dir(watched.path("new")).unwrap();
    watched.write("new/a.yaml", &service("a", 2));
    fs::rename(watched.path("new"), watched.path("manifests")).unwrap();
    watched.expect(&["default/b gone", "default/a 10.96.0.2"]);

    // It is watched again, and the old one is not.
    watched.write("old/a.yaml", &service("a", 3));
    watched.write("manifests/a.yaml", &service("a", 4));
    watched.expect(&["default/a 10.96.0.4"]);
}

#[test]
fn a_link_to_a_directory_can_be_turned() {
    let watched = Watched::new(|directory| {
        for release in ["1", "2"] {
            fs::create_dir(directory.join(release)).unwrap();
            let octet = release.parse().unwrap();
            fs::write(directory.join(release).join("a.yaml"), service("a", octet)).unwrap();
        }
        symlink("1", directory.join("current")).unwrap();
        directory.join("current")
    });
    watched.expect(&["default/a 10.96.0.1", "synced"]);
    symlink("2", watched.path("next")).unwrap();
    fs::rename(watched.path("next"), watched.path("current")).unwrap();
    watched.expect(&["default/a 10.96.0.2"]);
    watched.write("2/b.yaml", &service("b", 5));
    watched.expect(&["default/b 10.96.0.5"]);
}

#[test]
fn loading_once_and_from_several_paths() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir(path("d")).unwrap();
    fs::write(path("d/z.yaml"), service("a", 1)).unwrap();
    fs::write(path("single"), service("a", 2)).unwrap();
    let changes = load(&[path("d"), path("single")], "node-1").unwrap();
    assert_eq!(say(&changes), ["default/a 10.96.0.2", "synced"]);
    let error = load(&[path("nothing")], "node-1").unwrap_err();
    // With its causes, as it is printed.
    let error = format!("{:#}", anyhow::Error::from(error));
    assert!(error.starts_with("cannot read manifests from "), "{error}");
    assert_eq!(error.matches("No such file").count(), 1, "{error}");
}
