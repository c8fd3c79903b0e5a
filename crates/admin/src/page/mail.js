// A message as a person reads it. All of it is text: HTML is shown as its source, and nothing is fetched.

import { button, el, foreign, foreignLines, put, table } from "./el.js";
import { control, curl, quoted } from "./api.js";
import { commandButton } from "./ask.js";
import { count } from "./format.js";
import { address } from "./route.js";

const MAIN = new Set(["from", "to", "cc", "date", "reply-to"]);

export class MailPage {
  constructor(whose, query) {
    this.query = query;
    this.title = "Message";
    this.main = el("div", { class: "parts" });
    this.failure = el("p", { class: "error", role: "alert" });
    this.node = el("main", { id: "content", tabindex: "-1" }, this.failure, this.main);
  }

  async refresh() {
    const message = this.query.get("message");
    const { end: { mail } } = await control({ ask: "mail", of: this.place() });
    const body = el("div", { role: "tabpanel" });
    const main = mail.header.filter(([name]) => MAIN.has(name.toLowerCase()));
    const views = [
      ["Text", () => (mail.text ? foreignLines(mail.text) : el("p", { class: "hint" }, "It has no text."))],
      ["Header", () => pairs(mail.header)],
      ["HTML source", mail.html ? () => foreignLines(mail.html) : null],
      ["Files", mail.files.length ? () => table(["name", "type", "#bytes", ""], mail.files.map((file, number) =>
        el("tr", {}, el("th", { scope: "row" }, foreign(file.name)), el("td", {}, foreign(file.type)), el("td", { class: "number" }, count(file.bytes)),
          el("td", {}, button("save", () => this.save(number, file.name)))))) : null],
      ["Source", () => foreignLines(mail.source)],
    ].filter(([, view]) => view);
    const tabs = views.map(([name, view]) => {
      const tab = button(name, () => {
        tabs.forEach((other) => other.setAttribute("aria-selected", String(other === tab)));
        put(body, view());
      }, "tab");
      tab.setAttribute("role", "tab");
      return tab;
    });
    put(this.main, el("h1", {}, mail.subject ? foreign(mail.subject) : "(no subject)"), pairs(main),
      el("p", { class: "hint" }, message ? ["message ", el("a", { href: address("find", new URLSearchParams({ what: message, secs: "" })) }, message)] : null, this.query.get("mailbox") ? [" in ", foreign(this.query.get("mailbox"))] : " in the queue", ", " + count(mail.bytes) + " bytes", mail.cut ? ", the beginning" : ""),
      el("div", { class: "tabs", role: "tablist" }, tabs), body, el("p", {}, commandButton(() => this.command())));
    tabs[0].click();
    return null;
  }

  /// A message that waits for other hosts has a command of its own.
  command() {
    const { message, mailbox, name } = this.place();
    return message && !mailbox && !name ? "posthaste queue cat " + quoted(message) : curl("/api/control/v1", { ask: "mail", of: this.place() });
  }

  /// Where the message is: by its number, or by its file in a mailbox.
  place() {
    const named = ["message", "mailbox", "name"].filter((key) => this.query.get(key));
    return Object.fromEntries(named.map((key) => [key, this.query.get(key)]));
  }

  /// Saves a file of the message, as octets of no type: no browser opens them here.
  async save(number, name) {
    put(this.failure);
    try {
      const { lines } = await control({ ask: "file", of: this.place(), number });
      const octets = lines.map(({ data }) => Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)));
      const url = URL.createObjectURL(new Blob(octets, { type: "application/octet-stream" }));
      const link = el("a", { href: url, download: name.replaceAll(/[^\p{L}\p{N}._ -]/gu, "_") });
      link.click();
      setTimeout(() => URL.revokeObjectURL(url), 60000);
    } catch (error) {
      put(this.failure, foreign(error.message));
    }
  }
}

function pairs(fields) {
  return el("dl", { class: "pairs" }, fields.map(([name, value]) => [el("dt", {}, foreign(name)), el("dd", {}, foreign(value))]));
}
