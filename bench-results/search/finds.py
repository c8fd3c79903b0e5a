#!/usr/bin/env python3
"""finds.py ROUNDS NAME=PROGRAM:INDEX... [mu=DIR] [notmuch=CONFIG]: the newest 50 of each query, all sides in turns.

Prints for each query and side the least and the median of wall and CPU time in ms. DIR is mu's cache (XDG_CACHE_HOME), CONFIG notmuch's configuration, both as
compare.py leaves them in SCRATCH.
"""
import os, statistics, subprocess, sys, time

QUERIES = ["kernel", "zynqmp", "qqqzzz", "subject:patch", "from:guenter", '"device tree"', "temper*", "kernel and temperature", "patch and not hwmon"]
rounds, sides = int(sys.argv[1]), {}
environment = dict(os.environ, TZ="UTC")
for word in sys.argv[2:]:
    name, where = word.split("=", 1)
    if name == "mu":
        environment["XDG_CACHE_HOME"] = where
        sides[name] = ["mu", "find", "--maxnum", "50", "--sortfield", "date", "--reverse"]
    elif name == "notmuch":
        environment["NOTMUCH_CONFIG"] = where
        sides[name] = ["notmuch", "search", "--limit=50", "--output=summary"]
    else:
        program, index = where.split(":")
        sides[name] = [program, "find", "-n", "50", "--index", index]

def run(command):
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    child.stdout.read()
    _, child.returncode, used = os.wait4(child.pid, 0)
    return time.perf_counter() - begun, used.ru_utime + used.ru_stime

for query in QUERIES:
    times = {name: [] for name in sides}
    for number in range(-2, rounds):
        for name, command in sides.items():
            taken = run([*command, query])
            if number >= 0:
                times[name].append(taken)
    for name, taken in times.items():
        wall, cpu = ([1000 * value for value in column] for column in zip(*taken))
        print(f"{query:26} {name:10} wall {min(wall):6.2f} {statistics.median(wall):6.2f}  cpu {min(cpu):6.2f} {statistics.median(cpu):6.2f}  load {os.getloadavg()[0]:.0f}", flush=True)
