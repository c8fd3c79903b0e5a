// Now: is mail taken, does it leave, what needs somebody?

import { button, el, foreign, put, table } from "./el.js";
import { curl, get, option } from "./api.js";
import { askScope, commandButton } from "./ask.js";
import { address } from "./route.js";
import { bytes, clock, count, duration, millis, percent, rate } from "./format.js";

const RATES = [
  ["received", "In", "messages a second"],
  ["delivered", "Out", "deliveries a second"],
  ["refused", "Refused", "a second"],
  ["deferred", "Deferred", "attempts a second"],
];
const URGENCY = { broken: "broken", warning: "warning", note: "note" };
const SHAPE = { broken: "■", warning: "▲", note: "●" };
// Its words, its steps, and the milliseconds after which it is asked for again.
const SPANS = { minute: ["minute", 60, 0], hour: ["hour", 60, 20000], day: ["day", 96, 60000] };
const SMOOTHED_SECS = 5;
const INTERVAL_MS = 1000;
const DESTINATIONS_MAX = 20;

export class NowPage {
  constructor(whose) {
    this.scopes = whose.scopes;
    this.tenant = whose.tenant ?? null;
    this.title = "Now";
    this.host = el("span", { class: "server" });
    this.state = el("p", { class: "state" });
    this.clock = el("span", { class: "clock" });
    this.failure = el("p", { class: "error", role: "alert" });
    this.said = el("p", { class: "notice", role: "status" });
    this.attention = el("section", { "aria-label": "What needs you", "aria-live": "polite" });
    this.rates = el("div", { class: "tiles" });
    this.span = "minute";
    this.spans = el("div", { class: "spans", role: "group", "aria-label": "Graphs of the last" },
      Object.keys(SPANS).map((name) => button(name, () => this.choose(name))));
    this.copy = el("p", {}, commandButton(() => this.command()));
    this.facts = el("dl", { class: "facts" });
    this.streams = el("section", { "aria-labelledby": "streams" });
    this.queue = el("section", { "aria-labelledby": "destinations" });
    const missing = whose.scopes.includes("server:read") ? null
      : el("p", { class: "hint" }, "The state of the server needs a token with the scope server:read.");
    this.node = el("main", { id: "content", tabindex: "-1" },
      el("div", { class: "strip" }, this.host, this.state, this.clock),
      this.failure, this.said, missing, this.attention, whose.scopes.includes("server:read") ? this.spans : null, this.rates, this.facts, this.queue, this.streams, this.copy);
    this.shown = new Map();
    this.accepts = [];
    this.choose("minute");
  }

  /// What the page asks for.
  command() {
    const state = this.span === "minute" ? "/api/now/v1" : "/api/rates/v1";
    return curl(this.scopes.includes("server:read") ? state : "/api/queue/v1");
  }

  /// Graphs of this span, from the next look on.
  choose(span) {
    this.span = span;
    this.past = { rates: null, until: 0 };
    for (const one of this.spans.children) one.setAttribute("aria-pressed", String(one.textContent === span));
  }

  /// What the graphs show; the last minute is in each look.
  async ratesOf(now) {
    const [, , keptMs] = SPANS[this.span];
    if (!now || keptMs === 0) return now?.rates;
    if (Date.now() >= this.past.until) this.past = { rates: await get("/api/rates/v1"), until: Date.now() + keptMs };
    return this.past.rates[this.span];
  }

  /// How long a 250 takes, of what was accepted in the last minute that this page was open.
  latency(accept) {
    if (!accept) return null;
    // The server has started again.
    if (accept.counts.some((count, index) => count < this.accepts.at(-1)?.[index])) this.accepts = [];
    this.accepts.push(accept.counts);
    if (this.accepts.length > GRAPH_SECS) this.accepts.shift();
    const counts = accept.counts.map((count, index) => count - this.accepts[0][index]);
    const all = counts.reduce((sum, count) => sum + count, 0);
    const at = (share) => {
      let sum = 0;
      const bucket = counts.findIndex((count) => (sum += count) >= all * share);
      return bucket < accept.bounds_us.length ? "≤ " + millis(accept.bounds_us[bucket]) : "> 10 s";
    };
    return all ? [["p50", at(0.5)], ["p99", at(0.99)], ["p99.9", at(0.999)]] : [];
  }

  /// Builds a part anew only if what it shows has changed: what is selected in it stays selected.
  update(node, shows, build) {
    const text = JSON.stringify(shows);
    if (this.shown.get(node) === text) return;
    this.shown.set(node, text);
    put(node, build());
  }

  async refresh() {
    const may = (scope) => this.scopes.includes(scope);
    const [now, queue] = await Promise.all([may("server:read") ? get("/api/now/v1") : null, may("queue:read") ? get("/api/queue/v1") : null]);
    this.show(now, queue, await this.ratesOf(now));
    return INTERVAL_MS;
  }

  show(now, queue, rates) {
    const at = now?.time ?? Math.floor(Date.now() / 1000);
    put(this.clock, new Date(at * 1000).toLocaleTimeString("en-GB"));
    const attention = [...(now?.server.attention ?? []), ...(queue?.attention ?? [])].sort(worstFirst);
    this.update(this.attention, [attention, Math.floor(at / 3600)], () => attentionList(attention, at, this.scopes.includes("queue:write") ? (domain) => this.suspend(domain) : null));
    if (now) this.showServer(now, rates, attention.filter((one) => one.urgency !== "note").length);
    const latency = this.latency(now?.accept);
    if (now || queue) this.update(this.facts, [factsOf(now, queue, at), latency], () => facts(now, queue, at, latency));
    if (queue) this.update(this.queue, [queue.destinations, queue.others, Math.floor(at / 10)], () => destinations(queue, at, this.tenant));
  }

  suspend(domain) {
    const failed = (error) => put(this.said, foreign(error.message));
    askScope("suspend", this.tenant ? { domain, tenant: this.tenant } : { domain }, ["domain ", foreign(domain)], (text) => put(this.said, "domain ", foreign(domain), ": " + text)).catch(failed);
  }

  showServer(now, rates, things) {
    const { host_name, version, not_taking, not_delivering, streams } = now.server;
    this.update(this.host, [host_name, version], () => [foreign(host_name), el("small", {}, " Posthaste " + version)]);
    document.title = (things ? "(" + things + ") " : "") + "Now · " + host_name;
    this.update(this.state, [not_taking, not_delivering, things], () => [
      light(not_taking, "taking mail", "not taking mail"),
      light(not_delivering, "delivering", "not delivering"),
      el("span", { class: things ? "warning" : "good" },
        things === 0 ? "nothing needs you" : things === 1 ? "1 thing needs you" : things + " things need you"),
    ]);
    this.update(this.rates, [now.rates, rates, this.span], () => RATES.map(([key, name, unit]) => tile(name, unit, now.rates[key], rates[key], this.span)));
    this.update(this.streams, streams, () => streamTable(streams));
  }
}

function worstFirst(a, b) {
  const order = Object.keys(URGENCY);
  return order.indexOf(a.urgency) - order.indexOf(b.urgency) || b.since - a.since;
}

function light(why, good, bad) {
  return why ? el("span", { class: "broken" }, bad + ": ", foreign(why)) : el("span", { class: "good" }, good);
}

/// `suspend` asks about a destination that takes no mail; null: this session may not.
function attentionList(attention, at, suspend) {
  if (attention.length === 0) return [];
  return el("ul", { class: "attention" }, attention.map((one) =>
    el("li", { class: one.urgency },
      el("span", { class: "shape", "aria-hidden": "true" }, SHAPE[one.urgency]),
      el("div", {},
        el("p", {}, el("strong", {}, URGENCY[one.urgency] + " "), foreign(one.what), el("small", {}, " since " + clock(one.since, at))),
        one.help ? el("p", { class: "help" }, foreign(one.help)) : null,
        one.link ? el("p", { class: "buttons" }, el("a", { href: address(one.link.page, new URLSearchParams(one.link.query)) }, "show"),
          suspend && one.about.startsWith("delay ") ? button("suspend …", () => suspend(one.link.query.domain)) : null) : null))));
}

function tile(name, unit, lately, values, span) {
  const [word, steps] = SPANS[span];
  const recent = lately.slice(-SMOOTHED_SECS);
  const now = recent.reduce((sum, value) => sum + value, 0) / Math.max(recent.length, 1);
  const most = Math.max(0, ...values);
  return el("div", { class: "tile" },
    el("h2", {}, name),
    el("p", { class: "value" }, rate(now), el("small", {}, "/s")),
    graph(values, steps, name + ", the last " + word + ": at most " + rate(most) + " " + unit),
    el("p", { class: "unit" }, most > 0 ? "peak " + rate(most) + "/s" : "none for " + (span === "hour" ? "an " : "a ") + word));
}

const GRAPH_SECS = 60;
const GRAPH_HEIGHT = 24;

function graph(values, steps, label) {
  const most = Math.max(1, ...values);
  const x = (index) => steps - values.length + index;
  const y = (value) => (GRAPH_HEIGHT - 1 - (value / most) * (GRAPH_HEIGHT - 2)).toFixed(1);
  const points = values.map((value, index) => x(index) + " " + y(value));
  const line = points.length ? "M" + points.join("L") : "";
  const area = points.length ? line + "L" + x(values.length - 1) + " " + GRAPH_HEIGHT + "L" + x(0) + " " + GRAPH_HEIGHT + "Z" : "";
  const box = "0 0 " + (steps - 1) + " " + GRAPH_HEIGHT;
  return el("svg", { viewBox: box, preserveAspectRatio: "none", role: "img", "aria-label": label },
    el("path", { class: "area", d: area }),
    el("path", { class: "line", d: line, "vector-effect": "non-scaling-stroke" }));
}

/// What the facts depend on, in the steps in which they are shown.
function factsOf(now, queue, at) {
  return [now?.server.spool_fill, now?.server.disks, now?.server.waiting_here, now?.server.queued, queue?.recipients,
    queue?.oldest && Math.floor((at - queue.oldest) / 10), now?.server.webhooks, now?.server.certificates, Math.floor(at / 3600)];
}

function facts(now, queue, at, latency) {
  const all = [];
  const fact = (name, ...value) => all.push(el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  const queued = queue?.recipients ?? now?.server.queued ?? 0;
  fact("Waiting for other hosts", count(queued), el("small", {}, queued === 1 ? " recipient" : " recipients"));
  if (queue) fact("Oldest waiting", queue.oldest ? duration(at - queue.oldest) : "none");
  if (!now) return all;
  if (latency) fact("Time to the 250, last minute", latency.length ? latency.map(([name, value]) => el("span", {}, el("small", {}, name + " "), value)) : el("small", {}, "no mail since this page is open"));
  fact("Waiting for mailboxes here", count(now.server.waiting_here), el("small", {}, now.server.waiting_here === 1 ? " message" : " messages"));
  fact("Spool", bar("Spool", now.server.spool_fill), percent(now.server.spool_fill));
  for (const disk of now.server.disks) {
    const used = disk.total_bytes ? 1 - disk.free_bytes / disk.total_bytes : 1;
    fact("Disk of " + disk.holds, bar("Disk of " + disk.holds, used), percent(used), el("small", {}, " used, " + bytes(disk.free_bytes) + " free"));
  }
  for (const one of now.server.certificates) {
    const days = Math.floor((one.ends - at) / 86400);
    fact("Certificate", el("span", { class: days < 14 ? "warning" : null, title: one.file }, days < 0 ? "expired" : days + (days === 1 ? " day" : " days")), el("small", {}, " ", foreign(one.file.split("/").pop())));
  }
  for (const one of now.server.webhooks) {
    fact("Webhook " + one.name, el("span", { class: one.trouble || one.behind_secs > 60 ? "warning" : "good" }, one.behind_secs > 5 ? duration(one.behind_secs) + " behind" : "told all"), one.trouble ? el("small", {}, " ", foreign(one.trouble)) : null);
  }
  return all;
}

function bar(name, share) {
  return el("progress", { class: share > 0.95 ? "full" : null, max: "1", value: share.toFixed(3), "aria-label": name + " in use" });
}

function destinations(queue, at, tenant) {
  const shown = queue.destinations.slice(0, DESTINATIONS_MAX);
  const rows = shown.map((one) => el("tr", {},
    el("th", { scope: "row" }, el("a", { href: address("queue", new URLSearchParams({ domain: one.domain })) }, foreign(one.domain))),
    number(one.recipients),
    el("td", { class: "number" }, duration(at - one.oldest)),
    number(one.deferred), number(one.held), number(one.suspended)));
  const more = queue.others + queue.destinations.length - shown.length;
  const others = more ? el("p", { class: "hint" }, "and " + count(more) + " others") : null;
  return [
    el("div", { class: "strip" }, el("h2", { id: "destinations" }, "Busiest destinations"), commandButton(() => "posthaste queue summary" + (tenant ? option("tenant", tenant) : ""))),
    rows.length === 0 ? el("p", { class: "hint" }, "No mail waits for other hosts.")
      : table(["destination", "#waits", "#oldest", "#deferred", "#held", "#suspended"], rows, { class: "wide" }),
    others,
  ];
}

function number(value) {
  return el("td", { class: value ? "number" : "number zero" }, value ? count(value) : "–");
}

export function streamTable(streams) {
  const rows = streams.map((one) => el("tr", {},
    el("th", { scope: "row" }, foreign(one.name), one.name === "local:" ? el("small", {}, " mail directory") : null),
    el("td", { class: "number" }, count(one.behind)),
    el("td", { class: one.trouble ? "broken" : "good" }, one.trouble ? ["stuck: ", foreign(one.trouble)] : "works")));
  return [el("div", { class: "strip" }, el("h2", { id: "streams" }, "Streams of the spool"), commandButton(() => curl("/api/now/v1"))), table(["stream", "#batches behind", "state"], rows)];
}
