//! Bad input, as a user meets it: the real program, its exit code, what it prints and what it says.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests stop the test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn shunt(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shunt")).args(arguments).output().expect("the program")
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn render(path: &Path, more: &[&str]) -> Output {
    let path = path.to_str().unwrap();
    shunt(&[&["render", "--hostname-override=node-1", "--manifests", path], more].concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Each wrong object is named with its file, line, field and value, and costs only itself.
#[test]
fn wrong_objects_are_named_and_the_rest_is_programmed() {
    let output = render(&fixture("bad-input"), &["--logging-format=json"]);
    let log = text(&output.stderr);
    assert!(output.status.success(), "{log}");

    let entries: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (level, file, line, object, field, value, message) in [
        (
            "WARN",
            "1-good.yaml",
            19,
            "EndpointSlice shop/good-4",
            "endpoints[1].addresses[0]",
            "10.244.1.1000",
            "not an IP address (this endpoint is ignored)",
        ),
        (
            "ERROR",
            "2-wrong-address.yaml",
            7,
            "Service shop/wrong-address",
            "spec.clusterIP",
            "10.96.0.256",
            "not an IP address (the Service is left out)",
        ),
        (
            "ERROR",
            "3-port-zero.json",
            8,
            "Service shop/port-zero",
            "spec.ports[0].port",
            "0",
            "not a port number; write 1 to 65535 (the Service is left out)",
        ),
        (
            "WARN",
            "4-unknown-kind.yaml",
            2,
            "",
            "kind",
            "Servize",
            "there is no such kind in apiVersion v1; did you mean Service? (it is ignored)",
        ),
        (
            "WARN",
            "6-no-port.yaml",
            9,
            "EndpointSlice shop/no-port",
            "ports[0].port",
            "",
            "a port needs a number (this port of the slice is ignored)",
        ),
        (
            "ERROR",
            "7-long-name.yaml",
            4,
            &format!("Service default/{}…", "x".repeat(64)),
            "metadata.name",
            &format!("{}… (300 bytes)", "x".repeat(80)),
            "longer than 253 characters (the Service is left out)",
        ),
        ("ERROR", "8-not-yaml.yaml", 3, "", "", "", "not YAML or JSON, in column 11: "),
    ] {
        let found = entries.iter().any(|entry| {
            let is = |key: &str, expected: &str| entry[key].as_str().unwrap_or("") == expected;
            is("level", level)
                && entry["file"].as_str().is_some_and(|path| path.ends_with(file))
                && entry["line"] == line
                && is("object", object)
                && is("field", field)
                && is("value", value)
                && entry["msg"].as_str().is_some_and(|text| text.starts_with(message))
        });
        assert!(found, "{file}:{line}: {message}\nis not in\n{log}");
    }
    let conflict = |text: &str| text.contains("shop/a-claims") && text.contains("shop/b-claims");
    assert!(log.lines().any(conflict), "no word about the conflict in\n{log}");

    // The comments of elements name the Service ports.
    let rules = text(&output.stdout);
    let comments = rules.split("comment \"").skip(1).filter_map(|rest| rest.split('"').next());
    let planned: BTreeSet<&str> = comments.filter(|name| name.contains('/')).collect();
    assert_eq!(planned, ["shop/a-claims", "shop/good:http"].into());
}

/// Whatever is in a file, the answer is short.
#[test]
fn garbage_is_one_short_message() {
    let directory = tempfile::tempdir().unwrap();
    fs::copy(fixture("bad-input/1-good.yaml"), directory.path().join("good.yaml")).unwrap();
    let mut noise = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise.to_le_bytes()[0]
    };
    const SIZE: usize = 10 << 20;
    /// For what a parser has to work its way through: debug builds are slow.
    const LESS: usize = 1 << 20;
    let letters = |random: &mut dyn FnMut() -> u8| (0..SIZE).map(|_| 32 + random() % 95).collect();
    for (name, content) in [
        ("bytes", (0..SIZE).map(|_| random()).collect::<Vec<u8>>()),
        ("letters", letters(&mut random)),
        ("zeroes", vec![0; SIZE]),
        ("brackets", vec![b'['; SIZE]),
        ("dashes", b"- ".repeat(SIZE / 2)),
        ("documents", b"---\nx: 1\n".repeat(LESS / 9)),
        (
            "bomb",
            (0..64).fold(b"a: &a0 [x]\n".to_vec(), |mut text, i| {
                text.extend(format!("a{i}: &a{} [*a{i}, *a{i}]\n", i + 1).bytes());
                text
            }),
        ),
    ] {
        fs::write(directory.path().join("garbage.yaml"), content).unwrap();
        let output = render(directory.path(), &[]);
        let log = text(&output.stderr);
        assert!(output.status.success(), "{name}: {log}");
        assert!(log.contains("garbage.yaml"), "{name}: {log}");
        assert!(log.len() < 50_000, "{name}: {} bytes of log", log.len());
        assert!(text(&output.stdout).contains("shop/good:http"), "{name}");
    }
}

/// A person who types a command gets messages, not a log.
#[test]
fn commands_tell_people_what_is_wrong() {
    let told = text(&render(&fixture("bad-input"), &[]).stderr);
    for line in told.lines() {
        let is_message =
            ["error: ", "warning: ", "note: "].iter().any(|word| line.starts_with(word));
        assert!(is_message, "{line}");
    }
    let found =
        "2-wrong-address.yaml:7: Service shop/wrong-address: spec.clusterIP = 10.96.0.256: not";
    assert!(told.lines().any(|l| l.starts_with("error: ") && l.contains(found)), "{told}");
}

/// Manifests of others are rendered before they are trusted.
#[test]
fn names_in_messages_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let name = r"a\e[2J\nerror: \x9B\u202Eb";
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: \"{name}\", namespace: \"{name}\"}}\n\
         spec: {{clusterIP: 10.96.0.1, \"{name}\": 1, ports: [{{port: 80, name: \"{name}\"}}]}}\n"
    );
    fs::write(folder.path().join("a.yaml"), service).unwrap();
    for format in ["text", "json"] {
        let format = format!("--logging-format={format}");
        let output = render(folder.path(), &[&format]);
        let log = text(&output.stderr);
        let harmful = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!log.contains(harmful) && log.contains("[2J"), "{log:?}");
        assert_eq!(log.matches("\nerror: \\").count(), 0, "{log}");
    }
}
