//! What the stand-in does wrong when it is told to.

use crate::object::Kind;

use super::request::{Request, Verb};

/// What a request gets instead of the right answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This HTTP status, with a `Status` object that says so.
    Status(u16),
    /// This HTTP status with `Retry-After` in seconds.
    RetryAfter(u16, u32),
    /// HTTP 200 with this as the whole body, which says that it is JSON.
    Body(Vec<u8>),
    /// Nothing, on a connection that stays open.
    Silence,
    /// The right one, but the connection breaks after this many bytes of the body.
    CutAfter(usize),
}

/// A misbehaviour: which requests it befalls, and how they are answered.
#[derive(Clone, Debug)]
pub struct Fault {
    answer: Answer,
    verb: Option<Verb>,
    kind: Option<Kind>,
    left: Option<usize>,
}

impl Fault {
    /// Befalls every request until [`Standin::behave`](super::Standin::behave).
    pub fn new(answer: Answer) -> Self {
        Self { answer, verb: None, kind: None, left: None }
    }

    /// Befalls only requests of this verb.
    pub fn on(self, verb: Verb) -> Self {
        Self { verb: Some(verb), ..self }
    }

    /// Befalls only requests for this kind.
    pub fn of(self, kind: Kind) -> Self {
        Self { kind: Some(kind), ..self }
    }

    /// Befalls only the next `count` of them.
    pub fn times(self, count: usize) -> Self {
        Self { left: Some(count), ..self }
    }
}

/// The faults that are in force.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// What this request gets; the oldest fault counts.
    pub(super) fn answer(&mut self, request: &Request) -> Option<Answer> {
        let befalls = |fault: &Fault| {
            fault.left != Some(0)
                && fault.verb.is_none_or(|verb| request.verb == verb)
                && fault.kind.is_none_or(|kind| request.kind == Some(kind))
        };
        let fault = self.0.iter_mut().find(|fault| befalls(fault))?;
        if let Some(left) = &mut fault.left {
            *left -= 1;
        }
        Some(fault.answer.clone())
    }
}
