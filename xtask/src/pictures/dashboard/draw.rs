//! The dashboard as SVG, in its own layout.

use std::fmt::Write as _;

use anyhow::{Result, bail};

use super::lettering::{shortened, width, wrapped};
use super::model::{ColorMode, Dashboard, Kind, Panel};
use super::prometheus::{Range, SCRAPE_INTERVAL};
use super::{DASHBOARD, Line, SHOWN};
use crate::canvas::{
    BLUE, Canvas, GREEN, GREY, GRID, ORANGE, PINK, SKY, SOFT, TEXT, escape, linear_ticks,
};

const WIDTH: f64 = 1040.0;
const MARGIN: f64 = 16.0;
/// The height of what is above the grid.
const HEAD: f64 = 84.0;
/// The columns of the grid, and the height of its rows.
const COLUMNS: f64 = 24.0;
const ROW: f64 = 30.0;
/// The space between panels, and inside of them.
const GAP: f64 = 8.0;
const PADDING: f64 = 10.0;
/// The height of a line of words, and the size of its letters.
const LINE: f64 = 14.0;
const SMALL: u32 = 11;
/// The lines of a legend; Grafana would scroll it.
const LEGEND: usize = 3;

/// Colours of lines: the first are those of the other plots. Lines of the second round are dashed.
const COLOURS: [&str; 8] = [BLUE, ORANGE, GREEN, PINK, "#d55e00", SKY, "#6f4fb0", GREY];

/// All that the picture shows.
pub(super) struct Picture<'a> {
    pub(super) dashboard: &'a Dashboard,
    /// The lines of each panel.
    pub(super) panels: Vec<Vec<Line>>,
    /// Labels and values of the variables.
    pub(super) variables: Vec<(String, String)>,
    /// The version of Prometheus.
    pub(super) version: String,
    pub(super) range: Range,
}

/// A rectangle.
#[derive(Clone, Copy)]
struct Area {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

impl Area {
    fn of(panel: &Panel) -> Self {
        let [x, y, w, h] = {
            let at = panel.grid_pos;
            [at.x, at.y, at.w, at.h].map(f64::from)
        };
        let column = (WIDTH - 2.0 * MARGIN + GAP) / COLUMNS;
        Self {
            x: MARGIN + x * column,
            y: HEAD + y * ROW,
            width: w * column - GAP,
            height: h * ROW - GAP,
        }
    }

    fn right(self) -> f64 {
        self.x + self.width
    }

    fn bottom(self) -> f64 {
        self.y + self.height
    }
}

impl Picture<'_> {
    pub(super) fn svg(&self) -> Result<String> {
        let areas = self.dashboard.panels.iter().map(Area::of);
        let bottom = areas.map(Area::bottom).fold(HEAD, f64::max);
        let mut canvas = Canvas::new(WIDTH, (bottom + MARGIN).ceil());
        self.head(&mut canvas);
        for (panel, lines) in self.dashboard.panels.iter().zip(&self.panels) {
            let area = Area::of(panel);
            match panel.kind {
                Kind::Row => canvas.heading([MARGIN, area.y + 17.0], TEXT, 14, &panel.title),
                Kind::Stat => stat(&mut canvas, area, panel, lines, self.range)?,
                Kind::Timeseries => self.timeseries(&mut canvas, area, panel, lines),
            }
        }
        let title = "shunt's Grafana dashboard, drawn from a run with two nodes";
        Ok(canvas.finish(title))
    }

    fn head(&self, canvas: &mut Canvas) {
        let minutes = SHOWN / 60;
        canvas.heading([MARGIN, 30.0], TEXT, 18, &self.dashboard.title);
        let mut words = vec![format!("Data source: Prometheus {}", self.version)];
        words.extend(self.variables.iter().map(|(label, all)| format!("{label}: All ({all})")));
        words.push(format!("Last {minutes} minutes, UTC"));
        words.push(format!("a scrape each {SCRAPE_INTERVAL} s"));
        canvas.text([WIDTH - MARGIN, 30.0], "end", SOFT, 12, &words.join("   ·   "));
        let caption = [
            format!(
                "Drawn by cargo xtask pictures from {DASHBOARD} and the answers of Prometheus to its \
                 queries, not by Grafana."
            ),
            "Two agents in network namespaces, with clients. An endpoint dies, Services lose endpoints, \
             watches break, another process modifies the tables."
                .to_owned(),
        ];
        for (y, line) in [(52.0, &caption[0]), (68.0, &caption[1])] {
            canvas.text([MARGIN, y], "start", SOFT, 12, line);
        }
    }

    fn timeseries(&self, canvas: &mut Canvas, area: Area, panel: &Panel, lines: &[Line]) {
        frame(canvas, area, "#ffffff");
        let mut top = title(canvas, area, panel, TEXT);
        for line in wrapped(&panel.description, SMALL, area.width - 2.0 * PADDING, 2) {
            top += LINE;
            let style = format!(r#"font-size="{SMALL}" fill="{SOFT}""#);
            words(canvas, [area.x + PADDING, top], &style, &line);
        }
        let legend = Legend::of(lines, area.width - 2.0 * PADDING);
        let foot = area.bottom() - PADDING - LINE * legend.rows.len() as f64;
        let most = lines.iter().flat_map(Line::numbers).fold(0.0, f64::max);
        let ticks = panel.unit().ticks(most);
        let axis = ticks.iter().map(|(_, text)| width(text, SMALL)).fold(0.0, f64::max);
        let x = area.x + PADDING + axis + 6.0;
        let plot = Area {
            x,
            y: top + 10.0,
            width: area.right() - PADDING - x,
            height: foot - 18.0 - (top + 10.0),
        };
        let high = ticks.last().map_or(1.0, |(tick, _)| *tick);
        for (tick, text) in ticks {
            let y = plot.bottom() - plot.height * tick / high;
            canvas.line([plot.x, y], [plot.right(), y], GRID, 1.0);
            canvas.text([plot.x - 6.0, y + 4.0], "end", SOFT, SMALL, &text);
        }
        self.times(canvas, plot);
        for (at, line) in lines.iter().enumerate() {
            canvas.add(format_args!(
                r#"<path d="{}" fill="none" {}/>"#,
                self.path(plot, high, line),
                stroke(at)
            ));
        }
        legend.draw(canvas, [area.x + PADDING, foot + LINE]);
    }

    /// Writes the time of day below a plot.
    fn times(&self, canvas: &mut Canvas, plot: Area) {
        let Range { start, end } = self.range;
        let step = f64::from(SHOWN) / 4.0;
        let first = (start / step).ceil() as u64;
        let ticks = (first..).map(|tick| tick as f64 * step).take_while(|tick| *tick <= end);
        for tick in ticks {
            let x = plot.x + plot.width * (tick - start) / (end - start);
            let seconds = tick as u64 % 86_400;
            let [hours, minutes, rest] = [seconds / 3600, seconds / 60 % 60, seconds % 60];
            canvas.line([x, plot.y], [x, plot.bottom()], GRID, 1.0);
            let text = format!("{hours:02}:{minutes:02}:{rest:02}");
            let half = width(&text, SMALL) / 2.0;
            if x + half <= plot.right() + PADDING && x - half >= plot.x - PADDING {
                canvas.text([x, plot.bottom() + LINE], "middle", SOFT, SMALL, &text);
            }
        }
    }

    /// Returns the path of a line. Points between two of the same height are left out.
    fn path(&self, plot: Area, high: f64, line: &Line) -> String {
        let Range { start, end } = self.range;
        let place = |(time, value): (f64, f64)| {
            let x = plot.x + plot.width * (time - start) / (end - start);
            [x, plot.bottom() - plot.height * value / high].map(|it| (it * 10.0).round() / 10.0)
        };
        let step = f64::from(SCRAPE_INTERVAL) * 1.5;
        let mut path = String::new();
        let numbers: Vec<_> = line.points.iter().filter(|point| point.1.is_finite()).collect();
        for (at, point) in numbers.iter().enumerate() {
            let near = |other: usize| {
                let other = numbers.get(other)?;
                ((other.0 - point.0).abs() < step).then(|| place(**other))
            };
            let ([x, y], before) = (place(**point), at.checked_sub(1).and_then(near));
            let after = near(at + 1);
            let is_level = |other: Option<[f64; 2]>| other.is_some_and(|other| other[1] == y);
            match before {
                Some(_) if is_level(before) && is_level(after) => {}
                // Writing to a String cannot fail.
                Some(_) => drop(write!(path, "L{x} {y}")),
                // A point without neighbours is a dot.
                None if after.is_none() => drop(write!(path, "M{x} {y}h0")),
                None => drop(write!(path, "M{x} {y}")),
            }
        }
        path
    }
}

fn stroke(at: usize) -> String {
    let colour = COLOURS[at % COLOURS.len()];
    let dashes = match at / COLOURS.len() {
        0 => "",
        1 => r#" stroke-dasharray="5 3""#,
        _ => r#" stroke-dasharray="1.5 3""#,
    };
    format!(
        r#"stroke="{colour}" stroke-width="1.6" stroke-linejoin="round" stroke-linecap="round"{dashes}"#
    )
}

fn frame(canvas: &mut Canvas, area: Area, fill: &str) {
    let Area { x, y, width, height } = area;
    canvas.add(format_args!(
        r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="4" fill="{fill}" stroke="{GRID}"/>"#
    ));
}

/// Writes words without a ground of their own.
fn words(canvas: &mut Canvas, [x, y]: [f64; 2], style: &str, text: &str) {
    let text = escape(text);
    canvas.add(format_args!(r#"<text x="{x:.1}" y="{y:.1}" {style}>{text}</text>"#));
}

/// Writes the title of a panel; the place of its last line.
fn title(canvas: &mut Canvas, area: Area, panel: &Panel, colour: &str) -> f64 {
    let style = format!(r#"font-size="12" font-weight="600" fill="{colour}""#);
    let mut y = area.y + 4.0;
    // Letters of this weight are wider.
    for line in wrapped(&panel.title, 12, (area.width - 2.0 * PADDING) / 1.1, 2) {
        y += LINE;
        words(canvas, [area.x + PADDING, y], &style, &line);
    }
    y
}

/// Draws the last value of a series, with the values before.
fn stat(
    canvas: &mut Canvas,
    area: Area,
    panel: &Panel,
    lines: &[Line],
    range: Range,
) -> Result<()> {
    let Some((line, value)) = lines.first().and_then(|line| Some((line, line.numbers().last()?)))
    else {
        bail!("panel {:?} has no value", panel.title);
    };
    let colour = named(panel.colour(value))?;
    let (ground, heading, letters) = match panel.color_mode() {
        ColorMode::Background => (colour, "#ffffff", "#ffffff"),
        ColorMode::Value => ("#ffffff", TEXT, colour),
    };
    frame(canvas, area, ground);
    let most = linear_ticks(line.numbers().fold(0.0, f64::max), 1).last().copied().unwrap_or(1.0);
    let place = |&(time, value): &(f64, f64)| {
        let x = area.x + area.width * (time - range.start) / (range.end - range.start);
        format!("{x:.1},{:.1}", area.bottom() - 1.0 - 20.0 * value / most)
    };
    let points = line.points.iter().filter(|point| point.1.is_finite());
    let points: Vec<String> = points.map(place).collect();
    canvas.add(format_args!(
        r#"<polyline points="{}" fill="none" stroke="{letters}" stroke-width="1.5" opacity="0.55"/>"#,
        points.join(" ")
    ));
    title(canvas, area, panel, heading);
    let middle = area.x + area.width / 2.0;
    let style =
        format!(r#"text-anchor="middle" font-size="30" font-weight="600" fill="{letters}""#);
    let text = panel.unit().text(value, panel.decimals());
    words(canvas, [middle, area.bottom() - 24.0], &style, &text);
    Ok(())
}

/// Returns a colour by Grafana's name, dark enough for white letters.
fn named(colour: &str) -> Result<&'static str> {
    Ok(match colour {
        "green" => "#1a7f37",
        "red" => "#c2362b",
        "orange" => "#b35900",
        "blue" => "#0b69b7",
        _ => bail!("a picture has no colour {colour:?}"),
    })
}

/// The names of lines, row by row.
struct Legend {
    rows: Vec<Vec<(f64, usize, String)>>,
    /// Words behind the last name.
    more: Option<(f64, String)>,
}

impl Legend {
    /// The widths of a sample and of the space behind a name.
    const SAMPLE: f64 = 18.0;
    const SPACE: f64 = 12.0;

    fn of(lines: &[Line], room: f64) -> Self {
        let mut legend = Self { rows: vec![Vec::new()], more: None };
        let mut x = 0.0;
        for (at, line) in lines.iter().enumerate() {
            let name = shortened(&line.name, SMALL, room - Self::SAMPLE);
            let needed = Self::SAMPLE + width(&name, SMALL);
            let is_last = at + 1 == lines.len();
            let rest = format!("+ {} more", lines.len() - at);
            let end = if is_last { 0.0 } else { Self::SPACE + width(&rest, SMALL) };
            let is_full = legend.rows.len() == LEGEND;
            let kept = if is_full { end } else { 0.0 };
            if x + needed + kept > room && x > 0.0 {
                if is_full {
                    legend.more = Some((x, rest));
                    break;
                }
                legend.rows.push(Vec::new());
                x = 0.0;
            }
            if let Some(row) = legend.rows.last_mut() {
                row.push((x, at, name));
            }
            x += needed + Self::SPACE;
        }
        legend
    }

    fn draw(&self, canvas: &mut Canvas, [left, top]: [f64; 2]) {
        let style = format!(r#"font-size="{SMALL}" fill="{TEXT}""#);
        for (row, names) in self.rows.iter().enumerate() {
            let y = top + LINE * row as f64;
            for (x, at, name) in names {
                let x = left + x;
                canvas.add(format_args!(
                    r#"<path d="M{x:.1} {:.1}h12" {}/>"#,
                    y - 3.5,
                    stroke(*at)
                ));
                words(canvas, [x + Self::SAMPLE, y], &style, name);
            }
        }
        if let Some((x, text)) = &self.more {
            let y = top + LINE * (self.rows.len() - 1) as f64;
            let soft = format!(r#"font-size="{SMALL}" fill="{SOFT}""#);
            words(canvas, [left + x, y], &soft, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::repository_file;

    const RANGE: Range = Range { start: 1_000.0, end: 1_120.0 };

    fn line(name: &str, values: &[f64]) -> Line {
        let times = (0..).map(|at| RANGE.start + f64::from(at * SCRAPE_INTERVAL));
        Line { name: name.to_owned(), points: times.zip(values.iter().copied()).collect() }
    }

    /// Draws the dashboard with many lines of long names in each panel.
    fn svg(dashboard: &Dashboard) -> String {
        let values: Vec<f64> = (0..120).map(|at| f64::from(at % 17) * 12_345.678).collect();
        let lines = || (0..20).map(|at| line(&format!("the <name> of line {at}"), &values));
        let picture = Picture {
            dashboard,
            panels: dashboard.panels.iter().map(|_| lines().collect()).collect(),
            variables: vec![("Node".to_owned(), "node-1, node-2".to_owned())],
            version: "2.53.3".to_owned(),
            range: RANGE,
        };
        picture.svg().unwrap()
    }

    #[test]
    fn words_stay_inside_of_their_panel() {
        let dashboard = Dashboard::parse(&repository_file(DASHBOARD).unwrap()).unwrap();
        let svg = svg(&dashboard);
        let document = roxmltree::Document::parse(&svg).unwrap();
        let panels = dashboard.panels.iter().filter(|panel| panel.kind != Kind::Row);
        let areas: Vec<Area> = panels.map(Area::of).collect();
        let mut texts = 0;
        for node in document.descendants().filter(|node| node.has_tag_name("text")) {
            let number = |name| node.attribute(name).unwrap().parse::<f64>().unwrap();
            let ([x, y], text) = ([number("x"), number("y")], node.text().unwrap());
            let wide = width(text, number("font-size") as u32);
            let [left, right] = match node.attribute("text-anchor") {
                Some("end") => [x - wide, x],
                Some("middle") => [x - wide / 2.0, x + wide / 2.0],
                _ => [x, x + wide],
            };
            let is_in = |area: &&Area| {
                (area.x..area.right()).contains(&x) && (area.y..area.bottom()).contains(&y)
            };
            let (begin, end) = match areas.iter().find(is_in) {
                Some(area) => (area.x, area.right()),
                None => (0.0, WIDTH),
            };
            assert!(left >= begin && right <= end, "{text:?} {left}..{right}, {begin}..{end}");
            texts += 1;
        }
        assert!(texts > 200, "{texts}");
    }

    #[test]
    fn each_panel_has_its_title_and_its_legend() {
        let dashboard = Dashboard::parse(&repository_file(DASHBOARD).unwrap()).unwrap();
        let svg = svg(&dashboard);
        let document = roxmltree::Document::parse(&svg).unwrap();
        let elements = document.descendants().filter(|node| node.has_tag_name("text"));
        let words: Vec<&str> = elements.filter_map(|node| node.text()).collect();
        for panel in &dashboard.panels {
            let first = wrapped(&panel.title, 12, Area::of(panel).width, 1).concat();
            let begin: String = first.chars().take(12).collect();
            assert!(words.iter().any(|word| word.starts_with(&begin)), "{}", panel.title);
        }
        let is_named = |text: &str| words.iter().filter(|word| **word == text).count();
        let graphs = dashboard.panels.iter().filter(|panel| panel.kind == Kind::Timeseries).count();
        assert_eq!(is_named("the <name> of line 0"), graphs);
        assert!(words.iter().any(|word| word.starts_with("+ ") && word.ends_with(" more")));
        assert!(words.iter().any(|word| word.contains("not by Grafana")));
    }

    #[test]
    fn path_has_corners_gaps_and_dots() {
        let dashboard = Dashboard::parse(&repository_file(DASHBOARD).unwrap()).unwrap();
        let picture = Picture {
            dashboard: &dashboard,
            panels: Vec::new(),
            variables: Vec::new(),
            version: String::new(),
            range: RANGE,
        };
        let plot = Area { x: 0.0, y: 0.0, width: 120.0, height: 10.0 };
        let none = f64::NAN;
        let values = [1.0, 1.0, 1.0, 2.0, none, 3.0, none, 0.0, 1.0];
        let path = picture.path(plot, 10.0, &line("", &values));
        assert_eq!(path, "M0 9L2 9L3 8M5 7h0M7 10L8 9");
    }
}
