//! Bars and lines of benchmarks as SVG.

use super::figures::{Unit, grouped};
use crate::canvas::{
    BLUE, Canvas, GREEN, GREY, GRID, ORANGE, PINK, SOFT, TEXT, escape, linear_ticks,
};

const WIDTH: f64 = 860.0;
const MARGIN: f64 = 24.0;
/// The height of title and subtitle.
const HEAD: f64 = 66.0;
/// The height of what is below the axis, with the footer.
const FOOT: f64 = 46.0;

/// A program or setting that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    colour: &'static str,
    /// A second sign, for prints without colour.
    marker: Marker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Ring,
}

pub(crate) const SHUNT: Subject = Subject { name: "shunt", colour: BLUE, marker: Marker::Circle };
pub(crate) const NFTABLES: Subject =
    Subject { name: "kube-proxy nftables", colour: ORANGE, marker: Marker::Square };
pub(crate) const IPTABLES: Subject =
    Subject { name: "kube-proxy iptables", colour: PINK, marker: Marker::Triangle };
pub(crate) const TRACKED: Subject =
    Subject { name: "no Service, connection tracking", colour: GREEN, marker: Marker::Diamond };
pub(crate) const DIRECT: Subject =
    Subject { name: "no Service, no rules", colour: GREY, marker: Marker::Ring };

/// The words around a picture.
pub(crate) struct Frame {
    pub(crate) title: String,
    pub(crate) subtitle: String,
    pub(crate) footer: Vec<String>,
}

/// A bar: its length and its words.
pub(crate) struct Bar {
    pub(crate) subject: Subject,
    pub(crate) value: f64,
    pub(crate) text: String,
}

/// Bars of one sort, under a heading if there is one.
pub(crate) struct Group {
    pub(crate) heading: String,
    pub(crate) bars: Vec<Bar>,
}

/// A picture of lines, beside others.
pub(crate) struct Panel {
    pub(crate) heading: String,
    pub(crate) lines: Vec<Line>,
}

pub(crate) struct Line {
    pub(crate) subject: Subject,
    /// Number of Services, value and its words.
    pub(crate) points: Vec<(f64, f64, String)>,
}

/// True if the values are too far apart for bars on a linear axis.
pub(crate) fn needs_logarithm(groups: &[Group]) -> bool {
    let [least, most] = range(groups.iter().flat_map(|group| &group.bars).map(|bar| bar.value));
    least > 0.0 && most / least > 25.0
}

fn range(values: impl Iterator<Item = f64>) -> [f64; 2] {
    values.fold([f64::INFINITY, 0.0], |[least, most], value| [least.min(value), most.max(value)])
}

/// Draws horizontal bars.
pub(crate) fn bars(frame: &Frame, unit: Unit, groups: &[Group]) -> String {
    const BAR: f64 = 24.0;
    const GAP: f64 = 6.0;
    const HEADING: f64 = 26.0;
    const SPACE: f64 = 12.0;
    /// The widths of names and of values.
    const NAMES: f64 = 160.0;
    const VALUES: f64 = 100.0;

    let height_of = |group: &Group| {
        let heading = if group.heading.is_empty() { 0.0 } else { HEADING };
        heading + group.bars.len() as f64 * (BAR + GAP) + SPACE
    };
    let inner: f64 = groups.iter().map(height_of).sum();
    let mut canvas = frame.canvas(HEAD + inner + FOOT + 14.0 * frame.footer.len() as f64);
    let [least, most] = range(groups.iter().flat_map(|group| &group.bars).map(|bar| bar.value));
    let (left, right) = (MARGIN + NAMES, WIDTH - MARGIN - VALUES);
    let (place, ticks): (Box<dyn Fn(f64) -> f64>, Vec<f64>) = if needs_logarithm(groups) {
        // The least bar has a length that can be seen.
        let (low, high) = ((least / 2.0).log10().floor(), most.log10().ceil());
        let place = move |value: f64| left + (right - left) * (value.log10() - low) / (high - low);
        let powers = low as i32..=high as i32;
        (Box::new(place), powers.map(|power| 10_f64.powi(power)).collect())
    } else {
        let ticks = linear_ticks(most, 5);
        let high = ticks.last().copied().unwrap_or(1.0);
        (Box::new(move |value: f64| left + (right - left) * value / high), ticks)
    };
    let bottom = HEAD + inner;
    for tick in ticks {
        let x = place(tick);
        canvas.line([x, HEAD], [x, bottom], GRID, 1.0);
        canvas.text([x, bottom + 18.0], "middle", SOFT, 12, &tick_text(unit, tick));
    }
    let mut y = HEAD;
    for group in groups {
        if !group.heading.is_empty() {
            canvas.text([MARGIN, y + 18.0], "start", TEXT, 13, &group.heading);
            y += HEADING;
        }
        for Bar { subject, value, text } in &group.bars {
            let middle = y + BAR / 2.0 + 4.5;
            canvas.text([left - 10.0, middle], "end", TEXT, 13, subject.name);
            let end = place(*value).max(left + 1.0);
            canvas.bar([left, y], [end - left, BAR], subject.colour);
            canvas.text([end + 8.0, middle], "start", TEXT, 13, text);
            y += BAR + GAP;
        }
        y += SPACE;
    }
    canvas.line([left, HEAD], [left, bottom], TEXT, 1.0);
    frame.finish(canvas)
}

/// Draws lines over the number of Services, in panels side by side with a common legend.
pub(crate) fn lines(frame: &Frame, unit: Unit, panels: &[Panel]) -> String {
    const LEGEND: f64 = 50.0;
    const HEADING: f64 = 24.0;
    const PLOT: f64 = 250.0;
    /// The widths of the words at both sides of a plot.
    const AXIS: f64 = 62.0;
    const VALUES: f64 = 84.0;
    const TICK_HEIGHT: f64 = 16.0;

    let height = HEAD + LEGEND + HEADING + PLOT + FOOT + 18.0 + 14.0 * frame.footer.len() as f64;
    let mut canvas = frame.canvas(height);
    let subjects = panels.first().map_or(&[][..], |panel| &panel.lines);
    for (at, Line { subject, .. }) in subjects.iter().enumerate() {
        let x = MARGIN + 12.0 + 262.0 * (at % 3) as f64;
        let y = HEAD + 6.0 + 22.0 * (at / 3) as f64;
        canvas.line([x - 10.0, y], [x + 10.0, y], subject.colour, 2.5);
        marker(&mut canvas, [x, y], *subject, "");
        canvas.text([x + 18.0, y + 4.5], "start", TEXT, 13, subject.name);
    }
    let width = (WIDTH - 2.0 * MARGIN) / panels.len().max(1) as f64;
    let top = HEAD + LEGEND + HEADING;
    let bottom = top + PLOT;
    for (at, panel) in panels.iter().enumerate() {
        let left = MARGIN + width * at as f64 + AXIS;
        let right = MARGIN + width * (at + 1) as f64 - VALUES;
        canvas.text([left, top - 12.0], "start", TEXT, 13, &panel.heading);
        let points = || panel.lines.iter().flat_map(|line| &line.points);
        let [_, most] = range(points().map(|point| point.1));
        let [_, services] = range(points().map(|point| point.0));
        let ticks = linear_ticks(most, 5);
        let high = ticks.last().copied().unwrap_or(1.0);
        let place = |x: f64, y: f64| {
            [left + (right - left) * x / services, bottom - (bottom - top) * y / high]
        };
        for tick in ticks {
            let [_, y] = place(0.0, tick);
            canvas.line([left, y], [right, y], GRID, 1.0);
            canvas.text([left - 8.0, y + 4.0], "end", SOFT, 12, &tick_text(unit, tick));
        }
        let mut sizes: Vec<f64> = points().map(|point| point.0).collect();
        sizes.sort_unstable_by(f64::total_cmp);
        sizes.dedup();
        for size in sizes {
            let [x, _] = place(size, 0.0);
            canvas.line([x, bottom], [x, bottom + 5.0], TEXT, 1.0);
            canvas.text([x, bottom + 19.0], "middle", SOFT, 12, &grouped(size));
        }
        let middle = (left + right) / 2.0;
        canvas.text([middle, bottom + 37.0], "middle", SOFT, 12, "number of Services");
        canvas.line([left, bottom], [right, bottom], TEXT, 1.0);
        // Those at the bottom of the legend first, so that shunt is in front.
        for Line { subject, points } in panel.lines.iter().rev() {
            let places: Vec<[f64; 2]> = points.iter().map(|(x, y, _)| place(*x, *y)).collect();
            for pair in places.windows(2) {
                canvas.line(pair[0], pair[1], subject.colour, 2.5);
            }
            for (place, (services, _, text)) in places.iter().zip(points) {
                let services = grouped(*services);
                let title = format!("{}, {services} Services: {text}", subject.name);
                marker(&mut canvas, *place, *subject, &title);
            }
        }
        // The values at the right end, one below the other.
        let mut ends: Vec<(f64, Subject, &str)> = Vec::new();
        for line in &panel.lines {
            let Some((x, y, text)) = line.points.last() else { continue };
            ends.push((place(*x, *y)[1], line.subject, text));
        }
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        spread(&mut ends, TICK_HEIGHT, bottom + 4.0);
        for (y, subject, text) in ends {
            marker(&mut canvas, [right + 16.0, y], subject, "");
            canvas.text([right + 26.0, y + 4.0], "start", TEXT, 12, text);
        }
    }
    frame.finish(canvas)
}

/// Moves words apart that would cover each other; none gets below `bottom`.
fn spread<T>(places: &mut [(f64, Subject, T)], distance: f64, bottom: f64) {
    let mut least = f64::NEG_INFINITY;
    for place in places.iter_mut() {
        place.0 = place.0.max(least);
        least = place.0 + distance;
    }
    let mut most = bottom;
    for place in places.iter_mut().rev() {
        place.0 = place.0.min(most);
        most = place.0 - distance;
    }
}

/// A tick without digits that say nothing.
fn tick_text(unit: Unit, tick: f64) -> String {
    if tick == 0.0 {
        return "0".to_owned();
    }
    let text = unit.text(tick);
    match text.split_once(' ') {
        Some((number, rest)) if number.contains('.') => {
            format!("{} {rest}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

impl Frame {
    /// Returns a canvas with the title, for a picture of this height.
    fn canvas(&self, height: f64) -> Canvas {
        let mut canvas = Canvas::new(WIDTH, height);
        canvas.heading([MARGIN, 30.0], TEXT, 16, &self.title);
        canvas.text([MARGIN, 50.0], "start", SOFT, 13, &self.subtitle);
        canvas
    }

    fn finish(&self, mut canvas: Canvas) -> String {
        let first = canvas.height - 16.0 - 15.0 * (self.footer.len().saturating_sub(1)) as f64;
        for (at, line) in self.footer.iter().enumerate() {
            canvas.text([MARGIN, first + 15.0 * at as f64], "start", SOFT, 11, line);
        }
        canvas.finish(&self.title)
    }
}

/// A point; a browser shows its title when the mouse is above.
fn marker(canvas: &mut Canvas, [x, y]: [f64; 2], subject: Subject, title: &str) {
    let Subject { colour, .. } = subject;
    let title = if title.is_empty() {
        title.to_owned()
    } else {
        format!("<title>{}</title>", escape(title))
    };
    let polygon = |points: &[[f64; 2]]| {
        let points: Vec<String> =
            points.iter().map(|[dx, dy]| format!("{:.1},{:.1}", x + dx, y + dy)).collect();
        format!(r#"<polygon points="{}" fill="{colour}">{title}</polygon>"#, points.join(" "))
    };
    let circle = |radius: f64, fill: &str, stroke: &str| {
        format!(
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" fill="{fill}" stroke="{stroke}" stroke-width="2">{title}</circle>"#
        )
    };
    let element = match subject.marker {
        Marker::Circle => circle(4.0, colour, colour),
        Marker::Ring => circle(4.0, "#ffffff", colour),
        Marker::Square => polygon(&[[-4.5, -4.5], [4.5, -4.5], [4.5, 4.5], [-4.5, 4.5]]),
        Marker::Triangle => polygon(&[[0.0, -5.5], [5.5, 4.5], [-5.5, 4.5]]),
        Marker::Diamond => polygon(&[[0.0, -6.0], [6.0, 0.0], [0.0, 6.0], [-6.0, 0.0]]),
    };
    canvas.add(element);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_have_no_digits_that_say_nothing() {
        assert_eq!(tick_text(Unit::Seconds, 2e-5), "20 µs");
        assert_eq!(tick_text(Unit::Seconds, 0.0), "0");
        assert_eq!(tick_text(Unit::PerSecond, 20_000.0), "20 000 /s");
    }

    #[test]
    fn words_at_the_end_of_lines_do_not_cover_each_other() {
        let mut places = [(98.0, SHUNT, 1), (99.0, NFTABLES, 2), (99.5, IPTABLES, 3)];
        spread(&mut places, 10.0, 100.0);
        assert_eq!(places.map(|place| place.0), [80.0, 90.0, 100.0]);
        let mut places = [(10.0, SHUNT, 1), (50.0, NFTABLES, 2)];
        spread(&mut places, 10.0, 100.0);
        assert_eq!(places.map(|place| place.0), [10.0, 50.0]);
    }
}
