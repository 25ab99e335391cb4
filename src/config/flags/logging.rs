//! The flags for logging. They count with a file, too.

use super::Flag;

pub(super) const FLAGS: &[Flag] = &[
    Flag::new(
        "logging-format",
        "text|json",
        "logging.format",
        "The log format: text, or json with one object per line.",
    )
    .checked(log_format),
    Flag::new(
        "v",
        "LEVEL",
        "logging.verbosity",
        "Log level: 0 start, stop and problems; 2 also commits, 4 steps, 8 API requests.",
    ),
    Flag::new("vmodule", "PATTERNS", "logging.vmodule", "Levels for source files of kube-proxy."),
    Flag::new(
        "log-flush-frequency",
        "DURATION",
        "logging.flushFrequency",
        "How often buffered lines are written.",
    ),
    Flag::new(
        "log-text-split-stream",
        "",
        "logging.options.text.splitStream",
        "Errors to stderr, the rest to stdout.",
    ),
    Flag::new(
        "log-text-info-buffer-size",
        "BYTES",
        "logging.options.text.infoBufferSize",
        "Buffer for split streams.",
    ),
    Flag::new(
        "log-json-split-stream",
        "",
        "logging.options.json.splitStream",
        "Errors to stderr, the rest to stdout.",
    ),
    Flag::new(
        "log-json-info-buffer-size",
        "BYTES",
        "logging.options.json.infoBufferSize",
        "Buffer for split streams.",
    ),
];

fn log_format(word: &str) -> Result<(), String> {
    match word {
        "text" | "json" => Ok(()),
        _ => Err("unknown format; write text or json".to_owned()),
    }
}
