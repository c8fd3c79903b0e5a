// The only way in which this page makes elements: text becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_NAMES = new Set(["svg", "path"]);

const shown = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

/// el("a", { href: "#/now", class: "x", onclick: f }, "text", child, [more])
export function el(name, attributes = {}, ...children) {
  const node = SVG_NAMES.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(key.replace(/^on/, ""), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...shown(children));
  return node;
}

/// Replaces what a node has.
export function put(node, ...children) {
  node.replaceChildren(...shown(children));
}

const TEXT_MAX = 300;
// Control characters, and those that turn the direction of text about (Bidi_Control).
const UNSEEN = /[\u0000-\u0008\u000a-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;
// In a text of several lines, line ends and tabs are what they are.
const UNSEEN_IN_LINES = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;

function spell(letter) {
  return "\\u{" + letter.codePointAt(0).toString(16) + "}";
}

/// Text that strangers chose: unseen letters are spelled out, and a long text is cut until a click.
export function foreign(text) {
  const letters = Array.from(String(text ?? ""));
  const spelled = (some) => some.join("").replace(UNSEEN, spell);
  if (letters.length <= TEXT_MAX) return el("bdi", {}, spelled(letters));
  const all = el("bdi", {}, spelled(letters.slice(0, TEXT_MAX)));
  const more = el("button", { type: "button", class: "more", onclick: () => { put(all, spelled(letters)); more.remove(); } }, "… all " + letters.length);
  return [all, more];
}

/// Many lines that strangers chose.
export function foreignLines(text) {
  return el("pre", { tabindex: "0" }, el("bdi", {}, String(text).replace(/\r\n/g, "\n").replace(UNSEEN_IN_LINES, spell)));
}

/// A table; its rows are walked through by the arrow keys.
export function table(names, rows, attributes = {}) {
  const head = names.map((name) => el("th", { scope: "col", class: name.startsWith("#") ? "number" : null }, name.replace("#", "")));
  rows.forEach((row, index) => {
    row.setAttribute("tabindex", index ? "-1" : "0");
    // On a phone a wide table is a list, whose cells say what they are.
    [...row.children].forEach((cell, at) => cell.setAttribute("data-name", names[at].replace("#", "")));
  });
  return el("div", { class: "scroll" }, el("table", attributes, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
}

export function button(text, onclick, className = "quiet") {
  return el("button", { type: "button", class: className, onclick }, text);
}

/// A field with its label.
export function field(label, input) {
  return el("label", { class: "field" }, el("span", {}, label), input);
}

/// A choice of [value, text].
export function select(name, choices, value) {
  return el("select", { name }, choices.map(([of, text]) => el("option", { value: of, selected: of === value }, text)));
}
