#!/usr/bin/env python3
"""Asks a real server what its own document of the API says, and much that it does not: with schemathesis.

    tests/api.py PROGRAM

Needs schemathesis for Python, and promtool to check a scrape. EXAMPLES is the number of requests for each route (default 20).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PROGRAM = os.path.realpath(sys.argv[1])
PATIENCE = 30
EXAMPLES = os.environ.get("EXAMPLES", "20")
SCOPES = "inject,queue:read,queue:write,route,suppression,events:read,mail:read,accounts,server:read,metrics"
# Without server:drain: the server is to live on.
# An address or a template of the right type can be wrong in itself, and wrong tokens are answered more and more slowly: other tests have both.
LEFT_OUT = "positive_data_acceptance,ignored_auth"
# Its answer never ends.
STREAM = "/api/events/v1"
CONFIG = """
host_name = "mx.here.example"
[[listener]]
address = "127.0.0.1:0"
[[listener]]
address = "127.0.0.1:0"
protocol = "http"
[[domain]]
name = "here.example"
users = "any"
[storage]
spool_segment_bytes = 4194304
[relay]
networks = ["127.0.0.1"]
[dns]
servers = ["127.0.0.1:9"]
[http]
token_rate = "10000/second"
"""


def wait_for(what, look):
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} does not come")
        time.sleep(0.05)
    return found


def get(url, secret):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {secret}"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return answer.read()


def check_metrics(scrape):
    """Has Prometheus' own tool look at a scrape: its form, and how metrics are named."""
    promtool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if promtool is None:
        return print("skip  promtool is not installed")
    checked = subprocess.run([promtool, "check", "metrics"], input=scrape, capture_output=True)
    if checked.returncode:
        raise SystemExit(f"promtool check metrics: {checked.stdout.decode()}{checked.stderr.decode()}")
    print(f"ok    promtool check metrics, {len(scrape.splitlines())} lines")


def main():
    with tempfile.TemporaryDirectory() as dir:
        (Path(dir) / "posthaste.toml").write_text(CONFIG)
        log = Path(dir) / "log"
        with open(log, "w") as out:
            server = subprocess.Popen([PROGRAM, "serve"], cwd=dir, stdout=out, stderr=out)
        try:
            url = wait_for("the server", lambda: re.search(r"page +(http://127\.0\.0\.1:\d+)/", log.read_text()))
            address = url.group(1)
            secret_file = Path(dir) / "secret"
            subprocess.run([PROGRAM, "token", "add", "api", "--scope", SCOPES, "--output", secret_file], cwd=dir, check=True)
            secret = secret_file.read_text().strip()
            document = Path(dir) / "openapi.json"
            document.write_bytes(get(f"{address}/api/openapi.json", secret))
            check_metrics(get(f"{address}/metrics", secret))
            schemathesis = Path(sys.executable).parent / "schemathesis"
            asked = subprocess.run(
                [schemathesis, "run", document, "--url", address, "--header", f"Authorization: Bearer {secret}",
                 "--checks", "all", "--exclude-checks", LEFT_OUT, "--exclude-path", STREAM, "--max-examples", EXAMPLES, "--seed", "1", "--generation-database", "none",
                 "--request-timeout", str(PATIENCE), "--no-color"],
                cwd=dir,
            )
            told = log.read_text()
            broken = [line for line in told.splitlines() if "panicked" in line or "level=ERROR" in line]
            print("\n".join(broken))
            alive = server.poll() is None and get(f"{address}/health/live", secret) == b"live\n"
            if asked.returncode or broken or not alive:
                raise SystemExit(f"schemathesis: {asked.returncode}, alive: {alive}, errors in the log: {len(broken)}")
        finally:
            server.terminate()
            server.wait(PATIENCE)


if __name__ == "__main__":
    main()
