// The only way in which this page makes elements: text becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_NAMES = new Set(["svg", "path", "line", "rect", "title"]);

/// el("a", { href: "#/now", class: "x", onclick: f }, "text", child, [more])
export function el(name, attributes = {}, ...children) {
  const isSvg = SVG_NAMES.has(name);
  const node = isSvg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(key.replace(/^on/, ""), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const TEXT_MAX = 300;
// Control characters, and those that turn the direction of text about (Bidi_Control).
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;

/// Text that strangers chose, such as the names of destinations: what cannot be seen is spelled out.
export function foreign(text) {
  const letters = Array.from(String(text));
  const cut = letters.length > TEXT_MAX ? letters.slice(0, TEXT_MAX).join("") + "…" : letters.join("");
  const seen = cut.replace(UNSEEN, (letter) => "\\u{" + letter.codePointAt(0).toString(16) + "}");
  return el("bdi", {}, seen);
}

/// Replaces what a node has.
export function put(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}
