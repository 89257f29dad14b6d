//! SVG line charts, legible at the width of a phone.

use super::{
    page::escape,
    scale::{Axis, Scale},
};
use std::fmt::Write;

/// Colours of series, distinguishable with colour blindness on white and on black.
///
/// They are the palette of Okabe and Ito 2008 without black and yellow.
pub const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// Maximum number of points of a curve; longer series are averaged over neighbouring points.
const MAX_POINTS: usize = 160;
/// Size of the drawing and margins of the plot area, in SVG units.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 54.0;
const RIGHT: f64 = 462.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 256.0;

/// Line chart with one or more series.
pub struct Chart {
    pub title: String,
    /// Label of the x-axis.
    pub x_label: &'static str,
    /// Type of the y-axis.
    pub axis: Axis,
    /// Whether a legend is drawn.
    pub legend: bool,
    pub series: Vec<Series>,
}

/// Series of points, from left to right.
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Index of the colour.
    pub colour: usize,
    /// Draws a marker at each point and labels the last one with this format.
    pub marked: Option<fn(f64) -> String>,
}

impl Chart {
    /// Renders SVG for a page, in the page's text colour.
    pub fn inline(&self) -> String {
        self.draw("", "")
    }

    /// Renders a standalone SVG file.
    pub fn file(&self) -> String {
        let ground = format!(r##"<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>"##);
        self.draw(r##" xmlns="http://www.w3.org/2000/svg" color="#222222""##, &ground)
    }

    fn draw(&self, attributes: &str, ground: &str) -> String {
        let series: Vec<(&Series, Vec<Part>)> = self.series.iter().map(|it| (it, it.parts())).collect();
        let points = || series.iter().flat_map(|(_, parts)| parts);
        // Steps and epochs are drawn from 0; logarithms may be negative.
        let zero = points().all(|part| part.x >= 0.0).then_some(0.0);
        let x = Scale::along(points().map(|part| part.x).chain(zero), 5);
        // On a logarithmic axis, a single low value would dominate the range.
        let log = self.axis == Axis::Logarithmic;
        let reach = |part: &Part| if log { [part.mean; 2] } else { [part.low, part.high] };
        let y = Scale::over(points().flat_map(reach), 5, self.axis);
        let title = escape(&self.title);
        let mut svg = format!(
            r#"<svg{attributes} viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" font-family="system-ui, sans-serif" font-size="13" fill="currentColor">{ground}<text x="12" y="22" font-size="16" font-weight="600">{title}</text>"#
        );
        // Writing to a string does not fail.
        let _ = self.axes(&mut svg, &x, &y);
        for (series, parts) in &series {
            let _ = series.draw(&mut svg, parts, &x, &y);
        }
        if points().next().is_none() {
            let middle = (LEFT + RIGHT) / 2.0;
            let _ = write!(svg, r#"<text x="{middle}" y="160" text-anchor="middle">no data yet</text>"#);
        }
        let _ = self.legend(&mut svg);
        svg + "</svg>\n"
    }

    fn axes(&self, svg: &mut String, x: &Scale, y: &Scale) -> std::fmt::Result {
        for (value, text) in y.marks() {
            let at = down(y, value);
            write!(
                svg,
                r#"<path d="M{LEFT} {at:.1}H{RIGHT}" stroke="currentColor" stroke-opacity="0.15"/><text x="{}" y="{:.1}" text-anchor="end">{text}</text>"#,
                LEFT - 8.0,
                at + 4.5
            )?;
        }
        for (value, text) in x.marks() {
            let at = across(x, value);
            write!(
                svg,
                r#"<path d="M{at:.1} {BOTTOM}v5" stroke="currentColor" stroke-opacity="0.5"/><text x="{at:.1}" y="{}" text-anchor="middle">{text}</text>"#,
                BOTTOM + 19.0
            )?;
        }
        write!(
            svg,
            r#"<path d="M{LEFT} {BOTTOM}H{RIGHT}" stroke="currentColor" stroke-opacity="0.5"/><text x="{}" y="{}" text-anchor="middle" fill-opacity="0.7">{}</text>"#,
            (LEFT + RIGHT) / 2.0,
            BOTTOM + 38.0,
            escape(self.x_label)
        )
    }

    fn legend(&self, svg: &mut String) -> std::fmt::Result {
        let mut left = 12.0;
        for series in self.series.iter().filter(|_| self.legend) {
            let colour = colour(series.colour);
            write!(
                svg,
                r#"<rect x="{left:.0}" y="34" width="14" height="5" rx="2" fill="{colour}"/><text x="{:.0}" y="41">{}</text>"#,
                left + 20.0,
                escape(&series.name)
            )?;
            left += 40.0 + 7.0 * series.name.chars().count() as f64;
        }
        Ok(())
    }
}

/// Returns the colour of a series.
pub fn colour(number: usize) -> &'static str {
    COLOURS[number % COLOURS.len()]
}

/// Whether the series is dashed because another one has the same colour.
pub fn dashed(number: usize) -> bool {
    !(number / COLOURS.len()).is_multiple_of(2)
}

fn across(x: &Scale, value: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * x.place(value)
}

fn down(y: &Scale, value: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * y.place(value)
}

/// Average and range of neighbouring points of a series.
struct Part {
    x: f64,
    mean: f64,
    low: f64,
    high: f64,
}

impl Series {
    /// Downsamples the series. Values that are not finite are skipped.
    fn parts(&self) -> Vec<Part> {
        let finite: Vec<(f64, f64)> =
            self.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
        let size = if self.marked.is_some() { 1 } else { finite.len().div_ceil(MAX_POINTS).max(1) };
        let part = |points: &[(f64, f64)]| {
            let count = points.len() as f64;
            Part {
                x: points.iter().map(|(x, _)| x).sum::<f64>() / count,
                mean: points.iter().map(|(_, y)| y).sum::<f64>() / count,
                low: points.iter().map(|(_, y)| *y).fold(f64::INFINITY, f64::min),
                high: points.iter().map(|(_, y)| *y).fold(f64::NEG_INFINITY, f64::max),
            }
        };
        finite.chunks(size).map(part).collect()
    }

    fn draw(&self, svg: &mut String, parts: &[Part], x: &Scale, y: &Scale) -> std::fmt::Result {
        let colour = colour(self.colour);
        let at = |x_value, y_value| format!("{:.1} {:.1}", across(x, x_value), down(y, y_value));
        let joined = |points: Vec<String>| points.join("L");
        if parts.iter().any(|part| part.low < part.high) {
            let above = parts.iter().map(|part| at(part.x, part.high));
            let band = above.chain(parts.iter().rev().map(|part| at(part.x, part.low))).collect();
            write!(svg, r#"<path d="M{}Z" fill="{colour}" fill-opacity="0.18"/>"#, joined(band))?;
        }
        let line = joined(parts.iter().map(|part| at(part.x, part.mean)).collect());
        if parts.len() > 1 {
            let dashes = if dashed(self.colour) { r#" stroke-dasharray="6 4""# } else { "" };
            write!(
                svg,
                r#"<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"{dashes}/>"#
            )?;
        }
        if parts.len() == 1 || self.marked.is_some() {
            for part in parts {
                let (x, y) = (across(x, part.x), down(y, part.mean));
                write!(svg, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"/>"#)?;
            }
        }
        if let (Some(text), Some(last)) = (self.marked, parts.last()) {
            let (x, y) = (across(x, last.x).min(RIGHT), down(y, last.mean) - 9.0);
            write!(
                svg,
                r##"<text x="{x:.1}" y="{y:.1}" text-anchor="end" font-weight="600" style="paint-order:stroke;stroke:var(--ground,#fff);stroke-width:4px">{}</text>"##,
                text(last.mean)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>, marked: Option<fn(f64) -> String>) -> String {
        let series = Series { name: "a < b".into(), points, colour: 0, marked };
        let other = Series { name: "other".into(), points: vec![(1.0, 0.0)], colour: 1, marked: None };
        Chart {
            title: "Loss".into(),
            x_label: "step",
            axis: Axis::FromZero,
            legend: true,
            series: vec![series, other],
        }
        .file()
    }

    #[test]
    fn points_are_placed_by_value() {
        let svg = chart(vec![(1.0, 0.0), (2.0, 5.0), (3.0, 10.0)], None);
        assert!(svg.contains(r#"<path d="M190.0 256.0L326.0 156.0L462.0 56.0" fill="none""#), "{svg}");
        assert!(svg.contains("a &lt; b") && !svg.contains("a < b"), "{svg}");
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn a_long_series_is_a_mean_within_its_range() {
        let noisy = (0..16_000).map(|x| (f64::from(x), if x % 2 == 0 { 4.0 } else { 6.0 })).collect();
        let svg = chart(noisy, None);
        assert!(svg.len() < 20_000, "{} bytes", svg.len());
        // The mean is a straight line in the middle of the band.
        let scale = Scale::over([0.0, 6.0].into_iter(), 5, Axis::FromZero);
        assert!(svg.contains(&format!(" {:.1}L", down(&scale, 5.0))), "{svg}");
        assert!(svg.contains("fill-opacity=\"0.18\""));
    }

    #[test]
    fn non_finite_values_are_skipped_and_an_empty_chart_is_drawn() {
        let svg = chart(vec![(1.0, f64::NAN), (2.0, 3.0), (3.0, f64::INFINITY)], Some(|y| format!("{y:.1}")));
        assert!(svg.contains(">3.0</text>") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let (title, axis) = ("Loss".into(), Axis::FromZero);
        let empty = Chart { title, x_label: "step", axis, legend: true, series: Vec::new() };
        assert!(empty.inline().contains("no data yet"));
    }
}
