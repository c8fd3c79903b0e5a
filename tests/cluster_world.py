"""A cluster on this machine for tests/cluster_proof.py: three servers of NATS, three nodes, a sink, and a load for each node.

All ports are fixed, so it needs a network of its own.
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
import urllib.request
from pathlib import Path

NUMBERS = (1, 2, 3)
ENGINE = """
server_name: e{n}
host: "127.0.0.1"
port: 422{n}
http: "127.0.0.1:822{n}"
max_payload: 8388608
jetstream {{ store_dir: "{store}", max_file_store: 4000000000, sync_interval: always }}
cluster {{
    name: proof
    host: "127.0.0.1"
    port: 622{n}
    no_advertise: true
    routes: ["nats://127.0.0.1:6221", "nats://127.0.0.1:6222", "nats://127.0.0.1:6223"]
}}
"""
NODE = """
host_name = "n{n}.example"
[storage]
data = "{data}"
spool_segment_bytes = "4M"
spool_segments = 16
[[listener]]
address = "127.0.0.1:252{n}"
[[domain]]
name = "n{n}.example"
aliases = {{ postmaster = "ops@there.example" }}
[relay]
networks = ["127.0.0.1"]
unreachable_secs = 1
[[relay.route]]
host = "[127.0.0.1]"
port = 2600
[relay.schedule.default]
first_secs = 2
longest_secs = 4
[cluster]
node = "n{n}"
servers = {servers}
monitors = ["127.0.0.1:8221", "127.0.0.1:8222", "127.0.0.1:8223"]
log_bytes = "512M"
"""
SHARD = '[[cluster.shard]]\nnumber = {n}\nhome = "n{n}"\nstandbys = ["n{a}", "n{b}"]\n'
# Of each load.
CONNECTIONS = 10
# Longest time for anything that must happen by itself.
PATIENCE = 150


class Failed(Exception):
    """A promise is broken, or something that must happen does not."""


def wait_for(name, look, seconds=PATIENCE):
    """The first true answer of `look`."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise Failed(f"not within {seconds} s: {name}")
        time.sleep(0.5)
    return found


class Process:
    """A program that is started, killed and started again in a directory."""

    def __init__(self, name, dir):
        self.name, self.dir, self.process, self.is_stopped = name, dir, None, False

    def start(self, *command, **options):
        with open(self.dir / f"{self.name}.log", "a") as log:
            self.process = subprocess.Popen([str(word) for word in command], cwd=self.dir, stderr=log, **{"stdout": log} | options)

    def send(self, number):
        self.process.send_signal(number)
        self.is_stopped = number == signal.SIGSTOP

    def kill(self):
        self.send(signal.SIGKILL)
        self.process.wait()

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def end(self):
        if self.is_running():
            self.kill()


class Disk:
    """A disk of its own for a directory: in memory, or an image with ext4, which can lose its power."""

    def __init__(self, place, has_power_cuts):
        self.place, self.image = place, place.with_suffix(".disk") if has_power_cuts else None
        place.mkdir()
        if self.image:
            with open(self.image, "wb") as image:
                image.truncate(2 << 30)
            subprocess.run(["mkfs.ext4", "-q", "-F", self.image], check=True)
        self.mount()

    def mount(self):
        options = ["-o", "loop", self.image] if self.image else ["-t", "tmpfs", "-o", "size=400m", "disk"]
        subprocess.run(["mount", *options, self.place], check=True)

    def cut(self):
        """What is not synced is gone, and so is the journal that is not written: nothing reaches the image any more."""
        place = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(place, EXT4_SHUTDOWN, struct.pack("I", WITHOUT_JOURNAL))
        finally:
            os.close(place)

    def restart(self):
        """After a cut, once no process uses it."""
        subprocess.run(["umount", self.place], check=True)
        self.mount()


# EXT4_IOC_SHUTDOWN, and EXT4_GOING_FLAGS_NOLOGFLUSH.
EXT4_SHUTDOWN, WITHOUT_JOURNAL = 0x8004587D, 2


class Engine(Process):
    """A server of NATS."""

    def __init__(self, number, dir):
        super().__init__(f"e{number}", dir)
        self.number, self.store = number, dir / f"e{number}"
        (dir / f"e{number}.conf").write_text(ENGINE.format(n=number, store=self.store))

    def run(self):
        self.start(os.environ.get("NATS_SERVER", "nats-server"), "-c", f"{self.name}.conf")

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:822{self.number}/{path}", timeout=2) as answer:
                return json.load(answer)
        except OSError:
            return None

    def leader(self, shard):
        """The number of the server that leads the log of a shard, as this one knows it."""
        for account in (self.get("jsz?streams=true&accounts=true") or {}).get("account_details") or []:
            for stream in account.get("stream_detail") or []:
                if stream["name"] == log_of(shard):
                    name = (stream.get("cluster") or {}).get("leader") or ""
                    return int(name[1:]) if name else None
        return None

    def ask(self, call, body=""):
        """A request to JetStream, by its subject."""
        with socket.create_connection(("127.0.0.1", 4220 + self.number), timeout=10) as connection:
            connection.sendall(f'CONNECT {{"verbose":false}}\r\nSUB answer 1\r\nPUB $JS.API.{call} answer {len(body)}\r\n{body}\r\n'.encode())
            said = connection.makefile("rb")
            while not (line := said.readline()).startswith(b"MSG"):
                if not line or line.startswith(b"-ERR"):
                    raise OSError(f"{self.name}: {line}")
            answer = json.loads(said.read(int(line.split()[-1])))
        if "error" in answer:
            raise OSError(f"{call}: {answer['error']}")
        return answer


class Node(Process):
    """A node, the home of the shard of its number."""

    def __init__(self, number, dir, program, servers):
        super().__init__(f"n{number}", dir)
        self.number, self.program, self.data = number, program, dir / f"n{number}"
        self.is_wanted, self.restarts = False, 0
        shards = "".join(SHARD.format(n=n, a=n % 3 + 1, b=(n + 1) % 3 + 1) for n in NUMBERS)
        self.text = NODE.format(n=number, data="{data}", servers=json.dumps(servers)) + shards
        self.configure(self.data)

    def configure(self, data):
        self.data = data
        (self.dir / f"{self.name}.toml").write_text(self.text.replace("{data}", str(data)))

    def run(self):
        self.is_wanted = True
        self.start(self.program, "serve", "--config", f"{self.name}.toml")

    def kill(self):
        self.is_wanted = False
        super().kill()

    def serve_again(self):
        """What a service manager does: one that ended by itself is started again, as one does that finds no engine."""
        if self.is_wanted and not self.is_running():
            self.restarts += 1
            self.run()

    def command(self, *words, timeout=30):
        command = [self.program, *words, "--config", f"{self.name}.toml"]
        return subprocess.run(command, cwd=self.dir, capture_output=True, text=True, timeout=timeout)

    def shards(self):
        """The shards as it knows them, by number; none if it does not answer."""
        self.serve_again()
        if self.is_stopped or not self.is_running():
            return {}
        try:
            said = self.command("cluster", "status", "--json").stdout
            return {shard["shard"]: shard for shard in json.loads(said)["shards"]}
        except (ValueError, subprocess.TimeoutExpired):
            return {}


class Relays(Process):
    """TCP relays: one between each node and each server of the engine, in that order."""

    def __init__(self, dir, program):
        super().__init__("relays", dir)
        servers = [f"127.0.0.1:422{engine}" for _ in NUMBERS for engine in NUMBERS]
        self.start(program, *servers, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addresses = [self.process.stdout.readline().strip() for _ in servers]

    def switch(self, node, *words):
        """Switches the three relays of a node."""
        for engine in NUMBERS:
            print((node - 1) * 3 + engine - 1, *words, file=self.process.stdin, flush=True)
            if self.process.stdout.readline().strip() != "ok":
                raise Failed(f"the relays do not know {words}")


class World:
    """Everything of a round."""

    def __init__(self, dir, program, relay, rate, seed, disks=None):
        self.dir, self.program, self.rate, self.seed = dir, program, rate, seed
        self.relays = Relays(dir, relay) if relay else None
        self.engines = {number: Engine(number, dir) for number in NUMBERS}
        of_node = lambda node: self.relays.addresses[node * 3 - 3:node * 3] if self.relays else [f"127.0.0.1:422{n}" for n in NUMBERS]
        self.nodes = {number: Node(number, dir, program, of_node(number)) for number in NUMBERS}
        self.sink = Process("sink", dir)
        self.loads = {}
        places = [(engine, engine.store) for engine in self.engines.values()] + [(node, node.data) for node in self.nodes.values()]
        self.disks = {process: Disk(place, disks == "power") for process, place in places} if disks else {}

    def start(self):
        for engine in self.engines.values():
            engine.run()
        wait_for("the engine has a leader", lambda: (self.engines[1].get("jsz") or {}).get("meta_cluster", {}).get("leader"))
        for node in self.nodes.values():
            node.run()
        self.wait_until_well()
        for node in self.nodes.values():
            node.restarts = 0

    def wait_until_well(self, homes=True):
        """All members are in sync, and each home owns its shard."""
        try:
            wait_for("all members are in sync", lambda: self.is_well(homes))
        except Failed as failed:
            told = ("owner", "epoch", "role", "in_sync", "seeding", "end", "members", "troubles")
            raise Failed(f"{failed}: {[{name: it.get(name) for name in told} | {'shard': number} for number, it in self.shards().items()]}") from None

    def is_well(self, homes):
        shards = self.shards()
        return len(shards) == 3 and all(len(it["in_sync"]) == 3 and it.get("owner") and (not homes or it["owner"] == it["home"]) for it in shards.values())

    def shards(self):
        """The shards as some node knows them, with the queue as its owner knows it."""
        merged = {}
        for node in self.nodes.values():
            for number, shard in node.shards().items():
                is_owner = shard.get("owner") == node.name
                if is_owner or number not in merged:
                    merged[number] = shard | {"queued": shard.get("queued") if is_owner else None}
        return merged

    def owners(self):
        return {number: (it.get("owner"), it["epoch"]) for number, it in self.shards().items()}

    def serve_sink(self, *options):
        self.sink.start(self.program, "sink", "127.0.0.1:2600", "--account", "sink.jsonl", *options)

    def load(self, size, share=1):
        for number in NUMBERS:
            load = self.loads[number] = Process(f"load{number}", self.dir)
            report = open(self.dir / f"load{number}.json", "w")
            load.start(
                self.program, "load", f"127.0.0.1:252{number}", "--rate", max(1, int(self.rate * share)), "--connections", CONNECTIONS, "--duration", "1h", "--give-up", "1h",
                "--timeout", "90s", "--drain", "90s", "--size", size, "--from", "load@here.example", "--domain", "there.example", "--users", "50",
                "--seed", self.seed * 3 + number, "--acked", f"acked{number}", "--json", "--quiet", stdout=report)
            report.close()

    def stop_load(self):
        """Ends all loads. Their reports."""
        for load in self.loads.values():
            load.send(signal.SIGTERM)
        for load in self.loads.values():
            load.process.wait(PATIENCE)
        return [json.loads((self.dir / f"load{number}.json").read_text()) for number in NUMBERS]

    def panics(self):
        return [line for node in self.nodes.values() for line in open(self.dir / f"{node.name}.log") if "panicked" in line]

    def wait_until_delivered(self):
        def is_empty():
            shards = self.shards()
            return len(shards) == 3 and all(it.get("queued") == 0 for it in shards.values())
        wait_for("all queues are empty", is_empty)

    def spools(self):
        """Ends the nodes. All mail in the shards of their homes, as files."""
        for node in self.nodes.values():
            node.end()
            spool = node.data / "cluster" / f"shard-{node.number}"
            subprocess.run([self.program, "spool", "export", "--to", f"{node.name}-mail", spool], cwd=self.dir, check=True, capture_output=True)
        return [f"{node.name}-mail" for node in self.nodes.values()]

    def account(self, spools=()):
        """Compares what was acknowledged to each load with what the sink has, and these spools."""
        accounts = []
        for number in NUMBERS:
            command = [self.program, "load", "account", f"acked{number}", "sink.jsonl", *spools, "--copies", "message", "--settle", "5s", "--json"]
            said = subprocess.run(command, cwd=self.dir, capture_output=True, text=True)
            if not said.stdout:
                raise Failed(f"no account: {said.stderr}")
            accounts.append(json.loads(said.stdout))
        return accounts

    def end(self):
        for process in [*self.loads.values(), *self.nodes.values(), self.sink, *self.engines.values(), self.relays]:
            if process:
                process.end()
        for disk in self.disks.values():
            subprocess.run(["umount", disk.place])

    def remove(self):
        shutil.rmtree(self.dir)


def log_of(shard):
    return f"posthaste-log-{shard}"
