// System: what runs here, with which configuration, and what does the log say?

import { button, el, field, foreign, foreignLines, put, table } from "./el.js";
import { get, signal } from "./api.js";
import { clock, count, duration, percent } from "./format.js";
import { askDrain, commandButton } from "./ask.js";
import { streamTable } from "./now.js";

export class SystemPage {
  constructor(whose) {
    this.mayDrain = whose.scopes.includes("server:drain");
    this.title = "System";
    this.said = el("p", { class: "notice", role: "status" });
    this.failure = el("p", { class: "error", role: "alert" });
    this.parts = el("div", { class: "parts" });
    this.log = el("div", {});
    this.words = el("input", { name: "words", autocomplete: "off", spellcheck: "false", oninput: () => this.showLog() });
    this.lines = [];
    this.node = el("main", { id: "content", tabindex: "-1" }, el("h1", {}, "System"), this.said, this.failure, this.parts,
      el("section", { "aria-labelledby": "log" }, el("h2", { id: "log" }, "Log, the last 1000 lines"),
        el("div", { class: "filter" }, field("Lines with", this.words), button("look again", () => signal("again"))), this.log));
  }

  async refresh() {
    const [system, log, now] = await Promise.all([get("/api/system/v1"), get("/api/log/v1"), get("/api/now/v1")]);
    const listeners = system.listeners.map((one) => el("tr", {}, el("th", { scope: "row" }, foreign(one.address ?? one.unix ?? "–")), el("td", {}, foreign(one.protocol)),
      el("td", {}, foreign(one.tls ?? "–")), el("td", {}, foreign(one.auth ?? "–"))));
    const tokens = system.tokens.map((one) => el("tr", {}, el("th", { scope: "row" }, foreign(one.name)), el("td", {}, one.scopes.join(", "), bounds(one)),
      el("td", {}, one.until === null ? "no end" : one.until <= now.time ? "ended" : "until " + clock(one.until, now.time))));
    put(this.parts,
      el("dl", { class: "facts" }, fact("Host", foreign(system.host_name)), fact("Version", system.version), fact("Runs for", duration(now.time - system.started)),
        fact("Spool", percent(now.server.spool_fill), el("small", {}, " in use")), fact("Log lines lost", String(system.log_dropped))),
      el("p", { class: "buttons" }, this.mayDrain ? button("stop the server …", () => this.drain(now.server)) : null,
        el("span", { class: "hint" }, "Is this machine fit for the load? ", el("code", {}, "posthaste doctor")), commandButton(() => "posthaste doctor")),
      part("Listeners", table(["address", "protocol", "TLS", "logins"], listeners, { class: "wide" })),
      el("section", { "aria-labelledby": "streams" }, streamTable(now.server.streams)),
      part("Tokens", tokens.length ? table(["name", "scopes", "end"], tokens, { class: "wide" }) : el("p", { class: "hint" }, "There are no tokens."), el("p", {}, commandButton(() => "posthaste token list"))),
      el("details", {}, el("summary", {}, "Configuration in force"), foreignLines(system.config), el("p", {}, commandButton(() => "posthaste config show"))));
    this.lines = log.lines;
    this.showLog();
    return null;
  }

  drain({ waiting_here, queued }) {
    const waits = [el("strong", {}, count(waiting_here)), " messages for mailboxes here and ", el("strong", {}, count(queued)), " recipients at other hosts"];
    askDrain(waits, (text) => put(this.said, text));
  }

  /// The newest line first.
  showLog() {
    const words = this.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = this.lines.filter((line) => words.every((word) => line.toLowerCase().includes(word)));
    put(this.log, fits.length ? foreignLines(fits.toReversed().join("\n")) : el("p", { class: "hint" }, "No line."));
  }

  focus() {
    this.words.focus();
  }
}

/// What else a token is bound to.
function bounds({ tenant, sender_domains, networks }) {
  const all = [["tenant", tenant], ["senders of", sender_domains.join(", ")], ["clients of", networks.join(", ")]].filter(([, of]) => of);
  return all.map(([name, of]) => el("small", {}, "; " + name + " ", foreign(of)));
}

function fact(name, ...value) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value));
}

function part(title, ...children) {
  return el("section", {}, el("h2", {}, title), children);
}
