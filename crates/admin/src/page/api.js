// Requests to the server. A token goes with each; pages of other sites do not have it.

const KEY = "posthaste-token";
let token = null;

/// On this machine alone the token outlives the tab. Over a network it is kept until the page is closed.
const isPlainLoopback = location.protocol === "http:";

export function known() {
  token = token ?? (isPlainLoopback ? localStorage.getItem(KEY) : null);
  return token !== null;
}

export function remember(text) {
  token = text;
  if (isPlainLoopback) localStorage.setItem(KEY, text);
}

export function forget() {
  token = null;
  localStorage.removeItem(KEY);
}

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

const PATIENCE_MS = 10000;

export async function get(path) {
  const options = { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(PATIENCE_MS) };
  const answer = await fetch(path, { ...options, headers: { authorization: "Bearer " + token } });
  const body = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, body.error ?? String(answer.status));
  return body;
}
