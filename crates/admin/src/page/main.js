// Logs in, and shows the page that the address names until somebody logs out.

import { button, el, foreign, put } from "./el.js";
import { Refused, forget, get, logIn, logOut } from "./api.js";
import { DomainsPage } from "./domains.js";
import { FindPage } from "./find.js";
import { MailPage } from "./mail.js";
import { NowPage } from "./now.js";
import { QueuePage } from "./queue.js";
import { address, here } from "./route.js";
import { SystemPage } from "./system.js";

/// By name in the address: text, scope, page, key after `g`.
const PAGES = {
  // No other name is known, such as that of a method of objects.
  __proto__: null,
  now: ["Now", null, NowPage, "n"],
  queue: ["Queue", "queue:read", QueuePage, "q"],
  find: ["Find", "events:read", FindPage, "f"],
  domains: ["Domains", "server:read", DomainsPage, "d"],
  system: ["System", "server:read", SystemPage, "s"],
  mail: [null, "mail:read", MailPage, null],
};
const ERROR_INTERVAL_MS = 5000;

const app = document.getElementById("app");
let whose = null;
let shown = null;

function login(message) {
  close();
  whose = null;
  const failure = el("p", { class: "error", role: "alert" }, message ?? "");
  // For programs that keep passwords.
  const user = el("input", { type: "text", name: "username", autocomplete: "username", value: "token", hidden: true });
  const key = el("input", { id: "token", name: "token", type: "password", autocomplete: "current-password", required: true, spellcheck: "false", placeholder: "pht_… or the first password" });
  const open = el("button", { type: "submit" }, "Open");
  const enter = async (event) => {
    event.preventDefault();
    open.disabled = true;
    put(failure);
    try {
      await logIn({ token: key.value.trim() });
      start();
    } catch (error) {
      put(failure, said(error, "Refused: "));
      open.disabled = false;
      key.select();
    }
  };
  document.title = "Posthaste";
  put(app, el("main", { class: "narrow" }, el("form", { class: "login", onsubmit: enter },
    el("h1", {}, "Posthaste"), user, el("label", { for: "token" }, "Token or password"), key, open, failure,
    el("p", { class: "hint" }, "On the server, ", el("code", {}, "posthaste page"), " prints a link that opens this page. Without a configuration, the password in ",
      el("code", {}, "posthaste-data/password"), " opens it."))));
  key.focus();
}

async function start() {
  try {
    whose = await get("/api/token/v1");
  } catch (error) {
    if (error instanceof Refused && error.status === 401) {
      forget();
      return login();
    }
    put(app, el("main", { class: "narrow" }, el("p", { class: "error", role: "alert" }, said(error)), el("p", { class: "hint" }, "Trying again.")));
    return setTimeout(start, ERROR_INTERVAL_MS);
  }
  show();
}

function close() {
  shown?.stop?.();
  shown = null;
  document.querySelectorAll("dialog").forEach((node) => node.remove());
}

function may(scope) {
  return scope === null || whose.scopes.includes(scope);
}

/// Shows the page that the address names.
function show() {
  if (!whose) return;
  close();
  const { page, query } = here();
  const [, scope, Page] = PAGES[page] ?? PAGES.now;
  const [name, PageOf] = PAGES[page] && may(scope) ? [page, Page] : ["now", NowPage];
  const why = name === page ? null : PAGES[page] ? "This session may not see that page: it has no scope " + scope + "." : "There is no such page.";
  const one = new PageOf(whose, query);
  shown = one;
  const links = Object.entries(PAGES).filter(([, [text, needs]]) => text && may(needs)).map(([of, [text]]) =>
    el("a", { href: address(of), "aria-current": of === name ? "page" : null }, text));
  put(app,
    el("a", { class: "skip", href: "#content", onclick: (event) => { event.preventDefault(); one.node.focus(); } }, "To the content"),
    el("header", {}, el("span", { class: "host" }, "Posthaste"), el("nav", { "aria-label": "Pages" }, links),
      el("span", { class: "whose" }, foreign(whose.name)), button("Log out", async () => { await logOut(); login(); })),
    why && el("p", { class: "elsewhere hint", role: "status" }, why),
    one.node);
  document.title = one.title + " · Posthaste";
  follow(one);
}

/// Looks again as long as somebody looks: a page says after how many milliseconds.
async function follow(one) {
  let isFailing = false;
  while (shown === one) {
    let pause;
    try {
      pause = await one.refresh();
      // What else stands there, such as why a command failed, stays.
      if (isFailing) tell(one, null);
      isFailing = false;
    } catch (error) {
      if (shown !== one) return;
      if (error instanceof Refused && error.status === 401) {
        forget();
        return login("This session has ended.");
      }
      tell(one, said(error));
      isFailing = true;
      pause = ERROR_INTERVAL_MS;
    }
    if (pause === null) return;
    await new Promise((done) => setTimeout(done, pause));
    await visible();
  }
}

function said(error, before = "") {
  return error instanceof Refused ? before + error.message : "The server does not answer.";
}

/// Shows a failure on a page, or that there is none any more.
function tell(one, message) {
  if (one.failed) one.failed(message);
  else put(one.failure, message && foreign(message));
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
}

/// A link's key is in the part of the address that is sent to nobody; it works once, so it leaves the address bar.
async function open() {
  const link = /^#k=(\w+)$/.exec(location.hash);
  if (!link) return start();
  history.replaceState(null, "", "/");
  try {
    await logIn({ link: link[1] });
  } catch (error) {
    return login(said(error, "Refused: "));
  }
  start();
}

let prefix = 0;

/// `/` looks for something, `g` and a letter opens a page, arrows walk through a table, Enter opens its row.
function key(event) {
  if (!whose || event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog")) return;
  const row = event.target.closest?.("tbody tr");
  if (row && event.target === row) {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    if (step) {
      event.preventDefault();
      let next = row[step];
      while (next?.hidden) next = next[step];
      return next?.focus();
    }
    if (event.key === "Enter") return row.querySelector("a, button")?.click();
  }
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const now = Date.now();
  const page = Object.entries(PAGES).find(([, [text, scope, , letter]]) => text && letter === event.key && may(scope));
  if (page && now - prefix < 1500) {
    location.hash = address(page[0]);
  } else if (event.key === "/") {
    event.preventDefault();
    if (shown?.focus) shown.focus();
    else if (may("events:read")) location.hash = address("find");
  }
  prefix = event.key === "g" ? now : 0;
}

addEventListener("hashchange", show);
addEventListener("keydown", key);
// A hidden page asks for nothing; one that is looked at again shows what is there now.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) shown?.stop?.();
  else if (shown?.stop) show();
});
open();
