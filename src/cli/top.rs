//! `shunt top`: shows the new connections a second of each Service, live or once.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nfnetlink::nft::{Error, Socket};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;

use super::args::{Top as Arguments, TopOutput};
use super::{Failure, logging, netns, process};
use crate::dataplane::{Verdicts, verdicts};
use crate::top::{Model, Picture, Screen, draw};

/// The longest wait for a key, after which the command looks for a signal.
const KEY_TIMEOUT: Duration = Duration::from_millis(100);

/// The time for an orderly end after a signal.
const END_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) fn top(arguments: &Arguments) -> Result<(), Failure> {
    logging::start_with(&arguments.logging.0);
    netns::enter(arguments.netns.as_deref())?;
    let mut sampler = Sampler::start(arguments.interval)?;
    let is_live = io::stdin().is_terminal() && io::stdout().is_terminal();
    if arguments.once || arguments.output == TopOutput::Json || !is_live {
        return Ok(once(arguments, &mut sampler)?);
    }
    Ok(live(&mut sampler)?)
}

fn once(arguments: &Arguments, sampler: &mut Sampler) -> Result<()> {
    thread::sleep(arguments.interval);
    let elapsed = sampler.sample()?;
    let count = if arguments.count == 0 { usize::MAX } else { arguments.count };
    let picture = Picture::of(&sampler.model, elapsed, count);
    let text = match arguments.output {
        TopOutput::Text => picture.text(),
        TopOutput::Json => {
            let json = serde_json::to_string_pretty(&picture);
            json.context("cannot write the picture as JSON")? + "\n"
        }
    };
    super::print(&text)
}

fn live(sampler: &mut Sampler) -> Result<()> {
    let ended = end_when_asked()?;
    let terminal = Restored(ratatui::try_init().context("cannot use the terminal")?);
    run(terminal, sampler, &ended)
}

/// A terminal that is as before once this is dropped. A panic restores it by a hook of `ratatui`.
struct Restored(DefaultTerminal);

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Notes SIGTERM, SIGINT and SIGHUP. If the command does not end soon after, the thread restores the
/// terminal and ends the process.
fn end_when_asked() -> Result<Arc<AtomicBool>> {
    let mut asked = SigSet::empty();
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(|it| asked.add(it));
    asked.thread_block().context("cannot block signals")?;
    let ended = Arc::new(AtomicBool::new(false));
    let own = ended.clone();
    process::start_thread("signals", move || {
        // `wait` fails only for an empty set.
        while asked.wait().is_err() {}
        own.store(true, Ordering::Relaxed);
        thread::sleep(END_TIMEOUT);
        ratatui::restore();
        let _ = execute!(io::stdout(), Show);
        std::process::exit(1);
    })?;
    Ok(ended)
}

fn run(mut terminal: Restored, sampler: &mut Sampler, ended: &AtomicBool) -> Result<()> {
    let mut screen = Screen::default();
    screen.show(&sampler.model);
    while !ended.load(Ordering::Relaxed) {
        if sampler.wait().is_zero() {
            screen.failure = sampler.sample().err().map(|error| format!("{error:#}"));
            screen.show(&sampler.model);
        }
        terminal.0.draw(|frame| draw(frame, &mut screen)).context("cannot draw")?;
        let timeout = sampler.wait().min(KEY_TIMEOUT);
        if !event::poll(timeout).context("cannot read keys")? {
            continue;
        }
        if let Event::Key(key) = event::read().context("cannot read keys")?
            && !screen.key(key, &sampler.model)
        {
            break;
        }
    }
    Ok(())
}

/// The counters of the kernel, sampled at an interval.
struct Sampler {
    socket: Socket,
    interval: Duration,
    model: Model,
    last: Instant,
    next: Instant,
}

impl Sampler {
    /// Takes the first sample.
    fn start(interval: Duration) -> Result<Sampler> {
        let socket = Socket::open().context("cannot open netlink")?;
        let now = Instant::now();
        let model = Model::new(interval);
        let mut sampler = Sampler { socket, interval, model, last: now, next: now };
        sampler.sample()?;
        Ok(sampler)
    }

    /// Returns the time until the next sample.
    fn wait(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Takes a sample, and returns the time since the last one.
    fn sample(&mut self) -> Result<Duration> {
        self.next = (self.next + self.interval).max(Instant::now());
        let found: Verdicts = verdicts(&mut self.socket).map_err(|error| match error {
            Error::Request { errno: Errno::EPERM, .. } => {
                anyhow!("only root may read the counters in the kernel; run this command as root")
            }
            error => anyhow!("cannot read the counters in the kernel: {error}"),
        })?;
        if found.is_empty() {
            bail!("the kernel has no Service of shunt in this network namespace");
        }
        let now = Instant::now();
        let elapsed = now.duration_since(std::mem::replace(&mut self.last, now));
        self.model.add(&found, elapsed);
        Ok(elapsed)
    }
}
