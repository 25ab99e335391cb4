//! Rules about any text file: length, tests that do not run, and names of places that are not
//! everybody's.

/// A file longer than this does more than one thing.
const LONGEST_FILE: usize = 600;

/// Folders whose files have a limit on their length.
const LIMITED: [&str; 3] = ["crates/", "src/", "xtask/"];

/// How a test begins that does not run. clippy refuses only those that give no reason.
const IGNORED_TEST: &str = "#[ignore";

/// Folders of one machine. Written in two parts so that this file passes its own rule.
const MACHINE_PATHS: [&str; 3] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/tmp/", "target")];

/// Hosts of package registries. Which registry or mirror is used is for the machine's own cargo,
/// apt and the like to know; a host written here would go round that.
const REGISTRY_HOSTS: [&str; 9] = [
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("crates.io", "-index"),
    concat!("py", "pi.org"),
    concat!("files.", "pythonhosted.org"),
    concat!("registry.", "npmjs.org"),
    concat!("deb.", "debian.org"),
    concat!("security.", "debian.org"),
    concat!("archive.", "ubuntu.com"),
];

/// Where Debian is on a machine that is no Debian, whose apt cannot say it.
const DEFAULT_MIRROR: (&str, &str) = ("xtask/src/vm/kernel.rs", REGISTRY_HOSTS[6]);

/// The repository's address, or a placeholder until there is one. All places have the same.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");
const PLACEHOLDER: &str = concat!("OWN", "ER/shunt");

/// How a netlink socket is opened without the crate `mnl`, which all of the agent's are opened with.
const NETLINK_FAMILY: [&str; 2] = ["AF_NETLINK", "AddressFamily::Netlink"];

/// What is wrong with this file.
pub(super) fn check(path: &str, text: &str) -> Vec<String> {
    let mut violations = Vec::new();
    let lines = text.lines().count();
    if LIMITED.iter().any(|folder| path.starts_with(folder)) && lines > LONGEST_FILE {
        violations.push(format!(
            "{path}: {lines} lines, the limit is {LONGEST_FILE}: split it by subject"
        ));
    }
    for (number, line) in (1..).zip(text.lines()) {
        let mut object = |message: String| violations.push(format!("{path}:{number}: {message}"));
        if path.ends_with(".rs") && line.trim_start().starts_with(IGNORED_TEST) {
            object("an ignored test proves nothing; make it run or remove it".to_owned());
        }
        let is_product = path.starts_with("src/") || path.starts_with("crates/");
        if is_product && NETLINK_FAMILY.iter().any(|name| line.contains(name)) {
            object("only crates/nfnetlink/src/socket.rs opens netlink sockets".to_owned());
        }
        if let Some(place) = MACHINE_PATHS.iter().find(|place| names_path(line, place)) {
            object(format!("`{place}` exists only on some machines; use a relative path"));
        }
        if names_other_repository(line, REPOSITORY) {
            object(format!("the repository is {REPOSITORY}, as Cargo.toml says"));
        }
        if path == "Cargo.lock" && line.starts_with("source = ") {
            // Cargo's own name for its registry, which a mirror does not change.
            if !line.contains(REGISTRY_HOSTS[2]) {
                object("take the crate from the registry".to_owned());
            }
            continue;
        }
        let host = REGISTRY_HOSTS.iter().find(|host| line.contains(**host));
        if let Some(host) = host.filter(|host| (path, **host) != DEFAULT_MIRROR) {
            object(format!("`{host}` is a registry's host; leave it to the machine's settings"));
        }
    }
    violations
}

/// Whether `line` has another address of the repository, or the placeholder of an address that is known.
fn names_other_repository(line: &str, repository: &str) -> bool {
    let host = "github.com/";
    let own = repository.rsplit_once(host).map_or(repository, |(_, own)| own);
    let ends = |c: char| !c.is_alphanumeric() && !"-_./".contains(c);
    let mut others = line.split(host).skip(1).filter_map(|rest| {
        let mut parts = rest.split(ends).next()?.splitn(3, '/');
        Some(format!("{}/{}", parts.next()?, parts.next()?))
    });
    others.any(|it| it.ends_with("/shunt") && it != own)
        || own != PLACEHOLDER && line.contains(PLACEHOLDER)
}

/// Whether `line` has the absolute path `place`, and not just a relative one that ends like it.
fn names_path(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.})".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_is_refused_where_files_have_a_limit() {
        let long = "\n".repeat(LONGEST_FILE + 1);
        assert_eq!(check("src/model/store.rs", &long).len(), 1);
        assert_eq!(check("xtask/src/main.rs", &long).len(), 1);
        assert_eq!(check("LICENSE-GPL", &long), [""; 0]);
        assert_eq!(check("src/lib.rs", &"\n".repeat(LONGEST_FILE)), [""; 0]);
    }

    #[test]
    fn a_test_that_does_not_run_is_refused() {
        for source in ["#[test]\n#[ignore]\nfn f() {}", "    #[ignore = \"slow\"]\n"] {
            assert_eq!(check("tests/packets.rs", source).len(), 1, "{source}");
        }
    }

    #[test]
    fn a_netlink_socket_of_the_product_is_refused() {
        assert_eq!(check("src/commands/check/kernel.rs", NETLINK_FAMILY[0]).len(), 1);
        assert_eq!(check("tests/it/packets/exclusive.rs", NETLINK_FAMILY[0]), [""; 0]);
    }

    #[test]
    fn another_address_of_the_repository_is_refused() {
        let (old, new) = (
            format!("https://github.com/{PLACEHOLDER}"),
            concat!("https://github.com/a-b/", "shunt"),
        );
        assert!(!names_other_repository(&format!("see {old}/blob/main/x.md#y"), &old));
        assert!(!names_other_repository("https://github.com/kubernetes/kubernetes", &old));
        assert!(names_other_repository(&format!("home: {new}"), &old));
        assert!(names_other_repository(&format!("--repo {PLACEHOLDER}"), new));
        assert!(!names_other_repository(&format!("({new})"), new));
    }

    #[test]
    fn a_machine_path_is_refused_with_its_line() {
        for place in MACHINE_PATHS {
            let text = format!("one\nsee {place}x\n");
            let violations = check("README.md", &text);
            assert_eq!(violations.len(), 1, "{place}");
            assert!(violations[0].starts_with("README.md:2: "), "{violations:?}");
        }
        let relative = format!("net{}x and $HOME{}y", MACHINE_PATHS[0], MACHINE_PATHS[0]);
        assert_eq!(check("README.md", &relative), [""; 0]);
    }

    #[test]
    fn a_registry_host_is_refused_except_in_the_lock_files_sources() {
        for host in REGISTRY_HOSTS {
            assert_eq!(check("README.md", &format!("https://{host}/")).len(), 1, "{host}");
        }
        let source =
            format!("source = \"registry+https://github.com/rust-lang/{}\"", REGISTRY_HOSTS[2]);
        assert_eq!(check("Cargo.lock", &source), [""; 0]);
        assert_eq!(check("Cargo.lock", "source = \"git+https://example.org/forked.git\"").len(), 1);
        assert_eq!(check("deny.toml", &source).len(), 1);
    }

    #[test]
    fn this_file_passes_its_own_rules() {
        assert_eq!(check("xtask/src/tidy/text.rs", include_str!("text.rs")), [""; 0]);
    }
}
