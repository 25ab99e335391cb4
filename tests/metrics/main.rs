//! What the agent tells about itself: metrics and health.

mod clients;
mod cluster;
mod health;
mod names;
mod ports;
mod scrape;
mod world;
