//! The queue between all threads that log and standard error, which may be a pipe that nobody
//! reads. No thread waits for it: lines that do not fit are lost and counted.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The size of the queue in bytes: some thousand lines. As much again may wait in the write in
/// progress.
const ROOM: usize = 1 << 20;

/// The queue; the log writes each line with one call to a reference of it.
pub(crate) struct LogQueue {
    state: Mutex<LogQueueState>,
    changed: Condvar,
    /// All lines that were lost.
    pub(crate) lost: AtomicU64,
}

struct LogQueueState {
    lines: Vec<u8>,
    /// The number of lines that were lost behind them.
    lost: u64,
    is_writing: bool,
}

impl LogQueue {
    pub(crate) const fn new() -> LogQueue {
        let state = Mutex::new(LogQueueState { lines: Vec::new(), lost: 0, is_writing: false });
        LogQueue { state, changed: Condvar::new(), lost: AtomicU64::new(0) }
    }

    /// Writes the lines to `out`, for ever. Calls `report` with the number of lost lines, once `out`
    /// has accepted the lines before them.
    pub(crate) fn run(&self, mut out: impl Write, report: impl Fn(u64)) {
        loop {
            let (lines, lost) = self.take();
            if lost > 0 {
                // The report is the next line of the queue, which is empty.
                report(lost);
            }
            if out.write_all(&lines).is_err() {
                // A line about it would fail, too.
                let lost = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
                self.lost.fetch_add(lost, Ordering::Relaxed);
            }
        }
    }

    /// Waits for lines. All lines taken before count as written.
    fn take(&self) -> (Vec<u8>, u64) {
        let mut state = self.lock();
        state.is_writing = false;
        self.changed.notify_all();
        let waited =
            self.changed.wait_while(state, |state| state.lines.is_empty() && state.lost == 0);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_writing = true;
        (std::mem::take(&mut state.lines), std::mem::take(&mut state.lost))
    }

    /// Waits until all lines are written, or for this time.
    pub(crate) fn flush(&self, timeout: Duration) {
        let waits = |state: &mut LogQueueState| state.is_writing || !state.lines.is_empty();
        drop(self.changed.wait_timeout_while(self.lock(), timeout, waits));
    }

    fn lock(&self) -> MutexGuard<'_, LogQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for &LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.lock();
        // Once a line is lost, all that follow are, so that their place in the log is known.
        if state.lost > 0 || state.lines.len() + line.len() > ROOM {
            state.lost += 1;
            self.lost.fetch_add(1, Ordering::Relaxed);
        } else {
            state.lines.extend_from_slice(line);
        }
        self.changed.notify_all();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{self, Receiver, Sender};
    use std::thread;

    use super::*;

    /// Standard error whose reader takes one write after the other.
    struct Pipe(Sender<Vec<u8>>, Receiver<()>);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).expect("a test that reads");
            // Its end means that nobody reads any more.
            self.1.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn start() -> (Arc<LogQueue>, Receiver<Vec<u8>>, Sender<()>) {
        let queue = Arc::new(LogQueue::new());
        let ((sent, written), (read, reads)) = (mpsc::channel(), mpsc::channel());
        let in_thread = queue.clone();
        thread::spawn(move || {
            let report = |lost| (&*in_thread).write_all(format!("{lost} lost\n").as_bytes());
            in_thread.run(Pipe(sent, reads), |lost| report(lost).expect("no failure"));
        });
        (queue, written, read)
    }

    fn log(queue: &LogQueue, line: &[u8]) {
        let mut queue = queue;
        queue.write_all(line).expect("no failure");
    }

    #[test]
    fn lines_that_nobody_reads_are_counted_and_the_reader_is_told() {
        let (queue, written, read) = start();
        let long = [b'x'; ROOM / 4];
        log(&queue, b"first\n");
        assert_eq!(written.recv().expect("a write"), b"first\n");
        (0..4).for_each(|_| log(&queue, &long));
        (0..3).for_each(|_| log(&queue, b"lost\n"));
        assert_eq!(queue.lost.load(Ordering::Relaxed), 3);
        // The reader comes back.
        read.send(()).expect("a writer");
        assert_eq!(written.recv().expect("a write"), long.repeat(4));
        log(&queue, b"later\n");
        read.send(()).expect("a writer");
        assert_eq!(written.recv().expect("a write"), b"3 lost\nlater\n");
        assert_eq!(queue.lost.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn line_that_is_longer_than_the_queue_is_told_and_the_next_ones_are_written() {
        let (queue, written, read) = start();
        log(&queue, &[b'x'; ROOM + 1]);
        assert_eq!(written.recv().expect("a write"), b"1 lost\n");
        read.send(()).expect("a writer");
        log(&queue, b"next\n");
        assert_eq!(written.recv().expect("a write"), b"next\n");
    }

    #[test]
    fn flush_waits_for_the_reader_and_not_for_ever() {
        let (queue, written, read) = start();
        queue.flush(Duration::MAX);
        log(&queue, b"last\n");
        queue.flush(Duration::ZERO);
        read.send(()).expect("a writer");
        queue.flush(Duration::from_secs(600));
        assert_eq!(written.try_recv().expect("a write"), b"last\n");
    }

    #[test]
    fn lines_for_a_broken_pipe_are_lost() {
        let (queue, written, read) = start();
        drop(read);
        for line in [b"one\n", b"two\n"] {
            log(&queue, line);
            assert_eq!(written.recv().expect("a write"), line);
        }
        queue.flush(Duration::MAX);
        assert_eq!(queue.lost.load(Ordering::Relaxed), 2);
    }
}
