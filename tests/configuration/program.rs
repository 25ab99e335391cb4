//! What the program says about itself: versions, completions and man pages.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::CommandFactory as _;
use serde_json::Value;
use shunt::commands::args::Arguments;

use crate::man;

/// What the program prints.
fn shunt(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_shunt")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The commands that `--help` shows.
fn commands() -> Vec<String> {
    let program = Arguments::command();
    let shown = program.get_subcommands().filter(|command| !command.is_hide_set());
    shown.map(|command| command.get_name().to_owned()).collect()
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[test]
fn version_says_what_the_flags_say() {
    let text = shunt(&["version"]);
    let first = format!("shunt {}\n", env!("CARGO_PKG_VERSION"));
    assert!(text.starts_with(&first), "{text}");
    assert_eq!(shunt(&["--version"]), first);
    assert_eq!(shunt(&["run", "--version"]), first);
    let json: Value = serde_json::from_str(&shunt(&["version", "-o", "json"])).unwrap();
    let kernel = json["kernel"].as_str().unwrap();
    assert!(text.ends_with(&format!("kernel {kernel}\n")), "{text}");
    let raw: Value = serde_json::from_str(&shunt(&["run", "--version=raw"])).unwrap();
    assert_eq!(json, raw);
}

/// Each shell reads its script; zsh and fish only where they are installed.
#[test]
fn completions_are_valid_and_offer_all_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = shunt(&["completion", shell]);
        for command in commands() {
            assert!(script.contains(&command), "{shell}: {command}");
        }
        if shell != "bash" && !is_installed(shell) {
            continue;
        }
        let mut read = Command::new(shell)
            .arg(if shell == "fish" { "--no-execute" } else { "-n" })
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        read.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(read.wait().unwrap().success(), "{shell} does not understand the script");
    }
}

/// bash offers commands, and the flags of a command without those that `--help` hides.
#[test]
fn bash_completes_commands_and_flags() {
    let offered = |words: &str| {
        let script = format!(
            "{}\nCOMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _shunt shunt \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\n\
             echo \"${{COMPREPLY[@]}}\"\n",
            shunt(&["completion", "bash"])
        );
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(offered("shunt sta").trim(), "status");
    let flags = offered("shunt status --");
    assert!(flags.contains("--output") && flags.contains("--netns"), "{flags}");
    assert!(!flags.contains("--vmodule"), "{flags}");
    assert!(offered("shunt run --cluster").contains("--cluster-cidr"));
}

#[test]
fn each_command_has_a_man_page_that_renders() {
    let folder = tempfile::tempdir().unwrap();
    man::write(folder.path()).unwrap();
    let mut expected: Vec<String> =
        commands().into_iter().map(|command| format!("shunt-{command}.1")).collect();
    expected.push("shunt.1".to_owned());
    expected.sort();
    let pages = fs::read_dir(folder.path()).unwrap().map(|page| page.unwrap().file_name());
    let mut pages: Vec<String> = pages.map(|name| name.into_string().unwrap()).collect();
    pages.sort();
    assert_eq!(pages, expected);
    for page in pages {
        let path = folder.path().join(&page);
        let text = fs::read_to_string(&path).unwrap();
        let name = page.trim_end_matches(".1");
        assert!(text.contains(&format!(".TH {} 1", name.to_uppercase())), "{text}");
        assert!(!text.contains("log\\-dir") || name != "shunt-status", "{page} has hidden flags");
        renders(&path);
    }
}

/// Renders a page without warnings, where man is installed.
fn renders(page: &Path) {
    if !is_installed("man") || !is_installed("groff") {
        return;
    }
    let output = Command::new("man")
        .args(["--local-file", "--warnings", "--encoding=UTF-8"])
        .arg(page)
        .env("MANWIDTH", "100")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{}", page.display());
}
