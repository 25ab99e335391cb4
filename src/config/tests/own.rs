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
}
