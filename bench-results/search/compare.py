#!/usr/bin/env python3
"""compare.py MAIL SCRATCH ROUNDS NAME=PROGRAM... [mu] [notmuch]: first indexes and queries, all sides in turns.

Writes a line of JSON for each run to standard output: wall and CPU time in seconds, peak memory in KB. A side named `NAME=PROGRAM+ARGS` gets ARGS
(separated by commas) behind `index`.
"""
import json, os, shutil, subprocess, sys, time

mail, scratch, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
QUERIES = ["kernel", "zynqmp", "qqqzzz", "subject:patch", "from:guenter", '"device tree"', "temper*", "kernel and temperature", "patch and not hwmon"]
os.makedirs(scratch, exist_ok=True)
environment = dict(os.environ, TZ="UTC", XDG_CACHE_HOME=f"{scratch}/mu", NOTMUCH_CONFIG=f"{scratch}/notmuch.conf")

def run(command):
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    lines = child.stdout.read().count(b"\n")
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = status
    return {"wall": round(time.perf_counter() - begun, 5), "cpu": round(used.ru_utime + used.ru_stime, 5), "kb": used.ru_maxrss, "lines": lines}

def say(**row):
    print(json.dumps(row), flush=True)

def octets(path):
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(path) for f in files)

sides = {}
for word in sys.argv[4:]:
    if "=" in word:
        name, program = word.split("=", 1)
        program, *more = program.split("+")
        index = f"{scratch}/{name}"
        sides[name] = (index, [program, "index", "--quiet", *(more[0].split(",") if more else []), "--index", index, mail],
                       [program, "find", "-n", "50", "--index", index])
    elif word == "mu":
        sides["mu"] = (f"{scratch}/mu", ["mu", "index", "--quiet"], ["mu", "find", "--maxnum", "50", "--sortfield", "date", "--reverse"])
    else:
        with open(f"{scratch}/notmuch.conf", "w") as out:
            out.write(f"[database]\nmail_root={mail}\npath={scratch}/notmuch\n[user]\nname=x\nprimary_email=x@bench.example\n[new]\ntags=\n[maildir]\nsynchronize_flags=false\n")
        sides["notmuch"] = (f"{scratch}/notmuch", ["notmuch", "new", "--quiet"], ["notmuch", "search", "--limit=50", "--output=summary"])

for name in os.listdir(mail):
    for sub in ("cur", "new"):
        directory = f"{mail}/{name}/{sub}"
        for file in os.listdir(directory) if os.path.isdir(directory) else []:
            with open(f"{directory}/{file}", "rb") as data:
                data.read()
for number in range(rounds):
    for name, (index, command, _) in sides.items():
        # Theirs take minutes: once, and not if SCRATCH has them.
        if name in ("mu", "notmuch") and os.path.isdir(index):
            continue
        shutil.rmtree(index, ignore_errors=True)
        os.makedirs(index)
        if name == "mu":
            subprocess.run(["mu", "init", f"--maildir={mail}"], env=environment, check=True, stdout=subprocess.DEVNULL)
        os.sync()
        say(what="index", side=name, round=number, load=os.getloadavg()[0], **run(command), octets=octets(index))
for number in range(rounds * 4):
    for query in QUERIES:
        for name, (_, _, command) in sides.items():
            say(what="find", side=name, round=number, query=query, load=os.getloadavg()[0], **run([*command, query]))
