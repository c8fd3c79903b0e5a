// Logs in, and shows the page that the address names until somebody logs out.

import { button, el, foreign, put } from "./el.js";
import { Refused, Unanswered, forget, get, isLoggedIn, logIn, logOut, onSession, signal, signals } from "./api.js";
import { address, here } from "./route.js";

const ERROR_INTERVAL_MS = 5000;
const WHOSE = "/api/token/v1";

const app = document.getElementById("app");
const away = el("p", { class: "error away", role: "alert" });
const ENDED = "This session has ended.";
let PAGES = null;
let whose = null;
let shown = null;

function login(message) {
  close();
  whose = null;
  const failure = el("p", { class: "error", role: "alert" }, message ?? "");
  // For programs that keep passwords.
  const user = el("input", { type: "text", name: "username", autocomplete: "username", value: "token", hidden: true });
  const key = el("input", { id: "token", name: "token", type: "password", autocomplete: "current-password", required: true, spellcheck: "false", placeholder: "pht_…" });
  const open = el("button", { type: "submit" }, "Open");
  const enter = async (event) => {
    event.preventDefault();
    open.disabled = true;
    put(failure);
    try {
      await logIn({ token: key.value.trim() });
      start();
    } catch (error) {
      put(failure, refused(error));
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
  if (isLoggedIn() === false) return login();
  const loading = import("./pages.js").catch(() => null);
  const tryAgain = (why, again) => {
    put(app, el("main", { class: "narrow" }, el("p", { class: "error", role: "alert" }, foreign(why)), el("p", { class: "hint" }, "Trying again.")));
    setTimeout(again, ERROR_INTERVAL_MS);
  };
  try {
    const found = await get(WHOSE);
    const loaded = await loading;
    // A browser may remember that a script could not be loaded.
    if (!loaded) return tryAgain("A part of this page is missing.", () => location.reload());
    [PAGES, whose] = [loaded.PAGES, found];
  } catch (error) {
    if (error.status !== 401) return tryAgain(error.message, start);
    const said = isLoggedIn() ? ENDED : "";
    forget();
    return login(said);
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
  const [name, PageOf] = PAGES[page] && may(scope) ? [page, Page] : ["now", PAGES.now[2]];
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
    away, one.node);
  document.title = one.title + " · Posthaste";
  follow(one);
}

/// Refreshes a page after the milliseconds that it says, until another one is shown.
let followers = 0;
async function follow(one) {
  const follower = ++followers;
  const isOver = () => shown !== one || follower !== followers;
  while (!isOver()) {
    let pause;
    try {
      pause = await one.refresh();
      // What else stands there, such as why a command failed, stays.
      if (one.isFailing) put(one.failure);
      one.isFailing = false;
    } catch (error) {
      // Once the server answers again, so does the page.
      if (isOver() || error instanceof Unanswered) return;
      put(one.failure, foreign(error.message));
      one.isFailing = true;
      pause = ERROR_INTERVAL_MS;
    }
    if (pause === null) return;
    await passed(pause);
    await visible();
  }
}

/// Says that the server does not answer, until it does.
async function waitForServer() {
  if (!shown || away.hasChildNodes()) return;
  put(away, "The server does not answer since " + new Date().toLocaleTimeString("en-GB") + ". What is shown is old. This page goes on by itself once the server answers.");
  shown.node.classList.add("stale");
  const answers = () => get(WHOSE).then(() => true, (error) => error instanceof Refused);
  do {
    await passed(ERROR_INTERVAL_MS);
    await visible();
  } while (!(await answers()));
  put(away);
  // Buttons have said the same.
  const gone = new Unanswered().message;
  for (const said of app.querySelectorAll("main .error, main .notice")) if (said.textContent === gone) put(said);
  shown?.node.classList.remove("stale");
  signal("again");
}

function refused(error) {
  return (error instanceof Refused ? "Refused: " : "") + error.message;
}

function passed(ms) {
  return new Promise((done) => setTimeout(done, ms));
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
}

const LINK = /^#k=(\w+)$/;

/// A link's key is in the fragment, which is not sent. It works once, so it leaves the address bar.
async function open() {
  const link = LINK.exec(location.hash);
  if (!link) return start();
  history.replaceState(null, "", "/");
  try {
    await logIn({ link: link[1] });
  } catch (error) {
    return login(refused(error));
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

addEventListener("hashchange", () => (LINK.test(location.hash) ? open() : show()));
addEventListener("keydown", key);
// A hidden page asks for nothing; one that is looked at again shows what is there now.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) shown?.stop?.();
  else if (shown?.stop) show();
});
signals.addEventListener("away", waitForServer);
signals.addEventListener("again", () => shown && follow(shown));
signals.addEventListener("ended", () => {
  if (!whose) return;
  forget();
  login(ENDED);
});
onSession(() => whose ?? start());
open();
