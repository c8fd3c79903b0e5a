// Requests to the server, with the session's key on plain loopback, and over TLS with a cookie that no script can read.

const KEY = "posthaste-session";
const SESSION = "/api/session/v1";
const isPlainLoopback = location.protocol === "http:";

export class Refused extends Error {
  constructor(status, body) {
    super(body.error ?? String(status));
    this.status = status;
    this.body = body;
  }
}

/// No answer of this server came.
export class Unanswered extends Error {
  constructor() {
    super("The server does not answer.");
  }
}

/// "ended": the session is over. "away": the server does not answer. "again": what is shown is to be looked at again.
export const signals = new EventTarget();

export function signal(name) {
  signals.dispatchEvent(new Event(name));
}

const PATIENCE_MS = 30000;

function options(method, body) {
  const headers = { "x-posthaste": "1" };
  if (method !== "GET") headers["content-type"] = "application/json";
  const key = isPlainLoopback ? localStorage.getItem(KEY) : null;
  if (key) headers.authorization = "Bearer " + key;
  return { method, headers, body, cache: "no-store", credentials: isPlainLoopback ? "omit" : "same-origin" };
}

async function ask(method, path, value) {
  const body = value === undefined ? undefined : JSON.stringify(value);
  let answer, said;
  try {
    answer = await fetch(path, { ...options(method, body), signal: AbortSignal.timeout(PATIENCE_MS) });
    said = await answer.json();
  } catch {
    signal("away");
    throw new Unanswered();
  }
  if (!answer.ok) throw refused(path, answer.status, said);
  return said;
}

function refused(path, status, said) {
  // A wrong token ends nothing.
  if (status === 401 && path !== SESSION) signal("ended");
  return new Refused(status, said);
}

export function get(path) {
  return ask("GET", path);
}

/// Begins a session by { link } or { token }.
export async function logIn(by) {
  const begun = await ask("POST", SESSION, by);
  if (begun.session) localStorage.setItem(KEY, begun.session);
  return begun;
}

/// Ends it, here and on the server.
export async function logOut() {
  await ask("DELETE", SESSION).catch(() => null);
  forget();
}

export function forget() {
  localStorage.removeItem(KEY);
}

/// Null: of a cookie no script knows.
export function isLoggedIn() {
  return isPlainLoopback ? localStorage.getItem(KEY) !== null : null;
}

/// Calls `enter` once another tab has begun a session.
export function onSession(enter) {
  addEventListener("storage", (event) => event.key === KEY && event.newValue && enter());
}

/// A request of the control socket: { lines, end, more }.
export function control(request) {
  return ask("POST", "/api/control/v1", request);
}

/// Has the server finish what is under way, and end.
export function drain() {
  return ask("POST", "/api/drain/v1", {});
}

/// The stream of what happens from now on, until `until` ends it.
export async function openEvents(until) {
  const path = "/api/events/v1";
  const answer = await fetch(path, { ...options("GET"), signal: until });
  if (!answer.ok) throw refused(path, answer.status, await answer.json());
  return answer.body;
}

/// Gives its events to `take`. Throws if the server ends it.
export async function readEvents(stream, take) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the stream of events has ended");
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    const events = blocks.filter((block) => block.startsWith("data: ")).map((block) => JSON.parse(block.slice(6)));
    if (events.length) take(events);
  }
}

/// A word of a command line. What a terminal would take for a key is spelled out.
export function quoted(word) {
  if (/^[\w@%+=:,./-]+$/.test(word)) return word;
  if (!UNSEEN.test(word)) return "'" + word.replaceAll("'", "'\\''") + "'";
  const spelled = (letter) => "\\u" + letter.codePointAt(0).toString(16).padStart(4, "0");
  return "$'" + word.replace(/[\\']/g, "\\$&").replace(new RegExp(UNSEEN, "g"), spelled) + "'";
}

const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/;

/// An option with its value, which may begin as an option does.
export function option(name, value) {
  return " --" + name + (value.startsWith("-") ? "=" : " ") + quoted(value);
}

/// The last words of a command: not an option, whatever it begins with.
export function operand(word) {
  return (word.startsWith("-") ? "-- " : "") + quoted(word);
}

/// A request as a command. The token is in a file: what stands in a command line can be read by others.
export function curl(path, value) {
  const body = value === undefined ? "" : " --json " + quoted(JSON.stringify(value));
  return "curl -sS " + quoted(location.origin + path) + " -H \"Authorization: Bearer $(cat my.token)\"" + body;
}
