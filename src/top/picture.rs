//! One picture for scripts, as text or JSON.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use super::{Model, Sort};
use crate::escape;
use crate::status::Time;

/// The rates at one time. Field names are an interface: new ones may come, existing ones stay.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Picture {
    /// When the second sample was taken.
    pub taken: Time,
    /// The time between the two samples.
    pub interval_seconds: f64,
    /// The new connections a second of all Services.
    pub new_connections_per_second: f64,
    /// The new connections that the kernel has counted for all Services.
    pub new_connections: u64,
    /// The Services with the highest rates, highest first.
    pub services: Vec<Service>,
}

/// The rate of a Service.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The new connections a second.
    pub new_connections_per_second: f64,
    /// The new connections that the kernel has counted.
    pub new_connections: u64,
}

impl Picture {
    /// Makes a picture with at most `count` Services.
    #[must_use]
    pub fn of(model: &Model, interval: Duration, count: usize) -> Picture {
        let mut rows: Vec<_> = model.rows().collect();
        rows.sort_by(|one, other| Sort::Rate.compare(one, other));
        let services = rows.into_iter().take(count).map(|row| {
            let (namespace, name) = row.service.split_once('/').unwrap_or(("", &row.service));
            Service {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                new_connections_per_second: row.totals.rate,
                new_connections: row.totals.connections,
            }
        });
        Picture {
            taken: Time::now(),
            interval_seconds: interval.as_secs_f64(),
            new_connections_per_second: model.total().rate,
            new_connections: model.total().connections,
            services: services.collect(),
        }
    }

    /// Writes the picture as a table.
    #[must_use]
    pub fn text(&self) -> String {
        let name = |service: &Service| format!("{}/{}", service.namespace, service.name);
        let widest = self.services.iter().map(|service| name(service).chars().count()).max();
        let width = widest.unwrap_or(0).max("SERVICE".len());
        let mut text = format!("{:<width$}  {:>10}  {:>12}\n", "SERVICE", "RATE", "CONNECTIONS");
        let mut line = |name: &str, rate: f64, connections: u64| {
            let rate = format!("{rate:.1}/s");
            // Writing to a String does not fail.
            let _ = writeln!(text, "{:<width$}  {rate:>10}  {connections:>12}", escape::line(name));
        };
        line("(all)", self.new_connections_per_second, self.new_connections);
        for service in &self.services {
            let Service { new_connections_per_second: rate, new_connections, .. } = service;
            line(&name(service), *rate, *new_connections);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use serde_json::json;

    use super::super::model::tests::sample;
    use super::*;

    #[test]
    fn services_with_the_highest_rates_come_first() {
        let mut model = Model::new(Duration::from_secs(1));
        model.add(&sample(&[("shop/a", 0), ("shop/b:http", 9), ("web/c", 0)]), Duration::ZERO);
        model.add(
            &sample(&[("shop/a", 2), ("shop/b:http", 9), ("web/c", 5)]),
            Duration::from_secs(2),
        );
        let mut picture = Picture::of(&model, Duration::from_secs(2), 2);
        picture.taken = Time(SystemTime::UNIX_EPOCH);
        let wanted = json!({
            "taken": "1970-01-01T00:00:00.000000Z",
            "intervalSeconds": 2.0,
            "newConnectionsPerSecond": 3.5,
            "newConnections": 16,
            "services": [
                {"namespace": "web", "name": "c", "newConnectionsPerSecond": 2.5, "newConnections": 5},
                {"namespace": "shop", "name": "a", "newConnectionsPerSecond": 1.0, "newConnections": 2},
            ],
        });
        assert_eq!(serde_json::to_value(&picture).expect("JSON"), wanted);
        let text = "SERVICE        RATE   CONNECTIONS\n\
                    (all)         3.5/s            16\n\
                    web/c         2.5/s             5\n\
                    shop/a        1.0/s             2\n";
        assert_eq!(picture.text(), text);
    }
}
