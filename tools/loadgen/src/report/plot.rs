//! Plots as SVG: axes, lines, bars. Colours are classes that the page's style defines for light and dark.

use std::fmt::Write as _;

/// Scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scale {
    /// Linear, from zero.
    Linear,
    /// Logarithmic, in powers of ten.
    Log,
}

/// Form of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Mark {
    Line,
    /// A line whose inside is filled.
    Area,
    /// Bars from each point to the next, stacked on the bars of the previous series.
    Bars,
}

/// A place on the x axis and its value; `None` interrupts a line and ends bars.
pub(super) type Point = (f64, Option<f64>);

/// One series of points.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub name: String,
    /// One of the style's [`COLOURS`], or [`BAD`].
    pub colour: usize,
    pub points: Vec<Point>,
}

/// One plot.
pub(super) struct Plot<'a> {
    pub title: &'a str,
    pub mark: Mark,
    pub x: Axis<'a>,
    pub y: Axis<'a>,
    pub series: Vec<Series>,
    pub marks: Marks,
}

/// Marked ranges and points of the x axis.
#[derive(Debug, Clone, Default)]
pub(super) struct Marks {
    pub spans: Vec<Spans>,
    /// Named places.
    pub lines: Vec<(f64, String)>,
}

/// Intervals of one kind.
#[derive(Debug, Clone)]
pub(super) struct Spans {
    /// Class in the style.
    pub class: &'static str,
    /// Name in the legend.
    pub name: &'static str,
    pub spans: Vec<(f64, f64)>,
}

/// One axis.
pub(super) struct Axis<'a> {
    pub scale: Scale,
    /// Unit of the values, shown at the end of the axis.
    pub label: &'a str,
    /// Formats a value.
    pub text: &'a dyn Fn(f64) -> String,
    /// End of the axis, if not derived from the points.
    pub end: Option<f64>,
    /// Places of the ticks, if not at round values.
    pub ticks: Option<Vec<f64>>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;
/// Width of a digit in the style's font size, about.
const DIGIT_WIDTH: f64 = 7.5;
const NO_ERROR: &str = "a String takes everything";

/// An axis with its range, which maps values to places.
struct Range {
    first: f64,
    last: f64,
    scale: Scale,
}

impl Range {
    fn of(axis: &Axis<'_>, values: impl Iterator<Item = f64> + Clone) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let most = axis.end.unwrap_or(values.fold(0.0, f64::max));
        match axis.scale {
            Scale::Linear => Self { first: 0.0, last: if most > 0.0 { most } else { 1.0 }, scale: Scale::Linear },
            Scale::Log => {
                let first = if least.is_finite() && least > 0.0 { least } else { 1.0 };
                Self { first, last: most.max(first * 1.5), scale: Scale::Log }
            }
        }
    }

    /// Extends the range to a round value, so that there is room and a tick above the highest point.
    fn rounded(mut self) -> Self {
        match self.scale {
            Scale::Linear => {
                let step = step(self.last);
                self.last = (self.last * 1.02 / step).ceil() * step;
            }
            Scale::Log => {
                self.first = rounded_down(self.first);
                self.last = rounded_up(self.last);
            }
        }
        self
    }

    /// 0 at the start of the axis, 1 at its end.
    fn place(&self, value: f64) -> f64 {
        let at = match self.scale {
            Scale::Linear => (value - self.first) / (self.last - self.first),
            Scale::Log => (value.max(self.first) / self.first).ln() / (self.last / self.first).ln(),
        };
        at.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = step(self.last);
                let count = (self.last / step + 1e-9) as usize;
                (0..=count).map(|index| index as f64 * step).collect()
            }
            Scale::Log => {
                let decades = (self.last / self.first).log10();
                let within: &[f64] = if decades <= 2.2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let first = self.first.log10().floor() as i32;
                let all = (first..first + 20).flat_map(|power| within.iter().map(move |f| f * 10_f64.powi(power)));
                let is_inside = |tick: &f64| *tick >= self.first * 0.999 && *tick <= self.last * 1.001;
                all.filter(is_inside).collect()
            }
        }
    }
}

/// A step of 1, 2 or 5 times a power of ten, so that `most` holds four to eight of them.
fn step(most: f64) -> f64 {
    let power = 10_f64.powf((most / 5.0).log10().floor());
    let fit = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| most / (factor * power) <= 7.0);
    fit.unwrap_or(10.0) * power
}

fn rounded_down(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [5.0, 2.0].into_iter().find(|factor| factor * power <= value).unwrap_or(1.0) * power
}

fn rounded_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= value).unwrap_or(10.0) * power
}

impl Series {
    /// Class of its colour in the style.
    fn class(&self) -> String {
        assert!(self.colour <= BAD, "{}: the style has no colour {}", self.name, self.colour);
        format!("s{}", self.colour)
    }
}

impl Plot<'_> {
    /// A figure with its title, a legend if there are several series, and the plot.
    pub fn to_svg(&self) -> String {
        let (x, y) = self.ranges();
        let mut svg = format!("<figure><figcaption><b>{}</b>", escape(self.title));
        if self.series.len() > 1 {
            for series in &self.series {
                let (colour, name) = (series.class(), escape(&series.name));
                write!(svg, "<span class=\"key {colour}\"><i></i>{name}</span>").expect(NO_ERROR);
            }
        }
        for spans in &self.marks.spans {
            write!(svg, "<span class=\"key\"><i class=\"{}\"></i>{}</span>", spans.class, escape(spans.name))
                .expect(NO_ERROR);
        }
        write!(
            svg,
            "</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(self.title)
        )
        .expect(NO_ERROR);
        self.marks(&mut svg, &x);
        self.axes(&mut svg, &x, &y);
        match self.mark {
            Mark::Bars => self.bars(&mut svg, &x, &y),
            Mark::Line | Mark::Area => self.lines(&mut svg, &x, &y),
        }
        self.hints(&mut svg, &x);
        svg.push_str("</svg></figure>\n");
        svg
    }

    fn ranges(&self) -> (Range, Range) {
        let points = self.series.iter().flat_map(|series| &series.points);
        let xs = points.clone().map(|(x, _)| *x);
        let x = Range::of(&self.x, xs);
        let y = match self.mark {
            Mark::Bars => {
                let columns = self.series.iter().map(|series| series.points.len()).max().unwrap_or(0);
                let sums = (0..columns).map(|index| self.series.iter().map(|series| height(series, index)).sum());
                Range::of(&self.y, sums)
            }
            Mark::Line | Mark::Area => Range::of(&self.y, points.filter_map(|(_, y)| *y)),
        };
        (x, y.rounded())
    }

    fn axes(&self, svg: &mut String, x: &Range, y: &Range) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for tick in self.y.ticks.clone().unwrap_or_else(|| y.ticks()) {
            let at = y_at(y, tick);
            let text = escape(&(self.y.text)(tick));
            write!(svg, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>").expect(NO_ERROR);
            write!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>", LEFT - 8.0, at + 4.0)
                .expect(NO_ERROR);
        }
        for tick in self.x.ticks.clone().unwrap_or_else(|| x.ticks()) {
            let at = x_at(x, tick);
            let text = (self.x.text)(tick);
            write!(svg, "<path class=\"tick\" d=\"M{at:.1} {bottom}v5\"/>").expect(NO_ERROR);
            // A text that reached beyond the right end would be cut off.
            let at = at.min(WIDTH - text.chars().count() as f64 * DIGIT_WIDTH / 2.0);
            let text = escape(&text);
            write!(svg, "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>", bottom + 18.0)
                .expect(NO_ERROR);
        }
        write!(svg, "<path class=\"axis\" d=\"M{LEFT} {bottom}H{right}\"/>").expect(NO_ERROR);
        let middle = f64::midpoint(LEFT, right);
        let y_text = HEIGHT - 5.0;
        write!(
            svg,
            "<text class=\"label\" x=\"{middle}\" y=\"{y_text}\" text-anchor=\"middle\">{}</text>",
            escape(self.x.label)
        )
        .expect(NO_ERROR);
    }

    fn marks(&self, svg: &mut String, x: &Range) {
        let tall = HEIGHT - BOTTOM - TOP;
        for spans in &self.marks.spans {
            for (from, to) in &spans.spans {
                let (left, right) = (x_at(x, *from), x_at(x, *to));
                // However short, it can be seen.
                let wide = (right - left).max(1.5);
                let class = spans.class;
                write!(
                    svg,
                    "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{TOP}\" width=\"{wide:.1}\" height=\"{tall}\"/>"
                )
                .expect(NO_ERROR);
            }
        }
        let mut free_from = f64::NEG_INFINITY;
        for (at, name) in &self.marks.lines {
            let at = x_at(x, *at);
            write!(svg, "<path class=\"start\" d=\"M{at:.1} {TOP}v{tall}\"/>").expect(NO_ERROR);
            // A name that would run into the one before is left out.
            if at >= free_from {
                let name = escape(name);
                write!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{name}</text>", at + 3.0, TOP - 3.0).expect(NO_ERROR);
                free_from = at + 6.0 + name.chars().count() as f64 * DIGIT_WIDTH;
            }
        }
    }

    fn lines(&self, svg: &mut String, x: &Range, y: &Range) {
        for (index, series) in self.series.iter().enumerate() {
            let colour = series.class();
            for run in series.points.split(|(_, value)| value.is_none()).filter(|run| !run.is_empty()) {
                let places: Vec<_> =
                    run.iter().filter_map(|(at, value)| Some((x_at(x, *at), y_at(y, (*value)?)))).collect();
                let path: Vec<_> = places.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
                let path = path.join("L");
                let (first, last) = (places[0], places[places.len() - 1]);
                if self.mark == Mark::Area && index == 0 {
                    let bottom = HEIGHT - BOTTOM;
                    write!(
                        svg,
                        "<path class=\"area {colour}\" d=\"M{:.1} {bottom}L{path}L{:.1} {bottom}Z\"/>",
                        first.0, last.0
                    )
                    .expect(NO_ERROR);
                }
                match places.len() {
                    // A line of one point would not be seen.
                    1 => write!(
                        svg,
                        "<circle class=\"dot {colour}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\"/>",
                        first.0, first.1
                    ),
                    _ => write!(svg, "<path class=\"line {colour}\" d=\"M{path}\"/>"),
                }
                .expect(NO_ERROR);
            }
        }
    }

    fn bars(&self, svg: &mut String, x: &Range, y: &Range) {
        let columns = self.series.iter().map(|series| series.points.len()).max().unwrap_or(0);
        for column in 0..columns.saturating_sub(1) {
            let mut below = 0.0;
            for series in &self.series {
                let value = height(series, column);
                if value <= 0.0 {
                    continue;
                }
                let (left, right) = (x_at(x, series.points[column].0), x_at(x, series.points[column + 1].0));
                let (top, bottom) = (y_at(y, below + value), y_at(y, below));
                let gap = if right - left > 3.0 { 1.0 } else { 0.0 };
                // However few, they can be seen.
                let tall = (bottom - top).max(1.0);
                write!(
                    svg,
                    "<rect class=\"bar {}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\"/>",
                    series.class(),
                    bottom - tall,
                    (right - left - gap).max(0.5)
                )
                .expect(NO_ERROR);
                below += value;
            }
        }
    }

    /// Values shown at the pointer, column by column.
    fn hints(&self, svg: &mut String, x: &Range) {
        let Some(first) = self.series.first() else { return };
        let tall = HEIGHT - BOTTOM - TOP;
        let bars = usize::from(self.mark == Mark::Bars);
        for column in 0..first.points.len().saturating_sub(bars) {
            let here = x_at(x, first.points[column].0);
            let next = first.points.get(column + 1).map_or(here, |next| x_at(x, next.0));
            let before = column.checked_sub(1).map_or(here, |before| x_at(x, first.points[before].0));
            let (left, right) = match self.mark {
                Mark::Bars => (here, next),
                Mark::Line | Mark::Area => (f64::midpoint(before, here), f64::midpoint(here, next)),
            };
            let value = |series: &Series| {
                let value = series.points.get(column)?.1?;
                Some(format!("{} {}", series.name, (self.y.text)(value)))
            };
            let values: Vec<_> = self.series.iter().filter_map(value).collect();
            if values.is_empty() {
                continue;
            }
            let hint = format!("{}: {}", (self.x.text)(first.points[column].0), values.join(", "));
            write!(
                svg,
                "<rect class=\"hint\" x=\"{left:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{tall}\"><title>{}</title></rect>",
                (right - left).max(1.0),
                escape(&hint)
            )
            .expect(NO_ERROR);
        }
    }
}

/// Number of colours in the style, not counting [`BAD`].
pub(super) const COLOURS: usize = 6;
/// The colour of failures.
pub(super) const BAD: usize = COLOURS;

fn height(series: &Series, column: usize) -> f64 {
    series.points.get(column).and_then(|(_, value)| *value).unwrap_or(0.0)
}

fn x_at(range: &Range, value: f64) -> f64 {
    LEFT + range.place(value) * (WIDTH - LEFT - RIGHT)
}

fn y_at(range: &Range, value: f64) -> f64 {
    HEIGHT - BOTTOM - range.place(value) * (HEIGHT - BOTTOM - TOP)
}

/// Escapes text for HTML and for attributes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_at_round_values_and_cover_the_points() {
        for most in [0.003, 0.9, 1.0, 7.0, 99.0, 14_809.0, 3.2e9] {
            let range = Range { first: 0.0, last: most, scale: Scale::Linear }.rounded();
            let ticks = range.ticks();
            assert!((3..=9).contains(&ticks.len()), "{most}: {ticks:?}");
            assert!(range.last >= most && ticks.last().unwrap() / range.last > 0.999, "{most}: {ticks:?}");
        }
        for (least, most) in [(830.0, 9_300.0), (1.0, 2e7), (300.0, 310.0)] {
            let range = Range { first: least, last: most, scale: Scale::Log }.rounded();
            assert!(range.first <= least && range.last >= most && range.ticks().len() >= 2, "{:?}", range.ticks());
        }
    }

    #[test]
    fn no_data_is_a_plot_without_points() {
        let text = |value: f64| value.to_string();
        let axis = |scale| Axis { scale, label: "x", text: &text, end: None, ticks: None };
        for mark in [Mark::Line, Mark::Area, Mark::Bars] {
            for points in [vec![], vec![(0.0, None)], vec![(1.0, Some(0.0))]] {
                let series = vec![Series { name: "<a>".into(), colour: 0, points }];
                let (x, y) = (axis(Scale::Linear), axis(Scale::Log));
                let svg = Plot { title: "t", mark, x, y, series, marks: Marks::default() }.to_svg();
                assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<a>"), "{svg}");
            }
        }
    }
}
