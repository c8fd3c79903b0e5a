//! A plot of values over time, for the reports of other programs.

use super::plot::{Axis, Mark, Marks, Plot, Scale, Series};
use crate::live::thousands;

/// A line of a plot: points of a time in seconds and a value.
#[derive(Debug, Clone)]
pub struct Curve<'a> {
    pub name: &'a str,
    /// One of the style's colours, 0 to 5.
    pub colour: usize,
    pub points: Vec<(f64, f64)>,
}

/// A figure with a line for each curve. The area under the first is filled.
pub fn over_time(title: &str, curves: Vec<Curve<'_>>) -> String {
    let series = |Curve { name, colour, points }: Curve<'_>| Series {
        name: name.to_owned(),
        colour,
        points: points.into_iter().map(|(at, value)| (at, Some(value))).collect(),
    };
    let (number, seconds) = (|value: f64| thousands(value.round() as u64), |value: f64| format!("{value:.0}"));
    let x = Axis { scale: Scale::Linear, label: "seconds", text: &seconds, end: None, ticks: None };
    let y = Axis { scale: Scale::Linear, label: "", text: &number, end: None, ticks: None };
    let series = curves.into_iter().map(series).collect();
    Plot { title, mark: Mark::Area, x, y, series, marks: Marks::default() }.to_svg()
}
