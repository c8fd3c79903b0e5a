// Domains: records in DNS, keys, certificates, and the results that others see.

import { button, el, foreign, put, table } from "./el.js";
import { control, operand } from "./api.js";
import { commandButton } from "./ask.js";
import { clock, count, duration } from "./format.js";
import { address } from "./route.js";

/// By state of a record: the word, and its class.
const STATES = { there: ["seen", "good"], missing: ["missing", "warning"], differs: ["different", "broken"], unknown: ["no answer", "warning"] };
const POLICY = { true: "served", false: "not served under its name with a certificate that others trust", null: "not served: no listener speaks HTTPS to other hosts" };
const ASK_MS = 1000;
const LOGINS_MAX = 100;

export class DomainsPage {
  constructor(whose, query) {
    this.title = "Domains";
    this.domain = query.get("domain");
    this.maySeeLogins = whose.scopes.includes("accounts");
    this.failure = el("p", { class: "error", role: "alert" });
    this.list = el("section", { "aria-labelledby": "domains" });
    this.records = el("section", { "aria-labelledby": "records" });
    this.rest = el("div", { class: "parts" });
    this.node = el("main", { id: "content", tabindex: "-1" }, el("h1", {}, "Domains"), this.failure, this.list, this.records, this.rest);
  }

  async refresh() {
    const now = Date.now() / 1000;
    if (!this.isListed) {
      const { lines, end } = await control({ ask: "domains" });
      // Of one domain there is nothing to choose.
      this.domain ??= lines.length === 1 ? lines[0].domain : null;
      put(this.list, el("h2", { id: "domains" }, "Our domains"), domainTable(lines, this.domain, now), el("p", {}, commandButton(() => "posthaste dkim list")));
      put(this.rest, certificates(end.certificates, now), checks(end.checks), sessions(end.tls),
        this.maySeeLogins ? accounts((await control({ ask: "logins" })).lines, this.domain, now) : null);
      this.isListed = true;
    }
    if (this.domain === null) return null;
    const { lines, end } = await control({ ask: "records", domain: this.domain });
    const shows = JSON.stringify([lines, end]);
    // What is selected on an unchanged page stays selected.
    if (shows !== this.shows) put(this.records, recordsOf(this.domain, lines, end, now));
    this.shows = shows;
    return end.asking ? ASK_MS : null;
  }
}

function domainTable(lines, chosen, now) {
  if (lines.length === 0) return el("p", { class: "hint" }, "The configuration has no domain.");
  const key = ({ selector, algorithm, state, since }) => el("div", {}, foreign(selector), " " + (algorithm ?? "") + " ",
    el("span", { class: state === "active" ? "good" : state === "unreadable" ? "broken" : "hint" }, state), since ? el("small", {}, " since " + clock(since, now)) : null);
  const rows = lines.map(({ domain, keys }) => el("tr", {},
    el("th", { scope: "row" }, el("a", { href: address("domains", new URLSearchParams({ domain })), "aria-current": domain === chosen ? "true" : null }, foreign(domain))),
    el("td", {}, keys.length ? keys.map(key) : el("span", { class: domain.includes(".") ? "warning" : "hint" }, "none: its mail is not signed"))));
  return table(["domain", "DKIM keys"], rows);
}

function recordsOf(domain, lines, end, now) {
  const some = (...states) => lines.filter((one) => states.includes(one.state)).length;
  const counted = (what, number) => (number ? el("p", { class: "warning" }, what + number + " of " + lines.length + " records.") : null);
  const said = [];
  if (end.failure) said.push(el("p", { class: "error" }, foreign(end.failure)));
  if (lines.length && end.complete) said.push(el("p", { class: "good" }, "All records are seen."));
  said.push(counted("Wrong or missing: ", some("missing", "differs")), counted("Without an answer: ", some("unknown")));
  if (end.host_has_address === null) said.push(el("p", { class: "warning" }, "DNS did not answer about the host's address: ", foreign(end.host_address_error)));
  if (end.host_has_address === false) said.push(el("p", { class: "warning" }, "The host has no address in DNS."));
  if (end.has_dkim_keys === false) said.push(el("p", { class: "warning" }, "There is no DKIM key: ", el("code", {}, "posthaste dkim new ", foreign(domain)), " makes one."));
  if (end.mta_sts !== undefined) said.push(el("p", {}, "MTA-STS policy: " + POLICY[end.mta_sts]));
  const asked = end.at ? [end.servers?.length ? ["Asked: ", foreign(end.servers.join(", "))] : "Asked: the resolver, which may keep old answers", ", " + clock(end.at, now) + ". "] : null;
  const rows = lines.map(({ name, type, value, state, found }) => {
    const [word, className] = STATES[state];
    const line = name + ". " + type + " " + (type === "TXT" ? '"' + value + '"' : value);
    return el("tr", {}, el("th", { scope: "row" }, el("span", { class: className }, word)), el("td", {}, foreign(name), " ", type), el("td", {}, foreign(value)),
      el("td", { class: found === null ? "zero" : null }, found === null ? "–" : foreign(found)), el("td", {}, commandButton(() => line, "copy record", "Record")));
  });
  return [el("h2", { id: "records" }, "Records of ", foreign(domain)), said,
    rows.length ? table(["state", "record", "wanted", "there is", ""], rows, { class: "wide records" }) : null,
    el("p", { class: "buttons" }, el("span", { class: "hint", role: "status" }, asked, end.asking ? "Its own servers are being asked …" : null),
      end.asking ? null : button("look again", () => dispatchEvent(new Event("hashchange"))), commandButton(() => "posthaste dns check " + operand(domain)))];
}

/// Logins of the domain, or of all.
function accounts(lines, domain, now) {
  const all = lines.filter((one) => one.login !== undefined && (domain === null || one.login.endsWith("@" + domain)));
  const rows = all.slice(0, LOGINS_MAX).map(({ login, last_use, last_to, last_from, wrong }) => el("tr", {}, el("th", { scope: "row" }, foreign(login)),
    el("td", {}, last_use === null ? "–" : [clock(last_use, now), last_to === "send" ? " to send" : " to read", last_from ? [", from ", foreign(last_from)] : null]),
    el("td", { class: wrong ? "number" : "number zero" }, count(wrong))));
  return part("Accounts, and their logins since the start", rows.length ? table(["account", "last login", "#wrong passwords"], rows) : el("p", { class: "hint" }, "There is none."),
    all.length > rows.length ? el("p", { class: "hint" }, count(all.length - rows.length) + " more") : null, el("p", {}, commandButton(() => "posthaste logins")));
}

function part(title, ...children) {
  return el("section", {}, el("h2", {}, title), children);
}

function certificates(all, now) {
  const rows = all.map(({ file, issuer, ends, self_made }) => el("tr", {}, el("th", { scope: "row" }, foreign(file)),
    el("td", {}, self_made ? el("span", { class: "warning" }, "self-made: others do not trust it") : foreign(issuer)),
    el("td", {}, ends > now ? el("span", { class: ends - now > 1209600 ? "good" : "warning" }, duration(ends - now) + " left") : el("span", { class: "broken" }, "ended"))));
  return part("Certificates", rows.length ? table(["file", "issuer", "end"], rows) : el("p", { class: "hint" }, "No listener has one."));
}

/// Results of the mail of strangers.
function checks(all) {
  const rows = all.map(({ method, results }) => el("tr", {}, el("th", { scope: "row" }, method.toUpperCase()),
    el("td", {}, Object.entries(results).map(([result, number]) => result + " " + count(number)).join(", ") || "no check yet")));
  return part("Checks of mail received since the start", table(["check", "results"], rows));
}

function sessions(all) {
  const rows = all.map((one) => el("tr", {}, el("th", { scope: "row" }, one.policy), el("td", {}, one.result), el("td", { class: "number" }, count(one.sessions))));
  return part("TLS with other hosts since the start", rows.length ? table(["policy", "result", "#sessions"], rows) : el("p", { class: "hint" }, "No session yet."));
}
