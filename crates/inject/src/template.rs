//! Jinja templates with bounded time and memory.
//!
//! The engine can repeat, join and double strings, so the syntax tree is checked before it is compiled. Expressions
//! can look up, compare and choose; arithmetic has numbers only; filters come from a list. So only filters can make a
//! value larger than those of the request, and they are metered.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memchr::memchr_iter;
use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Stmt, UnaryOpKind};
use minijinja::machinery::{Token, WhitespaceConfig, parse, tokenize};
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, escape_formatter, filters};

/// The use of a template's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Header fields: values with line breaks or NUL are refused.
    Header,
    /// Plain text.
    Text,
    /// HTML: values are escaped unless marked safe.
    Html,
}

impl Place {
    /// Prefix of template names for this use.
    fn prefix(self) -> &'static str {
        match self {
            Place::Header => HEADER,
            Place::Text => "text:",
            Place::Html => HTML,
        }
    }
}

const HEADER: &str = "header:";
const HTML: &str = "html:";

/// A text of the request.
#[derive(Debug)]
pub(crate) enum Piece {
    /// A text without template marks.
    Fixed(String),
    /// Name of the template that makes the text for each recipient.
    Template(String),
}

/// The templates of one request.
#[derive(Debug)]
pub(crate) struct Templates {
    /// Created with the first template: it has tables of its own, and most requests need none.
    environment: Option<Environment<'static>>,
    /// Octets that filters may still produce in the present render.
    budget: Arc<AtomicUsize>,
    /// Maximum steps of one template.
    steps: u64,
}

/// Called before each template; false stops rendering.
pub type MayGoOn<'a> = &'a dyn Fn() -> bool;

/// Maximum octets of a template's output, and of its filters' output.
pub(crate) const OUTPUT_BYTES_MAX: usize = 10 << 20;
/// Maximum steps of one template.
const STEPS_MAX: u64 = 1_000_000;
/// Maximum steps of a request, over all recipients.
const REQUEST_STEPS_MAX: u64 = 20_000_000;
/// Minimum steps for each recipient.
const STEPS_MIN: u64 = 10_000;
/// Each multiple of this many octets of variables divides the steps of a template: by two, three, four. A step such as
/// `x == y` may read all variables.
const STEP_BYTES: usize = 16 << 10;
/// Maximum octets of a filter's result: a step may read it, too.
const FILTERED_BYTES_MAX: usize = 512 << 10;
/// Maximum octets of a line of a template.
const LINE_BYTES_MAX: usize = 65_534;
/// Maximum octets of a name or string in a tag.
const TOKEN_BYTES_MAX: usize = 1000;

/// True for a text without template syntax.
pub(crate) fn is_fixed(text: &str) -> bool {
    let octets = text.as_bytes();
    !memchr_iter(b'{', octets).any(|at| matches!(octets.get(at + 1), Some(b'{' | b'%' | b'#')))
}

impl Templates {
    /// Templates for a request of `recipients`, with at most `variables_bytes` of variables each.
    pub fn new(recipients: usize, variables_bytes: usize) -> Self {
        let steps = (REQUEST_STEPS_MAX / recipients.max(1) as u64).min(STEPS_MAX);
        let steps = steps / (1 + variables_bytes / STEP_BYTES) as u64;
        Self { environment: None, budget: Arc::default(), steps: steps.max(STEPS_MIN) }
    }

    /// Compiles a text; kept unchanged if it has no template syntax or `is_static`. `what` names it in errors.
    ///
    /// # Errors
    /// Invalid syntax, or a forbidden operation.
    pub fn piece(&mut self, what: &str, place: Place, text: String, is_static: bool) -> Result<Piece, String> {
        if is_static || is_fixed(&text) {
            return Ok(Piece::Fixed(text));
        }
        if text.len() > OUTPUT_BYTES_MAX {
            return Err(format!("{what}: a template has at most {OUTPUT_BYTES_MAX} bytes"));
        }
        // Columns of the engine are 16 bits wide: it adds one to that of a mistake.
        if text.split('\n').any(|line| line.len() > LINE_BYTES_MAX) {
            return Err(format!("{what}: a line of a template has at most {LINE_BYTES_MAX} bytes"));
        }
        let named = |error: Error| format!("{what}: {}", told(&error));
        check_lengths(&text).map_err(|why| format!("{what}: {why}"))?;
        let whitespace = WhitespaceConfig { keep_trailing_newline: true, ..WhitespaceConfig::default() };
        let parsed = parse(&text, what, Default::default(), whitespace).map_err(named)?;
        check_statement(&parsed).map_err(|why| format!("{what}: templates here have no {why}"))?;
        drop(parsed);
        let name = format!("{}{what}", place.prefix());
        let environment = self.environment.get_or_insert_with(|| new_environment(self.steps, &self.budget));
        environment.add_template_owned(name.clone(), text).map_err(named)?;
        Ok(Piece::Template(name))
    }

    /// True if any text is a template.
    pub fn has_any(&self) -> bool {
        self.environment.is_some()
    }

    /// The text for one recipient with these variables.
    ///
    /// # Errors
    /// The template fails, a bound is reached, or `may_go_on` returned false.
    pub fn render(&self, piece: &Piece, variables: &Value, may_go_on: MayGoOn<'_>) -> Result<String, String> {
        let name = match piece {
            Piece::Fixed(text) => return Ok(text.clone()),
            Piece::Template(name) => name,
        };
        if !may_go_on() {
            return Err("the templates take too much time".to_owned());
        }
        self.budget.store(OUTPUT_BYTES_MAX, Ordering::Relaxed);
        let what = name.split_once(':').map_or(&**name, |(_, what)| what);
        let named = |error: Error| format!("{what}: {}", told(&error));
        let environment = self.environment.as_ref().expect("a template has an environment");
        let template = environment.get_template(name).map_err(named)?;
        let mut out = Bounded(Vec::new());
        template.render_captured_to(variables, &mut out).map_err(named)?;
        Ok(String::from_utf8(out.0).expect("a template writes text"))
    }
}

fn new_environment(steps: u64, budget: &Arc<AtomicUsize>) -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_keep_trailing_newline(true);
    environment.set_fuel(Some(steps));
    let escape = |name: &str| if name.starts_with(HTML) { AutoEscape::Html } else { AutoEscape::None };
    environment.set_auto_escape_callback(escape);
    environment.set_formatter(|out, state, value| {
        if state.name().starts_with(HEADER) && value.to_string().contains(['\r', '\n', '\0']) {
            return Err(refused("a value for a header field has a line break or NUL"));
        }
        escape_formatter(out, state, value)
    });
    add_filters(&mut environment, budget);
    environment
}

/// Output of at most [`OUTPUT_BYTES_MAX`].
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        if self.0.len() + octets.len() > OUTPUT_BYTES_MAX {
            return Err(io::Error::other("the text is too large"));
        }
        self.0.extend_from_slice(octets);
        Ok(octets.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn refused(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

/// An error without the text of the template.
fn told(error: &Error) -> String {
    let line = error.line().map_or(String::new(), |line| format!(" (line {line})"));
    let detail = error.detail().map_or(String::new(), |detail| format!(": {detail}"));
    format!("{}{detail}{line}", error.kind())
}

/// Filters that exist. Others are refused before the template is compiled.
const FILTERS: [&str; 19] = [
    "abs",
    "capitalize",
    "count",
    "d",
    "default",
    "e",
    "escape",
    "first",
    "float",
    "int",
    "last",
    "length",
    "lower",
    "round",
    "safe",
    "title",
    "trim",
    "upper",
    "string",
];
/// Filters with a numeric result.
const NUMBER_FILTERS: [&str; 6] = ["abs", "count", "float", "int", "length", "round"];
const TESTS: [&str; 8] = ["defined", "undefined", "none", "true", "false", "string", "number", "sequence"];

fn add_filters(environment: &mut Environment<'static>, budget: &Arc<AtomicUsize>) {
    use minijinja::tests;
    // Of these each makes a new text as large as its own, or a few times as large.
    for (name, filter) in [
        ("lower", str::to_lowercase as fn(&str) -> String),
        ("upper", str::to_uppercase),
        ("title", |text| filters::title(text.into())),
        ("capitalize", capitalized),
        ("trim", |text| text.trim().to_owned()),
        ("string", str::to_owned),
    ] {
        let budget = Arc::clone(budget);
        environment.add_filter(name, move |value: Value| -> Result<String, Error> {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let made = filter(&text);
            spend(&budget, text.len(), made.len())?;
            Ok(made)
        });
    }
    for name in ["e", "escape"] {
        let budget = Arc::clone(budget);
        environment.add_filter(name, move |state: &minijinja::State<'_, '_>, value: Value| -> Result<Value, Error> {
            let made = filters::escape(state, &value)?;
            spend(&budget, 0, made.as_str().map_or(0, str::len))?;
            Ok(made)
        });
    }
    let spends = Arc::clone(budget);
    environment.add_filter("safe", move |text: String| -> Result<Value, Error> {
        spend(&spends, 0, text.len())?;
        Ok(Value::from_safe_string(text))
    });
    environment.add_filter("abs", filters::abs);
    environment.add_filter("round", filters::round);
    environment.add_filter("int", filters::int);
    environment.add_filter("float", filters::float);
    environment.add_filter("first", filters::first);
    environment.add_filter("last", filters::last);
    environment.add_filter("length", filters::length);
    environment.add_filter("count", filters::length);
    environment.add_filter("default", filters::default);
    environment.add_filter("d", filters::default);
    environment.add_test("defined", tests::is_defined);
    environment.add_test("undefined", tests::is_undefined);
    environment.add_test("none", tests::is_none);
    environment.add_test("true", tests::is_true);
    environment.add_test("false", tests::is_false);
    environment.add_test("string", |value: &Value| value.kind() == ValueKind::String);
    environment.add_test("number", |value: &Value| value.kind() == ValueKind::Number);
    environment.add_test("sequence", |value: &Value| value.kind() == ValueKind::Seq);
}

fn capitalized(text: &str) -> String {
    let mut rest = text.chars();
    rest.next()
        .map_or(String::new(), |first| first.to_uppercase().chain(rest.as_str().to_lowercase().chars()).collect())
}

/// Charges a filter for its input and output octets.
fn spend(budget: &AtomicUsize, read: usize, made: usize) -> Result<(), Error> {
    let left = budget.load(Ordering::Relaxed).checked_sub(read + made);
    budget.store(left.unwrap_or(0), Ordering::Relaxed);
    left.filter(|_| made <= FILTERED_BYTES_MAX).map(drop).ok_or_else(|| refused("filters produce too much text"))
}

/// Maximum tokens of one tag, and `elif` branches of one template: parser, checks and compiler recurse for each, within
/// the stack.
const TAG_TOKENS_MAX: usize = 300;

/// Refuses tags that would exhaust the stack. The parser reports other errors.
fn check_lengths(text: &str) -> Result<(), String> {
    let long = || format!("a name or a text in a tag has at most {TOKEN_BYTES_MAX} bytes");
    let mut tokens = 0;
    let mut branches = 0;
    for token in tokenize(text, false, Default::default(), WhitespaceConfig::default()) {
        match token {
            Ok((Token::VariableStart | Token::BlockStart, _)) => tokens = 0,
            Ok((Token::Ident("elif"), _)) => branches += 1,
            Ok((Token::Ident(text) | Token::Str(text), _)) if text.len() > TOKEN_BYTES_MAX => return Err(long()),
            Ok((Token::String(text), _)) if text.len() > TOKEN_BYTES_MAX => return Err(long()),
            Ok(_) => tokens += 1,
            Err(_) => return Ok(()),
        }
        if tokens > TAG_TOKENS_MAX {
            return Err(format!("a tag has at most {TAG_TOKENS_MAX} names, numbers and signs"));
        }
        if branches > TAG_TOKENS_MAX {
            return Err(format!("a template has at most {TAG_TOKENS_MAX} elif branches"));
        }
    }
    Ok(())
}

/// `Err` names the forbidden construct.
fn check_statement(statement: &Stmt<'_>) -> Result<(), String> {
    let all = |body: &[Stmt<'_>]| body.iter().try_for_each(check_statement);
    match statement {
        Stmt::Template(template) => all(&template.children),
        Stmt::EmitRaw(_) => Ok(()),
        Stmt::EmitExpr(emit) => check(&emit.expr),
        Stmt::ForLoop(each) if each.recursive => Err("recursive loops".to_owned()),
        Stmt::ForLoop(each) => {
            check_target(&each.target)?;
            check(&each.iter)?;
            each.filter_expr.as_ref().map_or(Ok(()), check)?;
            all(&each.body)?;
            all(&each.else_body)
        }
        Stmt::IfCond(cond) => {
            check(&cond.expr)?;
            all(&cond.true_body)?;
            all(&cond.false_body)
        }
        Stmt::Set(set) => {
            check_target(&set.target)?;
            check(&set.expr)
        }
        _ => Err("blocks but for, if and set".to_owned()),
    }
}

/// Checks the target of an assignment: a name, or several.
fn check_target(target: &Expr<'_>) -> Result<(), String> {
    match target {
        Expr::Var(_) => Ok(()),
        Expr::List(list) => list.items.iter().try_for_each(check_target),
        _ => Err("targets but names".to_owned()),
    }
}

fn check(expr: &Expr<'_>) -> Result<(), String> {
    match expr {
        Expr::Var(_) | Expr::Const(_) => Ok(()),
        Expr::GetAttr(get) => check(&get.expr),
        Expr::GetItem(get) => check(&get.expr).and_then(|()| check(&get.subscript_expr)),
        Expr::UnaryOp(op) if matches!(op.op, UnaryOpKind::Not) || is_number(&op.expr) => check(&op.expr),
        Expr::BinOp(op) => {
            let is_allowed = match op.op {
                BinOpKind::Add
                | BinOpKind::Sub
                | BinOpKind::Mul
                | BinOpKind::Div
                | BinOpKind::FloorDiv
                | BinOpKind::Rem => is_number(&op.left) && is_number(&op.right),
                BinOpKind::Pow | BinOpKind::Concat => false,
                _ => true,
            };
            if !is_allowed {
                return Err("operators on text: + and - work on numbers only, so convert it, as in x|int".to_owned());
            }
            check(&op.left)?;
            check(&op.right)
        }
        Expr::Compare(compare) => {
            check(&compare.expr)?;
            compare.ops.iter().try_for_each(|op| check(&op.expr))
        }
        Expr::IfExpr(cond) => {
            check(&cond.test_expr)?;
            check(&cond.true_expr)?;
            cond.false_expr.as_ref().map_or(Ok(()), check)
        }
        Expr::Filter(filter) => {
            if !FILTERS.contains(&filter.name) {
                return Err(format!("filter {}; there are {}", filter.name, FILTERS.join(", ")));
            }
            filter.expr.as_ref().map_or(Ok(()), check)?;
            filter.args.iter().try_for_each(check_argument)
        }
        Expr::Test(test) => {
            if !TESTS.contains(&test.name) {
                return Err(format!("test {}; there are {}", test.name, TESTS.join(", ")));
            }
            check(&test.expr)?;
            test.args.iter().try_for_each(check_argument)
        }
        Expr::UnaryOp(_) | Expr::Slice(_) | Expr::Call(_) | Expr::List(_) | Expr::Map(_) => {
            Err(format!("{}s of this kind", expr.description()))
        }
    }
}

fn check_argument(argument: &CallArg<'_>) -> Result<(), String> {
    match argument {
        CallArg::Pos(expr) | CallArg::Kwarg(_, expr) => check(expr),
        CallArg::PosSplat(_) | CallArg::KwargSplat(_) => Err("splats".to_owned()),
    }
}

/// True if it cannot be a text or a list.
fn is_number(expr: &Expr<'_>) -> bool {
    match expr {
        Expr::Const(constant) => constant.value.kind() == ValueKind::Number,
        Expr::Filter(filter) => NUMBER_FILTERS.contains(&filter.name),
        Expr::UnaryOp(op) => matches!(op.op, UnaryOpKind::Neg) && is_number(&op.expr),
        Expr::BinOp(op) => {
            use BinOpKind::{Add, Div, FloorDiv, Mul, Rem, Sub};
            matches!(op.op, Add | Sub | Mul | Div | FloorDiv | Rem) && is_number(&op.left) && is_number(&op.right)
        }
        _ => false,
    }
}

#[cfg(test)]
#[path = "../tests/bombs/all.rs"]
mod bombs;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(place: Place, text: &str, variables: serde_json::Value) -> Result<String, String> {
        let mut templates = Templates::new(1, variables.to_string().len());
        let piece = templates.piece("content", place, text.to_owned(), false)?;
        templates.render(&piece, &Value::from_serialize(variables), &|| true)
    }

    #[test]
    fn a_template_looks_up_chooses_repeats_and_counts() {
        let check = |text: &str, expected: &str| {
            let variables = json!({ "name": "Ann & Co", "n": "3", "items": [{"of": "a"}, {"of": "b"}], "none": null });
            assert_eq!(render(Place::Text, text, variables).as_deref(), Ok(expected), "{text}");
        };
        check("Dear {{ name }},\n", "Dear Ann & Co,\n");
        check("{{ missing }}{{ missing|default('x') }}", "x");
        check("{% for item in items %}{{ loop.index }}{{ item.of|upper }} {% endfor %}", "1A 2B ");
        check("{% set m = n|int * 2 + 1 %}{% if m > 6 %}{{ m }}{% else %}few{% endif %}", "7");
        check("{{ 'yes' if name is defined and items|length == 2 else 'no' }}{{ items[0]['of'] }}", "yesa");
        check("{# a comment #}{{ name|lower|title|trim }}", "Ann & Co");
    }

    #[test]
    fn a_mistake_far_along_a_line_is_refused() {
        let mut templates = Templates::new(1, 0);
        for mistake in ["{#", "{{ x", "{% if", "{{ 'x }}", "{{ 1_ }}", "{{ ~ }}"] {
            for bytes in [10, 65_530, 65_534, 65_535, 65_536, 70_000] {
                for text in [format!("{}{mistake}", "x".repeat(bytes)), format!("{mistake}{}", "x".repeat(bytes))] {
                    let taken = templates.piece("content", Place::Text, text, false);
                    assert!(taken.is_err(), "{mistake} {bytes}");
                }
            }
        }
        let long = format!("{{{{ x }}}}{}", "y".repeat(LINE_BYTES_MAX - 7));
        assert!(templates.piece("content", Place::Text, format!("{long}\n{long}"), false).is_ok());
        let longer = templates.piece("content", Place::Text, format!("{long}y"), false).unwrap_err();
        assert_eq!(longer, format!("content: a line of a template has at most {LINE_BYTES_MAX} bytes"));
    }

    #[test]
    fn html_is_escaped_and_a_header_keeps_its_line() {
        let variables = || json!({ "x": "<b>\r\nBcc: a", "y": "<i>" });
        assert_eq!(render(Place::Html, "{{ y }}{{ y|safe }}", variables()).as_deref(), Ok("&lt;i&gt;<i>"));
        assert_eq!(render(Place::Header, "{{ y }}", variables()).as_deref(), Ok("<i>"));
        for text in ["{{ x }}", "{{ x|safe }}", "{{ x|upper }}", "{% set z = x %}{{ z|e }}"] {
            let why = render(Place::Header, text, variables()).unwrap_err();
            assert!(why.contains("line break or NUL"), "{text}: {why}");
        }
    }

    #[test]
    fn tags_that_would_use_up_the_stack_are_refused() {
        let chain = |begin: &str, link: &str, end: &str| format!("{begin}{}{end}", link.repeat(100_000));
        for text in [
            chain("{{ x", ".a", " }}"),
            chain("{{ x", "|e", " }}"),
            chain("{{ x", "[0]", " }}"),
            chain("{{ x", " and x", " }}"),
            chain("{{ x", " if x else x", " }}"),
            chain("{{ ", "not ", "x }}"),
            chain("{{ ", "- ", "1 }}"),
            chain("{{ 1", " + 1", " }}"),
            chain("{{ x", " == x", " }}"),
            chain("{{ x", " is defined", " }}"),
            chain("{% set x = x", ".a", " %}"),
            chain("{% if x %}", "{% elif x %}", "{% endif %}"),
        ] {
            let why = render(Place::Text, &text, json!({ "x": "x" })).unwrap_err();
            assert!(why.contains("at most"), "{:.40}: {why}", text);
        }
        let longest = format!("{{{{ 1{} }}}}", " + 1".repeat(TAG_TOKENS_MAX / 2 - 2));
        assert_eq!(render(Place::Text, &longest, json!({})).as_deref(), Ok("149"));
        let branches = "{% elif x %}".repeat(TAG_TOKENS_MAX);
        assert_eq!(
            render(Place::Text, &format!("{{% if x %}}{branches}{{% else %}}y{{% endif %}}"), json!({})).as_deref(),
            Ok("y")
        );
    }

    #[test]
    fn steps_cost_more_where_they_look_at_more() {
        let loops = format!("{0}{0}{0}{{% if x == x %}}{{% endif %}}{1}{1}{1}", "{% for a in l %}", "{% endfor %}");
        let of = |bytes: usize| json!({ "x": "x".repeat(bytes), "l": vec![0; 50] });
        assert!(render(Place::Text, &loops, of(1)).is_ok());
        assert!(render(Place::Text, &loops, of(10 * STEP_BYTES)).unwrap_err().contains("out of fuel"));
        let text = format!("{{% if x == '{}' %}}{{% endif %}}", "x".repeat(TOKEN_BYTES_MAX + 1));
        assert!(render(Place::Text, &text, json!({})).unwrap_err().contains("at most 1000 bytes"));
        let amps = json!({ "x": "&".repeat(FILTERED_BYTES_MAX / 4) });
        assert!(render(Place::Html, "{{ x|e }}", amps).unwrap_err().contains("filters produce too much text"));
    }

    #[test]
    fn bombs_do_not_go_off() {
        let list: Vec<u32> = (0..100).collect();
        let begun = std::time::Instant::now();
        for bomb in bombs::all() {
            let variables = json!({ "x": "x".repeat(100_000), "l": list });
            let text: String = bomb.chars().take(100).collect();
            assert!(render(Place::Text, &bomb, variables).is_err(), "{text}");
        }
        assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    }
}
