//! Bad input that no scenario can have.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests stop the test")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn render(path: &Path, more: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_shunt"));
    program.args(["render", "--hostname-override=node-1", "--manifests"]).arg(path);
    program.args(more).output().expect("the program")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Whatever is in a file, the answer is short.
#[test]
fn garbage_is_one_short_message() {
    let directory = tempfile::tempdir().unwrap();
    let good = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bad-input/1-good.yaml");
    fs::copy(good, directory.path().join("good.yaml")).unwrap();
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
        // What is no YAML leaves nothing known, and the rest may be of use.
        let is_used = output.status.success();
        assert!(is_used || output.status.code() == Some(64), "{name}: {log}");
        assert!(log.contains("garbage.yaml"), "{name}: {log}");
        assert!(log.len() < 50_000, "{name}: {} bytes of log", log.len());
        assert_eq!(text(&output.stdout).contains("shop/good:http"), is_used, "{name}");
    }
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
