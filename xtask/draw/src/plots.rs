//! The plots, and the rows that each is drawn from.
//!
//! A picture has a white ground of its own, so that it reads the same on a light page and on a dark one.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::Figures;
use super::figure::{Row, Unit, grouped};

/// A program or setting that is compared: its name, and a colour of Okabe and Ito's palette, which
/// colour-blind readers can tell apart.
type Subject = (&'static str, RGBColor);

const SHUNT: Subject = ("shunt", RGBColor(0, 114, 178));
const NFTABLES: Subject = ("kube-proxy nftables", RGBColor(230, 159, 0));
const IPTABLES: Subject = ("kube-proxy iptables", RGBColor(204, 121, 167));
const TRACKED: Subject = ("no Service, connection tracking", RGBColor(0, 158, 115));
const DIRECT: Subject = ("no Service, no rules", RGBColor(118, 118, 118));

const WIDTH: u32 = 860;
/// The height of a bar with its margin, and of a plot of lines.
const BAR: u32 = 26;
const LINES: u32 = 320;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The rows of a size: first by what is measured, then by subject.
struct Selection<'a> {
    size: (u32, u32),
    rows: Vec<&'a Row>,
}

/// A picture.
pub(crate) struct Plot {
    /// Its file in `docs/plots`, without `.svg`.
    pub(crate) name: &'static str,
    pub(crate) section: &'static str,
    pub(crate) title: &'static str,
    better: &'static str,
    subjects: &'static [Subject],
    form: Form,
    /// The field `what` of the rows, each with a heading.
    whats: &'static [(&'static str, &'static str)],
}

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

pub(crate) const PLOTS: [Plot; 6] = [
    Plot {
        name: "change",
        section: "beside",
        title: "One endpoint changes: from the write to the API server until packets go there",
        better: LESS,
        subjects: BESIDE,
        form: Form::Bars,
        whats: &[("one endpoint: write sent to packets", "")],
    },
    Plot {
        name: "cold",
        section: "beside",
        title: "Cold start: from the start of the process until all Services work",
        better: LESS,
        subjects: BESIDE,
        form: Form::Bars,
        whats: &[("cold start: process to packets", "")],
    },
    Plot {
        name: "first-packet",
        section: "path",
        title: "First packet of a connection through a Service: from SYN to SYN-ACK",
        better: LESS,
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
        subjects: PATH,
        form: Form::Lines,
        whats: &[("new TCP connections a second, one processor", "")],
    },
    Plot {
        name: "failover",
        section: "failover",
        title: "A pod dies, and the API reports it after 15 s: time until connections do not wait",
        better: LESS,
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
        subjects: BESIDE,
        form: Form::Bars,
        whats: &[
            ("trigger time to packets: 50 %", "median"),
            ("trigger time to packets: 99 %", "99th percentile"),
        ],
    },
];

impl Plot {
    /// Draws it, unless a row is missing.
    pub(crate) fn draw(&self, figures: &Figures) -> Result<Option<String>> {
        let selections = self.selections(figures);
        let Some(last) = selections.last() else { return Ok(None) };
        let groups = selections.len() * self.whats.len();
        let height = match self.form {
            Form::Lines => LINES,
            Form::Bars => BAR * u32::try_from(groups * (self.subjects.len() + 1))?,
        };
        let mut svg = String::new();
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height + 104)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let run = figures.runs.get(self.section);
        let run = run.map(|run| format!("{}, {}", run.date, run.machine)).unwrap_or_default();
        let size = if selections.len() == 1 { services(last.size) + ", " } else { String::new() };
        text(&root, (20, 12), 18, self.title)?;
        text(&root, (20, 36), 13, &format!("{size}{}", self.better))?;
        text(&root, (20, height as i32 + 82), 11, &run)?;
        let area = root.margin(56, 36, 20, 20);
        match self.form {
            Form::Bars => self.bars(&area, &selections)?,
            Form::Lines => {
                for (at, area) in area.split_evenly((1, self.whats.len())).iter().enumerate() {
                    self.lines(area, &selections, at)?;
                }
            }
        }
        root.present().map_err(failed)?;
        drop(area);
        drop(root);
        Ok(Some(svg))
    }

    /// A bar for each row, with its name and its figure.
    fn bars(&self, area: &Area<'_>, selections: &[Selection<'_>]) -> Result<()> {
        let most = largest(selections.iter().flat_map(|it| &it.rows));
        let mut y = 0;
        for selection in selections {
            for (rows, (_, heading)) in selection.rows.chunks(self.subjects.len()).zip(self.whats) {
                let of =
                    if selections.len() > 1 { services(selection.size) } else { String::new() };
                text(area, (0, y + 4), 13, &[of.as_str(), *heading].join(" "))?;
                y += BAR as i32;
                for (row, (name, colour)) in rows.iter().zip(self.subjects) {
                    let length = (row.value / most * 440.0) as i32;
                    text(area, (10, y + 2), 13, name)?;
                    let bar = Rectangle::new([(240, y), (241 + length, y + 18)], colour.filled());
                    area.draw(&bar).map_err(failed)?;
                    text(area, (250 + length, y + 2), 13, &row.text())?;
                    y += BAR as i32;
                }
            }
        }
        Ok(())
    }

    /// A line for each subject over the number of Services.
    fn lines(&self, area: &Area<'_>, selections: &[Selection<'_>], at: usize) -> Result<()> {
        let of = |selection: &Selection<'_>, subject: usize| {
            let row = selection.rows[at * self.subjects.len() + subject];
            (f64::from(row.services), row.value)
        };
        let rows = selections.iter().flat_map(|it| it.rows.chunks(self.subjects.len()).nth(at));
        let most = largest(rows.clone().flatten());
        let unit = rows.flatten().next().map_or(Unit::Count, |row| row.unit);
        let services = selections.last().map_or(1.0, |it| f64::from(it.size.0));
        // Above the lines, there is room for their names.
        let mut chart = ChartBuilder::on(area)
            .caption(self.whats[at].1, ("sans-serif", 13))
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..services * 1.05, 0.0..most * 1.6)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(5)
            .x_desc("Services")
            .x_label_formatter(&|services| grouped(*services))
            .y_label_formatter(&|value| unit.text(*value))
            .draw()
            .map_err(failed)?;
        for (number, (name, colour)) in self.subjects.iter().enumerate() {
            let points = selections.iter().map(|it| of(it, number));
            let series = LineSeries::new(points, colour.stroke_width(2)).point_size(3);
            let key = |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], colour.stroke_width(2));
            chart.draw_series(series).map_err(failed)?.label(*name).legend(key);
        }
        let mut legend = chart.configure_series_labels();
        legend.background_style(WHITE.mix(0.8)).position(SeriesLabelPosition::UpperLeft);
        legend.draw().map_err(failed)
    }

    /// Each size that has all rows.
    fn selections<'a>(&self, figures: &'a Figures) -> Vec<Selection<'a>> {
        let section = || figures.section(self.section);
        let mut sizes: Vec<(u32, u32)> =
            section().map(|row| (row.services, row.endpoints)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let selection = |size: (u32, u32)| {
            let is_it = |row: &&Row, what: &str, subject: &str| {
                (row.services, row.endpoints) == size && row.what == what && row.subject == subject
            };
            let whats = self.whats.iter().map(|what| what.0);
            let names = whats.flat_map(|what| self.subjects.iter().map(move |it| (what, it.0)));
            let rows = names.map(|(what, subject)| section().find(|row| is_it(row, what, subject)));
            Some(Selection { size, rows: rows.collect::<Option<_>>()? })
        };
        let complete: Vec<Selection<'_>> = sizes.into_iter().filter_map(selection).collect();
        let least = if self.form == Form::Lines { 2 } else { 1 };
        if complete.len() < least { Vec::new() } else { complete }
    }

    /// Alternative text for readers who do not see it. They have the table.
    pub(crate) fn alternative(&self, figures: &Figures) -> Option<String> {
        self.selections(figures).last()?;
        Some(self.title.to_owned())
    }
}

fn largest<'a>(rows: impl IntoIterator<Item = &'a &'a Row>) -> f64 {
    rows.into_iter().map(|row| row.value).fold(f64::MIN_POSITIVE, f64::max)
}

fn text(area: &Area<'_>, place: (i32, i32), size: i32, text: &str) -> Result<()> {
    let style = ("sans-serif", size).into_font().color(&RGBColor(31, 35, 40));
    area.draw(&Text::new(text.to_owned(), place, style)).map_err(failed)
}

/// plotters' errors are not all `Sync`.
fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

/// Words for a size.
pub(crate) fn services((services, endpoints): (u32, u32)) -> String {
    let plural = if services == 1 { "Service" } else { "Services" };
    let of = if endpoints == 1 { "endpoint" } else { "endpoints" };
    format!("{} {plural} of {} {of}", grouped(f64::from(services)), grouped(f64::from(endpoints)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// All rows that the plots need, with numbers that occur once.
    pub(crate) fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for plot in &PLOTS {
            let sizes: &[(u32, u32)] = match plot.form {
                Form::Bars => &[(10_000, 10)],
                Form::Lines => &[(100, 2), (10_000, 2)],
            };
            for (services, endpoints) in sizes {
                for ((what, _), subject) in plot
                    .whats
                    .iter()
                    .flat_map(|what| plot.subjects.iter().map(move |it| (what, it)))
                {
                    rows.push(Row {
                        section: plot.section.to_owned(),
                        what: (*what).to_owned(),
                        services: *services,
                        endpoints: *endpoints,
                        subject: subject.0.to_owned(),
                        value: 1e-3 + rows.len() as f64 * 0.013e-3,
                        unit: Unit::Seconds,
                        n: 200,
                        more_than: false,
                    });
                }
            }
        }
        rows
    }

    #[test]
    fn every_plot_is_well_formed_and_shows_each_of_its_rows() {
        let figures = Figures { rows: rows(), ..Figures::default() };
        for plot in &PLOTS {
            let svg = plot.draw(&figures).unwrap().unwrap();
            let document = roxmltree::Document::parse(&svg).unwrap();
            let words: String = document.descendants().filter_map(|node| node.text()).collect();
            for text in [plot.title, plot.better] {
                assert!(words.contains(text), "{} lacks {text}", plot.name);
            }
            for row in plot.selections(&figures).iter().flat_map(|it| &it.rows) {
                let shows_figure = plot.form == Form::Lines || words.contains(&row.text());
                assert!(
                    words.contains(&row.subject) && shows_figure,
                    "{} lacks {row:?}",
                    plot.name
                );
            }
        }
    }

    #[test]
    fn a_plot_without_one_of_its_subjects_is_left_out() {
        for plot in &PLOTS {
            for (name, _) in plot.subjects {
                let mut rows = rows();
                rows.retain(|row| row.section != plot.section || row.subject != *name);
                let figures = Figures { rows, ..Figures::default() };
                assert_eq!(plot.draw(&figures).unwrap(), None);
                assert_eq!(plot.alternative(&figures), None);
            }
        }
    }
}
