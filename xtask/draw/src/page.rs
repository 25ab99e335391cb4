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

/// The section of which the page has the medians of the largest size only.
const LARGEST_ONLY: &str = "path";

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
    let mut rows: Vec<&Row> = figures.section(name).collect();
    if rows.is_empty() {
        return Ok(NOTHING.to_owned());
    }
    if name == LARGEST_ONLY {
        let largest = rows.iter().map(|row| row.services).max();
        rows.retain(|row| Some(row.services) == largest && !row.what.ends_with(": 99 %"));
    }
    if name == DURATIONS {
        return Ok(durations(&rows));
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

/// How long all sections take.
fn durations(rows: &[&Row]) -> String {
    let all: f64 = rows.iter().map(|row| row.value).sum();
    format!("All sections take {:.0} minutes.\n", (all / 60.0).ceil())
}

/// A line for each thing that is measured, and a column for each subject.
fn table(rows: &[&Row]) -> Result<String> {
    let mut subjects: Vec<&str> = Vec::new();
    let mut lines: Vec<(&str, u32, u32)> = Vec::new();
    for row in rows {
        let line = (row.what.as_str(), row.services, row.endpoints);
        if !subjects.contains(&row.subject.as_str()) {
            subjects.push(&row.subject);
        }
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    let size = |services: u32, endpoints: u32| {
        format!("{} x {}", grouped(services.into()), grouped(endpoints.into()))
    };
    // One size for all lines is a heading, and no column.
    let first = lines.first().map(|(_, services, endpoints)| (*services, *endpoints));
    let is_one =
        lines.iter().all(|(_, services, endpoints)| Some((*services, *endpoints)) == first);
    let (head, rule) = match first {
        Some((services, endpoints)) if is_one => (size(services, endpoints), "---"),
        _ => ("| Services x endpoints".to_owned(), "--- | ---:"),
    };
    let mut text = format!("| {head} | {} | n |\n", subjects.join(" | "));
    writeln!(text, "| {rule} | {}---: |", "---: | ".repeat(subjects.len()))?;
    for (what, services, endpoints) in lines {
        let is_it = |row: &Row| {
            (row.what.as_str(), row.services, row.endpoints) == (what, services, endpoints)
        };
        let of = |subject: &&str| rows.iter().find(|row| is_it(row) && row.subject == **subject);
        let found: Vec<Option<&&Row>> = subjects.iter().map(of).collect();
        let figures = found.iter().map(|row| row.map_or_else(String::new, |row| row.text()));
        let figures = figures.collect::<Vec<_>>().join(" | ");
        let n = often(found.iter().flatten().map(|row| row.n));
        let cell = if is_one { String::new() } else { format!("| {} ", size(services, endpoints)) };
        writeln!(text, "| {what} {cell}| {figures} | {n} |")?;
    }
    Ok(text)
}

/// How often something was measured: once for all figures of a line, or of each.
fn often(n: impl Iterator<Item = usize>) -> String {
    let mut n: Vec<String> = n.map(times).collect();
    if n.iter().all(|it| *it == n[0]) {
        n.truncate(1);
    }
    n.join("; ")
}

/// A line of the table in README.md: words, section, what is measured.
const SUMMARY: [(&str, &str, &str); 3] = [
    ("one endpoint: API write to packets", "beside", "one endpoint: write sent to packets"),
    ("cold start until all Services work", "beside", "cold start: process to packets"),
    ("first packet, median", "path", "new TCP connection of a pod, SYN to SYN-ACK: 50 %"),
];
/// The figures in README.md: of the largest size of each.
pub(crate) fn summary(figures: &Figures) -> Result<String> {
    let names = ["shunt", "kube-proxy nftables", "kube-proxy iptables"];
    let mut table = String::new();
    let mut runs: Vec<String> = Vec::new();
    for (words, section, what) in SUMMARY {
        let rows: Vec<&Row> = figures.section(section).filter(|row| row.what == what).collect();
        let mut sizes: Vec<(u32, u32)> =
            rows.iter().map(|row| (row.services, row.endpoints)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        // A mode of kube-proxy that does not end at the largest size has figures of a smaller one.
        let complete = |size: (u32, u32)| -> Option<((u32, u32), Vec<&Row>)> {
            let of = |name: &&str| {
                rows.iter()
                    .find(|row| (row.services, row.endpoints) == size && row.subject == **name)
                    .copied()
            };
            Some((size, names.iter().map(of).collect::<Option<_>>()?))
        };
        let Some((size, found)) = sizes.into_iter().rev().find_map(complete) else { continue };
        let cells: Vec<String> = found.iter().map(|row| row.text()).collect();
        let n = often(found.iter().map(|row| row.n));
        writeln!(table, "| {words} | {} | {} | {n} |", services(size), cells.join(" | "))?;
        if let Some(Run { machine, date }) = figures.runs.get(section) {
            let line = format!("{date}: {machine}.");
            if !runs.contains(&line) {
                runs.push(line);
            }
        }
    }
    if table.is_empty() {
        return Ok(NOTHING.to_owned());
    }
    let head =
        format!("| | | {} | n |\n| --- | --- | ---: | ---: | ---: | ---: |", names.join(" | "));
    Ok(format!("{head}\n{table}\n{}\n", runs.join("\n")))
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
    fn subjects_are_columns() {
        let row = |what: &str, subject: &str, value: f64| Row {
            what: what.to_owned(),
            subject: subject.to_owned(),
            value,
            n: if subject == "shunt" { 5 } else { 1 },
            ..rows()[0].clone()
        };
        let (one, two) = (row("one", "shunt", 0.002), row("two", "shunt", 0.004));
        let kernel = row("one", "the kernel", 0.001);
        let text = table(&[&one, &kernel, &two]).unwrap();
        assert!(text.starts_with("| 100 x 2 | shunt | the kernel | n |\n"), "{text}");
        assert!(text.contains("| one | 2.00 ms | 1.00 ms | 5; once |\n"), "{text}");
        assert!(text.contains("| two | 4.00 ms |  | 5 |\n"), "{text}");
        let other = Row { services: 1000, ..two };
        let text = table(&[&one, &kernel, &other]).unwrap();
        let head = "| | Services x endpoints | shunt | the kernel | n |\n";
        assert!(text.starts_with(head), "{text}");
        assert!(text.contains("| two | 1000 x 2 | 4.00 ms |  | 5 |\n"), "{text}");
    }
}
