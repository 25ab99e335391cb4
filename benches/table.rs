//! The table of all results.

use std::fmt::Write as _;
use std::time::Duration;

/// Rows that are printed as they come.
pub(crate) struct Table {
    rows: Vec<[String; 6]>,
}

/// The widths of the columns; the first and the fourth are words.
const WIDTHS: [usize; 6] = [54, 13, 10, 38, 10, 8];
const HEAD: [&str; 6] = ["", "Services x ep", "shunt", "beside", "its figure", "ratio"];

impl Table {
    pub(crate) fn begin() -> Table {
        print(&HEAD.map(str::to_owned));
        Table { rows: Vec::new() }
    }

    /// Our time beside another one.
    pub(crate) fn times(
        &mut self,
        what: &str,
        size: (u32, u32),
        ours: Duration,
        beside: &str,
        other: Duration,
    ) {
        let ratio = ours.as_secs_f64() / other.as_secs_f64();
        self.row(what, size, &time(ours), beside, &time(other), &ratio_text(ratio));
    }

    /// Our time, which there is nothing to compare with.
    pub(crate) fn time(&mut self, what: &str, size: (u32, u32), ours: Duration) {
        self.row(what, size, &time(ours), "", "", "");
    }

    /// Something that is no time.
    pub(crate) fn row(
        &mut self,
        what: &str,
        (services, endpoints): (u32, u32),
        ours: &str,
        beside: &str,
        other: &str,
        ratio: &str,
    ) {
        let size = format!("{services} x {endpoints}");
        let row = [what, &size, ours, beside, other, ratio].map(str::to_owned);
        print(&row);
        self.rows.push(row);
    }

    /// All rows.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from(
            "| | Services x endpoints | shunt | beside | its figure | ratio |\n\
             | --- | ---: | ---: | --- | ---: | ---: |\n",
        );
        for row in &self.rows {
            writeln!(text, "| {} |", row.join(" | ")).expect("a String");
        }
        text
    }
}

fn print(row: &[String; 6]) {
    let mut line = String::new();
    for (column, (text, width)) in row.iter().zip(WIDTHS).enumerate() {
        if column == 0 || column == 3 {
            write!(line, "{text:<width$}  ").expect("a String");
        } else {
            write!(line, "{text:>width$}  ").expect("a String");
        }
    }
    println!("{}", line.trim_end());
}

/// A ratio, of which three digits say something.
pub(crate) fn ratio_text(ratio: f64) -> String {
    match ratio {
        _ if ratio < 0.1 => format!("{ratio:.4}"),
        _ if ratio < 10.0 => format!("{ratio:.2}"),
        _ => format!("{ratio:.0}"),
    }
}

/// A time with a unit that suits it.
pub(crate) fn time(time: Duration) -> String {
    let microseconds = time.as_secs_f64() * 1e6;
    match microseconds {
        _ if microseconds < 1e3 => format!("{microseconds:.1} \u{b5}s"),
        _ if microseconds < 1e6 => format!("{:.2} ms", microseconds / 1e3),
        _ => format!("{:.2} s", microseconds / 1e6),
    }
}
