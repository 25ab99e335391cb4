//! Cases for the section `shunt`, which kube-proxy does not have.

use super::*;

/// The own fields, which flags override in both directions.
#[test]
fn own_flags_count_beside_the_file() {
    let flags = |name: &str, value: Option<&str>| {
        let mut flags = Flags::default();
        let flag = Flag::named(name).unwrap();
        value.into_iter().for_each(|value| flags.push(flag, value));
        flags
    };
    let load_with = |section: &str, flags: &Flags| {
        let text = format!("{HEAD}{section}");
        let file = (Path::new("config.conf"), text.as_bytes());
        let Loaded { config, problems, .. } = load(Some(file), flags).unwrap();
        assert_eq!(texts(&problems), [""; 0], "{section}");
        config
    };
    for (section, flag, resets) in [
        ("", None, false),
        ("shunt: {resetGoneEndpoints: true}\n", None, true),
        ("shunt: null\n", None, false),
        ("", Some("true"), true),
        ("shunt: {resetGoneEndpoints: true}\n", Some("false"), false),
    ] {
        let config = load_with(section, &flags("reset-gone-endpoints", flag));
        assert_eq!(config.reset_gone_endpoints, resets, "{section} {flag:?}");
    }
    let alone = |name, value| load(None, &flags(name, Some(value))).unwrap().config;
    assert!(alone("reset-gone-endpoints", "true").reset_gone_endpoints);
    for (section, flag, mode) in [
        ("", None, Mode::Observe),
        ("shunt: {ejectUnresponsive: null}\n", None, Mode::Observe),
        ("shunt: {ejectUnresponsive: \"\"}\n", None, Mode::Observe),
        ("shunt: {ejectUnresponsive: \"on\"}\n", None, Mode::On),
        // Truth values, in YAML and in Helm.
        ("shunt: {ejectUnresponsive: on}\n", None, Mode::On),
        ("shunt: {ejectUnresponsive: false}\n", None, Mode::Off),
        ("", Some("on"), Mode::On),
        ("shunt: {ejectUnresponsive: off}\n", Some("observe"), Mode::Observe),
    ] {
        let config = load_with(section, &flags("eject-unresponsive", flag));
        assert_eq!(config.eject_unresponsive, mode, "{section} {flag:?}");
    }
    assert_eq!(alone("eject-unresponsive", "off").eject_unresponsive, Mode::Off);
}

#[test]
fn unknown_modes_are_errors() {
    for (value, shown) in [("always", "always"), ("7", "7"), ("[on]", "")] {
        let error = of_file(&format!("shunt: {{ejectUnresponsive: {value}}}\n")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("shunt.ejectUnresponsive") && text.contains(shown), "{text}");
    }
    let problem = Flag::named("eject-unresponsive").unwrap().check("always").unwrap_err();
    assert_eq!(problem, "unknown; write off, observe or on");
}
