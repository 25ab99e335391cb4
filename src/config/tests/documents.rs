//! Cases for files whose documents are not one configuration.

use super::*;

#[test]
fn files_that_are_something_else() {
    for (text, expected) in [
        ("", "config.conf: the file is empty"),
        ("a: [", "config.conf:1: not YAML or JSON"),
        (
            "kind: KubeProxyConfiguration\napiVersion: v1\n",
            "config.conf:2: apiVersion = v1: must be kubeproxy.",
        ),
        ("- a\n", "config.conf:1: apiVersion: must be kubeproxy.config.k8s.io/v1alpha1"),
    ] {
        let file = (Path::new("config.conf"), text.as_bytes());
        let problems = load(Some(file), &Flags::default()).unwrap_err();
        assert!(problems[0].to_string().starts_with(expected), "{}", problems[0]);
    }
}

#[test]
fn only_the_first_document_is_read() {
    let braces = format!("{{{}}}\n", HEAD.trim_end().replace('\n', ", "));
    for (text, expected) in [
        (format!("{HEAD}---\nmode: userspace\n"), "f:4: second document in the file, ignored"),
        (format!("{HEAD}---\n[\n"), "f:4: invalid text after the first document, ignored: "),
        (
            format!("{braces}mode: userspace\n"),
            "f:2: invalid text after the first document, ignored: ",
        ),
    ] {
        let Loaded { problems, .. } =
            load(Some((Path::new("f"), text.as_bytes())), &Flags::default()).unwrap();
        assert!(problems[0].to_string().starts_with(expected), "{text}: {problems:?}");
    }
}
