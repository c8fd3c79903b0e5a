use std::cell::RefCell;
use std::time::Duration;

use super::*;
use crate::control::requests::list::key;
use crate::receive::cluster::{OtherNode, PeerAnswerer};

/// Other nodes, each with the parts that it answers.
struct Others(Vec<(&'static str, Node)>);

type Node = Box<dyn Fn(&Request) -> Result<PeerPart, String> + Send + Sync>;

impl OtherNodes for Others {
    fn me(&self) -> &str {
        "mx1"
    }

    fn list(&self) -> Vec<OtherNode> {
        self.0.iter().map(|(name, _)| OtherNode { name: (*name).to_owned(), is_silent: false }).collect()
    }

    fn ask_each(&self, nodes: &[OtherNode], question: &Bytes, _: Duration) -> Vec<Result<Bytes, String>> {
        let question: PeerQuestion = serde_json::from_slice(question).unwrap();
        let of = |asked: &OtherNode| self.0.iter().find(|(node, _)| *node == asked.name).unwrap();
        let answer =
            |asked: &OtherNode| (of(asked).1)(&question.request).map(|part| serde_json::to_vec(&part).unwrap().into());
        nodes.iter().map(answer).collect()
    }

    fn owner_of(&self, _: u16) -> Option<String> {
        None
    }

    fn answer(&self, _: PeerAnswerer) {}
}

fn away() -> (&'static str, Node) {
    ("mx3", Box::new(|_| Err("it has not answered in time".to_owned())))
}

/// A node with these recipients, which shows `at_once` in a part.
fn rows_of(ids: &'static [&'static str], at_once: usize) -> impl Fn(&Request) -> PeerPart + Clone {
    move |request: &Request| {
        let Request::List { after, limit, .. } = request else { panic!("{request:?}") };
        let at = after.as_deref().map(|id| key(id).unwrap());
        let left: Vec<_> = ids.iter().filter(|id| key(id).unwrap() > at.unwrap_or(key("0.0").unwrap())).collect();
        let most = usize::try_from(limit.unwrap()).unwrap().min(at_once);
        let shown: Vec<Value> = left.iter().take(most).map(|id| json!({ "id": id })).collect();
        let mut end = json!({ "done": shown.len() });
        if shown.len() == most {
            end["next"] = shown.last().unwrap()["id"].clone();
        }
        PeerPart { lines: shown, end, ..PeerPart::default() }
    }
}

/// The ids of a list over this node, mx2 and mx3, which is away; and its last line.
fn listed(limit: Option<u64>, after: Option<&str>, token: &str, at_once: usize) -> (Vec<String>, Value) {
    let own = rows_of(&["10.0", "30.0", "30.1", "70.0"], at_once);
    let other = rows_of(&["20.0", "40.0", "50.0", "60.0", "80.0"], at_once);
    let others = Others(vec![("mx2", Box::new(move |request| Ok(other(request)))), away()]);
    let asker = Asker { token: token.to_owned(), ..Asker::default() };
    let mut round = Round::begin(&others, &asker);
    let ids = RefCell::new(Vec::new());
    let answer = |row: Value| {
        ids.borrow_mut().push(row["id"].as_str().unwrap().to_owned());
        true
    };
    let of = Which::default();
    let after = after.map(str::to_owned);
    let end =
        list::list(&mut round, &wanted(&of, limit, &asker), after, &|request| Some(own(request)), &answer).unwrap();
    let end = round.end(end);
    (ids.into_inner(), end)
}

const ALL: [&str; 9] = ["10.0", "20.0", "30.0", "30.1", "40.0", "50.0", "60.0", "70.0", "80.0"];

#[test]
fn a_list_of_all_nodes_is_in_the_order_of_ids() {
    for at_once in [1, 2, 3, 100] {
        let (ids, end) = listed(None, None, "", at_once);
        assert_eq!((ids, &end["done"]), (ALL.map(str::to_owned).to_vec(), &json!(9)), "{at_once} at once");
        let why = "it has not answered in time";
        let cluster = json!({ "nodes": 3, "answered": 2, "unanswered": [{ "node": "mx3", "why": why }] });
        assert_eq!(end["cluster"], cluster);
    }
}

#[test]
fn a_part_of_the_list_of_all_nodes_goes_on_where_it_ended() {
    for at_once in [1, 2, 3, 100] {
        for limit in [1, 2, 4] {
            let (mut ids, mut after, mut rounds) = (Vec::new(), None::<String>, 0);
            loop {
                let (part, end) = listed(Some(limit), after.as_deref(), "page", at_once);
                assert!(part.len() as u64 <= limit);
                ids.extend(part);
                rounds += 1;
                after = end["next"].as_str().map(str::to_owned);
                if after.is_none() || rounds > 20 {
                    break;
                }
            }
            assert_eq!(ids, ALL, "{at_once} at once, {limit} wanted");
        }
    }
}

#[test]
fn counts_of_all_nodes_are_added_up() {
    let part = |name: &str, recipients, limit: &str| {
        let mut line = CountLine::of(By::Domain, name);
        (line.recipients, line.oldest, line.limit) = (recipients, recipients as i64, Some(limit.to_owned()));
        let end = json!({ "done": 1, "recipients": recipients, "oldest": recipients, "notices": 1, "room": [] });
        PeerPart { lines: vec![as_json(&line)], end, ..PeerPart::default() }
    };
    let none = PeerPart { end: json!({ "done": 0 }), ..PeerPart::default() };
    let parts = vec![part("a.example", 2, "few"), part("b.example", 4, "b"), part("a.example", 3, "many"), none];
    let (lines, end) = merge_summaries(parts, 1);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((line.name(), line.recipients, line.oldest), ("a.example", 5, 2));
    assert_eq!(line.limit.as_deref(), Some("many"));
    assert_eq!((end.done, end.recipients, end.oldest, end.notices), (2, 9, Some(2), 3));
    let ends = [json!({ "done": 2, "follow": 1 }), json!({ "done": 3 })];
    assert_eq!(add_numbers(ends.iter(), true), json!({ "done": 5, "follow": 1 }));
    assert_eq!(add_numbers(ends.iter(), false), json!({ "done": 3, "follow": 1 }));
}

#[test]
fn a_node_that_fails_is_named_and_asked_no_more() {
    let refuse = |why: &'static str| -> Node { Box::new(move |_| Ok(PeerPart::failed(why))) };
    let others = Others(vec![("mx2", refuse("the queue is stuck")), away()]);
    let asker = Asker::default();
    let count = Request::Count { of: Which::default(), action: Doing::Hold };
    let mut round = Round::begin(&others, &asker);
    let own = |_: &Request| Some(PeerPart { end: json!({ "done": 7 }), ..PeerPart::default() });
    assert_eq!(round.whole(&count, &own).unwrap().len(), 1);
    assert_eq!(round.whole(&count, &own).unwrap().len(), 1);
    let end = round.end(json!({ "done": 7 }));
    let text = serde_json::from_value::<NodeAnswers>(end["cluster"].clone()).unwrap().to_string();
    let wanted = "1 of 3 nodes have answered; not mx2: the queue is stuck; not mx3: it has not answered in time";
    assert_eq!(text, wanted);
    // Nobody answers: this node's reason is told.
    let mut round = Round::begin(&others, &asker);
    let refused = round.whole(&count, &|_| Some(PeerPart::failed("no room")));
    assert!(matches!(refused, Err(AskRefusal::Refused(why)) if why == "no room"));
}

#[test]
fn a_part_that_does_not_fit_is_named() {
    let part = PeerPart { end: json!({ "done": 9 }), has_more: true, ..PeerPart::default() };
    let bytes = serde_json::to_vec(&part).unwrap();
    let many: Node = Box::new(move |_| Ok(serde_json::from_slice(&bytes).unwrap()));
    let others = Others(vec![("mx2", many)]);
    let asker = Asker::default();
    let mut round = Round::begin(&others, &asker);
    round.whole(&Request::Suspensions {}, &|_| Some(PeerPart::default())).unwrap();
    assert_eq!(round.end(json!({}))["cluster"]["partial"], json!(["mx2"]));
}
