#!/usr/bin/env python3
"""mail.py DIR COUNT: writes COUNT made-up messages as Maildirs below DIR, the same ones every time.

They are like those of a development list: a third are headers; replies that quote, patches, quoted-printable, base64, alternatives with
HTML, attachments, PGP signatures; words as frequent as 1/rank, of 60,000; about ten words of a message stand in no other.
"""
import base64, os, random, sys

root, count = sys.argv[1], int(sys.argv[2])
r = random.Random(14)
FOLDERS = 50
KNOWN = {3: "kernel", 5: "patch", 9: "device", 10: "tree", 40: "hwmon", 60: "release", 150: "temperature", 400: "lm90", 6000: "zynqmp"}

def syllables(n):
    return "".join(r.choice("bcdfghklmnprstvz") + r.choice("aeiou") + r.choice(["", "", "n", "r", "s", "t"]) for _ in range(n))

words = [syllables(1 if n < 100 else r.randint(1, 4)) for n in range(60000)]
for rank, word in KNOWN.items():
    words[rank] = word
cumulative, total = [], 0.0
for rank in range(len(words)):
    total += 1 / (rank + 2)
    cumulative.append(total)

def some(n):
    return r.choices(words, cum_weights=cumulative, k=n)

def line():
    out = " ".join(some(r.randint(6, 12)))
    if r.random() < 0.3: out = out.replace(" ", ", ", 1)
    if r.random() < 0.3: out += "."
    return out[:1].upper() + out[1:] if r.random() < 0.2 else out

def code():
    a, b, c = some(3)
    return r.choice([f"\t{a}_{b}(&{c}->{a}, {r.randint(0, 4096)});", f"\tif ({a} < {b}_MAX)", f"\t\treturn -{c.upper()};",
                     f"static int {a}_{b}_{c}(struct {c} *{a})", f"#define {a.upper()}_{b.upper()} 0x{r.randint(0, 65535):04x}"])

LINES = [line() for _ in range(150000)]
CODE = [code() for _ in range(60000)]
HEX = "0123456789abcdef"
NAMES = [f"{syllables(2).title()} {syllables(2).title()}" for _ in range(4000)]
PEOPLE = [f"{name} <{name.split()[0].lower()}@{syllables(2)}.example>" for name in NAMES]
PEOPLE[0:2] = ["Guenter Roeck <linux@roeck.example>", "Jean Delvare <jdelvare@suse.example>"]
people_cumulative, total = [], 0.0
for rank in range(len(PEOPLE)):
    total += 1 / (rank + 8)
    people_cumulative.append(total)
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()

def hexes(n):
    return "%0*x" % (n, r.getrandbits(4 * n))

def encoded(n):
    return base64.encodebytes(r.randbytes(n)).decode()

def date_of(n):
    slot = n % (28 * 72 * 12 * 10)
    day, rest = divmod(slot, 72)
    return f"{day % 28 + 1} {MONTHS[day // 28 % 12]} {2015 + day // 336} {rest // 3:02}:{rest % 3 * 20:02}:{n % 60:02} +0000"

def text(size):
    out, have = [], 0
    while have < size:
        kind = r.random()
        if kind < 0.45:
            block = r.sample(LINES, 6)
        elif kind < 0.75:
            mark = "> " * r.randint(1, 3)
            block = [mark + x for x in r.sample(LINES, 8)]
        else:
            block = [f"diff --git a/{words[r.randrange(3000)]}.c b/{words[r.randrange(3000)]}.c", f"index {hexes(12)}..{hexes(12)} 100644",
                     f"@@ -{r.randint(1, 3000)},7 +{r.randint(1, 3000)},9 @@"] + [r.choice(" +-") + x for x in r.sample(CODE, 9)]
        block.append("")
        out += block
        have += sum(map(len, block)) + len(block)
    return "\n".join(out) + "\n"

def quoted_printable(s):
    return "\n".join(x.replace("=", "=3D").replace("e", "=C3=A9", 1) if len(x) < 60 else x[:60].replace("=", "=3D") + "=\n" + x[60:].replace("=", "=3D")
                     for x in s.split("\n"))

def message(n):
    at, sender = date_of(n), r.choices(PEOPLE, cum_weights=people_cumulative)[0]
    is_reply = n // FOLDERS % 4 != 0
    subject = " ".join(some(6))
    if r.random() < 0.5: subject = f"[PATCH v{r.randint(1, 9)} {r.randint(1, 20)}/20] {subject}"
    host = f"{words[200 + r.randrange(300)]}.example"
    head = [f"Return-Path: <list-owner@lists.bench.example>", f"X-Original-To: me+list@{host}", f"Delivered-To: me+list@{host}"]
    for _ in range(4):
        head.append(f"Received: from {words[r.randrange(5000)]}.example ({words[r.randrange(5000)]}.example [10.{r.randrange(256)}.{r.randrange(256)}.1])\n"
                    f"        by {host} (Postfix) with ESMTPS id {hexes(11).upper()}\n        for <list@lists.bench.example>; {at}")
    head.append("DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed; d=bench.example; s=20210112;\n        h=from:to:cc:subject:date:message-id:mime-version;\n        b="
                + encoded(256).replace("\n", "\n         ").strip())
    head.append("X-Gm-Message-State: " + base64.b64encode(r.randbytes(60)).decode())
    head.append("ARC-Seal: i=1; a=rsa-sha256; t=16; cv=none;\n        b=" + encoded(200).replace("\n", "\n         ").strip())
    head += [f"From: {sender}", "To: list@lists.bench.example", "Cc: " + ",\n        ".join(r.choices(PEOPLE, cum_weights=people_cumulative, k=r.randint(1, 7))),
             f"Subject: {'Re: ' if is_reply else ''}{subject}", f"Date: {at}", f"Message-ID: <{n}.{n * 7919 % 1000003}@bench.example>"]
    if is_reply:
        before = n - FOLDERS
        head += [f"In-Reply-To: <{before}.{before * 7919 % 1000003}@bench.example>", f"References: <{before}.{before * 7919 % 1000003}@bench.example>"]
    head += ["List-Id: Bench <list%d.bench.example>" % (n % 5), "List-Unsubscribe: <mailto:list-leave@lists.bench.example>", "User-Agent: Bench/1.0",
             "Precedence: bulk", "MIME-Version: 1.0"]
    size = min(60000, int(r.lognormvariate(8.34, 0.8)))
    kind = r.random()
    body = text(size)
    plain = "Content-Type: text/plain; charset=utf-8"
    if kind < 0.68:
        head += [plain, "Content-Transfer-Encoding: 8bit"]
    elif kind < 0.80:
        head += [plain, "Content-Transfer-Encoding: quoted-printable"]
        body = quoted_printable(body)
    elif kind < 0.84:
        head += ["Content-Type: text/plain; charset=iso-8859-1", "Content-Transfer-Encoding: base64"]
        body = base64.encodebytes(body.encode("latin-1")).decode()
    else:
        mark = "b" + hexes(16)
        kinds = ["alternative", "mixed", "signed"]
        which = kinds[0] if kind < 0.92 else kinds[1] if kind < 0.98 else kinds[2]
        head.append(f'Content-Type: multipart/{which}; boundary="{mark}"')
        first = f"--{mark}\n{plain}\nContent-Transfer-Encoding: 8bit\n\n{body}\n"
        if which == "alternative":
            html = "<html><head><style>p { color: red }</style></head><body>" + "".join(
                f'<p class="m">{x.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}</p>\n' for x in body.split("\n")) + "</body></html>\n"
            second = f"--{mark}\nContent-Type: text/html; charset=utf-8\nContent-Transfer-Encoding: quoted-printable\n\n{html.replace('=', '=3D')}\n"
        elif which == "mixed":
            second = (f"--{mark}\nContent-Type: application/octet-stream; name=\"{words[r.randrange(9000)]}.bin\"\nContent-Disposition: attachment\n"
                      f"Content-Transfer-Encoding: base64\n\n{encoded(r.randint(2000, 40000))}\n")
        else:
            second = (f"--{mark}\nContent-Type: application/pgp-signature; name=\"signature.asc\"\n\n-----BEGIN PGP SIGNATURE-----\n\n{encoded(560)}"
                      "-----END PGP SIGNATURE-----\n")
        body = first + second + f"--{mark}--\n"
    return "\n".join(head) + "\n\n" + body

octets = 0
for folder in range(FOLDERS):
    for sub in ("new", "cur", "tmp"):
        os.makedirs(f"{root}/folder{folder:02}/{sub}", exist_ok=True)
for n in range(count):
    data = message(n).encode()
    octets += len(data)
    flags = "S" if r.random() < 0.78 else ""
    with open(f"{root}/folder{n % FOLDERS:02}/cur/{1600000000 + n}.M{n}P1.bench:2,{flags}", "wb") as out:
        out.write(data)
print(count, "messages,", octets, "octets")
