#!/usr/bin/env bash
# The example of a cluster, by the commands of its page: a node is killed while mail waits in it, and another one sends that mail. Needs nats-server, curl and root.
# NATS_SERVER names another nats-server than that of the path, POSTHASTE a binary that was built with the feature `cluster`.
# A network of its own: the example has fixed ports.
if [ -z "${IN_OWN_NETWORK:-}" ]; then
    exec env IN_OWN_NETWORK=1 unshare --net "$0" "$@"
fi
. "$(dirname "$0")/lib.sh"
ip link set lo up
EXAMPLE=$PWD/examples/cluster
mkdir "$dir/bin"
ln -s "$POSTHASTE" "$dir/bin/posthaste"
ln -s "${NATS_SERVER:-$(command -v nats-server)}" "$dir/bin/nats-server"
PATH=$dir/bin:$PATH
cd "$dir"

block() { # block N: the Nth block of commands of the page
    awk -v wanted="$1" '/^```/ { if (is_in) { is_in = 0; next } is_in = ++number; next } is_in && number == wanted' "$EXAMPLE/README.md"
}

status() { # status NODE PYTHON: an expression about the shards, by number, as one node knows them
    posthaste cluster status --config "$1.toml" --json 2>>status.log | python3 -c '
import json, sys
status = json.load(sys.stdin)
shards = {shard["shard"]: shard for shard in status["shards"]}
sys.exit(0 if eval(sys.argv[1]) else 1)' "$2" 2>>status.log
}

wait_for() { # wait_for SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.2
    done
}

show_logs() { # The nodes' come last, where a short view of the output still has them.
    df -h . | tail -n 1
    free -m | sed -n 2p
    tail -n 4 e?.log status.log
    tail -n 14 n?.log
}

eval "$(block 1)"
check "three members are in sync for each shard" wait_for 100 status n1 'len(shards) == 3 and all(len(it["in_sync"]) == 3 and it["owner"] == it["home"] for it in shards.values())'
# Nothing below can pass without them.
[ "$failed" -eq 0 ] || { show_logs; finish; }
check "a cluster that is well has no red line" posthaste doctor cluster --config n1.toml
eval "$(block 2)" >summary
check "ten messages wait" grep -q 'there.example *10' summary
killed=$SECONDS
eval "$(block 3 | sed 's/^posthaste sink.*/timeout 90 & --store maildir:sunk >summary/')"
echo "      the last of them came $((SECONDS - killed)) s after the kill"
check "another node has sent them" python3 -c 'import json; assert json.load(open("summary"))["messages"] == 10'
check "each of them once" test "$(grep -h '^Subject:' sunk/new/* | sort -u | wc -l)" = 10
check "a standby owns the shard" status n2 'shards[1]["owner"] in ("n2", "n3")'
posthaste doctor cluster --config n2.toml >doctor || true
check "the one that is down is named" grep -q '^yellow.*n1' doctor
check "a planned move is done within seconds" timeout 10 posthaste cluster move 3 --to n2 --config n3.toml
check "a shard of another node is not moved" sh -c '! posthaste cluster move 3 --config n3.toml'
check "a drained node gives its shards away" timeout 30 posthaste cluster drain --config n2.toml
# It is free for a moment before the next owner has it.
check "nor does it take any" wait_for 10 status n2 'status["is_draining"] and all(it["owner"] == "n3" for it in shards.values())'
[ "$failed" -eq 0 ] || show_logs
finish
