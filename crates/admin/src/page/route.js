// Addresses of pages: everything that is selected is in them, so that they can be sent to somebody.

/// address("queue", query): the part of the address behind the server's name.
export function address(page, query) {
  const text = query?.toString() ?? "";
  return "#/" + page + (text ? "?" + text : "");
}

/// The page and its query.
export function here() {
  const [page, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { page: page || "now", query: new URLSearchParams(query ?? "") };
}
