#!/usr/bin/env python3
"""Breaks a cluster on real servers of NATS while mail flows through it, and accounts for every acknowledged message.

    tests/cluster_proof.py PROGRAM [FAULT…] [--rounds N] [--seed N] [--rate N] [--dir DIR]
    tests/cluster_proof.py --list

Each round is a cluster of its own: three servers, three nodes, a load for each node, a sink. A seed chooses moments, victims, and a sink that is fast, slow, or
away until the fault, so that mail waits. A line of JSON tells each round. Exit status 1: mail is lost or altered, is sent twice outside the documented window, or a fault is
not survived as docs/cluster.md says; then the round's directory is kept.

PROGRAM is built with the feature `cluster`. NATS_SERVER names another nats-server than that of the path. RELAY is the example `tcp_relay` of testkit/tcp-relay:
without it, faults of the network are left out. Needs root: it makes a network of its own.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

# No caches beside the sources.
sys.dont_write_bytecode = True

import cluster_faults
from cluster_world import Failed, World


def run_round(options, fault, seed):
    """The line of a round, and whether all promises were kept."""
    random_of_round = random.Random(f"{seed} {fault.__name__}")
    # Nodes and servers have it as their working directory.
    dir = Path(tempfile.mkdtemp(prefix=f"{fault.__name__}-{seed}-", dir=options.dir)).resolve()
    world = World(dir, os.path.realpath(options.program), os.environ.get("RELAY"), options.rate, seed, fault.disks)
    line = {"fault": fault.__name__, "seed": seed}
    try:
        world.start()
        line |= cluster_faults.under_load(world, fault, random_of_round)
        line["ok"] = True
    except Exception as error:
        line |= {"ok": False, "why": f"{type(error).__name__}: {error}", "dir": str(dir)}
        if not isinstance(error, Failed):
            traceback.print_exc()
    finally:
        world.end()
    if line["ok"] and not options.keep:
        world.remove()
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", nargs="?")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="default: all")
    parser.add_argument("--rounds", type=int, default=1, help="of each fault")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each round has the next one")
    parser.add_argument("--rate", type=int, default=20, help="messages a second, of each load")
    parser.add_argument("--dir", help="directory for data")
    parser.add_argument("--keep", action="store_true", help="keep the directories of all rounds")
    parser.add_argument("--list", action="store_true", help="print the faults")
    options = parser.parse_args()
    if options.list:
        for name, fault in cluster_faults.FAULTS.items():
            print(f"{name:28} {fault.__doc__}")
        return
    if not options.program:
        parser.error("PROGRAM is missing")
    if "IN_OWN_NETWORK" not in os.environ:
        os.environ["IN_OWN_NETWORK"] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv])
    os.system("ip link set lo up")
    # The round that runs ends all that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    unknown = set(options.faults) - set(cluster_faults.FAULTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; see --list")
    failed = 0
    for seed in range(options.seed, options.seed + options.rounds):
        for name in options.faults or cluster_faults.FAULTS:
            if cluster_faults.FAULTS[name].network and "RELAY" not in os.environ:
                print(json.dumps({"fault": name, "skipped": "RELAY is not set"}), flush=True)
                continue
            begun = time.monotonic()
            line = run_round(options, cluster_faults.FAULTS[name], seed)
            print(json.dumps(line | {"seconds": round(time.monotonic() - begun, 1)}), flush=True)
            failed += not line["ok"]
    sys.exit(failed > 0)


main()
