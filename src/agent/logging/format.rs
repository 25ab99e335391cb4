//! The formats of log lines that `tracing-subscriber` lacks: klog's JSON, and the messages of
//! commands for people.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{self, FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

/// Whether log lines are JSON, which a changed configuration may change.
pub(crate) type IsJson = Arc<AtomicBool>;

/// The format of log lines: JSON with the fields of kube-proxy's log, or text; for people in the style
/// of compilers.
pub(crate) struct LineFormat {
    for_people: bool,
    is_json: IsJson,
    text: format::Format,
}

impl LineFormat {
    pub(crate) fn new(for_people: bool, is_json: IsJson) -> LineFormat {
        LineFormat { for_people, is_json, text: format::Format::default().with_target(false) }
    }
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match self.is_json.load(Ordering::Relaxed) {
            true => json(writer, event),
            false if self.for_people => plain(writer, event),
            false => self.text.format_event(context, writer, event),
        }
    }
}

/// Writes `ts`, the time in milliseconds; `msg`; `v`, the verbosity, absent for errors; and `err` for an
/// error. `level` is an addition of shunt.
fn json(mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
    let Fields { message, fields } = Fields::of(event);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let millis = since.as_nanos() as f64 / 1e6;
    let level = *event.metadata().level();
    write!(writer, r#"{{"ts":{millis:?},"level":"{level}","msg":{}"#, Value::from(message))?;
    if let Some(verbosity) = verbosity(event) {
        write!(writer, r#","v":{verbosity}"#)?;
    }
    for (name, value) in fields {
        let name = if name == "error" { "err" } else { &name };
        write!(writer, ",{}:{value}", Value::from(name))?;
    }
    writer.write_str("}\n")
}

/// Returns the lowest `-v` that logs the event. None for errors, like klog.
fn verbosity(event: &Event<'_>) -> Option<u8> {
    let is_ours = event.metadata().target().starts_with("shunt");
    match (*event.metadata().level(), is_ours) {
        (Level::ERROR, _) => None,
        (Level::WARN, _) | (Level::INFO, true) => Some(0),
        (Level::DEBUG, true) => Some(2),
        (Level::TRACE, true) => Some(4),
        (Level::INFO | Level::DEBUG, false) => Some(8),
        (Level::TRACE, false) => Some(10),
    }
}

/// Writes severity, place, text.
fn plain(mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
    let Fields { message, mut fields } = Fields::of(event);
    let mut take = |name: &str| fields.remove(name).map(|value| text(&value));
    writer.write_str(match *event.metadata().level() {
        Level::ERROR => "error: ",
        Level::WARN => "warning: ",
        Level::INFO => "note: ",
        _ => "debug: ",
    })?;
    if let Some(file) = take("file") {
        write!(writer, "{file}:")?;
        if let Some(line) = take("line") {
            write!(writer, "{line}:")?;
        }
        writer.write_char(' ')?;
    }
    if let Some(object) = take("object") {
        write!(writer, "{object}: ")?;
    }
    match (take("field"), take("value")) {
        (Some(field), Some(value)) => write!(writer, "{field} = {value}: ")?,
        (Some(one), None) | (None, Some(one)) => write!(writer, "{one}: ")?,
        (None, None) => {}
    }
    writer.write_str(&message)?;
    let mut before = " (";
    for (name, value) in &fields {
        write!(writer, "{before}{name}: {}", text(value))?;
        before = ", ";
    }
    writer.write_str(if fields.is_empty() { "\n" } else { ")\n" })
}

/// Returns a value without quotes.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The message and the fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    fields: Map<String, Value>,
}

impl Fields {
    fn of(event: &Event<'_>) -> Fields {
        let mut fields = Fields::default();
        event.record(&mut fields);
        fields
    }

    fn put(&mut self, field: &Field, value: Value) {
        if field.name() == "message" {
            self.message = text(&value);
        } else {
            self.fields.insert(field.name().to_owned(), value);
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use tracing_subscriber::fmt as layers;
    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("a lock").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Log {
        type Writer = Log;

        fn make_writer(&self) -> Log {
            self.clone()
        }
    }

    /// Returns the lines that the closure logs.
    fn lines(json: bool, log: impl FnOnce()) -> Vec<String> {
        let written = Log::default();
        let format = LineFormat::new(true, IsJson::new(json.into()));
        let layer = layers::layer().with_writer(written.clone()).event_format(format);
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, log);
        let text = String::from_utf8(written.0.lock().expect("a lock").clone()).expect("text");
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn json_has_the_fields_of_klog() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_millis();
        let lines = lines(true, || {
            tracing::info!(count = 2, name = "a \"b\"", "started\n{}", 1);
            tracing::debug!("a step");
            tracing::warn!(took = ?std::time::Duration::from_millis(5), "late");
            tracing::error!(error = "no file", "it failed");
        });
        let all: Vec<Value> =
            lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let [info, debug, warn, error] = &all[..] else { unreachable!("{lines:?}") };
        assert_eq!((&info["msg"], &info["v"]), (&"started\n1".into(), &0.into()));
        assert_eq!((&info["count"], &info["name"]), (&2.into(), &"a \"b\"".into()));
        let millis = info["ts"].as_f64().expect("a number");
        assert!(millis >= before as f64 && millis < before as f64 + 60_000.0, "{millis}");
        assert!(lines[0].starts_with(r#"{"ts":1"#) && !lines[0].contains("message"), "{lines:?}");
        assert_eq!(debug["v"], 2);
        assert_eq!((&warn["v"], &warn["took"]), (&0.into(), &"5ms".into()));
        assert_eq!((&error["err"], &error["v"]), (&"no file".into(), &Value::Null));
        assert_eq!(error["level"], "ERROR");
    }

    #[test]
    fn plain_messages_look_like_a_compilers() {
        let lines = lines(false, || {
            tracing::error!(
                file = "a.yaml",
                line = 7,
                object = "Service a/b",
                field = "spec",
                "no"
            );
            tracing::warn!(field = "mode", value = "ipvs", "always nftables");
            tracing::info!(tables = 2, chains = 0, "removed");
            tracing::error!("plain");
        });
        assert_eq!(
            lines,
            [
                "error: a.yaml:7: Service a/b: spec: no",
                "warning: mode = ipvs: always nftables",
                "note: removed (chains: 0, tables: 2)",
                "error: plain",
            ]
        );
    }
}
