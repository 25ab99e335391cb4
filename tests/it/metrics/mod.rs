//! What the agent tells about itself: metrics and health.

mod clients;
mod cluster;
mod ending;
mod exported;
mod health;
mod names;
mod ports;
mod scrape;
