//! What the machine tells the one who started it, over its second serial port.
//!
//! Lines, the first byte of which says what they are: `+` a statement, `|` a line that a program
//! printed. After `+ file NAME LENGTH` that many bytes follow as they are.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Mutex;

use anyhow::{Context, Result};
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};

/// The second serial port.
const PORT: &str = "/dev/ttyS1";

/// The way out of the machine.
pub(crate) struct Report {
    port: Mutex<File>,
}

impl Report {
    /// Opens the port. The terminal driver shall change nothing of what is written.
    pub(crate) fn open() -> Result<Self> {
        let port = OpenOptions::new().read(true).write(true).open(PORT);
        let port = port.with_context(|| format!("cannot open {PORT}"))?;
        let mut settings = tcgetattr(&port)?;
        cfmakeraw(&mut settings);
        tcsetattr(&port, SetArg::TCSANOW, &settings)?;
        Ok(Self { port: Mutex::new(port) })
    }

    /// A statement, such as `begin kernel`.
    pub(crate) fn say(&self, statement: &str) -> Result<()> {
        self.write(format!("+ {}\n", statement.replace('\n', " ")).as_bytes())
    }

    /// A line that a program printed.
    pub(crate) fn quote(&self, line: &str) -> Result<()> {
        self.write(format!("|{line}\n").as_bytes())
    }

    /// A file.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> Result<()> {
        let mut message = format!("+ file {name} {}\n", content.len()).into_bytes();
        message.extend(content);
        self.write(&message)
    }

    /// Waits until all has left the machine.
    pub(crate) fn flush(&self) -> Result<()> {
        let port = self.port.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        nix::sys::termios::tcdrain(&*port).context("cannot drain the serial port")
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut port = self.port.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        port.write_all(bytes).context("cannot write to the serial port")
    }
}
