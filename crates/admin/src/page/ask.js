// Questions before something changes: what is done, to how many, with which command; then the answer.

import { button, el, field, foreign, put, select } from "./el.js";
import { Refused, control, curl, drain, operand, option } from "./api.js";
import { count } from "./format.js";

const TIMES = [["", "until somebody ends it"], ["3600", "for 1 hour"], ["14400", "for 4 hours"], ["86400", "for 1 day"], ["604800", "for 7 days"]];
const FOR = { 3600: "1h", 14400: "4h", 86400: "1d", 604800: "7d" };

/// Actions on recipients. `typed`: the number is to be typed.
export const ACTIONS = {
  retry: { action: "flush", command: "flush", text: "are tried now. Held ones stay held.", done: "tried now", held: false },
  hold: { action: "hold", command: "hold", text: "are not tried, and do not expire, until they are released.", done: "held", timed: true, reason: true },
  release: { action: "release", command: "release", text: "that are held are tried again, now.", done: "released", held: true },
  return: { action: "bounce", command: "bounce", text: "are given up, and their senders are told.", done: "returned", reason: true, danger: true },
  delete: { action: "delete", command: "delete", text: "are removed. Nobody is told, and it cannot be undone.", done: "deleted", danger: true, typed: true },
};

function dialog(title, ...children) {
  const node = el("dialog", { "aria-label": title, onclose: () => node.remove() }, el("h2", {}, title), children);
  document.body.append(node);
  node.showModal();
  return node;
}

/// Shows a text to copy.
function showCopy(title, command) {
  const said = el("p", { class: "hint", role: "status" });
  const text = el("code", { class: "command" }, foreign(command));
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(command);
      put(said, "Copied.");
    } catch {
      getSelection().selectAllChildren(text);
      put(said, "Selected: copy it with your keyboard.");
    }
  };
  const node = dialog(title, text, el("div", { class: "buttons" }, button("Copy", copy, ""), button("Close", () => node.close())), said);
}

export function commandButton(command, text = "copy as command", title = "As a command") {
  return button(text, () => showCopy(title, command()), "link");
}

/// Asks about the end of the server. `waits` says what stays in its spool.
export function askDrain(waits, done) {
  const said = el("p", { class: "error", role: "alert" });
  const go = el("button", { type: "submit", class: "danger" }, "stop the server");
  const command = () => curl("/api/drain/v1", {});
  const act = async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      await drain();
      node.close();
      done("The server takes no new connections, and ends once its sessions do.");
    } catch (error) {
      go.disabled = false;
      put(said, foreign(error.message));
    }
  };
  const form = el("form", { onsubmit: act }, el("p", {}, "It takes no new connections, finishes what is under way, and ends. A service manager may start it again."),
    el("p", {}, waits, " stay in the spool: the next start delivers them."), said,
    el("div", { class: "buttons" }, go, button("Cancel", () => node.close()), commandButton(command)));
  const node = dialog("Stop the server", form);
  go.focus();
}

/// A command of `posthaste queue` for a selection; `all` if it names nothing. Mail that is not held has no option: then the request.
export function queueCommand(words, of, all, request) {
  if (of.held === false) return curl("/api/control/v1", request);
  if (of.message !== undefined) return "posthaste queue " + words + " " + operand(of.message + (of.number === undefined ? "" : "." + of.number));
  const named = ["sender", "recipient", "domain", "site", "tenant", "campaign"].filter((key) => of[key] !== undefined);
  const selected = named.map((key) => option(key, of[key])).join("") + (of.held ? " --held" : "");
  return "posthaste queue " + words + (selected || all);
}

function timeAndReason(secs, reason) {
  return (secs?.value ? " --for " + FOR[secs.value] : "") + (reason?.value ? option("reason", reason.value) : "");
}

/// Recipients at other hosts.
async function countOf(of) {
  return (await control({ ask: "summary", of, top: 0 })).end.recipients ?? 0;
}

/// Recipients that an act concerns, also at transports.
async function countFor(action, of) {
  return (await control({ ask: "count", of, action })).end.done;
}

/// Asks about an act on recipients. `what` names them; `done` is called with what was said of the outcome.
export async function askAct(name, of, what, done) {
  const kind = ACTIONS[name];
  // Of a selection that has both, a retry concerns those that are not held, and a release the others.
  const meant = kind.held === undefined ? of : { ...of, held: kind.held };
  const isNone = of.held !== undefined && meant.held !== of.held;
  let number = isNone ? 0 : await countFor(kind.action, meant);
  const subject = el("p");
  const said = el("p", { class: "error", role: "alert" });
  const secs = kind.timed ? select("secs", TIMES, "") : null;
  const reason = kind.reason ? el("input", { name: "reason", maxlength: "200", autocomplete: "off" }) : null;
  const typed = kind.typed ? el("input", { name: "number", inputmode: "numeric", autocomplete: "off", required: true }) : null;
  const go = el("button", { type: "submit", class: kind.danger ? "danger" : "" });
  const request = () => ({ ask: "act", of: meant, action: kind.action, reason: reason?.value ?? "", expect: number, ...(secs?.value ? { secs: Number(secs.value) } : {}) });
  // Held mail is not retried in any case.
  const named = name === "retry" ? { ...of, held: undefined } : of;
  const command = () => queueCommand(kind.command + timeAndReason(secs, reason), named, " --all", request());
  const show = () => {
    put(subject, el("strong", {}, count(number) + (number === 1 ? " recipient" : " recipients")), " of ", what, " " + kind.text.replace(/^are/, number === 1 ? "is" : "are"));
    put(go, name + " " + count(number));
    go.disabled = number === 0;
  };
  const act = async (event) => {
    event.preventDefault();
    if (typed && typed.value.replaceAll(/[,. ]/g, "") !== String(number)) {
      return put(said, "Type the number " + number + " to go on.");
    }
    go.disabled = true;
    try {
      const { end } = await control(request());
      node.close();
      done(count(end.changed) + " " + kind.done + (end.follow ? "; " + count(end.follow) + " under way follow" : "")
        + (end.outranked ? "; " + count(end.outranked) + " under way have an earlier command" : ""));
    } catch (error) {
      if (error instanceof Refused && error.status === 409) number = error.body.now;
      show();
      put(said, foreign(error.message));
    }
  };
  show();
  const form = el("form", { onsubmit: act }, subject,
    secs && field("Held", secs), reason && field(name === "return" ? "Reason, for the senders" : "Reason, for the log", reason), typed && field("Type the number", typed), said,
    el("div", { class: "buttons" }, go, button("Cancel", () => node.close()), isNone ? null : commandButton(command)));
  const node = dialog(name[0].toUpperCase() + name.slice(1), form);
  (typed ?? reason ?? secs ?? go).focus();
}

/// What can be done with a scope: mail that waits, and mail that comes.
const SCOPE_ACTIONS = {
  suspend: { text: "It is not tried; it still expires.", done: "suspended", timed: true, reason: true },
  resume: { text: "Its suspension ends, and it is tried again.", done: "resumed" },
  route: { text: "It goes to this host, whatever its routes and MX records say.", done: "routed", timed: true, reason: true, to: true },
  unroute: { text: "It follows its routes and MX records again.", done: "no longer routed elsewhere" },
};
const ASKS = { suspend: "suspend", resume: "resume", route: "divert", unroute: "undivert" };

/// Asks about a suspension or a route of a scope.
export async function askScope(name, scope, what, done) {
  const kind = SCOPE_ACTIONS[name];
  let number = scope.site ? null : await countOf(scope);
  const said = el("p", { class: "error", role: "alert" });
  const to = kind.to ? el("input", { name: "to", required: true, autocomplete: "off", spellcheck: "false", placeholder: "relay.example.net:2525" }) : null;
  const secs = kind.timed ? select("secs", TIMES, "") : null;
  const reason = kind.reason ? el("input", { name: "reason", maxlength: "200", autocomplete: "off" }) : null;
  const go = el("button", { type: "submit" }, name);
  const command = () => queueCommand(name + (to?.value ? option("to", to.value) : "") + timeAndReason(secs, reason), scope, "");
  const act = async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      const request = { ask: ASKS[name], scope };
      if (kind.timed) Object.assign(request, { secs: secs.value ? Number(secs.value) : null, reason: reason.value });
      if (to) request.to = to.value.trim();
      if (kind.timed && number !== null) request.expect = number;
      const { end } = await control(request);
      node.close();
      done(end.done ? kind.done : "there was nothing to end");
    } catch (error) {
      go.disabled = false;
      if (error instanceof Refused && error.status === 409) {
        number = error.body.now;
        showNumber();
      }
      put(said, foreign(error.message));
    }
  };
  const waits = el("span");
  const showNumber = () => put(waits, number === null ? null : [" ", el("strong", {}, count(number)), number === 1 ? " recipient waits now, and what comes later counts too." : " recipients wait now, and what comes later counts too."]);
  showNumber();
  const form = el("form", { onsubmit: act }, el("p", {}, "Mail of ", what, ": ", kind.text, waits),
    to && field("To the host", to), secs && field("How long", secs), reason && field("Reason, for the list", reason), said,
    el("div", { class: "buttons" }, go, button("Cancel", () => node.close()), commandButton(command)));
  const node = dialog(name[0].toUpperCase() + name.slice(1), form);
  (to ?? secs ?? go).focus();
}
