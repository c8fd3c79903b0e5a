"""The faults of tests/cluster_proof.py. Each is a function of the world and a source of chance; it returns when the fault is over, with what is worth telling."""

import contextlib
import json
import os
import shutil
import signal
import time

from cluster_world import CONNECTIONS, NUMBERS, Failed, Process, log_of, wait_for
from stopped_clock import StoppedClock

FAULTS = {}
# Mail that a dead owner may have sent and not recorded, at most: docs/cluster.md.
RECORDED_LATE = 1000


def fault(doubles=0, refused=0, disks=None, stops=False, network=False, size="1k-20k", share=1, seconds=(3, 6)):
    """Registers a fault.

    doubles: messages that may come twice. refused: those that clients may be refused, but that are stored. disks: each server and node has one of its own, "small" or with "power" that can be cut. stops: shards do not go on after it.
    network: it needs the relays. size: of messages. share: of the rate. seconds: of load before it.
    """
    def register(function):
        function.doubles, function.disks, function.stops, function.size, function.seconds = doubles, disks, stops, size, seconds
        function.network, function.share, function.refused = network, share, refused
        FAULTS[function.__name__.replace("_", "-")] = function
        return function
    return register


def under_load(world, fault, chance):
    """Runs a fault while mail flows. Figures of the round."""
    # A slow sink has open transactions at any moment.
    sink = chance.choice(["away", "there", "slow"])
    if sink != "away":
        world.serve_sink(*(["--delay", "end-of-data=50ms..500ms"] if sink == "slow" else []))
    world.load(fault.size, fault.share)
    time.sleep(chance.uniform(*fault.seconds))
    figures = {"sink": sink} | (fault(world, chance) or {})
    if sink == "away":
        world.serve_sink()
    time.sleep(2)
    reports = world.stop_load()
    if fault.stops:
        return figures | verdict(world, fault, reports, world.spools())
    world.wait_until_delivered()
    return figures | verdict(world, fault, reports)


def verdict(world, fault, reports, spools=()):
    accounts = world.account(spools)
    of = lambda kind: sum(len(account[kind]) for account in accounts)
    figures = {kind: of(kind) for kind in ("lost", "altered", "duplicated", "unexpected")}
    figures["acked"] = sum(account["acked"] for account in accounts)
    # Answers 4yz, and connections that ended without one.
    figures["refused"], figures["broken"] = (sum(report["total"][kind] for report in reports) for kind in ("failed", "broken"))
    figures["longest_s"] = round(max(report["total"]["latency"]["max_us"] for report in reports) / 1e6, 1)
    figures["restarts"] = sum(node.restarts for node in world.nodes.values())
    if figures["lost"] or figures["altered"] or not figures["acked"]:
        raise Failed(f"{figures}")
    # A message that a client was refused after a minute may have been stored.
    if figures["duplicated"] > fault.doubles or figures["unexpected"] > fault.refused and figures["longest_s"] < 60:
        raise Failed(f"outside the window: {figures}")
    if world.panics():
        raise Failed(world.panics()[0])
    return figures


def take_over(world, shards, begun, seconds=60):
    """Waits until other nodes own these shards. The time since `begun`."""
    before = {shard: f"n{shard}" for shard in shards}
    def has_moved():
        owners = world.owners()
        return all(owners.get(shard, (None,))[0] not in (None, name) for shard, name in before.items())
    wait_for(f"another node owns {shards}", has_moved, seconds)
    return round(time.monotonic() - begun, 1)


def nothing_moved(world, before):
    wait_for("the shards are seen again", lambda: len(world.owners()) == 3)
    after = world.owners()
    if after != before:
        raise Failed(f"shards have moved: {before} {after}")


@fault(doubles=RECORDED_LATE)
def kill_owner(world, chance):
    """a node is killed; another one has its shard within 25 s"""
    victim = chance.choice(NUMBERS)
    world.nodes[victim].kill()
    seconds = take_over(world, [victim], time.monotonic())
    world.nodes[victim].run()
    world.wait_until_well(homes=False)
    return {"take_over_s": seconds}


@fault()
def kill_standby(world, chance):
    """a drained node is killed and comes back: nothing moves"""
    victim = chance.choice(NUMBERS)
    said = world.nodes[victim].command("cluster", "drain", timeout=60)
    if said.returncode != 0:
        raise Failed(said.stderr)
    wait_for("another node has its shard", lambda: world.owners().get(victim, (None,))[0] not in (None, f"n{victim}"))
    before = world.owners()
    world.nodes[victim].kill()
    time.sleep(chance.uniform(0, 10))
    nothing_moved(world, before)
    world.nodes[victim].run()
    world.wait_until_well(homes=False)
    nothing_moved(world, before)


@fault()
def kill_engine(world, chance):
    """a server of the engine is killed and comes back: nothing moves"""
    before = world.owners()
    return kill_engines(world, chance, [chance.choice(NUMBERS)], before)


@fault()
def kill_engine_leader(world, chance):
    """the server that leads a shard's log is killed and comes back: nothing moves"""
    before = world.owners()
    leader = wait_for("a log has a leader", lambda: world.engines[1].leader(chance.choice(NUMBERS)))
    return kill_engines(world, chance, [leader], before)


def kill_engines(world, chance, victims, before):
    for victim in victims:
        world.engines[victim].kill()
    time.sleep(chance.uniform(0, 12))
    for victim in victims:
        world.engines[victim].run()
    # Longer than a take-over needs.
    time.sleep(15)
    nothing_moved(world, before)


@fault(doubles=RECORDED_LATE)
def kill_owner_and_leader(world, chance):
    """a node and the server that leads its log are killed at once; another node has its shard within 40 s"""
    victim = chance.choice(NUMBERS)
    leader = wait_for("its log has a leader", lambda: world.engines[1].leader(victim))
    world.engines[leader].kill()
    world.nodes[victim].kill()
    begun = time.monotonic()
    time.sleep(chance.uniform(0, 20))
    world.engines[leader].run()
    seconds = take_over(world, [victim], begun)
    world.nodes[victim].run()
    world.wait_until_well(homes=False)
    return {"take_over_s": seconds}


@fault(doubles=3 * RECORDED_LATE)
def kill_all(world, chance):
    """all nodes and all servers of the engine are killed at once, and start again"""
    processes = [*world.nodes.values(), *world.engines.values()]
    chance.shuffle(processes)
    for process in processes:
        process.send(signal.SIGKILL)
    for process in processes:
        process.process.wait()
    time.sleep(chance.uniform(0, 5))
    begun = time.monotonic()
    for process in [*world.engines.values(), *world.nodes.values()]:
        process.run()
    world.wait_until_well(homes=False)
    return {"back_s": round(time.monotonic() - begun, 1)}


@fault(doubles=RECORDED_LATE)
def stop_owner(world, chance):
    """a node stands still for 30 s and goes on: another one has its shard, and it sends nothing more"""
    victim = chance.choice(NUMBERS)
    world.nodes[victim].send(signal.SIGSTOP)
    begun = time.monotonic()
    seconds = take_over(world, [victim], begun)
    time.sleep(max(0, begun + 30 - time.monotonic()))
    world.nodes[victim].send(signal.SIGCONT)
    world.wait_until_well(homes=False)
    return {"take_over_s": seconds}


# What it had under way when it loses the shard is not decided: nothing that needs a time goes on.
@fault(doubles=RECORDED_LATE, refused=CONNECTIONS)
def stop_clock(world, chance):
    """all clocks of a node stand still for a minute while it runs: another one has its shard"""
    victim = chance.choice(NUMBERS)
    node = world.nodes[victim]
    node.send(signal.SIGSTOP)
    clock = StoppedClock(node.process.pid)
    node.process.send_signal(signal.SIGCONT)
    begun = time.monotonic()
    # Its commands would wait for ever.
    seconds = take_over(world, [victim], begun)
    time.sleep(max(0, begun + 60 - time.monotonic()))
    clock.go_on()
    node.is_stopped = False
    world.wait_until_well(homes=False)
    return {"take_over_s": seconds}


@fault()
def pause_engine(world, chance):
    """all servers of the engine stand still for 25 s: clients wait, nothing moves"""
    before = world.owners()
    for engine in world.engines.values():
        engine.send(signal.SIGSTOP)
    time.sleep(25)
    for engine in world.engines.values():
        engine.send(signal.SIGCONT)
    time.sleep(15)
    nothing_moved(world, before)


@fault(doubles=RECORDED_LATE, network=True)
def one_way(world, chance):
    """the engine's answers to an owner stand still for 13 s: it acts no longer than its lease"""
    return stall(world, chance, 13, chance.choice(["to-client", "to-server"]))


@fault(doubles=RECORDED_LATE, network=True)
def one_way_long(world, chance):
    """an owner is cut off one way for 40 s: another one has its shard"""
    return stall(world, chance, 40, chance.choice(["to-client", "to-server"]))


def stall(world, chance, seconds, way):
    victim = chance.choice(NUMBERS)
    world.relays.switch(victim, "stall", way)
    begun = time.monotonic()
    figures = {"way": way}
    if seconds > 20:
        figures["take_over_s"] = take_over(world, [victim], begun)
    time.sleep(max(0, begun + seconds - time.monotonic()))
    world.relays.switch(victim, "resume", way)
    world.wait_until_well(homes=False)
    return figures


@fault(network=True)
def slow_network(world, chance):
    """20 to 80 ms each way between nodes and engine, and resets of connections"""
    before = world.owners()
    for node in NUMBERS:
        for way in ("to-server", "to-client"):
            world.relays.switch(node, "delay", way, chance.choice([20, 80]))
    for _ in range(5):
        time.sleep(chance.uniform(1, 3))
        world.relays.switch(chance.choice(NUMBERS), "reset")
    time.sleep(10)
    nothing_moved(world, before)


@fault(doubles=RECORDED_LATE)
def clone_data(world, chance):
    """a copy of a running node's data directory starts under its name: one of the two ends, no mail is lost"""
    victim = chance.choice(NUMBERS)
    node = world.nodes[victim]
    copy = world.dir / f"{node.name}-copy"
    node.send(signal.SIGSTOP)
    shutil.copytree(node.data, copy, ignore=lambda _, names: [name for name in names if name.endswith(".sock")])
    node.send(signal.SIGCONT)
    text = node.text.replace("{data}", str(copy)).replace(f"127.0.0.1:252{victim}", f"127.0.0.1:262{victim}")
    (world.dir / "copy.toml").write_text(text)
    twin = Process("copy", world.dir)
    twin.start(world.program, "serve", "--config", "copy.toml")
    try:
        time.sleep(20)
        if twin.is_running() and node.is_running():
            raise Failed("two processes of one name run for 20 s")
    finally:
        twin.end()
    world.wait_until_well(homes=False)


@fault(doubles=RECORDED_LATE)
def old_copy(world, chance):
    """a node dies and starts with an old copy of its data directory"""
    victim = chance.choice(NUMBERS)
    node = world.nodes[victim]
    copy = world.dir / f"{node.name}-copy"
    node.send(signal.SIGSTOP)
    shutil.copytree(node.data, copy, ignore=lambda _, names: [name for name in names if name.endswith(".sock")])
    node.send(signal.SIGCONT)
    time.sleep(chance.uniform(3, 8))
    node.kill()
    node.configure(copy)
    time.sleep(chance.uniform(0, 3))
    node.run()
    world.wait_until_well(homes=False)


@fault(doubles=RECORDED_LATE)
def wipe_node(world, chance):
    """a node dies with its disk, and starts empty under the same name: its mail is with the others"""
    victim = chance.choice(NUMBERS)
    node = world.nodes[victim]
    node.kill()
    begun = time.monotonic()
    shutil.rmtree(node.data)
    time.sleep(chance.uniform(0, 3))
    node.run()
    seconds = take_over(world, [victim], begun)
    world.wait_until_well(homes=False)
    return {"take_over_s": seconds}


@fault()
def wipe_standby(world, chance):
    """a drained node dies with its disk, and starts empty under the same name: nothing moves, and it is in sync again"""
    victim = chance.choice(NUMBERS)
    node = world.nodes[victim]
    said = node.command("cluster", "drain", timeout=60)
    if said.returncode != 0:
        raise Failed(said.stderr)
    wait_for("another node has its shard", lambda: world.owners().get(victim, (None,))[0] not in (None, f"n{victim}"))
    before = world.owners()
    node.kill()
    shutil.rmtree(node.data)
    time.sleep(chance.uniform(0, 3))
    node.run()
    world.wait_until_well(homes=False)
    nothing_moved(world, before)


@fault(doubles=RECORDED_LATE, disks="power")
def power_cut(world, chance):
    """a machine with a node and a server of the engine loses its power: another node has its shard within a minute"""
    victim = chance.choice(NUMBERS)
    begun = time.monotonic()
    cut_power(world, [victim])
    time.sleep(chance.uniform(0, 25))
    world.engines[victim].run()
    seconds = take_over(world, [victim], begun)
    world.nodes[victim].run()
    world.wait_until_well(homes=False)
    return {"take_over_s": seconds}


@fault(doubles=3 * RECORDED_LATE, disks="power")
def power_cut_all(world, chance):
    """all machines lose their power at once, and start again"""
    cut_power(world, NUMBERS)
    time.sleep(chance.uniform(0, 3))
    begun = time.monotonic()
    for process in [*world.engines.values(), *world.nodes.values()]:
        process.run()
    world.wait_until_well(homes=False)
    return {"back_s": round(time.monotonic() - begun, 1)}


def cut_power(world, machines):
    processes = [process for number in machines for process in (world.engines[number], world.nodes[number])]
    # All at one moment: none sees the errors of its disk.
    for process in processes:
        process.send(signal.SIGSTOP)
    for process in processes:
        os.waitid(os.P_PID, process.process.pid, os.WSTOPPED)
    for process in processes:
        world.disks[process].cut()
    for process in processes:
        process.kill()
    for process in processes:
        world.disks[process].restart()


@fault(disks="small")
def full_engine_disk(world, chance):
    """the disk of one server of the engine is full for 10 s: nothing moves"""
    before = world.owners()
    engine = world.engines[chance.choice(NUMBERS)]
    fill(engine.store)
    time.sleep(10)
    (engine.store / FILLER).unlink()
    # It has given up its streams until it starts anew.
    engine.kill()
    engine.run()
    time.sleep(15)
    nothing_moved(world, before)


@fault(doubles=RECORDED_LATE, disks="small")
def full_node_disk(world, chance):
    """the disk of a node is full for 15 s: no mail is lost"""
    node = world.nodes[chance.choice(NUMBERS)]
    fill(node.data)
    time.sleep(15)
    (node.data / FILLER).unlink()
    world.wait_until_well(homes=False)


def fill(dir):
    with contextlib.suppress(OSError), open(dir / FILLER, "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


FILLER = "filler"


@fault(doubles=RECORDED_LATE, size="100k-150k", share=0.5, seconds=(10, 15))
def flip_bits(world, chance):
    """a bit of each block file of a server is flipped; it leads the logs, an empty member finds that, and new files heal it"""
    damaged, victim = (chance.choice(NUMBERS) for _ in range(2))
    engine, node = world.engines[damaged], world.nodes[victim]
    # After a kill a server reads all its blocks and fetches again what it finds damaged; after a clean end it does not look.
    is_clean = chance.random() < 0.7
    engine.send(signal.SIGTERM if is_clean else signal.SIGKILL)
    engine.process.wait(60)
    blocks = [path for path in engine.store.rglob("*.blk") if "posthaste-log-" in str(path)]
    for block in blocks:
        with open(block, "r+b") as file:
            file.seek(block.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1 << chance.randrange(8)]))
    engine.run()
    wait_for("the server is back", lambda: engine.leader(1))
    led = [shard for shard in NUMBERS if leads(world, damaged, shard)]
    ends = wait_for("all logs answer", lambda: ends_of(world))
    node.kill()
    shutil.rmtree(node.data)
    node.run()
    # Until then the cells have what it reported with its old disk.
    time.sleep(10)
    found = wait_for("the member has all, or stops", lambda: read_by(node, ends), 90)
    engine.kill()
    for stream in engine.store.rglob("posthaste-log-*"):
        shutil.rmtree(stream)
    engine.run()
    wait_for("the server is back", lambda: engine.leader(1))
    time.sleep(5)
    # A shard that has stopped goes on with its node's next start. Others that have read from the server may have found it, too.
    stopped = [other for other in world.nodes.values() if other is node and found != ALL_READ or has_stopped_member(other)]
    for other in stopped:
        other.kill()
        other.run()
    world.wait_until_well(homes=False)
    return {"blocks": len(blocks), "clean": is_clean, "led": led, "found": found, "restarted": [other.name for other in stopped]}


def has_stopped_member(node):
    return any(shard["role"] == "stopped" for shard in node.shards().values())


def ends_of(world):
    """The ends of all logs; none while the engine does not tell one."""
    ends = {number: it.get("end") for number, it in world.shards().items()}
    return ends if len(ends) == 3 and None not in ends.values() else None


def leads(world, server, shard):
    """Has a server lead the log of a shard. False if the engine does not want it."""
    for _ in range(10):
        if world.engines[server].leader(shard) == server:
            return True
        with contextlib.suppress(OSError):
            world.engines[server].ask(f"STREAM.LEADER.STEPDOWN.{log_of(shard)}", json.dumps({"placement": {"preferred": f"e{server}"}}))
        time.sleep(1)
    return False


def read_by(node, ends):
    """What a member that reads all logs has found, once it has read them up to these ends."""
    shards = node.shards()
    stopped = {number: it["troubles"] for number, it in shards.items() if it["role"] == "stopped"}
    applied = {number: member["applied"] for number, it in shards.items() for member in it["members"] if member["node"] == node.name}
    if len(shards) == 3 and all(number in stopped or applied.get(number, 0) >= end for number, end in ends.items()):
        return stopped or ALL_READ
    return None


ALL_READ = "all is read"


@fault(doubles=RECORDED_LATE, stops=True)
def delete_stream(world, chance):
    """the stream of a log is deleted: its shard stops and says so, and members have all acknowledged mail"""
    victim = chance.choice(NUMBERS)
    world.engines[1].ask(f"STREAM.DELETE.{log_of(victim)}")
    return has_stopped(world, [victim])


@fault(doubles=3 * RECORDED_LATE, stops=True)
def roll_back(world, chance):
    """the engine comes back as it was some seconds ago: its shards stop and say so, and members have all acknowledged mail"""
    time.sleep(2)
    copies = {}
    for engine in world.engines.values():
        engine.send(signal.SIGSTOP)
    for engine in world.engines.values():
        copies[engine] = world.dir / f"{engine.name}-copy"
        shutil.copytree(engine.store, copies[engine])
    for engine in world.engines.values():
        engine.send(signal.SIGCONT)
    time.sleep(chance.uniform(5, 8))
    for engine in world.engines.values():
        engine.kill()
    for engine in world.engines.values():
        shutil.rmtree(engine.store)
        copies[engine].rename(engine.store)
        engine.run()
    return has_stopped(world, NUMBERS)


def has_stopped(world, shards):
    """Waits until these shards have stopped at their homes, which owned them, and have a reason."""
    def why():
        at_home = {number: world.nodes[number].shards().get(number, {}) for number in shards}
        said = {number: shard["troubles"] for number, shard in at_home.items() if shard.get("role") == "stopped"}
        return len(said) == len(shards) and all(said.values()) and said
    return {"stopped": wait_for("the shards have stopped", why, 90)}
