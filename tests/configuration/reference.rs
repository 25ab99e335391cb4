//! The tables in `docs/configuration.md` say what the code does: they are made from it.
//!
//! `UPDATE_DOCS=1 cargo test --test configuration reference` writes them anew.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use clap::CommandFactory;
use shunt::cli::args::Arguments;
use shunt::config::{Effect, FIELDS, Field, Flag};

#[test]
fn the_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let text = fs::read_to_string(&path).unwrap();
    let expected = [("fields", fields()), ("flags", flags()), ("own-flags", own_flags())]
        .iter()
        .fold(text.clone(), |text, (name, table)| with_table(&text, name, table));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &expected).unwrap();
    } else {
        assert_eq!(text, expected, "run with UPDATE_DOCS=1 to write it anew");
    }
}

fn with_table(text: &str, name: &str, table: &str) -> String {
    let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
    let (before, rest) = text.split_once(&begin).expect("where the table begins");
    let (_, after) = rest.split_once(&end).expect("where the table ends");
    format!("{before}{begin}{table}{end}{after}")
}

fn fields() -> String {
    let mut table = String::from("| field | flag | effect |\n| --- | --- | --- |\n");
    for field in FIELDS {
        let flags: Vec<String> = Flag::all()
            .filter(|flag| stands_for(flag, &field))
            .map(|flag| format!("`--{}`", flag.name))
            .collect();
        let effect = match field.effect {
            Effect::Honoured("") => "honoured".to_owned(),
            Effect::Honoured(remark) => format!("honoured: {remark}"),
            Effect::None(reason) => format!("accepted without effect: {reason}"),
        };
        writeln!(table, "| `{}` | {} | {effect} |", field.path, flags.join(", ")).unwrap();
    }
    table
}

/// A flag may stand for several fields, which have this prefix.
fn stands_for(flag: &Flag, field: &Field) -> bool {
    let rest = field.path.strip_prefix(flag.field).filter(|_| !flag.field.is_empty());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn flags() -> String {
    let mut table = String::from("| flag | beside `--config` | effect |\n| --- | --- | --- |\n");
    for flag in Flag::all() {
        let beside = if flag.beside_file { "counts" } else { "does not count" };
        let effect = match flag.without_effect_because() {
            Some(reason) => format!("accepted without effect: {reason}"),
            None => format!("honoured: {}", flag.help),
        };
        let value = if flag.is_switch() { "" } else { flag.value };
        let equals = if value.is_empty() { "" } else { "=" };
        let value = value.replace('|', "\\|");
        writeln!(table, "| `--{}{equals}{value}` | {beside} | {effect} |", flag.name).unwrap();
    }
    table
}

/// What `shunt run` has beyond kube-proxy's flags for fields.
fn own_flags() -> String {
    let command = Arguments::command();
    let run = command.find_subcommand("run").unwrap();
    let mut table = String::from("| flag | effect |\n| --- | --- |\n");
    for argument in run.get_arguments() {
        let name = argument.get_long().unwrap();
        if Flag::named(name).is_none() {
            let help = argument.get_help().unwrap();
            writeln!(table, "| `--{name}` | {help} |").unwrap();
        }
    }
    table
}
