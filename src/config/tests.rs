//! Cases for the configuration, written as files and flags.

use super::*;
use crate::source::spanned_yaml::tests::cases;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn of_file(text: &str, flags: &Flags) -> Result<Loaded, Vec<Diagnostic>> {
    load(Some((Path::new("config.conf"), text.as_bytes())), flags)
}

fn texts(problems: &[Diagnostic]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

/// The fields in force, a line for each.
fn fields(config: &Config) -> Vec<String> {
    let lines = |value: &dyn std::fmt::Debug| -> Vec<String> {
        let text = format!("{value:#?}").replace("\n        ", " ");
        let text = ["}", ")", "]"]
            .iter()
            .fold(text, |text, end| text.replace(&format!("\n    {end}"), end));
        let fields = text.lines().filter(|line| line.starts_with(' '));
        fields.map(|line| line.trim().to_owned()).collect()
    };
    let mut all = lines(config);
    all.retain(|field| !field.starts_with("options: "));
    all.extend(lines(&config.options));
    all
}

/// Lines that begin with `--` are flags. What differs from the defaults follows; the first case has none.
#[test]
fn configurations_mean_what_the_cases_say() {
    let defaults = fields(&load(None, &Flags::default()).unwrap().config);
    cases::check("configurations.yaml", |text| {
        let is_code = |line: &&str| !line.starts_with("# ");
        let (given, lines): (Vec<_>, Vec<_>) =
            text.lines().partition(|line| line.starts_with("--") && *line != "---");
        let given: Vec<_> = given.iter().filter_map(|flag| flag[2..].split_once('=')).collect();
        let loaded = if lines.iter().any(is_code) {
            of_file(&format!("{HEAD}{text}"), &Flags::default())
        } else {
            load(None, &flags(&given))
        };
        match loaded {
            Ok(Loaded { config, full, problems, .. }) => {
                // Not all flags and wrong fields can be said in a file.
                let can_be_said = |problem: &Diagnostic| {
                    let text = problem.to_string();
                    text.contains(": mode = ") || text.contains("localhostNodePorts is false")
                };
                if given.is_empty() && problems.iter().all(can_be_said) {
                    assert_round_trip(&config, &full);
                }
                let is_new =
                    |field: &String| text.contains("# The defaults") || !defaults.contains(field);
                let new = fields(&config).into_iter().filter(is_new);
                texts(&problems).into_iter().chain(new).collect()
            }
            Err(problems) => texts(&problems),
        }
    });
}

#[test]
fn file_without_a_configuration_is_an_error_and_text_behind_it_is_not() {
    let braces = format!("{{{}}}\nmode: userspace\n", HEAD.trim_end().replace('\n', ", "));
    for (text, expected) in [
        ("", "config.conf: the file is empty"),
        ("a: [", "config.conf:1: not YAML or JSON"),
        (
            "kind: KubeProxyConfiguration\napiVersion: v1\n",
            "config.conf:2: apiVersion = v1: must be kubeproxy.",
        ),
        ("- a\n", "config.conf:1: apiVersion: must be kubeproxy.config.k8s.io/v1alpha1"),
        (&braces, "config.conf:2: invalid text after the first document, ignored: "),
    ] {
        let problems = match of_file(text, &Flags::default()) {
            Ok(loaded) => loaded.problems,
            Err(problems) => problems,
        };
        assert!(problems[0].to_string().starts_with(expected), "{}", problems[0]);
    }
}

/// The configuration in force, written to a file, is that configuration.
fn assert_round_trip(config: &Config, full: &Configuration) {
    let json = serde_json::to_string(full).unwrap();
    let file = (Path::new("written.json"), json.as_bytes());
    let again = load(Some(file), &Flags::default()).unwrap();
    // What has no effect is noted, and a listener that is off cannot be said in a file.
    let warnings = again.problems.iter().filter(|problem| problem.severity != Severity::Note);
    assert_eq!(warnings.map(ToString::to_string).collect::<Vec<_>>(), [""; 0]);
    assert_eq!((&again.config, &again.full), (config, full));
}

fn flags(given: &[(&str, &str)]) -> Flags {
    let mut flags = Flags::default();
    for (name, value) in given {
        flags.push(Flag::named(name).unwrap(), *value);
    }
    flags
}

/// Every field of the table has a value.
#[test]
fn the_table_of_fields_is_complete() {
    let full = load(None, &flags(&[("vmodule", "a=1")])).unwrap().full;
    let mut paths = Vec::new();
    leaves(&serde_json::to_value(&full).unwrap(), "", &mut paths);
    let mut known: Vec<&str> = FIELDS.iter().map(|field| field.path).collect();
    paths.sort();
    known.sort();
    assert_eq!(paths, known);
    let named = |flag: &&Flag| !flag.field.is_empty();
    for flag in Flag::all().filter(named) {
        let known = known.iter().any(|path| path.starts_with(flag.field));
        assert!(known, "--{} stands for {}", flag.name, flag.field);
    }
}

fn leaves(value: &serde_json::Value, path: &str, paths: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) if path != "featureGates" => {
            for (name, value) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                leaves(value, &format!("{path}{dot}{name}"), paths);
            }
        }
        _ => paths.push(path.to_owned()),
    }
}
