//! One HTTP connection that injects mail, as a state machine without IO: `POST /api/inject/v1`, as defined by KumoMTA.
//!
//! A request is a message with its recipients. Its body consists of the pool's octets, escaped once and not copied.

use std::io::Write as _;

use super::failure::{Cause, Failure, Stage};
use super::output::Output;
use super::plan::Plan;
use super::schedule::SendSlot;
use super::session::{Event, Fate};
use crate::stamp::Id;
use crate::values::INJECT_PATH;

mod answer;

use answer::{Answer, AnswerReader};

/// One client connection.
#[derive(Debug)]
pub(super) struct HttpSession {
    server: usize,
    pub output: Output,
    current: Option<Asked>,
    answer: AnswerReader,
    is_closing: bool,
    has_quit: bool,
    /// Messages begun.
    pub begun: u64,
    /// Recipients refused since the caller last emptied it.
    pub refusals: Vec<Failure>,
}

/// The message in flight.
#[derive(Debug)]
struct Asked {
    turn: SendSlot,
    octets: u64,
}

/// Replies after which a retry may succeed: the request is in progress, too many, or the server is unavailable.
const LATER: [u16; 3] = [409, 429, 503];
/// Maximum attempts of a request.
const REPEATS_MAX: u16 = 100;

impl HttpSession {
    /// A session with server number `server` of the plan.
    pub fn new(server: usize) -> Self {
        Self {
            server,
            output: Output::default(),
            current: None,
            answer: AnswerReader::default(),
            is_closing: false,
            has_quit: false,
            begun: 0,
            refusals: Vec::new(),
        }
    }

    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    pub fn is_idle(&self) -> bool {
        self.current.is_none() && !self.is_closing && !self.has_quit
    }

    pub fn is_waiting(&self) -> bool {
        self.current.is_some()
    }

    pub fn quit(&mut self) {
        self.has_quit = true;
    }

    pub fn has_quit(&self) -> bool {
        self.has_quit
    }

    /// Writes a request.
    pub fn begin(&mut self, turn: SendSlot, plan: &Plan) {
        assert!(self.is_idle(), "a request is begun while one is under way: {self:?}");
        self.begun += 1;
        let id = Id { run: plan.run, number: turn.number };
        let message = plan.pool.pick(id.number);
        let mut front = Vec::with_capacity(128);
        plan.pool.write_front(id, message, &mut front);
        self.current = Some(Asked { turn, octets: (front.len() + message.plain.len()) as u64 });
        let front = String::from_utf8(front).expect("a stamp and a Message-ID are ASCII");
        let mut start = br#"{"envelope_sender":"#.to_vec();
        write_json(&plan.sender, &mut start);
        start.extend_from_slice(br#","template_dialect":"Static","content":"#);
        write_json(&front, &mut start);
        // The rest of the message goes on in the same string.
        start.pop();
        let mut end = br#"","recipients":["#.to_vec();
        for index in 0..plan.recipients_per_message {
            end.extend_from_slice(if index > 0 { br#",{"email":"# } else { br#"{"email":"# });
            let mut address = Vec::with_capacity(64);
            plan.recipients.write(id.number, index, plan.recipients_per_message, &mut address);
            write_json(&String::from_utf8(address).expect("addresses are text"), &mut end);
            end.push(b'}');
        }
        end.extend_from_slice(b"]}");
        let body = message.escaped();
        self.head(id, start.len() + body.len() + end.len(), plan);
        self.output.text().extend_from_slice(&start);
        self.output.body(body.clone());
        self.output.text().extend_from_slice(&end);
    }

    fn head(&mut self, id: Id, length: usize, plan: &Plan) {
        let name = &plan.servers[self.server].name;
        let host = name.split_once("://").map_or(name.as_str(), |(_, host)| host);
        let text = self.output.text();
        const NO_ERROR: &str = "a Vec takes everything";
        write!(text, "POST {INJECT_PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n")
            .expect(NO_ERROR);
        if let Some(token) = &plan.injecting.token {
            write!(text, "Authorization: Bearer {token}\r\n").expect(NO_ERROR);
        }
        if plan.injecting.repeats {
            // The same for the same message of the same run, and for no other.
            write!(text, "Idempotency-Key: {id}\r\n").expect(NO_ERROR);
        }
        write!(text, "Content-Length: {length}\r\n\r\n").expect(NO_ERROR);
    }

    /// See [`Client::take`](super::client::Client::take).
    pub fn take(&mut self, input: &[u8], plan: &Plan) -> Result<Option<(usize, Event)>, Failure> {
        let garbage = |why: &str| Failure::new(Stage::Http, Cause::Garbage, why);
        if self.current.is_none() {
            return Err(garbage("an answer to no request"));
        }
        let (taken, answer) = self.answer.take(input).map_err(|error| garbage(&error.to_string()))?;
        let Some(answer) = answer else { return Ok((taken > 0).then_some((taken, Event::Wait))) };
        self.is_closing |= answer.closes;
        // An answer before the whole request is out leaves the rest of it on the connection.
        self.is_closing |= !self.output.is_empty();
        let asked = self.current.take().expect("checked above");
        self.judge(asked, &answer, plan).map(|event| Some((taken, event)))
    }

    fn judge(&mut self, asked: Asked, answer: &Answer, plan: &Plan) -> Result<Event, Failure> {
        let Asked { turn, octets } = asked;
        let refusals = answer.refusals();
        let acked = answer.accepted.min(plan.recipients_per_message as u64) as u16;
        if acked == 0 && plan.injecting.repeats && LATER.contains(&answer.status) && turn.repeats < REPEATS_MAX {
            return Ok(Event::Again(turn));
        }
        let failure = match (acked, refusals.first()) {
            (0, None) => Some(Failure::new(Stage::Http, Cause::Reply(answer.status), answer.text.clone())),
            (_, first) => first.cloned(),
        };
        self.refusals.extend(refusals.into_iter().filter(|refusal| refusal.class.stage == Stage::Rcpt));
        let uncertain = if acked == 0 { uncertain(turn, plan) } else { 0 };
        Ok(Event::Done(Fate { turn, acked, uncertain, octets, failure }))
    }

    /// Call it when the connection is lost. Returns the message that was in flight.
    pub fn lost(&mut self, failure: &Failure, plan: &Plan) -> Option<Fate> {
        self.is_closing = true;
        let Asked { turn, octets } = self.current.take()?;
        // A request that is not whole is not a request.
        let may_be_there = self.output.is_empty();
        self.output.clear();
        let all = plan.recipients_per_message as u16;
        let uncertain = if may_be_there { all } else { uncertain(turn, plan) };
        Some(Fate { turn, acked: 0, uncertain, octets, failure: Some(failure.clone()) })
    }
}

/// Recipients who may have the message from earlier attempts.
pub(super) fn uncertain(turn: SendSlot, plan: &Plan) -> u16 {
    if turn.repeats > 0 { plan.recipients_per_message as u16 } else { 0 }
}

/// True if a message is sent again after the loss of its connection.
pub(super) fn is_repeated(turn: SendSlot, plan: &Plan) -> bool {
    plan.injecting.repeats && turn.repeats < REPEATS_MAX
}

fn write_json(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("a text has a form in JSON");
}
