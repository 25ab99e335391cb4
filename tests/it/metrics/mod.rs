//! What the agent tells about itself: metrics and health.

mod clients;
mod ending;
mod health;
mod names;
mod ports;
