//! The pictures, and the rows that each is drawn from. A picture that lacks a row is left out: it would
//! not show what its title says.

use super::figures::{Figures, Row, Run, grouped, times};
use super::svg::{
    self, Bar, DIRECT, Frame, Group, IPTABLES, Line, NFTABLES, Panel, SHUNT, Subject, TRACKED,
};

/// A picture.
pub(crate) struct Plot {
    /// Its file in `docs/plots`, without `.svg`.
    pub(crate) name: &'static str,
    pub(crate) section: &'static str,
    pub(crate) title: &'static str,
    better: &'static str,
    /// Words for the number of measurements, which stands for `{}`.
    counted: &'static str,
    subjects: &'static [Subject],
    form: Form,
    /// The field `what` of the rows, each with a heading.
    whats: &'static [(&'static str, &'static str)],
}

/// The sizes of a picture, and its rows.
type Selection<'a> = (Vec<(u32, u32)>, Vec<&'a Row>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Bars,
    /// Over the number of Services.
    Lines,
}

const LESS: &str = "lower is better";
const MORE: &str = "higher is better";
const BESIDE: &[Subject] = &[SHUNT, NFTABLES, IPTABLES];
const FAILOVER: &[Subject] = &[SHUNT, NFTABLES];
const PATH: &[Subject] = &[SHUNT, NFTABLES, IPTABLES, TRACKED, DIRECT];

pub(crate) const PLOTS: [Plot; 9] = [
    Plot {
        name: "change",
        section: "beside",
        title: "One endpoint changes: from the write to the API server until packets go there",
        better: LESS,
        counted: "median of {}",
        subjects: BESIDE,
        form: Form::Bars,
        whats: &[("one endpoint: write sent to packets", "")],
    },
    Plot {
        name: "cold",
        section: "beside",
        title: "Cold start: from the start of the process until all Services work",
        better: LESS,
        counted: "median of {}",
        subjects: BESIDE,
        form: Form::Bars,
        whats: &[("cold start: process to packets", "")],
    },
    Plot {
        name: "memory",
        section: "beside",
        title: "Memory of the process",
        better: LESS,
        counted: "median of {}",
        subjects: BESIDE,
        form: Form::Bars,
        whats: &[("memory when settled", "when settled"), ("largest memory", "largest so far")],
    },
    Plot {
        name: "cpu",
        section: "beside",
        title: "Processor time for one changed endpoint, child processes included",
        better: LESS,
        counted: "median of {}",
        subjects: BESIDE,
        form: Form::Bars,
        whats: &[("one endpoint: processor time", "")],
    },
    Plot {
        name: "large",
        section: "shape",
        title: "Cold start with 250 011 endpoints, until all Services work",
        better: LESS,
        counted: "median of {}",
        subjects: BESIDE,
        form: Form::Bars,
        whats: &[("cold start: process to packets", "")],
    },
    Plot {
        name: "first-packet",
        section: "path",
        title: "First packet of a connection through a Service: from SYN to SYN-ACK",
        better: LESS,
        counted: "{} new connections",
        subjects: PATH,
        form: Form::Lines,
        whats: &[
            ("new TCP connection of a pod, SYN to SYN-ACK: 50 %", "median"),
            ("new TCP connection of a pod, SYN to SYN-ACK: 99 %", "99th percentile"),
        ],
    },
    Plot {
        name: "connections",
        section: "path",
        title: "New TCP connections a second: one client, one server, one processor",
        better: MORE,
        counted: "median of {} rounds of 200 connections",
        subjects: PATH,
        form: Form::Lines,
        whats: &[("new TCP connections a second, one processor", "")],
    },
    Plot {
        name: "failover",
        section: "failover",
        title: "A pod dies; the API says so after 15 s: time until connections do not wait",
        better: LESS,
        counted: "median of {}",
        subjects: FAILOVER,
        form: Form::Bars,
        whats: &[
            ("death until new connections do not wait", "new connections"),
            ("death until no connection waits or fails", "all connections"),
        ],
    },
    Plot {
        name: "programming-latency",
        section: "churn",
        title: "NetworkProgrammingLatency while 100 pods a second are replaced",
        better: LESS,
        counted: "{} slices",
        subjects: BESIDE,
        form: Form::Bars,
        whats: &[
            ("trigger time to packets: 50 %", "median"),
            ("trigger time to packets: 99 %", "99th percentile"),
        ],
    },
];

impl Plot {
    /// Draws it, or says why it cannot.
    pub(crate) fn draw(&self, figures: &Figures) -> Result<String, String> {
        let (sizes, rows) = self.rows(figures)?;
        let Some(unit) = rows.first().map(|row| row.unit) else { return Err(self.lacks("")) };
        if rows.iter().any(|row| row.unit != unit) {
            return Err(format!(
                "{}: rows of section {} have different units",
                self.name, self.section
            ));
        }
        let several = sizes.len() > 1;
        match self.form {
            Form::Bars => {
                let groups: Vec<Group> = rows
                    .chunks(self.subjects.len())
                    .enumerate()
                    .map(|(at, rows)| self.group(at, rows, several))
                    .collect();
                let axis = if svg::needs_logarithm(&groups) { ", logarithmic axis" } else { "" };
                let of = if several { String::new() } else { format!("{}, ", services(sizes[0])) };
                let frame = self.frame(figures, &format!("{of}{}{axis}", self.better), &rows);
                Ok(svg::bars(&frame, unit, &groups))
            }
            Form::Lines => {
                let panels: Vec<Panel> = self
                    .whats
                    .iter()
                    .enumerate()
                    .map(|(at, what)| {
                        let line = |(number, subject): (usize, &Subject)| {
                            // Sizes are the outermost order of rows, subjects the innermost.
                            let step = self.whats.len() * self.subjects.len();
                            let first = at * self.subjects.len() + number;
                            let of_line = rows.iter().skip(first).step_by(step);
                            let point =
                                |row: &&Row| (f64::from(row.services), row.value, row.text());
                            Line { subject: *subject, points: of_line.map(point).collect() }
                        };
                        let lines = self.subjects.iter().enumerate().map(line).collect();
                        Panel { heading: what.1.to_owned(), lines }
                    })
                    .collect();
                let frame = self.frame(figures, self.better, &rows);
                Ok(svg::lines(&frame, unit, &panels))
            }
        }
    }

    /// The rows of every size that has all of them: by size, by what is measured, by subject.
    fn rows<'a>(&self, figures: &'a Figures) -> Result<Selection<'a>, String> {
        let section = || figures.rows.iter().filter(|row| row.section == self.section);
        let mut sizes: Vec<(u32, u32)> = section().map(Row::size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut missing = String::from("no row of its section");
        let mut complete = (Vec::new(), Vec::new());
        for size in sizes {
            let mut rows = Vec::new();
            let names = self
                .whats
                .iter()
                .flat_map(|what| self.subjects.iter().map(move |s| (what.0, s.name)));
            for (what, subject) in names {
                let is_it =
                    |row: &&Row| row.size() == size && row.what == what && row.subject == subject;
                match section().find(is_it) {
                    Some(row) => rows.push(row),
                    None => missing = format!("no row {what:?} of {subject}, {}", services(size)),
                }
            }
            if rows.len() == self.whats.len() * self.subjects.len() {
                complete.0.push(size);
                complete.1.extend(rows);
            }
        }
        let least = if self.form == Form::Lines { 2 } else { 1 };
        if complete.0.len() == 1 && least > 1 {
            missing = format!("only {}; lines need two sizes", services(complete.0[0]));
        }
        if complete.0.len() < least { Err(self.lacks(&missing)) } else { Ok(complete) }
    }

    fn lacks(&self, what: &str) -> String {
        format!("docs/plots/{}.svg: not drawn: section {}: {what}", self.name, self.section)
    }

    fn group(&self, at: usize, rows: &[&Row], several: bool) -> Group {
        let heading = self.whats[at % self.whats.len()].1;
        let size = rows.first().map(|row| services(row.size())).unwrap_or_default();
        let heading = match (several, heading.is_empty()) {
            (false, _) => heading.to_owned(),
            (true, true) => size,
            (true, false) => format!("{size}: {heading}"),
        };
        let bar = |(row, subject): (&&Row, &Subject)| Bar {
            subject: *subject,
            value: row.value,
            text: row.text(),
        };
        Group { heading, bars: rows.iter().zip(self.subjects).map(bar).collect() }
    }

    fn frame(&self, figures: &Figures, subtitle: &str, rows: &[&Row]) -> Frame {
        let run = figures.runs.get(self.section);
        let Run { machine, date } = run
            .cloned()
            .unwrap_or(Run { machine: "unknown machine".into(), date: "unknown day".into() });
        Frame {
            title: self.title.to_owned(),
            subtitle: subtitle.to_owned(),
            footer: vec![
                self.measured(rows),
                format!("{machine}, {date}. Drawn by cargo xtask bench."),
            ],
        }
    }

    /// How often each subject was measured.
    fn measured(&self, rows: &[&Row]) -> String {
        let of = |subject: &Subject| {
            let mut all: Vec<usize> =
                rows.iter().filter(|row| row.subject == subject.name).map(|row| row.n).collect();
            all.sort_unstable();
            all.dedup();
            let words = |n: usize| match n {
                1 => "once".to_owned(),
                _ => self.counted.replace("{}", &times(n)),
            };
            all.into_iter().map(words).collect::<Vec<_>>().join(" and ")
        };
        let each: Vec<(&str, String)> = self.subjects.iter().map(|s| (s.name, of(s))).collect();
        let Some((_, first)) = each.first() else { return String::new() };
        if each.iter().all(|(_, words)| words == first) {
            return format!("Measured: {first}.");
        }
        let each: Vec<String> =
            each.iter().map(|(name, words)| format!("{name} {words}")).collect();
        format!("Measured: {}.", each.join("; "))
    }

    /// Alternative text for readers who do not see it.
    pub(crate) fn alternative(&self, figures: &Figures) -> Option<String> {
        let (sizes, rows) = self.rows(figures).ok()?;
        let largest = sizes.last()?;
        let last = rows.iter().filter(|row| row.size() == *largest);
        let whats = self.whats.iter().map(|(what, heading)| {
            let of_what = last.clone().filter(|row| row.what == *what);
            let each: Vec<String> =
                of_what.map(|row| format!("{} {}", row.subject, row.text())).collect();
            let colon = if heading.is_empty() { "" } else { ": " };
            format!("{heading}{colon}{}", each.join(", "))
        });
        let whats: Vec<String> = whats.collect();
        Some(format!("{}. {}: {}", self.title, services(*largest), whats.join("; ")))
    }
}

/// Words for a size.
pub(crate) fn services((services, endpoints): (u32, u32)) -> String {
    let plural = if services == 1 { "Service" } else { "Services" };
    let of = if endpoints == 1 { "endpoint" } else { "endpoints" };
    format!("{} {plural} of {} {of}", grouped(f64::from(services)), grouped(f64::from(endpoints)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::figures::Unit;
    use super::*;

    /// All rows that the pictures need, with numbers that occur once.
    pub(crate) fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for plot in &PLOTS {
            let sizes: &[(u32, u32)] = match plot.form {
                Form::Bars => &[(10_000, 10)],
                Form::Lines => &[(100, 2), (5_000, 2), (10_000, 2)],
            };
            for size in sizes {
                for (at, (what, _)) in plot.whats.iter().enumerate() {
                    for (number, subject) in plot.subjects.iter().enumerate() {
                        let value = 1.0 + rows.len() as f64 * 0.013;
                        let value = if number > 0 { value * 40.0 } else { value };
                        let unit = match plot.name {
                            "memory" => Unit::Bytes,
                            "connections" => Unit::PerSecond,
                            _ => Unit::Seconds,
                        };
                        let scale = if unit == Unit::Seconds { 1e-3 } else { 1e6 };
                        rows.push(Row {
                            section: plot.section.to_owned(),
                            what: (*what).to_owned(),
                            services: size.0,
                            endpoints: size.1,
                            subject: subject.name.to_owned(),
                            value: value * scale,
                            unit,
                            n: 200 + at,
                            more_than: false,
                        });
                    }
                }
            }
        }
        rows
    }

    pub(crate) fn figures(rows: Vec<Row>) -> Figures {
        let mut figures = Figures::default();
        let run = Run { machine: "2 x \"A & B\" <C>".to_owned(), date: "2026-01-02".to_owned() };
        figures.replace(rows, &run);
        figures
    }

    #[test]
    fn every_picture_is_well_formed_and_shows_each_of_its_rows() {
        let figures = figures(rows());
        for plot in &PLOTS {
            let svg = plot.draw(&figures).unwrap();
            let document = roxmltree::Document::parse(&svg).unwrap();
            let words: Vec<&str> = document.descendants().filter_map(|node| node.text()).collect();
            let shows = |text: &str| words.iter().any(|word| word.contains(text));
            for text in ["2 x \"A & B\" <C>", "2026-01-02", "Measured: ", plot.title, plot.better] {
                assert!(shows(text), "{} lacks {text}", plot.name);
            }
            let (_, rows) = plot.rows(&figures).unwrap();
            assert!(rows.len() >= plot.whats.len() * plot.subjects.len());
            for row in rows {
                for text in [&row.text(), &row.subject] {
                    assert!(shows(text), "{} lacks {text}: {row:?}", plot.name);
                }
            }
            assert!(shows(&plot.counted.replace("{}", "200")), "{} lacks n", plot.name);
            // Wider ones would leave the picture.
            assert!(plot.title.chars().count() <= 78, "{}", plot.title);
            for (_, heading) in plot.whats {
                assert!(shows(heading), "{} lacks {heading}", plot.name);
            }
        }
    }

    #[test]
    fn everything_drawn_is_inside_of_the_picture() {
        let figures = figures(rows());
        for plot in &PLOTS {
            let svg = plot.draw(&figures).unwrap();
            let document = roxmltree::Document::parse(&svg).unwrap();
            let height = document.root_element().attribute("viewBox").unwrap();
            let height: f64 = height.rsplit(' ').next().unwrap().parse().unwrap();
            for node in document.descendants() {
                for (names, limit) in
                    [(["x", "x1", "x2", "cx"], 860.0), (["y", "y1", "y2", "cy"], height)]
                {
                    for name in names {
                        let Some(place) = node.attribute(name) else { continue };
                        let place: f64 = place.parse().unwrap();
                        assert!((0.0..=limit).contains(&place), "{}: {node:?}", plot.name);
                    }
                }
            }
        }
    }

    #[test]
    fn a_picture_without_one_of_its_subjects_is_left_out() {
        for plot in &PLOTS {
            for subject in plot.subjects {
                let mut rows = rows();
                rows.retain(|row| row.section != plot.section || row.subject != subject.name);
                let reason = plot.draw(&figures(rows)).unwrap_err();
                assert!(reason.contains(subject.name), "{reason}");
            }
            assert!(plot.draw(&Figures::default()).is_err());
            assert_eq!(plot.alternative(&Figures::default()), None);
        }
    }

    #[test]
    fn a_size_without_one_of_its_subjects_is_left_out() {
        let mut rows = rows();
        rows.retain(|row| row.services != 5_000 || row.subject != IPTABLES.name);
        let plot = PLOTS.iter().find(|plot| plot.name == "connections").unwrap();
        let svg = plot.draw(&figures(rows)).unwrap();
        assert!(!svg.contains("5000 Services") && svg.contains("10 000 Services"));
    }

    #[test]
    fn lines_of_a_single_size_are_left_out() {
        let mut rows = rows();
        rows.retain(|row| row.services != 5_000 && row.services != 10_000);
        let plot = PLOTS.iter().find(|plot| plot.name == "connections").unwrap();
        let reason = plot.draw(&figures(rows)).unwrap_err();
        assert!(
            reason.ends_with("only 100 Services of 2 endpoints; lines need two sizes"),
            "{reason}"
        );
    }

    #[test]
    fn a_limit_that_was_reached_is_called_so() {
        let mut rows = rows();
        for row in &mut rows {
            row.more_than = row.section == "churn" && row.subject == IPTABLES.name;
        }
        let plot = PLOTS.iter().find(|plot| plot.section == "churn").unwrap();
        let figures = figures(rows);
        let limited = figures.rows.iter().find(|row| row.more_than).unwrap();
        assert!(limited.text().starts_with("> "));
        assert!(plot.draw(&figures).unwrap().contains(&crate::canvas::escape(&limited.text())));
    }

    #[test]
    fn single_measurements_are_called_so() {
        let mut rows = rows();
        for row in rows.iter_mut().filter(|row| row.section == "beside") {
            row.n = if row.subject == SHUNT.name { 20 } else { 1 };
        }
        let svg = PLOTS[0].draw(&figures(rows)).unwrap();
        assert!(svg.contains("Measured: shunt median of 20; kube-proxy nftables once;"), "{svg}");
    }
}
