//! The flags about logs. They count beside a file, too.
//!
//! The last ones are those that klog had until Kubernetes 1.25 and that command lines still carry.

use super::{Flag, ignored, ignored_switch, switch, text, vmodule};
use crate::config::raw::{FlushFrequency, GoDuration};

const KLOG: &str = "logs go to stderr, in one form";

pub(super) const FLAGS: &[Flag] = &[
    Flag::new(
        "logging-format",
        "text|json",
        "logging.format",
        |draft, value| match value {
            "text" | "json" => text(&mut draft.configuration.logging.format, value),
            _ => Err("not a format; write text or json".to_owned()),
        },
        "text for people, json for collectors.",
    )
    .logging(),
    Flag::new(
        "v",
        "LEVEL",
        "logging.verbosity",
        |draft, value| super::number(&mut draft.configuration.logging.verbosity, value),
        "How much is logged: 0 what matters, 2 also each commit, 4 each step, 8 requests.",
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
    Flag::new(name, value, "", ignored, "Of earlier versions of kube-proxy.")
        .logging()
        .without_effect(KLOG)
}

const fn klog_switch(name: &'static str) -> Flag {
    Flag::new(name, "", "", ignored_switch, "Of earlier versions of kube-proxy.")
        .logging()
        .without_effect(KLOG)
}
