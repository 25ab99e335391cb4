//! The stand-in for an API server, in a process of its own: this program cannot link it, because each of
//! its tasks would wait for the crates.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// A running stand-in, which ends with this value.
pub(super) struct Standin {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The path of the kubeconfig for it.
    pub(super) kubeconfig: String,
}

impl Standin {
    pub(super) fn start(program: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().context("cannot start the stand-in for an API server")?;
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().context("no pipe")?);
        let mut standin = Self { process, input, output, kubeconfig: String::new() };
        standin.kubeconfig = standin.answer()?;
        Ok(standin)
    }

    /// Makes or replaces the objects of a text of YAML documents.
    pub(super) fn put(&mut self, manifests: &str) -> Result<()> {
        self.tell(&format!("put {}", serde_json::to_string(manifests)?))
    }

    /// Breaks all watches off.
    pub(super) fn break_watches(&mut self) -> Result<()> {
        self.tell("break-watches")
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("no pipe")?;
        writeln!(input, "{line}").context("the stand-in has ended")?;
        let answer = self.answer()?;
        ensure!(answer == "ok", "the stand-in for an API server: {answer}");
        Ok(())
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("the stand-in does not answer")?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.input.take());
        let _ = self.process.wait();
    }
}
