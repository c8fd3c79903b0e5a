// Find: where is this mail, why was that one refused, and what comes in now?

import { el, field, foreign, put, select, table } from "./el.js";
import { control, curl, get, openEvents, operand, option, quoted, readEvents, signal } from "./api.js";
import { commandButton } from "./ask.js";
import { count, stamp } from "./format.js";
import { address } from "./route.js";

const TIMES = [["3600", "last hour"], ["86400", "last 24 h"], ["604800", "last 7 days"], ["", "all"]];
const SINCE = { 3600: "1h", 86400: "24h", 604800: "7d" };
const KINDS = [
  ["", "all", []],
  ["refused", "refused", ["refused", "aborted"]],
  ["bounced", "bounced", ["bounced", "expired", "double_bounced", "suppressed"]],
  ["waits", "deferred", ["deferred", "waiting", "held", "interrupted"]],
];
const GOOD = new Set(["delivered"]);
const BAD = new Set(["refused", "bounced", "expired", "double_bounced", "aborted", "given_up", "unreadable"]);
const ROWS_MAX = 500;
const AGAIN_MS = 5000;
const SUBJECTS_MAX = 100;
const FOUND_ROWS = 50;
/// What the text in the field is: of events, or words in mail itself.
const KINDS_OF_TEXT = [["", "of a message"], ["user", "a login"]];
const WORDS = ["words", "words in mail"];
const EXAMPLES = { "": "ann@there.example", user: "ann@here.example", words: "order from:shop subject:\"rye bread\"" };

export class FindPage {
  constructor(whose, query) {
    this.scopes = whose.scopes;
    this.tenant = whose.tenant ?? null;
    this.query = query;
    this.title = "Find";
    this.failure = el("p", { class: "error", role: "alert" });
    this.live = el("span", { class: "hint", role: "status" });
    this.main = el("section", { "aria-label": "What was found" });
    this.as = chosen(query, "as", [...KINDS_OF_TEXT, WORDS], "");
    this.secs = chosen(query, "secs", TIMES, "86400");
    this.events = chosen(query, "events", KINDS, "");
    this.search = el("input", { name: "what", value: query.get("what") ?? "", autocomplete: "off", spellcheck: "false", type: "search", placeholder: EXAMPLES[this.as] });
    const more = "posthaste page --scopes " + [...this.scopes, "mail:read"].join(",");
    const closed = this.scopes.includes("mail:read") || this.tenant ? null
      : el("p", { class: "hint" }, "This session may not read messages. A link that may: ", el("code", {}, more));
    this.node = el("main", { id: "content", tabindex: "-1" }, el("h1", {}, "Find"), this.form(), this.failure, closed, this.main);
    this.wanted = [];
    this.isAsking = false;
  }

  form() {
    const go = (event) => {
      event.preventDefault();
      const query = new URLSearchParams();
      // An empty time is all of it.
      for (const [key, value] of new FormData(event.currentTarget)) if (value || key === "secs") query.set(key, value);
      if (query.get("secs") === "86400") query.delete("secs");
      location.hash = address("find", query);
    };
    const as = select("as", [...KINDS_OF_TEXT, ...(this.maySearch() ? [WORDS] : [])], this.as);
    const events = select("events", KINDS, this.events);
    const change = () => {
      this.search.placeholder = EXAMPLES[as.value];
      events.disabled = as.value === WORDS[0];
    };
    as.addEventListener("change", change);
    change();
    return el("form", { class: "filter", onsubmit: go },
      field(this.maySearch() ? "Address, Message-ID, number or words" : "Address, Message-ID or number", this.search), field("It is", as),
      field("Time", select("secs", TIMES, this.secs)), field("Events", events),
      el("button", { type: "submit" }, "Find"), this.live);
  }

  /// Mailboxes are of no tenant.
  maySearch() {
    return this.scopes.includes("mail:read") && !this.tenant;
  }

  kinds() {
    return KINDS.find(([name]) => name === this.events)[2];
  }

  async refresh() {
    const what = this.query.get("what");
    if (this.as === WORDS[0] && this.maySearch()) return this.showWords(what ?? "");
    if (!what) return this.showNewest();
    const { secs } = this;
    const request = { ask: "find", [this.as === "user" ? "user" : "what"]: what, ...(secs ? { secs: Number(secs) } : {}) };
    const { lines, end } = await control(request);
    const kinds = this.kinds();
    const fits = lines.filter((line) => kinds.length === 0 || line.events.some((event) => kinds.includes(event.event)));
    const command = () => "posthaste trace" + (secs ? " --since " + SINCE[secs] : "") + (this.as === "user" ? option("user", what) : " " + operand(what));
    put(this.main,
      el("p", { class: "strip" }, el("span", { class: "state" }, summed(fits)), commandButton(command)),
      fits.length === 0 && this.as !== "user" ? el("p", { class: "hint" }, "This looks for whole addresses, Message-IDs and numbers.") : null,
      end.cut ? el("p", { class: "hint" }, "Only the newest are shown.") : null,
      end.late ? el("p", { class: "warning" }, "The log is large: the newest part was not searched. Choose a shorter time.") : null,
      fits.map((line) => this.story(line)));
    return null;
  }

  /// Mail in mailboxes here that has these words, the newest first.
  async showWords(words) {
    const { secs } = this;
    const skip = Number(this.query.get("skip")) || 0;
    const { lines, end } = await control({ ask: "search", query: words, skip, limit: FOUND_ROWS, ...(secs ? { secs: Number(secs) } : {}) });
    const page = (text, to) => {
      const query = new URLSearchParams(this.query);
      if (to) query.set("skip", to);
      else query.delete("skip");
      return el("a", { href: address("find", query) }, text);
    };
    const rows = lines.map((line) => el("tr", {}, el("td", { class: "time" }, stamp(new Date(line.date * 1000))), el("td", {}, line.from ? foreign(line.from) : "–"),
      el("th", { scope: "row" }, el("a", { class: "subject", href: address("mail", new URLSearchParams({ mailbox: line.mailbox, name: line.name })) }, foreign(line.subject || "(no subject)"))),
      el("td", {}, foreign(line.mailbox))));
    put(this.main,
      el("p", { class: "strip" }, el("span", { class: "state" }, rows.length ? "Mail with these words, the newest first" : "No mail has these words."),
        commandButton(() => "posthaste find --index " + quoted(end.index) + " " + operand(dated(words, secs)))),
      rows.length ? table(["date", "from", "subject", "mailbox"], rows, { class: "wide found" }) : el("p", { class: "hint" }, "Whole words are found: bread* finds words that begin with it. Mail is found about a second after it arrives."),
      el("p", { class: "pages" }, skip ? page("first " + FOUND_ROWS, null) : null, end.next ? page("next " + FOUND_ROWS, end.next) : null));
    return null;
  }

  story(line) {
    const received = line.events.find((event) => event.event === "received");
    return el("article", { class: "story" },
      received ? el("h2", {}, "message ", line.message, " ", received.message_id ? el("small", {}, foreign(received.message_id)) : null, " ", this.readLink(received, line.events)) : null,
      table(["time", "event", "details"], line.events.map((event) => row(event, details(event))), { class: "events" }));
  }

  /// A link to the message itself, for who may read it.
  readLink(received, events) {
    if (!this.scopes.includes("mail:read")) return null;
    const place = placeOf(received, events);
    // Mailboxes are of no tenant.
    if (this.tenant && place.mailbox) return null;
    const link = el("a", { class: "subject", href: address("mail", new URLSearchParams({ message: received.message, ...place })) }, "open");
    if (place.mailbox) this.subject({ message: received.message, mailbox: place.mailbox }, link);
    return link;
  }

  async showNewest() {
    const kinds = this.kinds();
    const request = { ask: "find", events: kinds, limit: 100 };
    this.stop();
    this.ending = new AbortController();
    // First: what happens while the list is made comes too.
    const stream = openEvents(this.ending.signal);
    await stream.catch(() => null);
    const { lines } = await control(request);
    const events = lines.flatMap((line) => line.events).sort((one, other) => order(other.lsn, one.lsn)).slice(0, ROWS_MAX);
    const body = el("tbody", {}, events.map((event) => this.liveRow(event)));
    const empty = el("p", { class: "hint" }, "Nothing yet. New rows appear by themselves.");
    empty.hidden = events.length > 0;
    put(this.main, el("p", { class: "strip" }, el("span", { class: "hint" }, "The newest first"), el("span", { class: "buttons" },
      commandButton(() => curl("/api/control/v1", request)), commandButton(() => curl("/api/events/v1") + " -N", "follow as command"))),
    empty, el("div", { class: "scroll" }, el("table", { class: "events" }, el("thead", {}, el("tr", {}, ["time", "event", "details"].map((name) => el("th", { scope: "col" }, name)))), body)));
    body.firstElementChild?.setAttribute("tabindex", "0");
    this.follow(stream, kinds, new Set(events.map(whole)), body, empty);
    return null;
  }

  follow(stream, kinds, listed, body, empty) {
    const until = this.ending.signal;
    const take = (events) => {
      const fits = events.filter((event) => (kinds.length === 0 || kinds.includes(event.event)) && !listed.has(whole(event)));
      if (fits.length === 0) return;
      empty.hidden = true;
      body.prepend(...fits.reverse().map((event) => this.liveRow(event)));
      while (body.childElementCount > ROWS_MAX) body.lastElementChild.remove();
    };
    put(this.live, el("span", { class: "good" }, "live"));
    stream.then((body) => readEvents(body, take)).catch((error) => {
      if (until.aborted) return;
      put(this.live, foreign("not live: " + error.message));
      // Without an answer, the page waits for the server.
      setTimeout(() => until.aborted || get("/api/token/v1").then(() => signal("again"), () => null), AGAIN_MS);
    });
  }

  /// A row that leads to the whole story. Who may read mail sees the subject of what has come.
  liveRow(event) {
    const parts = details(event);
    if (event.message !== undefined) parts.unshift(el("a", { href: address("find", new URLSearchParams({ what: event.message, secs: "" })) }, "message " + event.message), " ");
    if (this.scopes.includes("mail:read") && !this.tenant && event.event === "delivered" && event.mailbox?.includes("/")) {
      const link = el("a", { class: "subject", href: address("mail", new URLSearchParams({ message: event.message, mailbox: event.mailbox })) }, "open");
      parts.push(" ", link);
      this.subject(event, link);
    }
    return row(event, parts);
  }

  /// Puts the subject and the sender of a message into its link, with one request for many.
  async subject(of, link) {
    this.wanted.push([of, link]);
    if (this.isAsking) return;
    this.isAsking = true;
    // What is drawn with it comes first.
    await Promise.resolve();
    while (this.wanted.length) {
      const some = this.wanted.splice(0, SUBJECTS_MAX);
      const request = { ask: "subjects", of: some.map(([{ message, mailbox }]) => ({ message, mailbox })) };
      const { lines } = await control(request).catch(() => ({ lines: [] }));
      const found = new Map(lines.map((line) => [line.message + " " + line.mailbox, line]));
      for (const [{ message, mailbox }, at] of some) {
        // It may have been removed: then opening it says so.
        const line = found.get(message + " " + mailbox);
        if (line) put(at, foreign(line.subject || "(no subject)"), line.from ? [" from ", foreign(line.from)] : null);
      }
    }
    this.isAsking = false;
  }

  focus() {
    this.search.focus();
    this.search.select();
  }

  stop() {
    this.ending?.abort();
  }
}

/// The choice that an address names, or the usual one.
function chosen(query, name, choices, usual) {
  const value = query.get(name);
  return choices.some(([known]) => known === value) ? value : usual;
}

/// A query for mail with these words that is no older.
function dated(words, secs) {
  const since = secs ? "date:@" + (Math.floor(Date.now() / 1000) - Number(secs)) + ".." : "";
  return words && since ? "(" + words + ") " + since : words || since || "*";
}

/// Equal for equal events: a list sorts their keys.
const whole = (event) => JSON.stringify(Object.entries(event).sort());

/// Compares LSNs: strings of digits, as a number of JavaScript is too small.
const order = (one, other) => one.length - other.length || (one < other ? -1 : Number(one > other));

/// Counts messages, and events without one, such as refusals.
function summed(lines) {
  const messages = lines.filter((line) => line.events.some((event) => event.message !== undefined)).length;
  const others = lines.length - messages;
  const parts = [[messages, "message"], [others, "other event"]].filter(([number]) => number);
  return parts.length ? parts.map(([number, what]) => count(number) + " " + what + (number === 1 ? "" : "s")).join(", ") : "Nothing was found.";
}

/// Where a message can be read: its mailbox, or the queue.
function placeOf(received, events) {
  const places = [...events.map((event) => event.mailbox), ...(received.mailboxes ?? [])];
  const mailbox = places.find((place) => place?.includes("/"));
  return mailbox ? { mailbox } : {};
}

function row(event, parts) {
  const look = GOOD.has(event.event) ? "good" : BAD.has(event.event) ? "broken" : event.event === "deferred" ? "warning" : "";
  return el("tr", { tabindex: "-1" }, el("td", { class: "time" }, stamp(event.time)), el("td", { class: "event " + look }, foreign(event.event.replaceAll("_", " "))), el("td", {}, parts));
}

const LABELS = [
  ["action", ""], ["kind", ""], ["stage", ""], ["from", "from "], ["to", "to "], ["recipient", ""], ["mailbox", "into "], ["peer", "from client "], ["user", "user "], ["tls", ""], ["auth", ""], ["junk", "Junk: "],
  ["transport", "transport "], ["host", ""], ["reply", ""], ["why", ""], ["error", ""], ["text", ""], ["scope", ""], ["name", ""], ["reason", "reason: "], ["token", "token "],
  ["campaign", "campaign "], ["tenant", "tenant "], ["source", "source "], ["bytes", ""], ["attempts", "attempt "], ["next", "next "],
];

/// What an event says, in the order in which somebody wants to know it.
function details(event) {
  const parts = [];
  for (const [key, label] of LABELS) {
    let value = event[key];
    if (value === undefined || value === "" || (key === "source" && value === "default")) continue;
    if (Array.isArray(value)) value = value.join(" ");
    if (key === "bytes") value = count(value) + " bytes";
    if (key === "next") value = stamp(value);
    parts.push(parts.length ? ", " : "", label, key === "reply" ? el("code", {}, foreign(String(value).replaceAll("\n", " "))) : foreign(value));
  }
  return parts;
}
