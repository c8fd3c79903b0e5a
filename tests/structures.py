"""ENVELOPE and BODYSTRUCTURE of a corpus, beside those of Dovecot.

structures.py POSTHASTE CORPUS DIFFERENCES: a server of POSTHASTE and Dovecot's imap read the same files. Each difference has to be explained by
a line of the file DIFFERENCES: the name of the message, the path in the answer, and the reason. A line that explains nothing is an error as well.
Needs root, for Dovecot's imap runs as nobody. With --list, the differences are printed in the form of that file.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NOBODY = 65534


class Answer:
    """A stream of IMAP's answers."""

    def __init__(self, read, write):
        self.read_line, self.write, self.tags = read, write, 0

    def line(self):
        """A line with its literals, as a list of tokens: bytes of what is quoted or a literal, str of all else."""
        tokens = []
        while True:
            line = self.read_line.readline()
            assert line.endswith(b"\n"), f"the connection ended: {line!r}"
            literal = re.search(rb"\{(\d+)\}\r?\n$", line)
            scan(line[: literal.start()] if literal else line, tokens)
            if not literal:
                return tokens
            tokens.append(self.read_line.read(int(literal.group(1))))

    def ask(self, command):
        self.tags += 1
        tag = f"t{self.tags}"
        self.write(f"{tag} {command}\r\n".encode())
        answers = []
        while True:
            tokens = self.line()
            if tokens and tokens[0] == tag:
                assert tokens[1] == "OK", (command, tokens)
                return answers
            answers.append(tokens)


def scan(text, tokens):
    for found in re.finditer(rb'"((?:[^"\\]|\\.)*)"|([()])|[^\s()"]+', text):
        if found.group(1) is not None:
            tokens.append(re.sub(rb"\\(.)", rb"\1", found.group(1)))
        else:
            tokens.append(found.group(0).decode("latin-1"))


def tree(tokens):
    """The list that begins with the first `(`."""
    stack = [[]]
    for token in tokens[tokens.index("(") :]:
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            stack[-1].append(done)
            if len(stack) == 1:
                return done
        else:
            stack[-1].append(token)
    raise AssertionError(tokens)


def structures(answers):
    """By message number: ENVELOPE and BODYSTRUCTURE."""
    found = {}
    for tokens in answers:
        if tokens[:1] == ["*"] and tokens[2:3] == ["FETCH"]:
            items = tree(tokens)
            found[int(tokens[1])] = dict(zip(items[::2], items[1::2]))
    return found


def differences(ours, theirs, path):
    """Paths where they differ; a list that has another length differs as a whole."""
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs), 1):
            yield from differences(one, other, f"{path}.{number}")
    elif ours != theirs:
        yield path, ours, theirs


# Differences that need no line for each message: whether a rule fits, by our value and Dovecot's.
RULES = {
    # RFC 2045 section 2: types, encodings and names of parameters have no case; Dovecot keeps that of the sender.
    "case": lambda ours, theirs: isinstance(ours, bytes) and isinstance(theirs, bytes) and ours.lower() == theirs.lower(),
    # RFC 2045 section 5.2: the charset of a text that names none. Dovecot says so beside other parameters, we only where there are none.
    "charset": lambda ours, theirs: isinstance(theirs, list)
    and theirs[-2:] == [b"charset", b"us-ascii"]
    and ours in (theirs[:-2], "NIL" if len(theirs) == 2 else None),
    # A last line without an end is a line; Dovecot counts ends of lines.
    "lines": lambda ours, theirs: isinstance(ours, str) and isinstance(theirs, str) and ours.isdigit() and theirs.isdigit() and int(ours) == int(theirs) + 1,
    # Blanks around a value are none of it, and those within stay as they are: Dovecot makes one of several, and of tabs and other controls.
    "blanks": lambda ours, theirs: isinstance(ours, bytes)
    and isinstance(theirs, bytes)
    and re.sub(rb"[\s\x80]+", b" ", ours).strip() == re.sub(rb"[\s]+|\xef\xbf\xbd", b" ", theirs).strip(),
    # RFC 5322 section 3.6: a field of addresses stands once; the first one counts. Dovecot joins several.
    "repeated": lambda ours, theirs: isinstance(ours, list)
    and isinstance(theirs, list)
    and len(ours) > 0
    and all(isinstance(address, list) and len(address) == 4 for address in ours + theirs)
    and ours == theirs[: len(ours)],
    # RFC 2231 section 3: parts of a parameter are sent as they are, for clients to join; Dovecot joins them.
    "continued": lambda ours, theirs: isinstance(ours, (list, bytes))
    and isinstance(theirs, (list, bytes))
    and any(isinstance(name, bytes) and re.search(rb"\*\d", name) for name in (ours if isinstance(ours, list) else [ours])),
}


def is_by_rule(ours, theirs):
    return any(rule(ours, theirs) for rule in RULES.values())


def maildir(files, to):
    for sub in ("new", "cur", "tmp"):
        (to / sub).mkdir(parents=True)
    for number, file in enumerate(files, 1):
        target = to / "cur" / f"{number:06}.a.h:2,S"
        shutil.copyfile(file, target)
        # UIDs are given in the order of these times.
        os.utime(target, (1_000_000_000 + number, 1_000_000_000 + number))


def of_dovecot(files, dir):
    maildir(files, dir / "mail")
    (dir / "dovecot.conf").write_text(
        f"base_dir = {dir}/run\nstate_dir = {dir}/run\nlog_path = {dir}/log\nprotocols = imap\nssl = no\nfirst_valid_uid = 0\n"
        f"first_valid_gid = 0\nmail_uid = {NOBODY}\nmail_gid = {NOBODY}\nmail_location = maildir:{dir}/mail\n"
    )
    (dir / "run").mkdir()
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", dir], check=True)
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    server = subprocess.Popen(
        [*as_nobody, "/usr/lib/dovecot/imap", "-c", str(dir / "dovecot.conf")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"USER": "nobody", "HOME": str(dir), "PATH": os.environ["PATH"]},
        bufsize=0,
    )
    answer = Answer(open(server.stdout.fileno(), "rb", closefd=False), server.stdin.write)
    greeting = answer.line()
    assert "PREAUTH" in greeting, greeting
    found = fetch(answer)
    server.kill()
    server.wait()
    return found


def of_posthaste(program, files, dir):
    maildir(files, dir / "posthaste-data/mail/example.org/ann/Maildir")
    password = subprocess.run([program, "password", "ann@example.org"], input=b"secret\n", stdout=subprocess.PIPE, check=True)
    (dir / "passwords").write_bytes(password.stdout)
    (dir / "posthaste.toml").write_text(
        'host_name = "mx.example.org"\n[auth]\nfile = "passwords"\n[[listener]]\naddress = "127.0.0.1:0"\n'
        '[[listener]]\naddress = "127.0.0.1:0"\nprotocol = "imap"\n[[domain]]\nname = "example.org"\nusers = ["ann"]\n'
    )
    with open(dir / "banner", "wb") as banner:
        server = subprocess.Popen([program, "serve"], cwd=dir, stdout=banner, stderr=banner)
    try:
        for _ in range(600):
            text = (dir / "banner").read_text()
            if "\nReady" in text:
                break
            assert server.poll() is None, text
            time.sleep(0.1)
        port = int(re.search(r"^ *imap +\S*:(\d+)$", text, re.MULTILINE).group(1))
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        answer = Answer(connection.makefile("rb"), connection.sendall)
        answer.line()
        answer.ask("LOGIN ann@example.org secret")
        return fetch(answer)
    finally:
        server.terminate()
        server.wait()


def fetch(answer):
    answer.ask("EXAMINE INBOX")
    return structures(answer.ask("FETCH 1:* (ENVELOPE BODYSTRUCTURE)"))


def name_of(file, corpus):
    """As in the file of differences: the messages that the project has itself are `synthetic` in the larger corpus."""
    name = file.relative_to(corpus).as_posix()
    return name if "/" in name else f"synthetic/{name}"


def main(program, corpus, explained, is_list):
    files = sorted(Path(corpus).rglob("*.eml"))
    assert len(files) >= 40, f"only {len(files)} messages in {corpus}"
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o755)
        for name in ("dovecot", "posthaste"):
            (Path(top) / name).mkdir()
        theirs = of_dovecot(files, Path(top) / "dovecot")
        ours = of_posthaste(program, files, Path(top) / "posthaste")
    assert len(ours) == len(theirs) == len(files), (len(ours), len(theirs), len(files))
    reasons = {}
    for line in Path(explained).read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, path, reason = line.split(None, 2)
            reasons[name, path] = reason
    left, unexplained, by_rule = set(reasons), 0, 0
    for number, file in enumerate(files, 1):
        for item in ("ENVELOPE", "BODYSTRUCTURE"):
            for path, one, other in differences(ours[number][item], theirs[number][item], item):
                if is_by_rule(one, other):
                    by_rule += 1
                    continue
                key = (name_of(file, corpus), path)
                if key in reasons:
                    left.discard(key)
                    continue
                unexplained += 1
                print(f"{key[0]} {path} ours {one!r} Dovecot {other!r}"[: 100_000 if is_list else 600])
    known = {name_of(file, corpus) for file in files}
    for name, path in sorted(left):
        if name in known:
            unexplained += 1
            print(f"{name} {path}: explained, but there is no difference")
    print(f"{len(files)} messages, {len(reasons) - len(left)} differences explained, {by_rule} by rules, {unexplained} not")
    return 1 if unexplained else 0


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--list"]
    sys.exit(main(*arguments, is_list="--list" in sys.argv))
