"""The faults of tests/cluster_proof.py. Each is a function of the world and a source of chance; it returns when the fault is over, with what is worth telling."""

import shutil
import signal
import time

from cluster_world import NUMBERS, Failed, wait_for

FAULTS = {}
# Mail that a dead owner may have sent and not recorded, at most: docs/cluster.md.
RECORDED_LATE = 1000


def fault(doubles=0, unexpected=0):
    """Registers a fault, with the messages that it may double, and those that may be delivered without an acknowledgement."""
    def register(function):
        function.doubles, function.unexpected = doubles, unexpected
        FAULTS[function.__name__.replace("_", "-")] = function
        return function
    return register


def under_load(world, fault, chance):
    """Runs a fault while mail flows. Figures of the round."""
    is_away = chance.random() < 0.5
    if not is_away:
        world.serve_sink()
    world.load()
    time.sleep(chance.uniform(3, 6))
    figures = {"sink": "away" if is_away else "there"} | (fault(world, chance) or {})
    if is_away:
        world.serve_sink()
    time.sleep(2)
    reports = world.stop_load()
    world.wait_until_delivered()
    return figures | verdict(world, fault, reports)


def verdict(world, fault, reports, stores=("sink.jsonl",)):
    accounts = world.account(stores)
    of = lambda kind: sum(len(account[kind]) for account in accounts)
    figures = {kind: of(kind) for kind in ("lost", "altered", "duplicated", "unexpected")}
    figures["acked"] = sum(account["acked"] for account in accounts)
    figures |= of_reports(reports)
    if figures["lost"] or figures["altered"] or not figures["acked"]:
        raise Failed(f"{figures}")
    if figures["duplicated"] > fault.doubles or figures["unexpected"] > fault.unexpected:
        raise Failed(f"outside the window: {figures}")
    return figures


def of_reports(reports):
    return {}


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
    again = lambda: [node.run() for node in world.nodes.values() if not node.is_running()]
    wait_for("all is well again", lambda: again() == [] and world.is_well(homes=False))
    return {"back_s": round(time.monotonic() - begun, 1)}
