//! The flags for logging. They count with a file, too.
//!
//! The last ones are klog's until Kubernetes 1.25; old command lines still have them.

use super::{Flag, ignored, ignored_switch, switch, text, vmodule};
use crate::config::raw::{FlushFrequency, GoDuration};

const KLOG: &str = "all logs go to stderr";

pub(super) const FLAGS: &[Flag] = &[
    Flag::new(
        "logging-format",
        "text|json",
        "logging.format",
        |draft, value| match value {
            "text" | "json" => text(&mut draft.configuration.logging.format, value),
            _ => Err("unknown format; write text or json".to_owned()),
        },
        "The log format: text, or json with one object per line.",
    )
    .logging(),
    Flag::new(
        "v",
        "LEVEL",
        "logging.verbosity",
        |draft, value| super::number(&mut draft.configuration.logging.verbosity, value),
        "Log level: 0 start, stop and problems; 2 also commits, 4 steps, 8 API requests.",
    )
    .logging(),
    Flag::new(
        "vmodule",
        "PATTERNS",
        "logging.vmodule",
        |draft, value| vmodule(&mut draft.configuration.logging.vmodule, value),
        "Levels for source files of kube-proxy.",
    )
    .logging(),
    Flag::new(
        "log-flush-frequency",
        "DURATION",
        "logging.flushFrequency",
        |draft, value| {
            let frequency = FlushFrequency(GoDuration::parse(value)?);
            draft.configuration.logging.flush_frequency = Some(frequency);
            Ok(())
        },
        "How often buffered lines are written.",
    )
    .logging(),
    Flag::new(
        "log-text-split-stream",
        "",
        "logging.options.text.splitStream",
        |draft, value| switch(&mut draft.configuration.logging.options.text.split_stream, value),
        "Errors to stderr, the rest to stdout.",
    )
    .logging(),
    Flag::new(
        "log-text-info-buffer-size",
        "BYTES",
        "logging.options.text.infoBufferSize",
        |draft, value| {
            draft.configuration.logging.options.text.info_buffer_size = Some(value.into());
            Ok(())
        },
        "Buffer for split streams.",
    )
    .logging(),
    Flag::new(
        "log-json-split-stream",
        "",
        "logging.options.json.splitStream",
        |draft, value| switch(&mut draft.configuration.logging.options.json.split_stream, value),
        "Errors to stderr, the rest to stdout.",
    )
    .logging(),
    Flag::new(
        "log-json-info-buffer-size",
        "BYTES",
        "logging.options.json.infoBufferSize",
        |draft, value| {
            draft.configuration.logging.options.json.info_buffer_size = Some(value.into());
            Ok(())
        },
        "Buffer for split streams.",
    )
    .logging(),
    klog_switch("add-dir-header"),
    klog_switch("alsologtostderr"),
    klog("log-backtrace-at", "FILE:LINE"),
    klog("log-dir", "DIRECTORY"),
    klog("log-file", "FILE"),
    klog("log-file-max-size", "MEGABYTES"),
    klog_switch("logtostderr"),
    klog_switch("one-output"),
    klog_switch("skip-headers"),
    klog_switch("skip-log-headers"),
    klog("stderrthreshold", "LEVEL"),
];

const fn klog(name: &'static str, value: &'static str) -> Flag {
    Flag::new(name, value, "", ignored, "A flag of earlier kube-proxy versions.")
        .logging()
        .without_effect(KLOG)
}

const fn klog_switch(name: &'static str) -> Flag {
    Flag::new(name, "", "", ignored_switch, "A flag of earlier kube-proxy versions.")
        .logging()
        .without_effect(KLOG)
}
