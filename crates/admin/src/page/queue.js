// Queue: which destinations wait, what do they say, and what can be done about it?

import { button, el, field, foreign, put, select, table } from "./el.js";
import { control, operand, option, signal } from "./api.js";
import { ACTIONS, askAct, askScope, commandButton, queueCommand } from "./ask.js";
import { clock, count, duration } from "./format.js";
import { address } from "./route.js";

const BY = [["domain", "destination"], ["tenant", "tenant"], ["campaign", "campaign"], ["site", "mail hosts"]];
const STATES = [["", "all"], ["waiting", "not held"], ["held", "held"]];
const NAMES_MAX = 100;
const ROWS = 100;
const INTERVAL_MS = 5000;
/// A look at all that waits may take a small part of the server's time.
const SHARE = 500;

export class QueuePage {
  constructor(whose, query) {
    this.scopes = whose.scopes;
    /// The only one whose mail there is for this session.
    this.tenant = whose.tenant ?? null;
    this.query = query;
    // The server selects it anyway; a command has to.
    if (this.tenant) query.set("tenant", this.tenant);
    this.said = el("p", { class: "notice", role: "status" });
    this.failure = el("p", { class: "error", role: "alert" });
    this.top = el("div", { class: "strip" });
    this.main = el("section", { "aria-label": "What waits" });
    this.limits = el("section", { "aria-label": "Limits" });
    this.ended = el("section", { "aria-label": "Suspended and routed elsewhere" });
    this.node = el("main", { id: "content", tabindex: "-1" }, el("h1", {}, "Queue"), this.form(), this.said, this.failure, this.top, this.limits, this.main, this.ended);
    this.title = "Queue";
  }

  /// What is selected: as requests have it.
  selection() {
    const of = {};
    for (const key of ["tenant", "campaign", "domain", "sender", "recipient"]) if (this.query.has(key)) of[key] = this.query.get(key);
    if (this.query.has("id")) {
      const [message, number] = this.query.get("id").split(".");
      of.message = message;
      if (number !== undefined) of.number = Number(number);
    }
    const state = this.query.get("state");
    if (state) of.held = state === "held";
    return of;
  }

  /// Rows are shown once somebody has chosen some.
  hasRows() {
    return ["domain", "sender", "recipient", "id", "rows"].some((key) => this.query.has(key));
  }

  form() {
    const text = (name, label) => field(label, el("input", { name, value: this.query.get(name) ?? "", autocomplete: "off", spellcheck: "false" }));
    const go = (event) => {
      event.preventDefault();
      const query = new URLSearchParams();
      for (const [key, value] of new FormData(event.currentTarget)) if (value) query.set(key, value);
      location.hash = address("queue", query);
    };
    return el("form", { class: "filter", onsubmit: go },
      field("By", select("by", BY, this.query.get("by") ?? "domain")),
      text("tenant", "Tenant"), text("campaign", "Campaign"), text("domain", "Domain"), text("recipient", "Recipient"),
      field("State", select("state", STATES, this.query.get("state") ?? "")),
      el("button", { type: "submit" }, "Show"));
  }

  async refresh() {
    const begun = performance.now();
    const at = Date.now() / 1000;
    if (this.hasRows()) await this.showRows(at);
    else await this.showNames(at);
    await this.showEnded(at);
    return this.hasRows() ? null : Math.max(INTERVAL_MS, (performance.now() - begun) * SHARE);
  }

  /// After a change: says what was done, and looks again.
  told(text) {
    put(this.said, text);
    signal("again");
  }

  may(scope) {
    return this.scopes.includes(scope);
  }

  /// Buttons for all that is selected.
  acts(of, what, isAny = true) {
    if (!this.may("queue:write")) return [];
    return Object.keys(ACTIONS).map((name) => {
      const one = button(name + (ACTIONS[name].danger ? " …" : ""), () => this.ask(askAct, name, of, what));
      one.disabled = !isAny;
      return one;
    });
  }

  scopeActs(scope, what) {
    const all = [];
    if (this.may("queue:write")) for (const name of ["suspend", "resume"]) all.push(button(name + (name === "suspend" ? " …" : ""), () => this.ask(askScope, name, scope, what)));
    if (this.may("route") && !scope.site) all.push(button("route to …", () => this.ask(askScope, "route", scope, what)));
    return all;
  }

  ask(asking, name, of, what) {
    put(this.said);
    put(this.failure);
    asking(name, of, what(), (text) => this.told(text)).catch((error) => put(this.failure, foreign(error.message)));
  }

  /// The nodes of a cluster whose mail is not shown.
  missing(end) {
    const { nodes, answered, unanswered, partial = [] } = end.cluster ?? { unanswered: [] };
    if (unanswered.length + partial.length === 0) return null;
    const why = [...unanswered.map((one) => "not " + one.node + ": " + one.why), ...partial.map((node) => node + " has more than fits into an answer")];
    return el("p", { class: "error" }, answered + " of " + nodes + " nodes have answered; ", foreign(why.join("; ")));
  }

  async showNames(at) {
    const by = this.query.get("by") ?? "domain";
    const of = this.selection();
    const request = { ask: "summary", of, by, top: NAMES_MAX };
    const { lines, end } = await control(request);
    put(this.top, el("p", { class: "state" }, count(end.recipients ?? 0) + (end.recipients === 1 ? " recipient waits" : " recipients wait") + " for other hosts"), this.missing(end),
      el("span", { class: "buttons" }, this.acts(of, () => "all that is selected"), commandButton(() => queueCommand("summary --by " + by, of, "", request))));
    const key = BY.find(([name]) => name === by)[1];
    const rows = lines.map((line) => this.nameRow(by, line, at));
    put(this.main, rows.length === 0 ? el("p", { class: "hint" }, "No mail waits for other hosts.") : [
      table([key, "#waits", "#oldest", "#under way", "#held", "limit that binds", "last reply", "next"], rows, { class: "wide" }),
      end.done > rows.length ? el("p", { class: "hint" }, "and " + count(end.done - rows.length) + " others") : null,
    ]);
  }

  nameRow(by, line, at) {
    const query = new URLSearchParams(this.query);
    query.delete("by");
    query.set(by, line[by]);
    if (by !== "domain") query.set("by", "domain");
    const name = line[by] === "" ? "(none)" : foreign(line[by]);
    const link = by === "site" ? name : el("a", { href: address("queue", query) }, name);
    const next = line.next === null ? "–" : line.next <= at ? "now" : clock(line.next, at);
    const number = (value) => el("td", { class: value ? "number" : "number zero" }, value ? count(value) : "–");
    const limit = line.suspended === line.recipients ? "suspended" : line.limit ? foreign(line.limit) : "–";
    return el("tr", {}, el("th", { scope: "row" }, link), number(line.recipients), el("td", { class: "number" }, duration(at - line.oldest)),
      number(line.under_way), number(line.held), el("td", {}, limit), el("td", {}, line.last_reply ? foreign(line.last_reply) : "–"), el("td", { class: "next" }, next));
  }

  /// How the selection is named in a sentence.
  named() {
    const state = this.query.get("state") && STATES.find(([name]) => name === this.query.get("state"))?.[1];
    return [this.scopeNamed(), state && ", " + state];
  }

  /// As `named`, whatever is held.
  scopeNamed() {
    const words = ["domain", "tenant", "campaign", "sender", "recipient", "id"].filter((key) => this.query.has(key));
    const parts = words.map((key, index) => [index ? ", " : "", key + " ", foreign(this.query.get(key) || "(none)")]);
    return parts.length ? parts : "all that waits";
  }

  async showRows(at) {
    const of = this.selection();
    const after = this.query.get("after");
    const request = { ask: "list", of, limit: ROWS, ...(after ? { after } : {}) };
    const { lines, end } = await control(request);
    const scope = {};
    for (const key of ["domain", "tenant", "campaign"]) if (of[key]) scope[key] = of[key];
    const isScope = Object.keys(scope).length > 0 && !(scope.tenant && scope.campaign) && of.message === undefined && !of.recipient && !of.sender;
    put(this.top, el("p", {}, el("strong", {}, this.named())), this.missing(end),
      el("span", { class: "buttons" }, this.acts(of, () => this.named(), lines.length > 0), isScope ? this.scopeActs(scope, () => this.scopeNamed()) : null,
        of.domain && !this.tenant ? button("explain limits", () => this.explain(of)) : null,
        commandButton(() => queueCommand("list", of, "", request))));
    const rows = lines.flatMap((line) => this.row(line, at));
    const page = (text, to) => {
      const query = new URLSearchParams(this.query);
      if (to) query.set("after", to);
      else query.delete("after");
      return el("a", { href: address("queue", query) }, text);
    };
    const nothing = end.next ? "Nothing that fits waits in this part of the queue." : "Nothing that fits waits.";
    put(this.main, rows.length === 0 ? el("p", { class: "hint" }, nothing) : table(["id", "sender", "recipient", "#attempts", "state", "why"], rows, { class: "wide rows" }),
      el("p", { class: "pages" }, after ? page("first " + ROWS, null) : null, end.next ? page(lines.length < ROWS ? "look further" : "next " + ROWS, end.next) : null));
  }

  row(line, at) {
    const [message, number] = line.id.split(".");
    const of = { message, number: Number(number) };
    const details = el("tr", { class: "details", hidden: true });
    const toggle = el("button", { type: "button", class: "link", "aria-expanded": "false", onclick: () => {
      const opens = details.hidden;
      details.hidden = !opens;
      toggle.setAttribute("aria-expanded", String(opens));
      if (opens) put(details, el("td", { colspan: "6" }, this.details(line, of, at)));
    } }, line.id);
    const until = line.until ? " until " + clock(line.until, at) : "";
    return [el("tr", {}, el("th", { scope: "row" }, toggle), el("td", {}, line.sender ? foreign(line.sender) : "(notification)"), el("td", {}, foreign(line.recipient)),
      el("td", { class: "number" }, line.attempts), el("td", {}, line.state + until, line.held_reason ? [": ", foreign(line.held_reason)] : null), el("td", {}, line.why ? foreign(line.why) : "–")), details];
  }

  details(line, of, at) {
    const facts = [
      ["bytes", count(line.bytes)], ["received", clock(line.received, at) + ", " + duration(at - line.received) + " ago"],
      ["expires", line.expires ? clock(line.expires, at) : "not while it is held"], ["status", line.status], ["held by", line.held_by], ["held because", line.held_reason],
      ["leaves as", line.leaves_from], ["shard", line.shard], ["tenant", line.tenant], ["campaign", line.campaign], ["pool", line.pool], ["class", line.class], ["transport", line.transport],
    ];
    const id = of.message + (Number.isNaN(of.number) ? "" : "." + of.number);
    return [
      el("dl", { class: "pairs" }, facts.filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", {}, foreign(value))])),
      el("div", { class: "buttons" }, Number.isNaN(of.number) ? null : this.acts(of, () => ["", foreign(line.recipient)]),
        this.may("events:read") ? el("a", { href: address("find", new URLSearchParams({ what: of.message })) }, "what happened") : null,
        this.may("mail:read") ? el("a", { href: address("mail", new URLSearchParams({ message: of.message })) }, "read") : null,
        commandButton(() => "posthaste queue show " + id)),
    ];
  }

  async explain(of) {
    put(this.limits, el("p", { class: "hint" }, "Looking its mail hosts up …"));
    try {
      const { lines: [found] } = await control({ ask: "explain", domain: of.domain, tenant: of.tenant ?? "" });
      const now = found.now.map((one) => el("tr", {}, el("th", { scope: "row" }, foreign(one.what)), el("td", {}, foreign(one.state)),
        el("td", { class: one.binds ? "warning" : "" }, one.binds ? "mail waits for it" : "–"), el("td", {}, one.secs === null ? "–" : duration(one.secs))));
      const values = found.values.map((one) => el("tr", {}, el("th", { scope: "row" }, foreign(one.key)), el("td", {}, foreign(one.value)), el("td", {}, foreign(one.of)), el("td", {}, foreign(one.from || "–"))));
      put(this.limits, el("h2", {}, "Limits of ", foreign(found.domain)),
        el("p", { class: "hint" }, found.problem ? foreign(found.problem) : ["mail hosts: ", foreign(found.site)]),
        now.length ? table(["limit", "now", "binds", "lets through in"], now, { class: "wide" }) : null, values.length ? table(["key", "value", "of", "from"], values, { class: "wide" }) : null,
        el("p", {}, commandButton(() => "posthaste queue explain" + (of.tenant ? option("tenant", of.tenant) : "") + " " + operand(of.domain))));
    } catch (error) {
      put(this.limits, el("p", { class: "error" }, foreign(error.message)));
    }
  }

  async showEnded(at) {
    const [{ lines: suspended, end }, { lines: routed }] = await Promise.all([control({ ask: "suspensions" }), this.tenant ? { lines: [] } : control({ ask: "diversions" })]);
    const until = (line) => (line.until ? "until " + clock(line.until, at) : "until somebody ends it");
    const row = (line, what, undo, may) => el("tr", {}, el("th", { scope: "row" }, line.kind + " ", foreign(line.name)), el("td", {}, what), el("td", {}, until(line)), el("td", {}, foreign(line.reason)),
      el("td", {}, may ? button(undo, () => this.ask(askScope, undo, line.scope, () => [line.kind + " ", foreign(line.name)])) : null));
    const slowed = (line) => [line.message_rate, line.connections && line.connections + " connections"].filter(Boolean).join(", ");
    const rows = [
      ...suspended.map((line) => row(line, slowed(line) ? ["slowed to ", foreign(slowed(line))] : "suspended", "resume", this.may("queue:write"))),
      ...routed.map((line) => row(line, ["goes to ", foreign(line.to)], "unroute", this.may("route"))),
    ];
    put(this.ended, rows.length ? [el("h2", {}, "Suspended, slowed or routed elsewhere"), this.missing(end), table(["mail of", "is", "until", "reason", ""], rows, { class: "wide" })] : []);
  }
}
