//! What the agent tells about itself: metrics and health.

mod cluster;
mod health;
mod names;
mod ports;
mod scrape;
mod world;
