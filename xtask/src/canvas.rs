//! SVG of plots. A picture has a white ground of its own, so that it reads the same on a light page and
//! on a dark one.

use std::fmt::{Display, Write as _};

pub(crate) const TEXT: &str = "#1f2328";
pub(crate) const SOFT: &str = "#59636e";
pub(crate) const GRID: &str = "#d8dee4";

/// Colours that colour-blind readers can tell apart: Okabe and Ito's palette, with a grey.
pub(crate) const BLUE: &str = "#0072b2";
pub(crate) const ORANGE: &str = "#e69f00";
pub(crate) const PINK: &str = "#cc79a7";
pub(crate) const GREEN: &str = "#009e73";
pub(crate) const GREY: &str = "#767676";

/// Keeps lines of the grid away from letters.
const HALO: &str = r##"stroke="#ffffff" stroke-width="3" paint-order="stroke""##;

/// A picture that grows element by element.
pub(crate) struct Canvas {
    body: String,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Canvas {
    /// Begins with the ground.
    pub(crate) fn new(width: f64, height: f64) -> Self {
        let mut canvas = Self { body: String::new(), width, height };
        canvas.add(format_args!(
            r##"<rect width="{width}" height="{height}" rx="8" fill="#ffffff" stroke="{GRID}"/>"##
        ));
        canvas
    }

    pub(crate) fn finish(self, title: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" \
             font-family=\"ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\">\n\
             <title>{}</title>\n{}</svg>\n",
            self.width,
            self.height,
            escape(title),
            self.body
        )
    }

    pub(crate) fn add(&mut self, element: impl Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    pub(crate) fn line(
        &mut self,
        [x1, y1]: [f64; 2],
        [x2, y2]: [f64; 2],
        colour: &str,
        width: f64,
    ) {
        self.add(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" stroke-width="{width}"/>"#
        ));
    }

    pub(crate) fn bar(&mut self, [x, y]: [f64; 2], [width, height]: [f64; 2], colour: &str) {
        self.add(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height}" fill="{colour}"/>"#
        ));
    }

    /// Writes a heading, which stands on no lines.
    pub(crate) fn heading(&mut self, [x, y]: [f64; 2], colour: &str, size: u32, text: &str) {
        let text = escape(text);
        self.add(format_args!(
            r#"<text x="{x}" y="{y}" font-size="{size}" font-weight="600" fill="{colour}">{text}</text>"#
        ));
    }

    pub(crate) fn text(
        &mut self,
        [x, y]: [f64; 2],
        anchor: &str,
        colour: &str,
        size: u32,
        text: &str,
    ) {
        let text = escape(text);
        self.add(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}" fill="{colour}" {HALO}>{text}</text>"#
        ));
    }
}

/// Returns round numbers from zero to at least `most`.
pub(crate) fn linear_ticks(most: f64, about: u32) -> Vec<f64> {
    if most <= 0.0 || !most.is_finite() {
        return vec![0.0, 1.0];
    }
    let rough = most / f64::from(about);
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
    let step = step.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(power * 10.0);
    let steps = (most / step * 0.999).ceil() as u32;
    (0..=steps).map(|number| f64::from(number) * step).collect()
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_largest_value() {
        assert_eq!(linear_ticks(54_116.0, 5), [0.0, 20_000.0, 40_000.0, 60_000.0]);
        assert_eq!(linear_ticks(500.0, 5).last(), Some(&500.0));
        assert_eq!(linear_ticks(0.0, 5), [0.0, 1.0]);
        for most in [1e-6, 3.3e-5, 0.09, 7.0, 99.9, 123_456.0] {
            let ticks = linear_ticks(most, 5);
            assert!(ticks.len() <= 7 && ticks.last() >= Some(&(most * 0.999)), "{ticks:?}");
        }
    }
}
