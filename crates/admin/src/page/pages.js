// The pages, which the form to log in does without.

import { DomainsPage } from "./domains.js";
import { FindPage } from "./find.js";
import { MailPage } from "./mail.js";
import { NowPage } from "./now.js";
import { QueuePage } from "./queue.js";
import { SystemPage } from "./system.js";

/// By name in the address: text, scope, page, key after `g`.
export const PAGES = {
  // No other name is known, such as that of a method of objects.
  __proto__: null,
  now: ["Now", null, NowPage, "n"],
  queue: ["Queue", "queue:read", QueuePage, "q"],
  find: ["Find", "events:read", FindPage, "f"],
  domains: ["Domains", "server:read", DomainsPage, "d"],
  system: ["System", "server:read", SystemPage, "s"],
  mail: [null, "mail:read", MailPage, null],
};
