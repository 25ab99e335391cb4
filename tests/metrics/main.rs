//! What the agent tells about itself: metrics and health.

mod names;
