#!/usr/bin/env bash
# testssl.sh against a listener with TLS from the first octet and the certificate that the server makes for itself. All listeners have the same TLS.
# Needs testssl (testssl.sh), python3 and openssl. POSTHASTE names another binary to test than the debug build.
. "$(dirname "$0")/lib.sh"

cat >"$dir/posthaste.toml" <<'TOML'
host_name = "localhost"
[[listener]]
address = "127.0.0.1:0"
tls = "implicit"
TOML
serve
port=$(port_of 1)

# Protocols, kinds of ciphers, forward secrecy, certificate, vulnerabilities. Its exit status counts findings of its own choice.
scans() {
    timeout 600 testssl --quiet --warnings off --color 0 --ip 127.0.0.1 --nodns none -p -s -f -S -U --jsonfile "$dir/findings.json" "localhost:$port" || true
    [ -s "$dir/findings.json" ]
}
# holds LIST: an expression of Python about `all`, the findings by their ids, that lists what is wrong.
holds() {
    python3 - "$dir/findings.json" <<PY
import json, sys
all = {found["id"]: found for found in json.load(open(sys.argv[1]))}
wrong = $1
print(wrong)
sys.exit(bool(wrong))
PY
}
check "testssl.sh scans a listener" scans
check "nothing before TLS 1.2 is offered" holds '[found for id in ("SSLv2", "SSLv3", "TLS1", "TLS1_1") for found in [all[id]] if "not offered" not in found["finding"]]'
check "TLS 1.2 and 1.3 are offered" holds '[found for id in ("TLS1_2", "TLS1_3") for found in [all[id]] if not found["finding"].startswith("offered")]'
# No authority has signed the certificate, so nobody says where it would be revoked.
check "no other finding is high or critical" holds '[found for id, found in all.items() if found["severity"] in ("HIGH", "CRITICAL") and id not in ("cert_chain_of_trust", "cert_revocation")]'
# A scan that gave up half-way has found nothing, either.
check "it came to its end" holds '[id for id in ("cipherlist_NULL", "PFS", "heartbleed", "ROBOT", "RC4") if id not in all]'
check "the server still answers" sh -c "printf 'QUIT\\r\\n' | timeout 60 openssl s_client -quiet -connect 127.0.0.1:$port 2>/dev/null | grep -q '^220 '"
finish
