//! Why a command or the agent fails.

/// Why a command failed, with the exit code for it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The configuration cannot be used; its problems are logged already.
    #[error("cannot use the configuration: {0}")]
    Configuration(String),
    /// The files of the command cannot be used; their problems are logged already.
    #[error("{0}")]
    Input(String),
    /// The command has printed its result, which this exit code sums up.
    #[error("the result is exit code {0}")]
    Result(u8),
    /// Any other failure.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}
