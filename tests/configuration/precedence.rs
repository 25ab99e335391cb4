//! Which of a flag and a file counts, flag by flag, and what is said about it.

use std::fs;

use shunt::config::Flag;
use tempfile::tempdir;

use crate::written::written;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// `flags.txt` has each flag with a value other than the default, and what its field says then.
#[test]
fn every_flag_sets_its_field_unless_a_file_is_given() {
    let scratch = tempdir().unwrap();
    let file = scratch.path().join("config.yaml");
    fs::write(&file, HEAD).unwrap();
    let config = format!("--config={}", file.display());
    let (default, _) = written(&[]);
    let mut names = Vec::new();
    for line in include_str!("flags.txt").lines().filter(|line| !line.starts_with('#')) {
        let (given, expected) = line.split_once(" => ").unwrap_or((line, ""));
        let name = given.trim_start_matches("--").split('=').next().unwrap();
        names.push(name);
        if expected.is_empty() {
            continue;
        }
        let flag = Flag::named(name).expect(name);
        let pointer = format!("/{}", flag.field.replace('.', "/"));
        let field = |full: &serde_json::Value| full.pointer(&pointer).map(ToString::to_string);

        let (alone, _) = written(&[given]);
        assert_eq!(field(&alone).as_deref(), Some(expected), "{given} alone");
        let (beside, log) = written(&[given, &config]);
        let warned = log.contains("has no effect with --config") && log.contains(flag.field);
        if flag.counts_beside_file() {
            assert_eq!(field(&beside).as_deref(), Some(expected), "{given} beside a file");
            assert!(!warned, "{given}: {log}");
        } else {
            assert_eq!(field(&beside), field(&default), "{given} beside a file");
            assert!(warned && log.contains(&format!("--{name}")), "{given}: {log}");
        }
    }
    let mut known: Vec<&str> = Flag::all().map(|flag| flag.name).collect();
    names.sort();
    known.sort();
    assert_eq!(names, known);
}
