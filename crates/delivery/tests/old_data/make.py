#!/usr/bin/env python3
"""Makes old-data.tar.gz: a data directory as a program that keeps its mail in segments of `PHJRNL\\0\\1` leaves it.

    make.py POSTHASTE ARCHIVE     (POSTHASTE: a program of that time, such as one built at the commit before mail moved into the spool)

Needs root, strace and GNU tar. The archive has two parts:
    before/   the data directory, its server killed in the midst of a checkpoint, and then damaged as a power cut would damage it
    after/    the mailboxes after the same program was started on it once more, the mailbox that could not be written to mended before

What is in before/:
    ann, ben, cat   mailboxes with mail of which the journal knows nothing any more (a checkpoint has forgotten it), and with mail that it still has:
                    whole, moved to cur/ by its owner, cut to half, gone (as if never delivered), removed by its owner
    bad             a mailbox that cannot be written to: a file stands in its place. Mail waits for it alone, for it and others
                    (the record was narrowed to it), and a body of more than 1 MiB, in a file of its own
    journal         live records (one and several targets, large bodies), notes of what was delivered, of why mail waits, and that a
                    sync of the mail had begun whose end nobody knows
"""

import json
import os
import shutil
import signal
import smtplib
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = """
host_name = "mx.example.org"
[storage]
journal_segment_bytes = 4194304
checkpoint_secs = {checkpoint_secs}
[[listener]]
address = "127.0.0.1:{port}"
protocol = "lmtp"
[[domain]]
name = "example.org"
users = ["ann", "ben", "cat", "bad"]
"""


def until(what, holds):
    deadline = time.monotonic() + 60
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"never: {what}")
        time.sleep(0.02)


class Place:
    def __init__(self, program, directory):
        self.program, self.dir = program, directory
        self.mail = directory / "posthaste-data/mail/example.org"

    def start(self, checkpoint_secs, wrapper=()):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        config = CONFIG.format(checkpoint_secs=checkpoint_secs, port=self.port)
        (self.dir / "posthaste.toml").write_text(config)
        log = open(self.dir / "log", "w")
        self.process = subprocess.Popen([*wrapper, self.program, "serve"], cwd=self.dir, stdout=log, stderr=log)
        until("the server is ready", lambda: "Ready;" in (self.dir / "log").read_text())

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def send(self, subject, users):
        line = f"A line of {subject}.\r\n"
        # Over 1 MiB it goes to a file of its own.
        lines = (1 << 20) // len(line) + 1 if "large" in subject else 3
        body = f"Subject: {subject}\r\n\r\n" + line * lines
        client = smtplib.LMTP("127.0.0.1", self.port)
        client.sendmail("sender@example.net", [f"{user}@example.org" for user in users], body)
        client.quit()

    def journal(self):
        output = subprocess.run([self.program, "journal", "inspect", "posthaste-data", "--json"],
                                cwd=self.dir, capture_output=True, check=True).stdout
        return json.loads(output)

    def waiting(self):
        """For each message and mailbox that was tried in vain, the mailbox."""
        boxes = [box for message in self.journal()["undelivered"] for box in message["mailboxes"]]
        return [box["mailbox"].split("/")[1] for box in boxes if box["error"] is not None]

    def find(self, user, subject):
        """The file of that message."""
        for sub in ["new", "cur"]:
            for path in sorted((self.mail / user / "Maildir" / sub).glob("*")):
                if f"Subject: {subject}\n".encode() in path.read_bytes():
                    return path
        return None

    def wait_for(self, user, *subjects):
        for subject in subjects:
            until(f"{subject} is in the mailbox of {user}", lambda: self.find(user, subject))

    def obstruct(self, user):
        (self.mail / user).mkdir(parents=True)
        (self.mail / user / "Maildir").write_text("not a mailbox\n")


def make_before(place):
    place.obstruct("bad")

    # Finished by the checkpoint at the end: the journal forgets it.
    place.start(checkpoint_secs=86400)
    place.send("finished", ["ann", "ben"])
    place.send("finished and large", ["cat"])
    place.wait_for("ann", "finished")
    place.wait_for("ben", "finished")
    place.wait_for("cat", "finished and large")
    place.stop()

    # Waits for one mailbox; the checkpoint that ends this life leaves of the second and the third record what is still missing.
    place.start(checkpoint_secs=86400)
    place.send("waits", ["bad"])
    place.send("waits in part", ["ann", "bad"])
    place.send("waits in part and large", ["cat", "bad"])
    place.wait_for("ann", "waits in part")
    place.wait_for("cat", "waits in part and large")
    until("each has been tried", lambda: place.waiting() == ["bad"] * 3)
    place.stop()

    # Behind the last checkpoint. The next one begins when the server is told to stop, and is cut short where it syncs the mail.
    # On a mount of its own, which is gone when the server is: to whoever opens the data later, the machine has been started anew.
    mount = ["unshare", "--mount", "sh", "-c", 'mount --bind . . && cd "$PWD" && exec "$@"', "mount"]
    before = place.journal()["checkpoint"]
    place.start(checkpoint_secs=86400, wrapper=mount)
    until("the checkpoint behind the opening", lambda: place.journal()["checkpoint"] > before)
    place.send("whole", ["ann"])
    place.send("whole in two", ["ann", "ben"])
    place.send("moved", ["ann", "ben"])
    place.send("removed", ["ben", "cat"])
    place.send("cut", ["ann", "ben"])
    place.send("gone", ["ann", "ben", "cat"])
    place.send("large", ["cat", "ben"])
    place.send("large and gone", ["cat"])
    place.send("new and waits", ["cat", "bad"])
    for user, subjects in {
        "ann": ["whole", "whole in two", "moved", "cut", "gone"],
        "ben": ["whole in two", "moved", "removed", "cut", "gone", "large"],
        "cat": ["removed", "gone", "large", "large and gone", "new and waits"],
    }.items():
        place.wait_for(user, *subjects)
    until("the last has been tried", lambda: place.waiting().count("bad") == 4)
    moved = place.find("ann", "moved")
    moved.rename(moved.parent.parent / "cur" / (moved.name + ":2,S"))
    place.find("ben", "removed").unlink()
    strace = ["strace", "-f", "-o", "/dev/null", "-e", "trace=syncfs", "-e", "inject=syncfs:signal=KILL"]
    tracer = subprocess.Popen([*strace, "-p", str(place.process.pid)], stderr=subprocess.DEVNULL)
    threads = Path(f"/proc/{place.process.pid}/task")
    until("every thread is traced", lambda: all("TracerPid:\t0" not in status.read_text() for status in threads.glob("*/status")))
    place.process.send_signal(signal.SIGTERM)
    killed = place.process.wait() == -signal.SIGKILL
    tracer.wait()
    if not killed:
        sys.exit("the server was not killed in the midst of its checkpoint")

    # As a power cut leaves what was not synced.
    for user, subject in [("ann", "gone"), ("ben", "gone"), ("cat", "gone"), ("cat", "large and gone")]:
        place.find(user, subject).unlink()
    for user in ["ann", "ben"]:
        cut = place.find(user, "cut")
        os.truncate(cut, cut.stat().st_size // 2)


def main():
    program, archive = (Path(argument).resolve() for argument in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        (scratch / "made").mkdir()
        place = Place(program, scratch / "made")
        make_before(place)
        pack = scratch / "pack"
        shutil.copytree(place.dir / "posthaste-data", pack / "before", symlinks=True)
        (place.mail / "bad/Maildir").unlink()
        place.start(checkpoint_secs=86400)
        place.wait_for("bad", "waits", "waits in part", "waits in part and large", "new and waits")
        place.stop()
        shutil.copytree(place.mail.parent, pack / "after", symlinks=True)
        for empty in pack.rglob("lock"):
            empty.write_bytes(b"")
        tar = ["tar", "--sort=name", "--mtime=@1700000000", "--owner=0", "--group=0", "--numeric-owner", "--sparse"]
        subprocess.run([*tar, "--use-compress-program=gzip -9n", "-cf", archive, *sorted(os.listdir(pack))],
                       cwd=pack, check=True)
        print(f"{archive}: {archive.stat().st_size} bytes")


main()
