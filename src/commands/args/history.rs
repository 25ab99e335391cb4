//! Arguments of `shunt history`, and moments.

use clap::Args;
use jiff::{SignedDuration, Timestamp, Zoned, civil};

use super::{Format, Here};
use crate::serve::status::Time;

/// Arguments of `shunt history`.
#[derive(Debug, Args)]
pub struct History {
    /// Show only changes of this Service, or of the Services with this address or node port.
    #[arg(value_name = "[NAMESPACE/]NAME[:PORT] | IP:PORT")]
    pub about: Option<String>,
    /// Show only changes since this time, such as 1h30m (ago), 03:12 (UTC) or 2026-11-26T03:12:00Z.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub since: Option<Time>,
    /// Replace the names of namespaces, objects, ports and zones.
    #[arg(long)]
    pub anonymous: bool,
    /// Output format. JSON includes the objects: other commands read it with --manifests and --at.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub output: Format,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub here: Here,
}

/// Reads a time of the past.
pub(super) fn moment(text: &str) -> Result<Time, String> {
    let now = Timestamp::now();
    let today = |time: civil::Time| {
        let at = |day: &Zoned| day.with().time(time).build().ok().map(|it| it.timestamp());
        let day = now.to_zoned(jiff::tz::TimeZone::UTC);
        at(&day).filter(|at| *at <= now).or_else(|| at(&day.yesterday().ok()?))
    };
    let ago = text.parse().ok().and_then(|it: SignedDuration| now.checked_sub(it).ok());
    let time = text.parse().ok().or(ago).or_else(|| today(text.parse().ok()?));
    time.filter(|time| *time <= now).ok_or_else(|| {
        "write a past time, such as 1h30m (ago), 03:12 (UTC) or 2026-11-26T03:12:00Z".to_owned()
    })
}
