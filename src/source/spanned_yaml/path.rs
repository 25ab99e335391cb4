//! The path of a field within a document.

use std::fmt;

/// One step of a [`FieldPath`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Segment {
    /// Into the field of a mapping.
    Field(Box<str>),
    /// Into an element of a list.
    Index(usize),
}

/// A path of a field: `spec.ports[0].port`. Empty for the document itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FieldPath(Vec<Segment>);

impl FieldPath {
    /// Returns the path of a text such as `spec.ports[0].port` or `metadata.labels[a.b/c]`.
    #[must_use]
    pub fn dotted(path: &str) -> FieldPath {
        let mut steps = Vec::new();
        for part in path.split('[') {
            let fields = match part.split_once(']') {
                Some((step, fields)) => {
                    let index = step.parse().map(Segment::Index);
                    steps.push(index.unwrap_or_else(|_| Segment::Field(step.into())));
                    fields
                }
                None => part,
            };
            let fields = fields.split('.').filter(|field| !field.is_empty());
            steps.extend(fields.map(|field| Segment::Field(field.into())));
        }
        FieldPath(steps)
    }

    /// Appends a step.
    pub fn push(&mut self, segment: Segment) {
        self.0.push(segment);
    }

    /// Returns the steps, from the top.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Returns the path of the first steps.
    #[must_use]
    pub fn first(&self, steps: usize) -> FieldPath {
        FieldPath(self.0.iter().take(steps).cloned().collect())
    }

    /// Returns true for the document itself.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                // Label keys contain dots and slashes; Kubernetes writes them in brackets, too.
                Segment::Field(name) if name.contains(['.', '/', ' ']) => write!(f, "[{name}]")?,
                Segment::Field(name) if position == 0 => f.write_str(name)?,
                Segment::Field(name) => write!(f, ".{name}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_as_kubernetes_writes_them() {
        for path in ["", "spec.ports[3].port", "metadata.labels[kubernetes.io/service-name]"] {
            assert_eq!(FieldPath::dotted(path).to_string(), path);
        }
        let steps = ["spec", "ports"].map(|step| Segment::Field(step.into()));
        let steps = steps.into_iter().chain([Segment::Index(3)]).collect();
        assert_eq!(FieldPath::dotted("spec.ports[3]"), FieldPath(steps));
    }
}
