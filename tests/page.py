#!/usr/bin/env python3
"""Opens the page of a real server in Chromium, with hostile texts in its queue, its event log and its mailboxes.

    tests/page.py PROGRAM [WORDS of a test's name]
    tests/page.py PROGRAM --paint       measures the time to the first paint

Needs Playwright for Python and Chromium (CHROMIUM names another one than /usr/bin/chromium). AXE is axe.min.js of axe-core: without it that check is left
out. SCREENSHOTS is a directory for pictures of each page: light, dark, and as on a phone.
"""

import base64
import http.server
import json
import os
import re
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from playwright.sync_api import TimeoutError as PlaywrightTimeout
from playwright.sync_api import expect, sync_playwright

# A busy machine may take longer than the 5 s of the default.
expect.set_options(timeout=30_000)

PROGRAM = os.path.realpath(sys.argv[1])
PATIENCE = 30
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def hostile():
    """Texts that have done harm in pages like this one; none has a line end."""
    payloads = ["alert(1)", "alert`1`", "document.location='//evil.example'", "fetch('//evil.example')", "top.x=1"]
    frames = [
        "<script>{}</script>", "</script><script>{}</script>", "<img src=x onerror={}>", "<svg onload={}>", "<svg><script>{}</script></svg>",
        "<body onload={}>", "<iframe src=\"javascript:{}\">", "<a href=\"javascript:{}\">x</a>", "<details open ontoggle={}>", "\" onmouseover={} x=\"",
        "' autofocus onfocus={} x='", "<math><mtext><style><img src=x onerror={}>", "<template><script>{}</script></template>", "javascript:{}//",
        "<style>@import '//evil.example/{}'</style>", "<link rel=stylesheet href=//evil.example/{}>", "<meta http-equiv=refresh content=0;url=//evil.example/{}>",
        "<form action=//evil.example><button formaction=javascript:{}>", "<object data=//evil.example/{}>", "<video src onerror={}>", "<input onfocus={} autofocus>",
        "<select autofocus onfocus={}>", "<noscript><p title=\"</noscript><img src=x onerror={}>\">", "--><script>{}</script><!--", "]]><script>{}</script>",
        "&lt;script&gt;{}&lt;/script&gt;", "&#60;script&#62;{}", "<sCrIpT>{}</ScRiPt>", "<script/x>{}</script>", "<<script>{}//<</script>",
        "<img src=//evil.example/{}.png>", "<base href=//evil.example/{}>", "<plaintext>{}", "<textarea></textarea><script>{}</script>",
    ]
    whole = [frame.format(payload) for frame in frames for payload in payloads]
    whole += ["{{7*7}}", "${7*7}", "<%= 7*7 %>", "#{7*7}", "=1+1", "=cmd|' /C calc'!A0", "@SUM(1)", "+1+1", "-1+1", "';DROP TABLE x;--", "../../etc/passwd", "%3Cscript%3E", "\\u003cscript\\u003e",
              "__proto__", "constructor", "null", "undefined", "NaN", "true", "[object Object]", "\"><script>alert(1)</script>", "%0d%0aSet-Cookie: x=1", "{{constructor.constructor('alert(1)')()}}"]
    return whole


STRINGS = hostile()
# What cannot be seen, or turns text about: spelled out on the page.
LINE_MAX = 998
UNSEEABLE = ["a\u202egnp.exe", "\u2066x\u2069y", "\u061cz", "zero\u200ewidth", "tab\there", "\x01\x02bell\x07", "\x1b[31mred\x1b[0m", "\u2028line"]
assert len(STRINGS + UNSEEABLE) >= 200


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class NextHop(socketserver.StreamRequestHandler):
    """Answers each recipient with a text of its own, for now."""

    def handle(self):
        say = lambda line: self.wfile.write(line + b"\r\n")
        say(b"220 there.example")
        for line in self.rfile:
            verb = line[:4].upper()
            if verb in (b"EHLO", b"HELO"):
                say(b"250 there.example")
            elif verb == b"RCPT":
                number = int(re.search(rb"<r(\d+)@", line).group(1))
                text = (STRINGS + UNSEEABLE)[number % (len(STRINGS) + len(UNSEEABLE))]
                say(b"450 4.2.1 #%d " % number + text.encode() + (b"\x00\xff" if number % 50 == 0 else b""))
            elif verb == b"QUIT":
                say(b"221 bye")
                return
            else:
                say(b"250 ok")


class Smtp:
    def __init__(self, port, name="client.example"):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.file = self.socket.makefile("rb")
        self.reply()
        self.say(b"EHLO " + name.encode())

    def reply(self):
        while True:
            line = self.file.readline()
            if line[3:4] != b"-":
                return line

    def say(self, line):
        self.socket.sendall(line + b"\r\n")
        return self.reply()

    def send(self, sender, recipients, message):
        self.say(b"MAIL FROM:<" + sender.encode() + b">")
        replies = [self.say(b"RCPT TO:<" + to.encode() + b">") for to in recipients]
        if any(reply.startswith(b"250") for reply in replies):
            self.say(b"DATA")
            replies.append(self.say(message + b"\r\n."))
        else:
            self.say(b"RSET")
        return replies


class Server:
    def __init__(self, dir):
        self.dir = Path(dir)
        self.smtp_port, self.http_port, self.hop_port = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.http_port}/"
        (self.dir / "posthaste.toml").write_text(f"""
host_name = "mx.here.example"
[[listener]]
address = "127.0.0.1:{self.smtp_port}"
[[listener]]
address = "127.0.0.1:{self.http_port}"
protocol = "http"
[[domain]]
name = "here.example"
users = ["ann"]
[storage]
spool_segment_bytes = 4194304
[relay]
networks = ["127.0.0.1"]
port = {self.hop_port}
[dns]
servers = ["127.0.0.1:9"]
timeout_secs = 1
hosts = {{ "there.example" = ["127.0.0.1"] }}
[http]
token_rate = "1000/second"
[search]
index = true
[[domain]]
name = "shop.example"
users = ["ann"]
""")
        self.start()

    def start(self):
        out = open(self.dir / "banner", "wb")
        self.process = subprocess.Popen([PROGRAM, "serve"], cwd=self.dir, stdout=out, stderr=open(self.dir / "log", "ab"))
        wait("the server's start", lambda: b"Ready" in (self.dir / "banner").read_bytes())

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)

    def run(self, *words):
        done = subprocess.run([PROGRAM, *words], cwd=self.dir, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    def link(self):
        file = self.dir / f"link{time.monotonic_ns()}"
        self.run("page", "--scopes", "queue:read,queue:write,route,suppression,events:read,mail:read,accounts,server:read,server:drain", "--output", str(file))
        return file.read_text().strip()

    def token(self, name, scopes, *bounds):
        file = self.dir / f"{name}.token"
        self.run("token", "add", name, "--scope", scopes, *bounds, "--output", str(file))
        return file.read_text().strip()

    def ask(self, secret, request):
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + "api/control/v1", headers=headers, data=json.dumps(request).encode())
        return json.loads(urllib.request.urlopen(request, timeout=PATIENCE).read())

    def queued(self):
        return json.loads(self.run("queue", "list", "--json"))


def wait(what, is_there, patience=PATIENCE):
    deadline = time.monotonic() + patience
    while not is_there():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.05)


def fill(server):
    """Hostile texts by SMTP: subjects, addresses, EHLO names, Message-IDs; replies of the next hop come by themselves."""
    client = Smtp(server.smtp_port)
    for number, text in enumerate(STRINGS + UNSEEABLE):
        subject = text.encode() + b"\xff\xfe" * (number % 20 == 0)
        if number % 40 == 0:
            subject = subject.ljust(LINE_MAX - len("Subject: "), b"x")
        message = b"Subject: " + subject + b"\r\nMessage-ID: <" + str(number).encode() + b"@<script>alert(1)</script>>\r\nFrom: " + text.encode() + b" <a@client.example>\r\n\r\n" + text.encode() + b"\r\n"
        replies = client.send(f"s{number}@client.example", [f"r{number}@there.example"], message)
        assert replies[-1].startswith(b"250"), replies
    for number, text in enumerate(STRINGS[:40]):
        html = b"Subject: " + text.encode() + b"\r\nContent-Type: text/html\r\n\r\n" + text.encode() + b"\r\n"
        assert client.send("a@client.example", ["ann@here.example"], html)[-1].startswith(b"250")
    quoted = re.sub(r'(["\\])', r"\\\1", STRINGS[0])
    client.send(f'"{quoted}"@client.example', ["nobody@elsewhere.invalid", f'"{quoted}"@here.example'], b"")
    Smtp(server.smtp_port, "<script>alert(1)</script>").send("a@client.example", ["nobody@here.example"], b"")
    wait("attempts", lambda: all(line["attempts"] for line in server.queued()))
    mail = server.dir / "posthaste-data/mail/here.example/ann/Maildir/new"
    wait("mail", lambda: mail.is_dir() and len(list(mail.iterdir())) == 40)


class Watch:
    """Fails on a dialog, a request to another origin, an error on the console, a report of the policy."""

    def __init__(self, page, server):
        self.seen = []
        page.on("dialog", lambda dialog: (self.seen.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("pageerror", lambda error: self.seen.append(f"error {error}"))
        page.on("request", lambda request: request.url.startswith(server.url) or self.seen.append(f"request {request.url}"))
        # That a request was refused is the page's business.
        page.on("console", lambda said: said.type == "error" and "Failed to load resource" not in said.text and self.seen.append(f"console {said.text}"))

    def check(self):
        assert not self.seen, self.seen


# Words of a table that stand on two lines, though each fits one.
CUT_WORDS = """() => {
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT), cut = [];
  const range = document.createRange();
  while (texts.nextNode()) {
    range.selectNodeContents(texts.currentNode);
    const lines = new Set([...range.getClientRects()].map((one) => Math.round(one.top)));
    if (/^\\S{1,16}$/.test(texts.currentNode.data.trim()) && texts.currentNode.parentElement.closest("table") && lines.size > 1) cut.push(texts.currentNode.data);
  }
  return cut;
}"""


def spelled(text):
    return UNSEEN.sub(lambda found: "\\u{%x}" % ord(found.group()), text)


class Tests:
    def __init__(self, browser, server):
        self.browser, self.server = browser, server
        self.shots = os.environ.get("SCREENSHOTS")

    def page(self, **options):
        context = self.browser.new_context(**options)
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()
        page.watch = Watch(page, self.server)
        return page

    def entered(self, **options):
        page = self.page(**options)
        page.goto(self.server.link())
        expect(page.locator("nav a").first).to_be_visible()
        return page

    def go(self, page, address):
        page.evaluate("address => { location.hash = address }", address)

    def shot(self, page, name):
        if self.shots:
            Path(self.shots).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=f"{self.shots}/{name}.png", full_page="system" in name)

    def test_a_link_opens_the_page_once_and_over_a_restart(self):
        link, page = self.server.link(), self.page()
        page.goto(link)
        expect(page.locator("nav a", has_text="Queue")).to_be_visible()
        assert "#k=" not in page.url, page.url
        again = self.page()
        again.goto(link)
        expect(again.get_by_role("alert")).to_contain_text("this link was used")
        self.server.stop()
        self.server.start()
        page.reload()
        expect(page.locator("nav a", has_text="Queue")).to_be_visible()
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Token or password")).to_be_visible()
        page.reload()
        expect(page.get_by_label("Token or password")).to_be_visible()
        page.watch.check()

    def test_a_token_opens_the_page_with_its_rights_alone(self):
        page = self.page()
        page.goto(self.server.url)
        page.get_by_label("Token or password").fill("pht_wrong")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("alert")).to_contain_text("Refused")
        page.get_by_label("Token or password").fill(self.server.token("reader", "queue:read"))
        page.get_by_role("button", name="Open").click()
        expect(page.locator("nav a", has_text="Queue")).to_be_visible()
        for missing in ["Find", "System"]:
            assert page.locator("nav a", has_text=missing).count() == 0, missing
        self.go(page, "#/queue?domain=there.example")
        page.locator("tbody tr").first.wait_for()
        page.locator("tbody button").first.click()
        for act in ["retry", "hold", "release", "delete …", "suspend …", "route to …"]:
            assert page.get_by_role("button", name=act).count() == 0, act
        for address in ["#/system", "#/find", "#/mail?message=1"]:
            self.go(page, address)
            expect(page.locator("nav a[aria-current]")).to_have_text("Now")
        status = page.evaluate("""async () => (await fetch("/api/control/v1", { method: "POST",
            headers: { authorization: "Bearer " + localStorage.getItem("posthaste-session"), "content-type": "application/json" },
            body: '{"ask":"act","of":{},"action":"delete"}' })).status""")
        assert status == 403, status
        page.watch.check()

    def test_an_address_of_no_page_is_said(self):
        page = self.entered()
        for address in ["#/constructor", "#/__proto__", "#/toString?x=1"]:
            self.go(page, "#/queue")
            expect(page.locator("nav a[aria-current]")).to_have_text("Queue")
            self.go(page, address)
            expect(page.get_by_text("There is no such page.")).to_be_visible()
        self.go(page, "#/find?as=constructor&events=constructor&secs=constructor")
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        expect(page.get_by_label("Time")).to_have_value("86400")
        page.watch.check()

    def test_a_refused_session_says_why(self):
        page = self.entered()
        why = "this token is not for clients of this network"
        page.route("**/api/token/v1", lambda route: route.fulfill(status=403, json={"error": why}))
        page.reload()
        expect(page.get_by_role("alert")).to_have_text(why)
        page.unroute("**/api/token/v1")
        expect(page.locator("nav a", has_text="Queue")).to_be_visible()
        page.watch.check()

    def test_a_failure_is_shown_until_the_server_is_back(self):
        queue, system, now = self.entered(), self.entered(), self.entered()
        self.go(queue, "#/queue")
        queue.locator("tbody tr").first.wait_for()
        self.go(system, "#/system")
        system.locator("tbody tr").first.wait_for()
        self.go(now, "#/now")
        expect(now.locator(".facts")).to_contain_text("no mail since this page is open")
        Smtp(self.server.smtp_port).send("a@client.example", ["ann@here.example"], b"Subject: " + STRINGS[0].encode() + b"\r\nContent-Type: text/html\r\n\r\nx")
        expect(now.locator(".facts")).to_contain_text("p50")
        rows, find = self.entered(), self.entered()
        self.go(rows, "#/queue?domain=there.example")
        rows.locator("tbody tr").first.wait_for()
        self.go(find, "#/find")
        expect(find.get_by_text("live", exact=True)).to_be_visible()
        pages = [queue, system, now, rows, find]
        self.server.stop()
        # These do not ask by themselves, or seldom on a slow machine.
        system.get_by_role("button", name="look again").click()
        queue.get_by_role("button", name="retry", exact=True).click()
        rows.get_by_role("button", name="explain limits").click()
        for page in pages:
            expect(page.locator(".away")).to_contain_text("The server does not answer since", timeout=90_000)
            expect(page.locator("main.stale")).to_be_visible()
        self.shot(system, "away")
        self.server.start()
        for page in pages:
            expect(page.locator(".away")).to_be_empty(timeout=90_000)
            expect(page.locator("main:not(.stale)")).to_be_visible()
            expect(page.get_by_text("The server does not answer")).to_have_count(0)
        expect(find.get_by_text("live", exact=True)).to_be_visible(timeout=90_000)
        # The server counts from its start on.
        expect(now.locator(".facts")).to_contain_text("no mail since this page is open")
        assert "NaN" not in now.locator(".facts").inner_text()
        Smtp(self.server.smtp_port).send("later@client.example", ["ann@here.example"], b"Subject: " + STRINGS[0].encode() + b"\r\nContent-Type: text/html\r\n\r\nx")
        expect(find.get_by_text("later@client.example").first).to_be_visible()
        for page in pages:
            page.watch.check()

    def test_an_ended_session_offers_the_way_back(self):
        end = """() => fetch("/api/session/v1", { method: "DELETE", headers: { authorization: "Bearer " + localStorage.getItem("posthaste-session") } })"""
        for address, ask in {"#/system": "look again", "#/queue?domain=there.example": "explain limits", "#/queue": "retry"}.items():
            page = self.entered()
            self.go(page, address)
            page.locator("tbody tr").first.wait_for()
            page.evaluate(end)
            page.get_by_role("button", name=ask, exact=True).click()
            expect(page.get_by_role("alert")).to_have_text("This session has ended.")
            expect(page.get_by_text("posthaste page")).to_be_visible()
            # A link that is opened in another tab opens this one, too, where it was.
            other = page.context.new_page()
            other.goto(self.server.link())
            expect(other.locator("nav a").first).to_be_visible()
            expect(page.locator("tbody tr").first).to_be_visible()
            assert page.url.endswith(address), page.url
            page.watch.check()
        # In the same tab, a link is a change of the address alone.
        page.evaluate(end)
        page.goto(self.server.link())
        expect(page.locator("nav a").first).to_be_visible()
        assert "#k=" not in page.url, page.url
        page.watch.check()

    def test_the_form_waits_for_no_other_page(self):
        page = self.page()
        page.route(re.compile("/assets/(pages|now|queue|find|mail|domains|system)\\."), lambda route: None)
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(self.server.url, wait_until="commit")
        expect(page.get_by_label("Token or password")).to_be_visible()
        # Who has no key need not ask about it.
        assert not [url for url in asked if "/api/" in url], asked

    def test_graphs_are_of_a_minute_an_hour_or_a_day(self):
        page = self.entered()
        self.go(page, "#/now")
        for span in ["hour", "day", "minute"]:
            button = page.get_by_role("button", name=span, exact=True)
            button.click()
            expect(button).to_have_attribute("aria-pressed", "true")
            expect(page.locator(".tile svg").first).to_have_attribute("aria-label", re.compile("the last " + span))
            assert page.locator(".spans [aria-pressed=true]").count() == 1, span
        page.watch.check()

    def test_hostile_texts_stay_texts_on_every_page(self):
        page = self.entered()
        queued = {line["recipient"]: line for line in self.server.queued()}
        self.go(page, "#/queue?domain=there.example")
        seen, first = "", ""
        while True:
            page.wait_for_function("before => { const now = document.querySelector('tbody th')?.textContent; return now && now !== before }", arg=first)
            first = page.locator("tbody th").first.text_content()
            for button in page.locator("button.more").all():
                button.click()
            seen += page.locator("table").first.text_content()
            for row in page.locator("tbody th button").all():
                row.click()
            page.watch.check()
            following = page.get_by_role("link", name="next 100")
            if not following.count():
                break
            following.click()
        for number, text in enumerate(STRINGS):
            assert f"#{number} " + text in seen, f"{number}: {text}"
        for text in UNSEEABLE:
            assert UNSEEN.search(text) is None or text not in seen, text
        addresses = ["#/now", "#/queue", "#/queue?by=tenant", "#/queue?by=campaign", "#/queue?by=site", "#/find", "#/find?events=refused", "#/find?events=waits", "#/find?events=bounced",
                     "#/find?what=ann%40here.example", "#/find?what=" + "%3Cscript%3Ealert(1)%3C%2Fscript%3E", "#/queue?domain=" + "%3Cscript%3Ealert(1)%3C%2Fscript%3E", "#/system"]
        for address in addresses + [f"#/find?what={line['id'].split('.')[0]}&secs=" for line in list(queued.values())[::20]]:
            self.go(page, address)
            page.wait_for_load_state("networkidle") if address == "#/system" else page.wait_for_timeout(300)
            page.watch.check()
        self.go(page, "#/find?events=refused")
        expect(page.locator("table")).to_contain_text('"<script>alert(1)</script>"@here.example')
        self.go(page, "#/find")
        subject = page.locator("a.subject bdi").first
        subject.wait_for()
        assert subject.inner_text() in STRINGS, subject.inner_text()
        page.locator("a.subject").first.click()
        for tab in ["Header", "HTML source", "Source", "Text"]:
            page.get_by_role("tab", name=tab, exact=True).click()
            page.watch.check()
        self.go(page, "#/system")
        page.get_by_text("Configuration in force").click()
        expect(page.locator("details pre")).to_contain_text("mx.here.example")
        page.watch.check()

    def test_the_queue_is_changed_by_clicks_that_say_to_how_many(self):
        page = self.entered()
        dialog = page.locator("dialog")
        self.go(page, "#/queue?recipient=r1@there.example")
        page.locator("tbody tr").first.wait_for()
        page.get_by_role("button", name="hold", exact=True).first.click()
        expect(dialog).to_contain_text("1 recipient")
        dialog.get_by_role("button", name="copy as command").click()
        expect(dialog.last).to_contain_text("posthaste queue hold --recipient r1@there.example")
        dialog.last.get_by_role("button", name="Close").click()
        dialog.get_by_role("button", name="hold 1").click()
        expect(page.locator(".notice")).to_have_text("1 held")
        expect(page.locator("tbody")).to_contain_text("held")
        page.get_by_role("button", name="release", exact=True).first.click()
        dialog.get_by_role("button", name="release 1").click()
        expect(page.locator(".notice")).to_have_text("1 released")
        self.go(page, "#/queue?recipient=r2@there.example")
        expect(page.locator(".strip strong")).to_have_text("recipient r2@there.example")
        page.get_by_role("button", name="retry", exact=True).first.click()
        dialog.get_by_role("button", name="retry 1").click()
        expect(page.locator(".notice")).to_have_text("1 tried now")
        self.go(page, "#/queue?recipient=r3@there.example")
        expect(page.locator(".strip strong")).to_have_text("recipient r3@there.example")
        page.get_by_role("button", name="return …").first.click()
        dialog.get_by_label("Reason, for the senders").fill("no such person")
        dialog.get_by_role("button", name="return 1").click()
        expect(page.locator(".notice")).to_have_text("1 returned")
        expect(page.get_by_text("Nothing that fits waits.")).to_be_visible()
        self.go(page, "#/queue?domain=there.example")
        expect(page.locator(".strip strong")).to_have_text("domain there.example")
        page.get_by_role("button", name="suspend …").click()
        dialog.get_by_label("Reason, for the list").fill("<b>look</b>")
        dialog.get_by_role("button", name="suspend", exact=True).click()
        expect(page.get_by_text("<b>look</b>")).to_be_visible()
        # Nothing is tried meanwhile.
        page.get_by_role("button", name="route to …").click()
        dialog.get_by_label("To the host").fill("relay.example.net:2525")
        dialog.get_by_role("button", name="route", exact=True).click()
        expect(page.locator(".notice")).to_have_text("routed")
        expect(page.get_by_text("goes to relay.example.net:2525")).to_be_visible()
        page.get_by_role("button", name="unroute").click()
        dialog.get_by_role("button", name="unroute").click()
        expect(page.locator(".notice")).to_have_text("no longer routed elsewhere")
        self.go(page, "#/now")
        page.locator(".attention li", has_text="mail of domain there.example is suspended").get_by_role("link", name="show").click()
        page.wait_for_url(re.compile("#/queue.domain=there.example$"))
        page.get_by_role("button", name="resume").last.click()
        dialog.get_by_role("button", name="resume").click()
        expect(page.locator(".notice")).to_have_text("resumed")
        page.get_by_role("button", name="explain limits").click()
        expect(page.get_by_text("connections of the site")).to_be_visible()
        # The selection changes while somebody looks at the question.
        there = lambda: sum(line["domain"] == "there.example" for line in self.server.queued())
        before = there()
        page.get_by_role("button", name="delete …").first.click()
        expect(dialog).to_contain_text(f"{before} recipients")
        for number in range(30, 30 + before // 4):
            self.server.run("queue", "delete", "--recipient", f"r{number}@there.example")
        dialog.get_by_label("Type the number").fill("7")
        dialog.get_by_role("button", name=f"delete {before}").click()
        expect(dialog.get_by_role("alert")).to_contain_text(f"Type the number {before}")
        dialog.get_by_label("Type the number").fill(str(before))
        dialog.get_by_role("button", name=f"delete {before}").click()
        left = there()
        expect(dialog.get_by_role("alert")).to_contain_text(f"now there are {left}: nothing was done")
        assert there() == left
        dialog.get_by_label("Type the number").fill(str(left))
        self.shot(page, "queue-delete")
        dialog.get_by_role("button", name="Cancel").click()
        # The command selects what the button does.
        self.go(page, "#/queue?domain=there.example&state=waiting")
        expect(page.locator(".strip strong")).to_have_text("domain there.example, not held")
        page.get_by_role("button", name="delete …").first.click()
        dialog.get_by_role("button", name="copy as command").click()
        expect(dialog.last).to_contain_text('"held":false')
        dialog.last.get_by_role("button", name="Close").click()
        dialog.get_by_role("button", name="Cancel").click()
        self.go(page, "#/queue?recipient=r1@there.example")
        page.get_by_role("button", name="delete …").first.click()
        dialog.get_by_label("Type the number").fill("1")
        dialog.get_by_role("button", name="delete 1").click()
        expect(page.locator(".notice")).to_have_text("1 deleted")
        assert there() == left - 1
        page.watch.check()

    def test_the_server_is_stopped_by_a_click_that_says_what_waits(self):
        page = self.entered()
        dialog = page.locator("dialog")
        queued = len(self.server.queued())

        def says_how_many_wait():
            self.go(page, "#/now")
            self.go(page, "#/system")
            page.get_by_role("button", name="stop the server …").click()
            expect(dialog).to_contain_text("recipients at other hosts stay in the spool")
            if f"{queued} recipients" in dialog.inner_text():
                return True
            dialog.get_by_role("button", name="Cancel").click()

        # Pages share a look at the queue, which may be from before the changes of another test.
        wait("the count of the queue", says_how_many_wait)
        self.shot(page, "stop")
        dialog.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="stop the server …").click()
        dialog.get_by_role("button", name="stop the server").click()
        expect(page.locator(".notice")).to_contain_text("takes no new connections")
        assert self.server.process.wait(PATIENCE) == 0
        self.server.start()
        assert len(self.server.queued()) == queued
        reader = self.page()
        reader.goto(self.server.url)
        reader.get_by_label("Token or password").fill(self.server.token("looks", "server:read"))
        reader.get_by_role("button", name="Open").click()
        self.go(reader, "#/system")
        expect(reader.get_by_text("posthaste doctor")).to_be_visible()
        assert reader.get_by_role("button", name="stop the server …").count() == 0
        reader.watch.check()

    def test_a_token_of_a_tenant_shows_no_foreign_row(self):
        page = self.page()
        page.goto(self.server.url)
        page.get_by_label("Token or password").fill(self.server.token("acme", "queue:read,queue:write,events:read,mail:read", "--tenant", "acme"))
        page.get_by_role("button", name="Open").click()
        expect(page.locator("nav a", has_text="Queue")).to_be_visible()
        self.go(page, "#/queue")
        expect(page.get_by_text("0 recipients wait for other hosts")).to_be_visible()
        # On the host, a command without the tenant would be about all mail.
        page.get_by_role("button", name="delete …").first.click()
        page.locator("dialog").get_by_role("button", name="copy as command").click()
        expect(page.locator("dialog").last).to_contain_text("posthaste queue delete --tenant acme")
        page.locator("dialog").last.get_by_role("button", name="Close").click()
        page.locator("dialog").get_by_role("button", name="Cancel").click()
        self.go(page, "#/queue?domain=there.example")
        expect(page.get_by_text("Nothing that fits waits.")).to_be_visible()
        operator = self.entered()
        self.go(operator, "#/system")
        expect(operator.get_by_text("; tenant acme")).to_be_visible()
        self.go(page, "#/find?what=r1%40there.example")
        expect(page.get_by_text("Nothing was found.")).to_be_visible()
        self.go(page, "#/find")
        expect(page.get_by_text("Nothing yet.")).to_be_visible()
        for address in ["#/queue", "#/queue?domain=there.example", "#/find"]:
            self.go(page, address)
            page.wait_for_timeout(300)
            assert page.locator(".error").all_inner_texts() in ([], [""], ["", ""]), address
        page.watch.check()

    def test_domains_show_their_records_and_keys(self):
        self.server.run("dkim", "new", "here.example", "--keys", "ed25519")
        page = self.entered()
        page.keyboard.press("g")
        page.keyboard.press("d")
        expect(page.locator("nav a[aria-current]")).to_have_text("Domains")
        ours = page.locator("section", has=page.get_by_role("heading", name="Our domains"))
        expect(ours.locator("tbody tr")).to_have_count(2)
        expect(ours.locator("tr", has_text="here.example")).to_contain_text("ed25519 active")
        expect(ours.locator("tr", has_text="shop.example")).to_contain_text("none: its mail is not signed")
        # The resolver answers nothing, and the page says so of each record.
        ours.locator("tbody tr", has_text="here.example").focus()
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("#/domains.domain=here.example"))
        records = page.locator("table.records tbody tr")
        expect(records.first).to_contain_text("no answer", timeout=120_000)
        expect(records.first).to_contain_text("10 mx.here.example.")
        expect(page.get_by_text(re.compile(r"Without an answer: (\d+) of \1 records"))).to_be_visible()
        expect(page.get_by_text(re.compile("DNS did not answer about the host's address: "))).to_be_visible()
        # `none` is a result of a check.
        expect(page.get_by_text("no check yet")).to_have_count(3)
        expect(page.get_by_text("MTA-STS policy: not served")).to_be_visible()
        records.first.get_by_role("button", name="copy record").click()
        expect(page.locator("dialog code")).to_contain_text("here.example. MX 10 mx.here.example.")
        page.locator("dialog").get_by_role("button", name="Close").click()
        for title in ["Certificates", "Checks of mail received", "TLS with other hosts", "Accounts"]:
            expect(page.get_by_role("heading", name=title)).to_be_visible()
        page.watch.check()
        page = self.page()
        page.goto(self.server.url)
        page.get_by_label("Token or password").fill(self.server.token("queue", "queue:read"))
        page.get_by_role("button", name="Open").click()
        expect(page.locator("nav a", has_text="Queue")).to_be_visible()
        assert page.locator("nav a", has_text="Domains").count() == 0
        self.go(page, "#/domains")
        expect(page.get_by_text("it has no scope server:read")).to_be_visible()
        page.watch.check()

    def test_a_file_of_a_message_is_saved(self):
        octets = bytes(range(256)) * 1000
        lines = base64.encodebytes(octets).replace(b"\n", b"\r\n")
        head = b"Subject: with a file\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n\r\ntext\r\n"
        part = b"--x\r\nContent-Type: text/html\r\nContent-Disposition: attachment; filename=\"../<b>.html\"\r\nContent-Transfer-Encoding: base64\r\n\r\n"
        Smtp(self.server.smtp_port).send("a@client.example", ["ann@here.example"], head + part + lines + b"--x--")
        page = self.entered()
        self.go(page, "#/find")
        page.get_by_text("with a file").first.click()
        page.get_by_role("tab", name="Files").click()
        with page.expect_download() as saving:
            page.get_by_role("button", name="save").click()
        saved = saving.value
        assert saved.suggested_filename.endswith("html") and "/" not in saved.suggested_filename, saved.suggested_filename
        assert Path(saved.path()).read_bytes() == octets
        page.watch.check()

    def test_words_in_mail_are_found_and_open_by_the_keyboard(self):
        secret = self.server.token("words", "mail:read")
        # Of a busy processor the indexer gets a hundredth part.
        found = lambda query: self.server.ask(secret, {"ask": "search", "query": query})["lines"]
        wait("the index", lambda: len(found("*")) >= 40, 10 * PATIENCE)
        page = self.entered()
        self.go(page, "#/find?as=words&what=script&secs=")
        page.locator("table.found").wait_for()
        seen = page.locator("table.found").inner_text()
        for text in [text for text in STRINGS[:40] if "<script>" in text]:
            assert text in seen, text
        page.watch.check()
        for text in STRINGS[:20] + UNSEEABLE + ["(" * 200, "/(/", "subject:/x", "date:never", "query:x", "thread:{"]:
            page.evaluate("text => { location.hash = '#/find?' + new URLSearchParams({ as: 'words', what: text, secs: '' }) }", text)
            page.wait_for_function("text => document.querySelector('[name=what]')?.value === text", arg=text)
            expect(page.locator("main .state, main .error:not(:empty)").first).to_be_visible()
            page.watch.check()
        Smtp(self.server.smtp_port).send("a@client.example", ["ann@here.example"], b"From: Zoe <zoe@client.example>\r\nSubject: kelp\r\n\r\nserendipity")
        wait("the index", lambda: found("serendipity"), 10 * PATIENCE)
        self.go(page, "#/find")
        page.get_by_label("It is").wait_for()
        page.keyboard.press("/")
        page.keyboard.type("serendipity")
        page.keyboard.press("Tab")
        page.keyboard.press("w")
        expect(page.get_by_label("Events")).to_be_disabled()
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Enter")
        found = page.locator("table.found tbody tr")
        expect(found).to_contain_text("Zoe <zoe@client.example>")
        found.focus()
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("kelp")
        expect(page.get_by_role("tabpanel")).to_contain_text("serendipity")
        page.watch.check()

    def test_each_command_that_can_be_copied_works(self):
        (self.server.dir / "my.token").write_text(self.server.token("copier", "queue:read,events:read,mail:read,server:read"))
        page = self.entered()
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (text) => { window.copied = text } } })")
        evil = "x'; touch hacked; \x1b[201~\n$(touch hacked)`touch hacked`\\' --all"
        message = self.server.queued()[0]["id"].split(".")[0]
        query = urllib.parse.urlencode
        places = ["#/now", "#/queue", "#/queue?by=site&state=held", "#/queue?rows=1", "#/queue?domain=there.example", "#/queue?" + query({"recipient": evil}), "#/find", "#/find?events=refused",
                  "#/find?what=ann%40here.example", "#/find?" + query({"what": evil}), "#/find?as=user&what=ann", "#/find?as=words&what=script", "#/find?" + query({"as": "words", "what": "o'clock", "secs": ""}),
                  "#/queue?state=waiting", "#/queue?rows=1&state=waiting", "#/queue?recipient=-f%40there.example", "#/queue?domain=-there.example", "#/find?what=-f%40there.example",
                  "#/find?as=user&what=-ann", "#/find?as=words&what=-script", f"#/mail?message={message}", "#/domains", "#/system"]
        commands, dialog = {}, page.locator("dialog")
        for address in places:
            page.evaluate("document.querySelector('main').dataset.old = 'yes'")
            self.go(page, address)
            buttons = page.locator("main:not([data-old])").get_by_role("button", name="as command")
            try:
                buttons.first.wait_for()
            except PlaywrightTimeout:
                raise AssertionError(f"{address}: no command") from None
            for number in range(buttons.count()):
                buttons.nth(number).click()
                dialog.get_by_role("button", name="Copy").click()
                expect(dialog.get_by_role("status")).to_have_text("Copied.")
                commands[page.evaluate("window.copied")] = address
                dialog.get_by_role("button", name="Close").click()
        assert len(commands) >= len(places), commands
        path = os.path.dirname(PROGRAM) + ":" + os.environ["PATH"]
        for command, address in commands.items():
            assert not UNSEEN.search(command), f"{address}: {command!r}"
            # The former measures the machine, the latter asks other hosts.
            if command == "posthaste doctor" or command.startswith("posthaste dns "):
                continue
            is_stream = "/api/events/" in command
            done = subprocess.run(["bash", "-c", command + (" --max-time 1" if is_stream else "")], cwd=self.server.dir, env={**os.environ, "PATH": path}, capture_output=True, text=True, errors="replace", timeout=PATIENCE)
            # 1: nothing was found; 28: curl's time is over.
            assert done.returncode in ((28,) if is_stream else (0, 1)), f"{address}: {command}: {done.stderr}"
            if command.startswith("curl") and not is_stream:
                assert "error" not in json.loads(done.stdout), f"{address}: {command}: {done.stdout[:300]}"
        assert not (self.server.dir / "hacked").exists()
        page.watch.check()

    def test_rows_come_by_themselves(self):
        page = self.entered()
        self.go(page, "#/find")
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        Smtp(self.server.smtp_port).send("a@client.example", ["ann@here.example"], b"Subject: just now\r\n\r\nx")
        expect(page.get_by_text("just now")).to_be_visible()
        page.watch.check()

    def test_what_happens_while_the_list_is_made_is_shown_once(self):
        page = self.entered()
        def slow(route):
            # Sent before the list is made, and shown in it; what comes after it is in the stream alone.
            Smtp(self.server.smtp_port).send("a@client.example", ["ann@here.example"], b"Subject: while listed\r\n\r\nx")
            answer = route.fetch()
            Smtp(self.server.smtp_port).send("a@client.example", ["ann@here.example"], b"Subject: after listed\r\n\r\nx")
            route.fulfill(response=answer)
        page.route("**/api/control/v1", lambda route: slow(route) if '"find"' in (route.request.post_data or "") else route.continue_())
        self.go(page, "#/find")
        expect(page.get_by_text("while listed")).to_have_count(1)
        expect(page.get_by_text("after listed")).to_have_count(1)
        page.watch.check()

    def test_a_hidden_tab_closes_its_stream(self):
        page = self.entered()
        self.go(page, "#/find")
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        hide = "hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true }); document.dispatchEvent(new Event('visibilitychange')) }"
        with page.expect_event("requestfailed", lambda request: request.url.endswith("/api/events/v1")):
            page.evaluate(hide, True)
        Smtp(self.server.smtp_port).send("a@client.example", ["ann@here.example"], b"Subject: unseen\r\n\r\nx")
        with page.expect_request(re.compile("/api/events/v1$")):
            page.evaluate(hide, False)
        expect(page.get_by_text("unseen")).to_have_count(1)
        page.watch.check()

    def test_the_keyboard_is_enough(self):
        page = self.entered()
        page.keyboard.press("g")
        page.keyboard.press("q")
        expect(page.locator("nav a[aria-current]")).to_have_text("Queue")
        page.locator("tbody tr").first.wait_for()
        page.locator("tbody tr").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("domain=there.example"))
        page.locator("tbody th button").first.wait_for()
        first = page.locator("tbody tr").first
        first.focus()
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.rowIndex") == 3
        page.keyboard.press("Enter")
        details = page.locator("tr.details:not([hidden])")
        expect(details).to_have_count(1)
        # Days ahead: the time of day alone would be today's.
        expect(details).to_contain_text(re.compile(r"expires\s*\d+ [A-Z][a-z]+ \d\d:\d\d"))
        page.keyboard.press("g")
        page.keyboard.press("f")
        expect(page.locator("nav a[aria-current]")).to_have_text("Find")
        page.keyboard.press("/")
        page.keyboard.type("ann@here.example")
        page.keyboard.press("Enter")
        expect(page.locator("article").first).to_be_visible()
        page.get_by_label("Time").select_option("all")
        page.get_by_role("button", name="Find").click()
        page.wait_for_url(re.compile("what=ann%40here.example&secs=$"))
        expect(page.get_by_label("Time")).to_have_value("")
        page.watch.check()

    def test_each_page_fits_a_phone_and_the_dark(self):
        pages = {"now": "#/now", "queue": "#/queue", "rows": "#/queue?domain=there.example", "find": "#/find", "story": "#/find?what=ann%40here.example", "words": "#/find?as=words&what=script&secs=", "system": "#/system", "domains": "#/domains?domain=here.example"}
        looks = {"light": dict(viewport=dict(width=1280, height=800)), "dark": dict(viewport=dict(width=1280, height=800), color_scheme="dark"), "phone": dict(viewport=dict(width=360, height=740))}
        for look, options in looks.items():
            page = self.entered(**options)
            for name, address in pages.items():
                self.go(page, address)
                page.locator("table").first.wait_for()
                page.wait_for_timeout(400)
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= options["viewport"]["width"], f"{name} {look}: {wide}"
                self.shot(page, f"{name}-{look}")
                cut = page.evaluate(CUT_WORDS)
                assert not cut, f"{name} {look}: {cut}"
                if look == "phone" and name in ("queue", "rows"):
                    rows = page.locator("table.wide tbody tr:not([hidden])").all()[:5]
                    boxes = [row.bounding_box() for row in rows]
                    assert all(box["height"] < 260 for box in boxes), boxes
                    seen = page.evaluate("[...document.querySelectorAll('table.wide tbody tr:not([hidden]) > *')].every((cell) => cell.getBoundingClientRect().right <= innerWidth)")
                    assert seen, f"{name}: a cell is beyond the edge"
            self.go(page, "#/find")
            page.locator("a.subject bdi").first.wait_for()
            page.locator("a.subject").first.click()
            page.get_by_role("tab", name="Text", exact=True).wait_for()
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= options["viewport"]["width"], f"mail {look}: {wide}"
            self.shot(page, f"mail-{look}")
            page.get_by_role("button", name="Log out").click()
            page.get_by_label("Token or password").wait_for()
            self.shot(page, f"login-{look}")
            page.watch.check()

    def test_no_serious_finding_of_axe(self):
        source = os.environ.get("AXE")
        if not source:
            return "AXE is not set"
        for scheme in ["light", "dark"]:
            page = self.entered(bypass_csp=True, color_scheme=scheme)
            for address in ["#/now", "#/queue", "#/queue?domain=there.example", "#/find", "#/find?what=ann%40here.example", "#/find?as=words&what=script&secs=", "#/domains?domain=here.example", "#/system"]:
                self.go(page, address)
                page.locator("table").first.wait_for()
                page.wait_for_timeout(400)
                page.evaluate(Path(source).read_text())
                found = page.evaluate("async () => (await axe.run()).violations.filter((one) => ['serious', 'critical'].includes(one.impact)).map((one) => one.id + ': ' + one.nodes[0].html)")
                assert not found, f"{address} {scheme}: {found}"

    def test_other_sites_are_kept_out(self):
        queued = len(self.server.queued())
        asks = """async (url) => {
            const tried = {};
            const note = async (name, made) => { try { const answer = await made(); tried[name] = answer.type + " " + answer.status; } catch (error) { tried[name] = "refused"; } };
            const body = '{"ask":"act","of":{},"action":"delete"}';
            for (const credentials of ["omit", "include"]) {
                await note("get " + credentials, () => fetch(url + "api/now/v1", { credentials }));
                await note("post " + credentials, () => fetch(url + "api/control/v1", { method: "POST", credentials, body, headers: { "content-type": "application/json", "x-posthaste": "1" } }));
                await note("plain post " + credentials, () => fetch(url + "api/control/v1", { method: "POST", mode: "no-cors", credentials, body }));
                await note("inject " + credentials, () => fetch(url + "api/inject/v1", { method: "POST", mode: "no-cors", credentials, body: "{}" }));
            }
            await note("basic", () => fetch(url + "api/now/v1", { headers: { authorization: "Basic eDp4" } }));
            tried.events = await new Promise((done) => { const source = new EventSource(url + "api/events/v1", { withCredentials: true }); source.onopen = () => done("open"); source.onerror = () => done("refused"); });
            tried.frame = await new Promise((done) => { const frame = document.createElement("iframe"); frame.onload = () => { let text = ""; try { text = frame.contentDocument?.body?.innerText ?? ""; } catch { } done(text.includes("Posthaste") ? "shown" : "refused"); }; frame.src = url; document.body.append(frame); });
            const form = document.createElement("form");
            Object.assign(form, { method: "POST", action: url + "api/session/v1", target: "frame" });
            const target = document.createElement("iframe"); target.name = "frame"; document.body.append(target, form);
            await new Promise((done) => { target.onload = done; form.submit(); });
            return tried;
        }"""

        class Evil(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(b"<body>evil</body>")

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil) as evil:
            threading.Thread(target=evil.serve_forever, daemon=True).start()
            # The same browser is logged in at the server.
            context = self.entered().context
            for host in ["127.0.0.1", "localhost"]:
                page = context.new_page()
                page.goto(f"http://{host}:{evil.server_port}/")
                tried = page.evaluate(asks, self.server.url)
                assert all(outcome in ("refused", "opaque 0") for outcome in tried.values()), tried
            evil.shutdown()
        assert len(self.server.queued()) == queued
        session = json.dumps({"token": self.server.token("other", "queue:read")}).encode()
        tries = [
            ("GET", "", {"Host": "evil.example"}, None, 421),
            ("GET", "api/queue/v1", {"Host": f"evil.example:{self.server.http_port}"}, None, 421),
            ("POST", "api/session/v1", {"Host": "evil.example", "Content-Type": "application/json"}, session, 421),
            ("POST", "api/session/v1", {"Origin": "http://evil.example", "Content-Type": "application/json"}, session, 403),
            ("POST", "api/session/v1", {"Content-Type": "text/plain"}, session, 415),
            ("GET", "api/queue/v1", {"Authorization": "Basic eDp4", "Sec-Fetch-Site": "cross-site"}, None, 403),
            ("OPTIONS", "api/control/v1", {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}, None, 403),
            ("POST", "api/inject/v1", {"Content-Type": "application/json"}, b"{}", 401),
            ("POST", "api/control/v1", {"Content-Type": "application/json", "Cookie": "__Host-posthaste=phs_0"}, b'{"ask":"list"}', 403),
        ]
        for method, path, headers, body, expected in tries:
            request = urllib.request.Request(self.server.url + path, method=method, headers=headers, data=body)
            try:
                status = urllib.request.urlopen(request, timeout=PATIENCE).status
            except urllib.error.HTTPError as error:
                status = error.code
                assert not any(name.lower().startswith("access-control") for name in error.headers), error.headers
            assert status == expected, f"{method} {path} {headers}: {status}"


def first_paints(tests):
    """Prints milliseconds to the first paint with content: the form with nothing cached, and Now for who is logged in."""

    # A promise: Playwright's wait for a function evaluates text in the page, which the page's policy forbids.
    seen = """() => new Promise((resolve) => new PerformanceObserver((list) => {
        for (const found of list.getEntriesByName("first-contentful-paint")) resolve(found.startTime);
    }).observe({ type: "paint", buffered: true }))"""

    def paint(page):
        return page.evaluate(seen)

    def form():
        page = tests.page()
        page.goto(tests.server.url)
        return paint(page)

    entered = tests.entered()

    def now():
        entered.reload()
        return paint(entered)

    for name, once in [("form", form), ("now", now)]:
        times = sorted(once() for _ in range(15))
        print(f"{name}: first paint after {times[len(times) // 2]:.0f} ms (median), {times[0]:.0f} to {times[-1]:.0f} ms")


def main():
    failed = 0
    is_measuring = sys.argv[2:] == ["--paint"]
    with tempfile.TemporaryDirectory() as dir, sync_playwright() as playwright:
        server = Server(dir)
        hop = socketserver.ThreadingTCPServer(("127.0.0.1", server.hop_port), NextHop, bind_and_activate=False)
        hop.allow_reuse_address = hop.daemon_threads = True
        hop.server_bind()
        hop.server_activate()
        threading.Thread(target=hop.serve_forever, daemon=True).start()
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            fill(server)
            tests = Tests(browser, server)
            if is_measuring:
                return first_paints(tests)
            for name in [name for name in vars(Tests) if name.startswith("test_") and all(word in name for word in sys.argv[2:])]:
                said = name[5:].replace("_", " ")
                try:
                    left_out = getattr(tests, name)()
                    print(f"ok    {said}" if left_out is None else f"skip  {said}: {left_out}", flush=True)
                except Exception:
                    failed += 1
                    print(f"FAIL  {said}\n{traceback.format_exc()}", flush=True)
        finally:
            browser.close()
            server.stop()
            if failed:
                print((server.dir / "log").read_text(errors="replace")[-4000:])
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
