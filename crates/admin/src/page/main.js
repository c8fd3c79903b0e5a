// Logs in, and shows Now until somebody logs out.

import { el, put } from "./el.js";
import { Refused, forget, get, logIn, logOut } from "./api.js";
import { NowPage } from "./now.js";

const app = document.getElementById("app");
const INTERVAL_MS = 1000;
const ERROR_INTERVAL_MS = 5000;

function login(message) {
  const said = el("p", { class: "error", role: "alert" }, message ?? "");
  // For programs that keep passwords.
  const user = el("input", { type: "text", name: "username", autocomplete: "username", value: "token", hidden: true });
  const field = el("input", {
    id: "token", name: "token", type: "password", autocomplete: "current-password", required: true, spellcheck: "false", placeholder: "pht_… or the first password",
  });
  const button = el("button", { type: "submit" }, "Open");
  const enter = async (event) => {
    event.preventDefault();
    button.disabled = true;
    put(said);
    try {
      await logIn({ token: field.value.trim() });
      start();
    } catch (error) {
      put(said, error instanceof Refused ? "Refused: " + error.message : "The server does not answer.");
      button.disabled = false;
      field.select();
    }
  };
  const form = el("form", { class: "login", onsubmit: enter },
    el("h1", {}, "Posthaste"),
    user,
    el("label", { for: "token" }, "Token or password"),
    field,
    button,
    said,
    el("p", { class: "hint" }, "On the server, ", el("code", {}, "posthaste page"), " prints a link that opens this page. Without a configuration, the password in ",
      el("code", {}, "posthaste-data/password"), " opens it."));
  put(app, el("main", { class: "narrow" }, form));
  field.focus();
}

async function start() {
  let whose;
  try {
    whose = await get("/api/token/v1");
  } catch (error) {
    if (error instanceof Refused && error.status === 401) {
      forget();
      return login();
    }
    put(app, el("main", { class: "narrow" }, el("p", { class: "error", role: "alert" }, "The server does not answer; trying again.")));
    return setTimeout(start, ERROR_INTERVAL_MS);
  }
  const page = new NowPage(whose, async () => { await logOut(); login(); });
  put(app, page.node);
  follow(page, whose.scopes);
}

/// Asks each second as long as somebody looks.
async function follow(page, scopes) {
  while (page.node.isConnected) {
    let pause = INTERVAL_MS;
    try {
      const [now, queue] = await Promise.all([
        scopes.includes("server:read") ? get("/api/now/v1") : null,
        scopes.includes("queue:read") ? get("/api/queue/v1") : null,
      ]);
      if (!page.node.isConnected) return;
      page.show(now, queue);
    } catch (error) {
      if (!page.node.isConnected) return;
      if (error instanceof Refused && error.status === 401) {
        forget();
        return login("This session has ended.");
      }
      page.fail(error instanceof Refused ? error.message : "The server does not answer.");
      pause = ERROR_INTERVAL_MS;
    }
    await new Promise((done) => setTimeout(done, pause));
    await visible();
  }
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
    return login(error instanceof Refused ? "Refused: " + error.message : "The server does not answer.");
  }
  start();
}

open();
