//! The parser: recursive descent over the text itself, so that every error has its place.

use std::ops::Range;

use jiff::Zoned;

use super::ast::{Leaf, Pattern, Query, Span, TextField, ThreadOf};
use super::date;
use super::error::ParseError;
use super::fields::{self, Field};
use super::saved::{self, SAVED_TEXT_BYTES_MAX, Saved, SavedQueries};
use super::scan::{Operator, Parser};
use super::values::{
    Value, flag_leaf, folder_pattern, header_value, is_relative, mime_leaf, path_query, pattern, plain, priority_leaf,
    size_range, tag_query, text_leaf, thread_number,
};
use posthaste_text::check_header_name;

/// Maximum depth of parentheses.
const DEPTH_MAX: u32 = 100;

/// Parses a query without saved queries. Relative dates count from `now`, days are those of its time zone.
///
/// # Errors
/// [`ParseError`] with the place.
pub fn parse(text: &str, now: &Zoned) -> Result<Query, ParseError> {
    parse_with(text, now, &SavedQueries::new())
}

/// Like [`parse`], with the saved queries that `query:name` stands for.
///
/// # Errors
/// [`ParseError`] with the place. Also for a name that is not in `queries`, or whose text is malformed or refers back
/// to itself.
pub fn parse_with(text: &str, now: &Zoned, queries: &SavedQueries) -> Result<Query, ParseError> {
    let default = Field::Text(TextField::Any);
    let saved = Saved::new(queries);
    Parser { text, at: 0, end: text.len(), now, default, depth: 0, saved }.whole()
}

impl<'a> Parser<'a> {
    pub(super) fn whole(&mut self) -> Result<Query, ParseError> {
        self.skip_blanks();
        if self.is_at_end() {
            return Ok(Query::All);
        }
        let query = self.or()?;
        match self.peek() {
            None => Ok(query),
            Some(_) => Err(ParseError::new(self.at..self.at + 1, "a `)` without a `(`")),
        }
    }

    fn or(&mut self) -> Result<Query, ParseError> {
        self.chain(Operator::Or, Self::xor, Query::Or)
    }

    fn xor(&mut self) -> Result<Query, ParseError> {
        self.chain(Operator::Xor, Self::and, Query::Xor)
    }

    fn chain(
        &mut self,
        operator: Operator,
        next: fn(&mut Self) -> Result<Query, ParseError>,
        join: fn(Vec<Query>) -> Query,
    ) -> Result<Query, ParseError> {
        let mut parts = vec![next(self)?];
        while self.take_operator(operator) {
            parts.push(next(self)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { join(parts) })
    }

    fn and(&mut self) -> Result<Query, ParseError> {
        let mut parts = vec![self.unary()?];
        loop {
            self.skip_blanks();
            if self.take_operator(Operator::And) {
                parts.push(self.unary()?);
                continue;
            }
            let goes_on = self.peek().is_some_and(|c| c != ')')
                && !matches!(self.operator(), Some((Operator::Or | Operator::Xor, _)));
            if !goes_on {
                return Ok(if parts.len() == 1 { parts.remove(0) } else { Query::And(parts) });
            }
            parts.push(self.unary()?);
        }
    }

    fn unary(&mut self) -> Result<Query, ParseError> {
        self.depth += 1;
        let result = self.unary_inside();
        self.depth -= 1;
        result
    }

    fn unary_inside(&mut self) -> Result<Query, ParseError> {
        self.skip_blanks();
        let start = self.at;
        if self.depth > DEPTH_MAX {
            return Err(ParseError::new(start..start, "nested too deeply"));
        }
        if self.take_operator(Operator::Not) {
            return Ok(Query::Not(Box::new(self.unary()?)));
        }
        match self.peek() {
            None => Err(ParseError::new(start..start, "a word, a field or `(` is missing here")),
            Some(')') => Err(ParseError::new(start..start + 1, "a word, a field or `(` is missing before `)`")),
            Some('-') if self.rest()[1..].starts_with(|c: char| c.is_alphanumeric() || c == '"' || c == '(') => {
                self.at += 1;
                Ok(Query::Not(Box::new(self.unary()?)))
            }
            Some('(') => self.group(),
            Some(_) => match self.operator() {
                Some((_, length)) => Err(ParseError::new(
                    start..start + length,
                    "an operator needs something before it; quote it to search for the word",
                )),
                None => self.term(),
            },
        }
    }

    fn group(&mut self) -> Result<Query, ParseError> {
        let open = self.at;
        self.at += 1;
        let query = self.or()?;
        self.skip_blanks();
        if self.peek() == Some(')') {
            self.at += 1;
            Ok(query)
        } else {
            Err(ParseError::new(open..open + 1, "this `(` is never closed"))
        }
    }

    fn term(&mut self) -> Result<Query, ParseError> {
        let start = self.at;
        if self.rest().starts_with('*') && self.boundary_after(self.at + 1) {
            self.at += 1;
            return Ok(Query::All);
        }
        let Some(field) = self.take_field()? else {
            return self.value_of(self.default, start);
        };
        match self.peek() {
            Some('(') => {
                let outer = std::mem::replace(&mut self.default, field);
                let query = self.group();
                self.default = outer;
                query
            }
            Some('{') if field == Field::Thread => self.thread_query(),
            // notmuch needs quotes around the braces if there are blanks between them.
            Some('"') if field == Field::Thread && self.rest()[1..].starts_with('{') => {
                self.at += 1;
                let query = self.thread_query()?;
                if self.peek() != Some('"') {
                    return Err(ParseError::new(self.at..self.at, "a `\"` is missing here"));
                }
                self.at += 1;
                Ok(query)
            }
            Some(c) if !c.is_whitespace() && c != ')' => self.value_of(field, self.at),
            _ => Err(ParseError::new(start..self.at, "a value is missing after the `:`")),
        }
    }

    /// Parses `name:`. An unknown name belongs to the text (`http://...`), unless it looks like a typing error.
    fn take_field(&mut self) -> Result<Option<Field<'a>>, ParseError> {
        let rest = self.rest();
        let length = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).unwrap_or(rest.len());
        let name = &rest[..length];
        if name.is_empty() || !rest[length..].starts_with(':') {
            return Ok(None);
        }
        if let Some(field) = fields::field(name) {
            self.at += length + 1;
            return Ok(Some(if let Field::Header(_) = field { self.take_header()? } else { field }));
        }
        if let Some(why) = fields::absent(name) {
            return Err(ParseError::new(
                self.at..self.at + length,
                format!("{why}. To search for the word itself, put it in quotes"),
            ));
        }
        let is_url = rest[length..].starts_with("://");
        match fields::field_like(name).filter(|_| !is_url) {
            Some(meant) => {
                let message =
                    format!("there is no field `{name}:`; did you mean `{meant}:`? Quote it to search for the text");
                Err(ParseError::new(self.at..self.at + length, message))
            }
            None => Ok(None),
        }
    }

    /// Parses `name:` after `header:`.
    fn take_header(&mut self) -> Result<Field<'a>, ParseError> {
        let rest = self.rest();
        let length = rest.find(|c: char| c.is_whitespace() || matches!(c, ':' | '(' | ')')).unwrap_or(rest.len());
        let span = self.at..self.at + length;
        if !rest[length..].starts_with(':') {
            let message = "a header's name and a value belong here: header:X-Spam-Score:>5, or header:X-Spam-Score:* for any value";
            return Err(ParseError::new(span, message));
        }
        check_header_name(&rest[..length]).map_err(|why| ParseError::new(span, why))?;
        self.at += length + 1;
        Ok(Field::Header(&rest[..length]))
    }

    /// Parses a thread query from its brace on.
    fn thread_query(&mut self) -> Result<Query, ParseError> {
        let open = self.at;
        let mut depth = 0;
        let close = self.rest().char_indices().find_map(|(at, c)| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            (depth == 0).then_some(open + at)
        });
        let Some(close) = close else {
            return Err(ParseError::new(open..open + 1, "this `{` is never closed"));
        };
        let outer = (self.end, self.default);
        self.end = close;
        self.default = Field::Text(TextField::Any);
        self.at = open + 1;
        let query = self.or()?;
        if self.at < close {
            return Err(ParseError::new(self.at..self.at + 1, "a `)` without a `(`"));
        }
        (self.end, self.default) = outer;
        self.at = close + 1;
        Ok(Query::Leaf(Leaf::Thread(ThreadOf::Query(Box::new(query)))))
    }

    fn value_of(&mut self, field: Field<'a>, start: usize) -> Result<Query, ParseError> {
        let value = self.value(field)?;
        let span = start..self.at;
        let leaf = match field {
            Field::Text(field) => text_leaf(field, value, span)?,
            Field::Date => Leaf::Date(self.date_range(&value, span)?),
            Field::Changed => Leaf::Changed(self.date_range(&value, span)?),
            Field::References => Leaf::References(plain(value, &span)?.trim_matches(['<', '>']).to_owned()),
            Field::Size => Leaf::Size(size_range(&plain(value, &span)?, span)?),
            Field::Header(name) => Leaf::Header { name: name.to_owned(), value: header_value(value, span)? },
            Field::Flag => flag_leaf(&plain(value, &span)?, span)?,
            Field::Is => return tag_query(value, span, fields::flag),
            Field::Tag => return tag_query(value, span, fields::flag_of_tag),
            Field::Folder => Leaf::Folder(folder_pattern(value, span)?),
            Field::Path => return path_query(value, span),
            Field::Mime => mime_leaf(value, span)?,
            Field::MessageId => Leaf::MessageId(pattern(value, span, |id| id.trim_matches(['<', '>']).to_owned())?),
            Field::Thread => Leaf::Thread(ThreadOf::Number(thread_number(&plain(value, &span)?, span)?)),
            Field::Priority => priority_leaf(&plain(value, &span)?, span)?,
            Field::Related => {
                let id = plain(value, &span)?.trim_matches(['<', '>']).to_owned();
                let both = [Leaf::MessageId(Pattern::Is(id.clone())), Leaf::References(id)];
                return Ok(Query::Or(both.map(Query::Leaf).to_vec()));
            }
            Field::Saved => return self.saved_query(&plain(value, &span)?, span),
        };
        Ok(Query::Leaf(leaf))
    }

    /// Parses the query saved as `name`, which was written at `span`.
    fn saved_query(&mut self, name: &str, span: Span) -> Result<Query, ParseError> {
        let all = self.saved.all;
        let Some((name, text)) = all.get_key_value(name) else {
            return Err(ParseError::new(span, saved::unknown(name, all)));
        };
        if self.saved.inside.contains(&name.as_str()) {
            let chain: Vec<String> = self.saved.inside.iter().map(|name| format!("`{name}`")).collect();
            return Err(ParseError::new(
                span,
                format!("the saved query `{name}` is part of itself: {}", chain.join(", ")),
            ));
        }
        let Some(bytes_left) = self.saved.bytes_left.checked_sub(text.len()) else {
            return Err(ParseError::new(
                span,
                format!("saved queries stand for more than {SAVED_TEXT_BYTES_MAX} bytes here"),
            ));
        };
        let mut saved = Saved { all, inside: std::mem::take(&mut self.saved.inside), bytes_left };
        saved.inside.push(name);
        let default = Field::Text(TextField::Any);
        let mut parser = Parser { text, at: 0, end: text.len(), now: self.now, default, depth: self.depth, saved };
        let result = parser.whole();
        self.saved = parser.saved;
        self.saved.inside.pop();
        result.map_err(|error| ParseError::new(span, format!("in the saved query `{name}`: {}", error.show(text))))
    }

    fn date_range(&self, value: &Value, span: Span) -> Result<Range<i64>, ParseError> {
        let (text, quotes) = match value {
            Value::Bare(text) => (text, 0),
            Value::Quoted(text) => (text, 1),
            Value::Regex(_) => return Err(ParseError::new(span, "a date cannot be a regular expression")),
        };
        if !self.boundary_after(self.at) {
            return Err(ParseError::new(
                self.at..self.end,
                "put the quotes around the whole: date:\"2024-05-31 14:00..now\"",
            ));
        }
        let base = span.start + quotes;
        let one = |part: &str, offset: usize| {
            date::stretch(part, self.now).ok_or_else(|| {
                let message =
                    format!("`{part}` is not a date; try 2024, 2024-05, 2024-05-31, 3d, 2weeks, today or @seconds");
                ParseError::new(base + offset..base + offset + part.len(), message)
            })
        };
        let Some((from, to)) = text.split_once("..") else {
            let stretch = one(text, 0)?;
            // "Three days ago" as a single second helps nobody: from then on.
            return Ok(if is_relative(text) { stretch.start..i64::MAX } else { stretch });
        };
        let start = if from.is_empty() { i64::MIN } else { one(from, 0)?.start };
        // notmuch: `date:yesterday..!` is all of yesterday.
        let end = match to {
            "" => i64::MAX,
            "!" => one(from, 0)?.end,
            to => one(to, from.len() + 2)?.end,
        };
        Ok(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::{Flag, Pattern};
    use crate::state::bits;

    fn now() -> Zoned {
        "2025-03-05T12:30:00+00:00[+00:00]".parse().unwrap()
    }

    fn ok(text: &str) -> Query {
        parse(text, &now()).unwrap_or_else(|error| panic!("{}", error.show(text)))
    }

    fn word(field: TextField, text: &str) -> Query {
        Query::Leaf(Leaf::Text { field, text: text.to_owned(), prefix: false })
    }

    fn any(text: &str) -> Query {
        word(TextField::Any, text)
    }

    #[test]
    fn operators_bind_like_mus() {
        assert_eq!(ok("a b or c"), Query::Or(vec![Query::And(vec![any("a"), any("b")]), any("c")]));
        assert_eq!(ok("a AND (b OR c)"), Query::And(vec![any("a"), Query::Or(vec![any("b"), any("c")])]));
        assert_eq!(ok("not a xor b"), Query::Xor(vec![Query::Not(Box::new(any("a"))), any("b")]));
        assert_eq!(ok("a -b"), Query::And(vec![any("a"), Query::Not(Box::new(any("b")))]));
        assert_eq!(ok("android orange"), Query::And(vec![any("android"), any("orange")]));
        assert_eq!(ok("\"and\""), any("and"));
        assert_eq!(ok("  "), Query::All);
        assert_eq!(ok("* and a"), Query::And(vec![Query::All, any("a")]));
    }

    #[test]
    fn fields_take_words_phrases_prefixes_groups_and_expressions() {
        assert_eq!(ok("from:ann@example.org"), word(TextField::From, "ann@example.org"));
        assert_eq!(ok("s:\"two words\""), word(TextField::Subject, "two words"));
        assert_eq!(
            ok("subject:(a or b)"),
            Query::Or(vec![word(TextField::Subject, "a"), word(TextField::Subject, "b")])
        );
        assert_eq!(ok("wor*"), Query::Leaf(Leaf::Text { field: TextField::Any, text: "wor".to_owned(), prefix: true }));
        assert_eq!(ok("http://example.org/"), any("http://example.org/"));
        assert_eq!(ok("/usr/lib"), any("/usr/lib"));
        assert_eq!(ok("(bar.baz() b)"), Query::And(vec![any("bar.baz()"), any("b")]));
        let Query::Leaf(Leaf::Regex { field: TextField::Subject, pattern: Pattern::Matches(regex) }) =
            ok("subject:/^re: x\\/y/")
        else {
            panic!("no expression")
        };
        assert_eq!(regex.as_str(), "^re: x/y");
        assert_eq!(ok("maildir:/lists/rust"), Query::Leaf(Leaf::Folder(Pattern::Is("lists/rust".to_owned()))));
        assert_eq!(ok("path:lists/**"), Query::Leaf(Leaf::Folder(Pattern::StartsWith("lists/".to_owned()))));
        assert_eq!(ok("path:lists/rust"), ok("folder:lists/rust"));
        assert_eq!(ok("path:lists/rust/cur"), ok("folder:lists/rust and not flag:new"));
        assert_eq!(ok("path:\"new\""), ok("folder:\"\" and flag:new"));
        assert_eq!(ok("mime:Image/*"), Query::Leaf(Leaf::Mime(Pattern::StartsWith("image/".to_owned()))));
        assert_eq!(ok("mimetype:PDF"), Query::Leaf(Leaf::MimeWord("pdf".to_owned())));
        assert_eq!(ok("id:<x@y>"), Query::Leaf(Leaf::MessageId(Pattern::Is("x@y".to_owned()))));
    }

    #[test]
    fn sizes_flags_tags_threads() {
        assert_eq!(ok("size:>1M"), Query::Leaf(Leaf::Size((1 << 20) + 1..u64::MAX)));
        assert_eq!(ok("size:1k..2k"), Query::Leaf(Leaf::Size(1024..2049)));
        assert_eq!(ok("flag:unread"), Query::Leaf(Leaf::Flag(Flag::Unread)));
        assert_eq!(ok("is:todo"), Query::Leaf(Leaf::Tag(Pattern::Is("todo".to_owned()))));
        assert_eq!(ok("g:F"), Query::Leaf(Leaf::Flag(Flag::Letter(bits::letter('F').unwrap()))));
        assert_eq!(ok("is:deleted"), ok("tag:deleted or flag:trashed"));
        assert_eq!(ok("is:tod*"), Query::Leaf(Leaf::Tag(Pattern::StartsWith("tod".to_owned()))));
        assert!(matches!(ok("is:/^todo/"), Query::Leaf(Leaf::Tag(Pattern::Matches(_)))));
        for expression in ["tag:/grüße/", "tag:/^GRUSSE$/"] {
            let Query::Leaf(Leaf::Tag(pattern)) = ok(expression) else { panic!("{expression} is not a tag") };
            assert!(pattern.accepts("grüße") && !pattern.accepts("größe"), "{expression}");
        }
        assert!(matches!(ok("tag:unread"), Query::Or(_)));
        for tag in ["list", "new", "seen", "calendar", "starred"] {
            assert_eq!(ok(&format!("tag:{tag}")), Query::Leaf(Leaf::Tag(Pattern::Is(tag.to_owned()))));
        }
        assert_eq!(ok("r:<x@y>"), Query::Leaf(Leaf::References("x@y".to_owned())));
        assert_eq!(ok("changed:2024"), Query::Leaf(Leaf::Changed(1_704_067_200..1_735_689_600)));
        for number in ["0000001f", "000000000000001f"] {
            assert_eq!(ok(&format!("thread:{number}")), Query::Leaf(Leaf::Thread(ThreadOf::Number(31))));
        }
        assert_eq!(ok("thread:{a (b)} c"), {
            let inner = Query::And(vec![any("a"), any("b")]);
            Query::And(vec![Query::Leaf(Leaf::Thread(ThreadOf::Query(Box::new(inner)))), any("c")])
        });
        assert_eq!(ok("thread:\"{a (b)}\" c"), ok("thread:{a (b)} c"));
        assert_eq!(ok("related:<x@y>"), ok("msgid:x@y or references:x@y"));
        assert_eq!(ok("embed:flour"), ok("body:flour"));
        assert_eq!(ok("file:*"), ok("file:/./"));
        assert_eq!(ok("date:..2024"), Query::Leaf(Leaf::Date(i64::MIN..1_735_689_600)));
        assert_eq!(ok("date:3d"), ok("date:3d.."));
        assert_eq!(ok("date:yesterday..!"), ok("date:yesterday"));
    }

    #[test]
    fn errors_point_at_the_character() {
        let check = |text: &str, marked: &str, start: usize| {
            let error = parse(text, &now()).expect_err(text);
            assert_eq!((error.span.start, &text[error.span.clone()]), (start, marked), "{}", error.show(text));
        };
        check("a (b", "(", 2);
        check("a b)", ")", 3);
        check("a and", "", 5);
        check("or a", "or", 0);
        check("(a or) b", ")", 5);
        check("form:ann", "form", 0);
        check("x from:", "from:", 2);
        check("subject:\"abc", "\"", 8);
        check("date:2024..20x5", "20x5", 11);
        check("é date:tomorow", "tomorow", 8);
        check("size:big", "big", 5);
        check("flag:blue", "blue", 5);
        check("prio:x", "x", 5);
        check("a ---", "---", 2);
        check("from:/(/", "/(/", 5);
        check("thread:{a", "{", 7);
        check("thread:{a)}", ")", 9);
        check("thread:zz", "zz", 7);
        check("thread:\"{a} b\"", "", 11);
        check("a lastmod:1..2", "lastmod", 2);
        check("date:\"2024\"..\"2025\"", "..\"2025\"", 11);
        check("()", ")", 1);
    }

    #[test]
    fn an_error_is_shown_below_the_query() {
        let text = "é date:x1";
        let shown = parse(text, &now()).unwrap_err().show(text);
        assert!(shown.ends_with("\n  é date:x1\n         ^^"), "{shown}");
    }

    #[test]
    fn depth_is_bounded() {
        let deep = format!("{}a{}", "(".repeat(10_000), ")".repeat(10_000));
        assert_eq!(parse(&deep, &now()).unwrap_err().message, "nested too deeply");
        let nots = "not ".repeat(10_000) + "a";
        assert!(parse(&nots, &now()).is_err());
    }
}
