//! Log lines in the form of `tracing-subscriber`, without fields whose text is empty.

use std::fmt::{self, Write as _};

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::field::{MakeVisitor, VisitFmt, VisitOutput};
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The present time in log format.
pub(crate) fn timestamp() -> String {
    let mut text = String::new();
    // Fails only if the text cannot be written to.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

/// Fields of lines for people.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlainFields;

pub(crate) struct PlainVisitor<'a>(DefaultVisitor<'a>);

impl<'a> MakeVisitor<Writer<'a>> for PlainFields {
    type Visitor = PlainVisitor<'a>;

    fn make_visitor(&self, target: Writer<'a>) -> PlainVisitor<'a> {
        PlainVisitor(DefaultVisitor::new(target, true))
    }
}

impl Visit for PlainVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if !value.is_empty() {
            self.0.record_str(field, value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.record_debug(field, value);
    }
}

impl VisitOutput<fmt::Result> for PlainVisitor<'_> {
    fn finish(self) -> fmt::Result {
        self.0.finish()
    }
}

impl VisitFmt for PlainVisitor<'_> {
    fn writer(&mut self) -> &mut dyn fmt::Write {
        self.0.writer()
    }
}

/// Lines of one JSON object each: `timestamp`, `level`, `message` and the fields.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = format!("{{\"timestamp\":\"{}\",\"level\":\"{}\"", timestamp(), event.metadata().level());
        event.record(&mut JsonVisitor(&mut line));
        writeln!(writer, "{line}}}")
    }
}

struct JsonVisitor<'a>(&'a mut String);

impl JsonVisitor<'_> {
    /// `value` is JSON.
    fn put(&mut self, field: &Field, value: &dyn fmt::Display) {
        // Fails only if the text cannot be written to.
        let _ = write!(self.0, ",\"{}\":{value}", field.name());
    }
}

impl Visit for JsonVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if !value.is_empty() {
            self.put(field, &Value::from(value));
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, &value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, &value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, &value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, &Value::from(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use tracing::info;
    use tracing_subscriber::fmt;
    use tracing_subscriber::layer::SubscriberExt;

    use crate::test_log::{Kept, logged};

    use super::*;

    fn say() {
        let (empty, none) = (String::new(), None::<&str>);
        let error = "a\"b\n";
        info!(id = 51_u64, peer = "", helo = empty, tls = none, is_local = true, error, ms = -1, load = 0.5, why = ?"x", "message {}", "kept");
    }

    #[test]
    fn fields_without_a_text_are_left_out_of_lines_for_people() {
        let expected = r#"INFO message kept id=51 is_local=true error="a\"b\n" ms=-1 load=0.5 why="x""#;
        assert_eq!(logged(say), [expected]);
    }

    #[test]
    fn fields_without_a_text_are_left_out_of_json() {
        let kept = Kept::default();
        let layer = fmt::layer().with_writer(kept.clone()).event_format(JsonLines);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), say);
        let text = kept.text();
        let line: Value = serde_json::from_str(&text).unwrap();
        let expected = serde_json::json!({
            "timestamp": line["timestamp"], "level": "INFO", "message": "message kept", "id": 51, "is_local": true,
            "error": "a\"b\n", "ms": -1, "load": 0.5, "why": "\"x\"",
        });
        assert_eq!((line, text.lines().count()), (expected, 1));
        assert!(text.starts_with("{\"timestamp\":\"20") && text.contains(",\"level\":\"INFO\",\"message\":"), "{text}");
    }
}
