//! The path of a field within a document.

use std::fmt;

/// A position in an object, as a chain on the stack. It costs nothing until [`At::path`] makes a
/// path of it for a problem.
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    parent: Option<&'a At<'a>>,
    step: Step<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Step<'a> {
    Field(&'a str),
    Index(usize),
}

impl<'a> At<'a> {
    /// Returns the position of a field of the document itself.
    #[must_use]
    pub const fn top(name: &'a str) -> At<'a> {
        At { parent: None, step: Step::Field(name) }
    }

    /// Returns the position of a field of this value.
    #[must_use]
    pub const fn field(&'a self, name: &'a str) -> At<'a> {
        At { parent: Some(self), step: Step::Field(name) }
    }

    /// Returns the position of an element of this list.
    #[must_use]
    pub const fn index(&'a self, index: usize) -> At<'a> {
        At { parent: Some(self), step: Step::Index(index) }
    }

    /// Returns the path from the top of the document to this position.
    #[must_use]
    pub fn path(&self) -> FieldPath {
        let mut path = self.parent.map(At::path).unwrap_or_default();
        path.push(match self.step {
            Step::Field(name) => Segment::Field(name.into()),
            Step::Index(index) => Segment::Index(index),
        });
        path
    }
}

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
    /// Returns the path of a field of the document itself.
    #[must_use]
    pub fn top(name: &str) -> FieldPath {
        FieldPath(vec![Segment::Field(name.into())])
    }

    /// Returns the path of a text such as `spec.ports[0].port`.
    #[must_use]
    pub fn dotted(path: &str) -> FieldPath {
        let step = |step: &str| match step.strip_suffix(']').and_then(|index| index.parse().ok()) {
            Some(index) => Segment::Index(index),
            None => Segment::Field(step.into()),
        };
        FieldPath(path.split(['.', '[']).map(step).collect())
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
        let spec = At::top("spec");
        let ports = spec.field("ports");
        assert_eq!(ports.index(3).field("port").path().to_string(), "spec.ports[3].port");
        let labels = At::top("metadata");
        let labels = labels.field("labels");
        assert_eq!(
            labels.field("kubernetes.io/service-name").path().to_string(),
            "metadata.labels[kubernetes.io/service-name]"
        );
        assert_eq!(FieldPath::default().to_string(), "");
        assert_eq!(FieldPath::dotted("spec.ports[3].port"), ports.index(3).field("port").path());
    }
}
