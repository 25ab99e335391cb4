//! The path of a field within a document.

use std::fmt;

/// A path of a field: `spec.ports[0].port`. Empty for the document itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FieldPath(String);

impl FieldPath {
    /// Returns the path of a text such as `spec.ports[0].port` or `metadata.labels[a.b/c]`.
    #[must_use]
    pub fn dotted(path: &str) -> FieldPath {
        FieldPath(path.to_owned())
    }

    /// Appends the name of a field, or the index of an element.
    pub fn push(&mut self, step: &str) {
        // Label keys contain dots and slashes; Kubernetes writes them in brackets, too.
        let is_index = step.bytes().all(|byte| byte.is_ascii_digit());
        if is_index || step.contains(['.', '/', ' ']) {
            self.0.push_str(&format!("[{step}]"));
            return;
        }
        if !self.0.is_empty() {
            self.0.push('.');
        }
        self.0.push_str(step);
    }

    /// Returns the names and indexes, from the top.
    pub fn steps(&self) -> impl Iterator<Item = &str> {
        self.0.split('[').flat_map(|part| {
            let (bracketed, fields) = part.split_once(']').unzip();
            let fields = fields.unwrap_or(part).split('.').filter(|field| !field.is_empty());
            bracketed.into_iter().chain(fields)
        })
    }

    /// Returns the path of the first steps.
    #[must_use]
    pub fn first(&self, steps: usize) -> FieldPath {
        let mut first = FieldPath::default();
        self.steps().take(steps).for_each(|step| first.push(step));
        first
    }

    /// Returns true for the document itself.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_as_kubernetes_writes_them() {
        for (path, steps) in [
            ("", &[][..]),
            ("spec.ports[3].port", &["spec", "ports", "3", "port"]),
            (
                "metadata.labels[kubernetes.io/service-name]",
                &["metadata", "labels", "kubernetes.io/service-name"],
            ),
        ] {
            let mut pushed = FieldPath::default();
            steps.iter().for_each(|step| pushed.push(step));
            assert_eq!(pushed, FieldPath::dotted(path));
            assert_eq!(pushed.steps().collect::<Vec<_>>(), steps);
        }
        assert_eq!(
            FieldPath::dotted("spec.ports[3].port").first(2),
            FieldPath::dotted("spec.ports")
        );
    }
}
