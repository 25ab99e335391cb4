//! The tables in `docs/configuration.md` say what the code does: they are made from it.
//!
//! `UPDATE_DOCS=1 cargo test --test configuration reference` writes them anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use clap::CommandFactory;
use serde_json::Value;
use shunt::commands::args::Arguments;
use shunt::config::{Effect, FIELDS, Field, Flag, Flags, load};

#[test]
fn the_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let text = fs::read_to_string(&path).unwrap();
    let parts = [
        ("fields", fields()),
        ("own-flags", own_flags()),
        ("with-a-file", with_a_file()),
        ("without-effect", without_effect()),
    ];
    let expected =
        parts.iter().fold(text.clone(), |text, (name, part)| with_part(&text, name, part));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &expected).unwrap();
    } else {
        assert_eq!(text, expected, "run with UPDATE_DOCS=1 to write it anew");
    }
}

fn with_part(text: &str, name: &str, part: &str) -> String {
    let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
    let (before, rest) = text.split_once(&begin).expect("where the part begins");
    let (_, after) = rest.split_once(&end).expect("where the part ends");
    format!("{before}{begin}{part}{end}{after}")
}

/// The fields with an effect, with their flags and defaults.
fn fields() -> String {
    let defaults = load(None, &Flags::default()).unwrap().full;
    let defaults = serde_json::to_value(defaults).unwrap();
    let mut list = String::new();
    for field in FIELDS {
        let Effect::Honoured(remark) = field.effect else { continue };
        let names: Vec<String> =
            flags_of(&field).map(|flag| format!(" `--{}`", flag.name)).collect();
        let help = || {
            flags_of(&field)
                .next()
                .map_or_else(String::new, |flag| flag.help.trim_end_matches('.').to_owned())
        };
        let effect = if remark.is_empty() { help() } else { remark.to_owned() };
        let default = match default(&defaults, field.path) {
            default if default.is_empty() => default,
            default => format!(" ({default})"),
        };
        let colon = if effect.is_empty() { "" } else { ": " };
        writeln!(list, "- `{}`{}{default}{colon}{effect}", field.path, names.concat()).unwrap();
    }
    list
}

/// Returns the default. The sections of other modes count only if they are set, and so does the mode.
fn default(defaults: &Value, path: &str) -> String {
    let is_of_mode = path == "mode" || path.starts_with("ipvs.") || path.starts_with("iptables.");
    if is_of_mode && path != "iptables.localhostNodePorts" {
        return String::new();
    }
    let pointer = format!("/{}", path.replace('.', "/"));
    let value = defaults.pointer(&pointer).expect(path);
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let items: Vec<String> = match value {
        Value::Array(items) => items.iter().map(text).collect(),
        Value::Object(_) => Vec::new(),
        value => vec![text(value)],
    };
    let items: Vec<String> =
        items.iter().filter(|it| !it.is_empty()).map(|it| format!("`{it}`")).collect();
    items.join(", ")
}

/// A flag may stand for several fields, which have its field as a prefix.
fn flags_of(field: &Field) -> impl Iterator<Item = &'static Flag> {
    let path = field.path;
    Flag::all().filter(move |flag| {
        let rest = path.strip_prefix(flag.field).filter(|_| !flag.field.is_empty());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// What `shunt run` has beyond flags for fields.
fn own_flags() -> String {
    let command = Arguments::command();
    let run = command.find_subcommand("run").unwrap();
    let mut list = String::new();
    for flag in Flag::all().filter(|flag| flag.field.is_empty()) {
        if flag.without_effect_because().is_none() {
            writeln!(list, "- `--{}`: {}", flag.name, flag.help).unwrap();
        }
    }
    for argument in run.get_arguments() {
        let name = argument.get_long().unwrap();
        if Flag::named(name).is_none() {
            let values = argument.get_default_values();
            let values: Vec<_> = values.iter().map(|it| it.to_string_lossy()).collect();
            let default = match values.join(", ") {
                // Switches that are off say so by their names.
                value if value.is_empty() || value == "false" => String::new(),
                value => format!(" (default: `{value}`)"),
            };
            writeln!(list, "- `--{name}`: {}{default}", argument.get_help().unwrap()).unwrap();
        }
    }
    list
}

/// The flags that count beside a file.
fn with_a_file() -> String {
    let flags =
        Flag::all().filter(|it| it.counts_beside_file() && it.without_effect_because().is_none());
    let names: Vec<String> = flags.map(|flag| format!("`--{}`", flag.name)).collect();
    names.join(", ") + "\n"
}

/// Fields and flags without effect, by reason.
fn without_effect() -> String {
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for field in FIELDS {
        if let Effect::None(reason) = field.effect {
            reasons.entry(reason).or_default().push(format!("`{}`", field.path));
        }
    }
    for flag in Flag::all() {
        if let Some(reason) = flag.without_effect_because() {
            reasons.entry(reason).or_default().push(format!("`--{}`", flag.name));
        }
    }
    let line =
        |(reason, names): (&&str, &Vec<String>)| format!("- {reason}: {}\n", names.join(", "));
    reasons.iter().map(line).collect()
}
