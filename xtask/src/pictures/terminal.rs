//! Commands on a terminal, and what it shows.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::num::NonZeroU16;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::pty::{Winsize, openpty};
use vt100::{Parser, Screen};

/// The size of a terminal.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) columns: u16,
    pub(super) rows: u16,
}

/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Returns the screen after the end of a command.
pub(super) fn record(command: Command, size: Size) -> Result<Screen> {
    run(command, size, |_| false, b"")
}

/// Returns the screen of a command once it is as wanted, and ends the command with the key `q`. Each
/// output of the command is looked at.
pub(super) fn record_until(
    command: Command,
    size: Size,
    is_wanted: impl Fn(&Screen) -> bool,
) -> Result<Screen> {
    run(command, size, is_wanted, b"q")
}

fn run(
    mut command: Command,
    size: Size,
    is_wanted: impl Fn(&Screen) -> bool,
    key: &[u8],
) -> Result<Screen> {
    let size_of_kernel =
        Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(Some(&size_of_kernel), None).context("cannot make a terminal")?;
    let slave = File::from(pty.slave);
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    command.stdin(Stdio::from(slave.try_clone()?)).stdout(Stdio::from(slave.try_clone()?));
    let mut child = command.stderr(Stdio::from(slave)).spawn().context("cannot start a command")?;
    // It holds the other end of the terminal, which must close with the child.
    drop(command);
    let mut master = File::from(pty.master);
    let mut reader = master.try_clone()?;
    let (sender, output) = channel();
    let reading = thread::spawn(move || -> io::Result<()> {
        let mut buffer = [0; 4096];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) if sender.send(buffer[..n].to_vec()).is_err() => return Ok(()),
                Ok(_) => {}
                // Linux reports the end of the other side so.
                Err(error) if error.raw_os_error() == Some(nix::libc::EIO) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    });
    let [rows, columns] =
        [size.rows, size.columns].map(|n| NonZeroU16::new(n).unwrap_or(NonZeroU16::MIN));
    let mut parser = Parser::new(rows, columns, 0);
    let deadline = Instant::now() + LIMIT;
    loop {
        match output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(bytes) => parser.process(&bytes),
            Err(RecvTimeoutError::Timeout) => {
                child.kill().context("cannot end a command")?;
                bail!("a command takes longer than {LIMIT:?}:\n{}", parser.screen().contents());
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if is_wanted(parser.screen()) {
            master.write_all(key).context("cannot press a key")?;
            break;
        }
    }
    let screen = parser.screen().clone();
    child.wait().context("cannot wait for a command")?;
    drop(output);
    reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    Ok(screen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn screen_is_what_the_command_leaves_there() {
        let mut command = Command::new("printf");
        command.arg("one\\ntwo \\033[1;32mthree\\033[0m\\033[1;1HONE");
        let screen = record(command, Size { columns: 20, rows: 4 }).unwrap();
        assert_eq!(screen.contents(), "ONE\ntwo three");
        assert!(screen.cell(1, 4).is_some_and(vt100::Cell::bold));
    }

    #[test]
    fn command_that_does_not_end_gets_a_key() {
        let mut command = Command::new("sh");
        command.args(["-c", "stty -icanon; echo waits; head -c 1 > /dev/null"]);
        let size = Size { columns: 20, rows: 4 };
        let screen = record_until(command, size, |screen| screen.contents() == "waits").unwrap();
        assert_eq!(screen.contents(), "waits");
    }
}
