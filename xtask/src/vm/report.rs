//! What a machine reports over its second serial port; the other side is `vm-tests/src/report.rs`.

use std::io::{self, BufRead, BufReader, Read};

/// Everything that a machine has reported.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// As `uname -r` says it there.
    pub(super) release: Option<String>,
    /// The programs that it ran.
    pub(super) runs: Vec<Run>,
    /// Names of features, and whether the kernel has them.
    pub(super) features: Vec<(String, bool)>,
    /// Files that tests have left, by name.
    pub(super) files: Vec<(String, Vec<u8>)>,
    /// Whether it said that it had done everything.
    pub(super) done: bool,
    /// Why it could not go on.
    pub(super) broken: Option<String>,
}

/// A program that was run, and the results of the tests in it.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) name: String,
    /// What it printed.
    pub(super) lines: Vec<String>,
    /// As it says itself; some programs say so several times.
    announced: usize,
    pub(super) passed: usize,
    pub(super) failed: Vec<String>,
    ignored: Vec<String>,
    exit_code: Option<i32>,
}

/// Progress, for the person at the terminal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Booted,
    Failed { run: String, test: String },
    Ended { run: usize },
}

impl Report {
    /// Read until the machine says no more, and tell of what happens.
    pub(super) fn read(
        &mut self,
        from: impl Read,
        mut tell: impl FnMut(&Self, Event),
    ) -> io::Result<()> {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            if from.read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches('\n');
            let event = if let Some(quoted) = text.strip_prefix('|') {
                self.quoted(quoted)
            } else if let Some(statement) = text.strip_prefix("+ ") {
                match statement.split(' ').collect::<Vec<_>>()[..] {
                    ["file", name, length] => {
                        let length = length.parse().map_err(io::Error::other)?;
                        let mut content = Vec::new();
                        from.by_ref().take(length).read_to_end(&mut content)?;
                        self.files.push((name.to_owned(), content));
                        None
                    }
                    ref words => self.stated(words),
                }
            } else {
                None
            };
            if let Some(event) = event {
                tell(self, event);
            }
        }
    }

    fn stated(&mut self, words: &[&str]) -> Option<Event> {
        match *words {
            ["kernel", release] => {
                self.release = Some(release.to_owned());
                return Some(Event::Booted);
            }
            ["begin", name] => self.runs.push(Run { name: name.to_owned(), ..Run::default() }),
            ["end", _, code] => {
                let number = self.runs.len();
                if let Some(run) = self.runs.last_mut() {
                    run.exit_code = code.parse().ok();
                    return Some(Event::Ended { run: number - 1 });
                }
            }
            ["done"] => self.done = true,
            ["broken", ..] => self.broken = Some(words[1..].join(" ")),
            _ => {}
        }
        None
    }

    fn quoted(&mut self, line: &str) -> Option<Event> {
        let run = self.runs.last_mut()?;
        run.lines.push(line.to_owned());
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["running", count, "test" | "tests"] => run.announced += count.parse::<usize>().ok()?,
            ["test", _, "...", "ok"] => run.passed += 1,
            ["test", test, "...", "FAILED"] => {
                run.failed.push(test.to_owned());
                return Some(Event::Failed { run: run.name.clone(), test: test.to_owned() });
            }
            ["test", test, "...", "ignored", ..] | ["test", test, "...", "ignored,", ..] => {
                run.ignored.push(test.to_owned());
            }
            ["feature", name, answer @ ("yes" | "no")] => {
                self.features.push((name.to_owned(), answer == "yes"));
            }
            _ => {}
        }
        None
    }

    /// How many tests have a result.
    pub(super) fn results(&self) -> usize {
        self.runs.iter().map(Run::results).sum()
    }

    /// How many tests passed.
    pub(super) fn passed(&self) -> usize {
        self.runs.iter().map(|run| run.passed).sum()
    }

    /// Everything that is wrong with it; `planned` are the programs that should have been run, and
    /// `may_be_empty` says that they may have had no tests.
    pub(super) fn wrongs(&self, planned: &[String], may_be_empty: bool) -> Vec<String> {
        let mut wrongs: Vec<String> = Vec::new();
        if self.release.is_none() {
            wrongs.push("it did not boot".into());
        }
        wrongs.extend(self.broken.iter().map(|why| format!("it could not go on: {why}")));
        for name in planned {
            match self.runs.iter().find(|run| run.name == *name) {
                None => wrongs.push(format!("{name} was not run")),
                Some(run) => wrongs.extend(run.wrongs(may_be_empty)),
            }
        }
        if !self.done && self.broken.is_none() {
            wrongs.push("it ended before everything was done".into());
        }
        wrongs
    }
}

impl Run {
    fn results(&self) -> usize {
        self.passed + self.failed.len()
    }

    fn wrongs(&self, may_be_empty: bool) -> Vec<String> {
        let name = &self.name;
        let mut wrongs: Vec<String> =
            self.failed.iter().map(|test| format!("{name}: {test} failed")).collect();
        wrongs.extend(self.ignored.iter().map(|test| format!("{name}: {test} was not run")));
        let results = self.results() + self.ignored.len();
        if results != self.announced {
            wrongs.push(format!("{name}: {results} of {} tests have a result", self.announced));
        }
        if results == 0 && !may_be_empty {
            wrongs.push(format!("{name}: it has no tests"));
        }
        match self.exit_code {
            Some(0) => {}
            Some(code) if self.failed.is_empty() => {
                wrongs.push(format!("{name}: it ended with exit code {code}"));
            }
            Some(_) => {}
            None => wrongs.push(format!("{name}: it did not end")),
        }
        wrongs
    }

    /// One line for people.
    pub(super) fn summary(&self) -> String {
        match self.failed.len() {
            0 => format!("{}: {} passed", self.name, self.passed),
            failed => format!("{}: {} passed, {failed} failed", self.name, self.passed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str) -> (Report, Vec<Event>) {
        let (mut report, mut events) = (Report::default(), Vec::new());
        report.read(text.as_bytes(), |_, event| events.push(event)).unwrap();
        (report, events)
    }

    fn wrongs(text: &str) -> Vec<String> {
        report(text).0.wrongs(&["kernel".into()], false)
    }

    const GOOD: &str = "+ kernel 6.1\n+ begin kernel\n|running 2 tests\n|test a::b ... ok\n\
                        |test c ... ok\n+ end kernel 0\n+ done\n";

    #[test]
    fn a_good_report_has_nothing_wrong() {
        assert_eq!(wrongs(GOOD), [""; 0]);
        let (report, events) = report(GOOD);
        assert_eq!(report.passed(), 2);
        assert_eq!(events, [Event::Booted, Event::Ended { run: 0 }]);
    }

    #[test]
    fn a_report_that_is_cut_off_anywhere_is_wrong() {
        for end in 0..GOOD.len() - 1 {
            assert_ne!(wrongs(&GOOD[..end]), [""; 0], "{:?}", &GOOD[..end]);
        }
    }

    #[test]
    fn failures_and_what_was_not_run_are_named() {
        let failed = GOOD.replace("c ... ok", "c ... FAILED").replace("kernel 0", "kernel 101");
        assert_eq!(wrongs(&failed), ["kernel: c failed"]);
        let ignored = GOOD.replace("c ... ok", "c ... ignored");
        assert_eq!(wrongs(&ignored), ["kernel: c was not run"]);
        let crashed = GOOD.replace("kernel 0", "kernel 139");
        assert_eq!(wrongs(&crashed), ["kernel: it ended with exit code 139"]);
        let lost = GOOD.replace("|test c ... ok\n", "");
        assert_eq!(wrongs(&lost), ["kernel: 1 of 2 tests have a result"]);
        let empty = "+ kernel 6.1\n+ begin kernel\n|running 0 tests\n+ end kernel 0\n+ done\n";
        assert_eq!(wrongs(empty), ["kernel: it has no tests"]);
        assert_eq!(report(empty).0.wrongs(&["kernel".into()], true), [""; 0]);
    }

    #[test]
    fn files_arrive_as_they_are() {
        let (report, _) = report("+ file kernel/a/x.pcap 4\n+\n|\n|feature fib yes\n+ done\n");
        assert_eq!(report.files, [("kernel/a/x.pcap".to_owned(), b"+\n|\n".to_vec())]);
        assert!(report.done);
    }
}
