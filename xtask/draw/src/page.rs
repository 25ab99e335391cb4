//! The generated parts of pages: tables of figures and their pictures, between markers.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};

use super::figure::{DURATIONS, Row, grouped, times};
use super::plots::{PLOTS, services};
use super::{Figures, Run};

/// Begins a generated part; the name of a section follows.
const BEGIN: &str = "<!-- figures: ";
const BEGIN_END: &str = " -->";
const END: &str = "<!-- end of figures -->";
/// The content of a part whose section no run had.
const NOTHING: &str = "Not measured yet.";
/// More subjects than this make no columns of a table.
const MOST_COLUMNS: usize = 6;

/// Fills all generated parts of a page. `render` makes the content of a part from its name.
pub(crate) fn fill(page: &str, mut render: impl FnMut(&str) -> Result<String>) -> Result<String> {
    let mut text = String::new();
    let mut rest = page;
    while let Some(at) = rest.find(BEGIN) {
        let (before, marker) = rest.split_at(at);
        let line = marker.lines().next().unwrap_or_default();
        let name = line.strip_prefix(BEGIN).and_then(|line| line.strip_suffix(BEGIN_END));
        let name = name.with_context(|| format!("no line {BEGIN}SECTION{BEGIN_END}: {line:?}"))?;
        let Some((_, after)) = marker.split_once(END) else { bail!("no {END:?} after {line:?}") };
        write!(text, "{before}{line}\n{}\n{END}", render(name)?.trim_end())?;
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

/// The pictures of a section and its table.
pub(crate) fn section(figures: &Figures, name: &str) -> Result<String> {
    let rows: Vec<&Row> = figures.section(name).collect();
    if rows.is_empty() {
        return Ok(NOTHING.to_owned());
    }
    if name == DURATIONS {
        return durations(&rows);
    }
    let mut text = String::new();
    for plot in PLOTS.iter().filter(|plot| plot.section == name) {
        if let Some(alternative) = plot.alternative(figures) {
            writeln!(text, "![{alternative}](plots/{}.svg)\n", plot.name)?;
        }
    }
    text.push_str(&table(&rows)?);
    if let Some(Run { machine, date }) = figures.runs.get(name) {
        writeln!(text, "\n{date}: {machine}.")?;
    }
    Ok(text)
}

/// How long sections take.
fn durations(rows: &[&Row]) -> Result<String> {
    let mut text = "| section | time |\n| --- | ---: |\n".to_owned();
    for row in rows {
        writeln!(text, "| `{}` | {} |", row.what, row.text())?;
    }
    let all: f64 = rows.iter().map(|row| row.value).sum();
    writeln!(text, "| all | {:.0} min |", (all / 60.0).ceil())?;
    Ok(text)
}

/// The figures of the same thing.
struct Cells<'a> {
    what: &'a str,
    size: (u32, u32),
    rows: Vec<&'a Row>,
}

impl<'a> Cells<'a> {
    fn of(rows: &[&'a Row]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for row in rows {
            let is_it = |cells: &&mut Self| {
                cells.what == row.what && cells.size == (row.services, row.endpoints)
            };
            match all.iter_mut().find(is_it) {
                Some(cells) if cells.rows.iter().all(|other| other.subject != row.subject) => {
                    cells.rows.push(row);
                }
                // Shunt's own figure is there again for each comparison.
                Some(_) => {}
                None => all.push(Self {
                    what: &row.what,
                    size: (row.services, row.endpoints),
                    rows: vec![row],
                }),
            }
        }
        all
    }

    /// How often: once for all, or of each figure.
    fn n(&self) -> String {
        let mut all: Vec<String> = self.rows.iter().map(|row| times(row.n)).collect();
        if all.iter().all(|n| *n == all[0]) {
            all.truncate(1);
        }
        all.join("; ")
    }

    fn size(&self) -> String {
        let (services, endpoints) = self.size;
        format!("{} x {}", grouped(services.into()), grouped(endpoints.into()))
    }
}

/// A column for each subject, or a line for each comparison where subjects differ from line to line.
fn table(rows: &[&Row]) -> Result<String> {
    let cells = Cells::of(rows);
    let mut subjects: Vec<&str> = Vec::new();
    for row in rows {
        if !subjects.contains(&row.subject.as_str()) {
            subjects.push(&row.subject);
        }
    }
    let filled: usize = cells.iter().map(|cells| cells.rows.len()).sum();
    let is_dense = filled * 4 >= cells.len() * subjects.len() * 3;
    let mut text = String::new();
    if subjects.len() <= MOST_COLUMNS && is_dense {
        writeln!(text, "| | Services x endpoints | {} | n |", subjects.join(" | "))?;
        writeln!(text, "| --- | ---: | {}---: |", "---: | ".repeat(subjects.len()))?;
        for cells in &cells {
            let of = |subject: &&str| {
                let row = cells.rows.iter().find(|row| row.subject == **subject);
                row.map_or(String::new(), |row| row.text())
            };
            let figures: Vec<String> = subjects.iter().map(of).collect();
            let (size, n) = (cells.size(), cells.n());
            writeln!(text, "| {} | {size} | {} | {n} |", cells.what, figures.join(" | "))?;
        }
        return Ok(text);
    }
    text.push_str("| | Services x endpoints | shunt | beside | its figure | ratio | n |\n");
    text.push_str("| --- | ---: | ---: | --- | ---: | ---: | ---: |\n");
    for cells in &cells {
        let Some((ours, others)) = cells.rows.split_first() else { continue };
        let (size, n) = (cells.size(), cells.n());
        if others.is_empty() {
            writeln!(text, "| {} | {size} | {} | | | | {n} |", cells.what, ours.text())?;
        }
        for other in others {
            let ratio = ours.ratio(other).unwrap_or_default();
            writeln!(
                text,
                "| {} | {size} | {} | {} | {} | {ratio} | {n} |",
                cells.what,
                ours.text(),
                other.subject,
                other.text()
            )?;
        }
    }
    Ok(text)
}

/// A line of the table in README.md: words, section, what is measured.
const SUMMARY: [(&str, &str, &str); 3] = [
    ("one endpoint: API write to packets", "beside", "one endpoint: write sent to packets"),
    ("cold start until all Services work", "beside", "cold start: process to packets"),
    ("first packet, median", "path", "new TCP connection of a pod, SYN to SYN-ACK: 50 %"),
];
/// The picture in README.md.
const SHOWN: &str = "change";

/// The figures in README.md: of the largest size of each.
pub(crate) fn summary(figures: &Figures) -> Result<String> {
    let names = ["shunt", "kube-proxy nftables", "kube-proxy iptables"];
    let mut table = String::new();
    for (words, section, what) in SUMMARY {
        let rows: Vec<&Row> = figures.section(section).filter(|row| row.what == what).collect();
        let mut sizes: Vec<(u32, u32)> =
            rows.iter().map(|row| (row.services, row.endpoints)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        // A mode of kube-proxy that does not end at the largest size has figures of a smaller one.
        let complete = |size: (u32, u32)| -> Option<((u32, u32), Vec<String>)> {
            let of = |name: &&str| {
                let row = rows
                    .iter()
                    .find(|row| (row.services, row.endpoints) == size && row.subject == **name);
                row.map(|row| row.text())
            };
            Some((size, names.iter().map(of).collect::<Option<_>>()?))
        };
        let Some((size, cells)) = sizes.into_iter().rev().find_map(complete) else { continue };
        writeln!(table, "| {words} | {} | {} |", services(size), cells.join(" | "))?;
    }
    if table.is_empty() {
        return Ok(NOTHING.to_owned());
    }
    let mut text =
        format!("| | | {} |\n| --- | --- | ---: | ---: | ---: |\n{table}", names.join(" | "));
    let plot = PLOTS.iter().find(|plot| plot.name == SHOWN);
    if let Some(alternative) = plot.and_then(|plot| plot.alternative(figures)) {
        write!(text, "\n![{alternative}](docs/plots/{SHOWN}.svg)\n")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::plots::tests::rows;
    use super::*;

    #[test]
    fn generated_parts_are_filled_and_the_rest_stays() {
        let page = "# Title\n\n<!-- figures: path -->\nold\n<!-- end of figures -->\n\nWords.\n";
        let filled = fill(page, |name| Ok(format!("new {name}\n"))).unwrap();
        assert_eq!(filled, page.replace("old", "new path"));
        let error = fill("<!-- figures: path -->\nold\n", |_| Ok(String::new())).unwrap_err();
        assert!(error.to_string().contains(END), "{error}");
    }

    #[test]
    fn subjects_are_columns_where_all_lines_have_them() {
        let figures = Figures { rows: rows(), ..Figures::default() };
        let text = section(&figures, "churn").unwrap();
        let head =
            "| | Services x endpoints | shunt | kube-proxy nftables | kube-proxy iptables | n |";
        assert!(text.contains(head), "{text}");
        let row = |what: &str, subject: &str, value: f64| Row {
            what: what.to_owned(),
            subject: subject.to_owned(),
            value,
            n: if subject == "shunt" { 5 } else { 1 },
            ..rows()[0].clone()
        };
        let text = table(&[
            &row("one", "shunt", 0.002),
            &row("one", "the kernel", 0.001),
            &row("two", "shunt", 0.004),
            &row("three", "shunt", 0.006),
            &row("three", "a listing", 0.001),
        ]);
        let line = "| one | 10 000 x 10 | 2.00 ms | the kernel | 1.00 ms | 2.00 | 5; once |";
        assert!(text.unwrap().contains(line));
    }
}
