//! Paths of fields within a document, as texts: `spec.ports[0].port`. Empty for the document itself.

/// Appends the name of a field, or the index of an element.
pub(crate) fn push_step(path: &mut String, step: &str) {
    // Label keys contain dots and slashes; Kubernetes writes them in brackets, too.
    let is_index = step.bytes().all(|byte| byte.is_ascii_digit());
    if is_index || step.contains(['.', '/', ' ']) {
        path.push_str(&format!("[{step}]"));
        return;
    }
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(step);
}

/// Returns the names and indexes of a path such as `metadata.labels[a.b/c]`, from the top.
pub(crate) fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.split('[').flat_map(|part| {
        let (bracketed, fields) = part.split_once(']').unzip();
        let fields = fields.unwrap_or(part).split('.').filter(|field| !field.is_empty());
        bracketed.into_iter().chain(fields)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_as_kubernetes_writes_them() {
        for (path, expected) in [
            ("", &[][..]),
            ("spec.ports[3].port", &["spec", "ports", "3", "port"]),
            (
                "metadata.labels[kubernetes.io/service-name]",
                &["metadata", "labels", "kubernetes.io/service-name"],
            ),
        ] {
            let mut pushed = String::new();
            expected.iter().for_each(|step| push_step(&mut pushed, step));
            assert_eq!(pushed, path);
            assert_eq!(steps(path).collect::<Vec<_>>(), expected);
        }
    }
}
