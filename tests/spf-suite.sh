#!/usr/bin/env bash
# tests/spf-suite.sh: runs the 203 cases of the test suite of RFC 7208, which come with pyspf and are fetched anew, through the example `spf_suite`.
# SPF_SUITE names the program; by default cargo builds it.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyyaml
"$folder/venv/bin/pip" download -q --no-deps --no-binary :all: -d "$folder" pyspf==2.0.14
tar -xf "$folder/pyspf-2.0.14.tar.gz" -C "$folder"
"$folder/venv/bin/python" - "$folder/pyspf-2.0.14/test/rfc7208-tests.yml" >"$folder/suite.json" <<'PYTHON'
import json, sys, yaml
json.dump(list(yaml.safe_load_all(open(sys.argv[1], encoding="utf-8"))), sys.stdout)
PYTHON
if [ -z "${SPF_SUITE:-}" ]; then
    cargo build -q -p posthaste-authres --example spf_suite
    SPF_SUITE=${CARGO_TARGET_DIR:-target}/debug/examples/spf_suite
fi
"$SPF_SUITE" "$folder/suite.json" | tee "$folder/result"
# None may be lost on the way, either.
grep -qx '203 cases, 0 failed' "$folder/result"
