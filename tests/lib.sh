# What the scripts here share; sourced by them, with the path of the script as $0.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin

# POSTHASTE names another binary to test than the debug build.
if [ -z "${POSTHASTE:-}" ]; then
    cargo build -q -p posthaste
    POSTHASTE=${CARGO_TARGET_DIR:-target}/debug/posthaste
fi
POSTHASTE=$(realpath "$POSTHASTE")

# Removed at the end, when `before_the_end` was called and what runs in the background has been ended.
dir=$(mktemp -d)
before_the_end() { :; }
at_the_end() {
    before_the_end
    for pid in $(jobs -pr); do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap at_the_end EXIT

passed=0 failed=0 skipped=0
check() { # check NAME COMMAND...: the command must succeed
    local name=$1
    shift
    if "$@" >"$dir/out" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $name"
    else
        failed=$((failed + 1))
        echo "FAIL  $name"
        sed 's/^/      /' "$dir/out"
    fi
}

serve() { # serve [FOLDER]: starts a server with the configuration there, by default in $dir, as $server, and waits until it takes mail
    local folder=${1:-$dir}
    (cd "$folder" && exec "$POSTHASTE" serve >banner 2>log) &
    server=$!
    for _ in $(seq 600); do
        grep -q '^Ready' "$folder/banner" 2>/dev/null && return
        kill -0 "$server" || { cat "$folder/log"; exit 1; }
        sleep 0.1
    done
}

port_of() { # port_of N: the port of its Nth listener
    sed -n 's/^ *listening .*:\([0-9]*\)$/\1/p' "$dir/banner" | sed -n "$1p"
}

page_in() { # page_in FOLDER: the page's address of a server that runs there
    sed -n 's/^ *page *\(http.*\)$/\1/p' "$1/banner" | head -n 1
}

skip() { # skip NAME REASON
    skipped=$((skipped + 1))
    echo "skip  $1: $2"
}

# The script's verdict. With REQUIRE_ALL=1 what was skipped counts as failed.
finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ] && { [ "${REQUIRE_ALL:-}" != 1 ] || [ "$skipped" -eq 0 ]; }
}
