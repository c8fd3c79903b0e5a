#!/usr/bin/env bash
# Certificates from Pebble, an authority that checks what a real one checks: by TLS, by HTTP and by a program for DNS.
# Needs root, openssl, curl, and PEBBLE, a directory with pebble and pebble-challtestsrv. POSTHASTE names another binary to test than the debug build.
# Ports 443, 80 and 25 are those of a network of its own.
if [ -z "${IN_OWN_NETWORK:-}" ]; then
    exec env IN_OWN_NETWORK=1 unshare --net "$0" "$@"
fi
. "$(dirname "$0")/lib.sh"
ip link set lo up

openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=pebble -addext subjectAltName=IP:127.0.0.1 \
    -addext basicConstraints=critical,CA:FALSE -keyout "$dir/pebble.key" -out "$dir/pebble.pem" 2>/dev/null
cat >"$dir/pebble.json" <<JSON
{ "pebble": {
    "listenAddress": "127.0.0.1:14000", "managementListenAddress": "127.0.0.1:15000",
    "certificate": "$dir/pebble.pem", "privateKey": "$dir/pebble.key", "httpPort": 80, "tlsPort": 443,
    "retryAfter": { "authz": 1, "order": 1 },
    "profiles": { "default": { "description": "ninety days", "validityPeriod": 7776000 } }
} }
JSON
"$PEBBLE/pebble-challtestsrv" -management 127.0.0.1:8055 -dnsserver 127.0.0.1:8053 -defaultIPv4 127.0.0.1 -defaultIPv6 '' \
    -http01 '' -https01 '' -tlsalpn01 '' -doh '' >"$dir/dns.log" 2>&1 &
PEBBLE_VA_NOSLEEP=1 "$PEBBLE/pebble" -config "$dir/pebble.json" -dnsserver 127.0.0.1:8053 >"$dir/pebble.log" 2>&1 &

answers() { # answers COMMAND...: within a minute
    for _ in $(seq 600); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "not within a minute: $*"
    tail -n 20 "$dir"/*/log "$dir/pebble.log"
    return 1
}
check "Pebble answers" answers curl -sf --cacert "$dir/pebble.pem" https://127.0.0.1:14000/dir

start() { # start NAME LISTENERS: a server with its own directory
    mkdir "$dir/$1"
    cat >"$dir/$1/posthaste.toml" <<TOML
host_name = "mx.example.org"
[acme]
enabled = true
directory = "https://127.0.0.1:14000/dir"
ca_file = "$dir/pebble.pem"
addresses = ["127.0.0.1"]
contact = "postmaster@example.org"
$2
[dns]
servers = ["127.0.0.1:8053"]
[[listener]]
address = "127.0.0.1:25"
[[domain]]
name = "example.org"
users = "any"
TOML
    serve "$dir/$1"
}
stop() {
    kill "$server"
    wait "$server"
}
renew() { (cd "$dir/$1" && "$POSTHASTE" acme renew "${@:2}"); }
subject() { # subject NAME [OPTION...]: issuer and names of the certificate that NAME gets by STARTTLS
    openssl s_client -starttls smtp -connect 127.0.0.1:25 -servername "$1" </dev/null 2>/dev/null |
        openssl x509 -noout -issuer -ext subjectAltName "${@:2}"
}
is_of_pebble() { # is_of_pebble NAME: of the authority, for this name
    subject "$1" | tee /dev/stderr | tr '\n' ' ' | grep -q "Pebble.*DNS:$1"
}
each_has_its_own() {
    local name
    for name in mx.example.org mta-sts.example.org autoconfig.example.org; do answers is_of_pebble "$name" || return; done
}

start tls '[[listener]]
address = "0.0.0.0:443"
protocol = "http"
tls = "implicit"'
check "TLS-ALPN-01: each name has a certificate, without a reload" each_has_its_own
serial=$(subject mx.example.org -serial)
is_new() { renew tls --all && [ "$(subject mx.example.org -serial)" != "$serial" ]; }
check "acme renew --all: a new one is in force in an open server" is_new
is_not_due() { [ "$(renew tls | grep -c 'not due')" -eq 3 ]; }
check "acme renew: what is not due stays" is_not_due
check "the authority says when it wants a renewal" answers grep -q '"renew_at": *[0-9]' "$dir/tls/posthaste-data/acme/names.json"
policy() { curl -sf -k --resolve mta-sts.example.org:443:127.0.0.1 https://mta-sts.example.org/.well-known/mta-sts.txt | grep -q '^mode: testing'; }
check "mta-sts.txt is served" policy

# A sender asks for it at a public address, and trusts Pebble.
ip address add 9.9.9.9/32 dev lo
curl -sf --cacert "$dir/pebble.pem" https://127.0.0.1:15000/roots/0 >"$dir/root.pem"
curl -sf -d '{"host": "mta-sts.example.org.", "addresses": ["9.9.9.9"]}' http://127.0.0.1:8055/add-a
curl -sf -d '{"host": "_mta-sts.example.org.", "value": "v=STSv1; id=1;"}' http://127.0.0.1:8055/set-txt
# pebble-challtestsrv refuses questions for MX: here a domain has none, and is its own host.
python3 - >/dev/null <<'PY' &
import socket
here, there = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
here.bind(("127.0.0.1", 8153))
while True:
    question, client = here.recvfrom(4096)
    end = 12
    while question[end]:
        end += question[end] + 1
    if question[end + 1:end + 3] == b"\0\x0f":
        answer = question[:2] + b"\x81\x80" + question[4:6] + bytes(6) + question[12:end + 5]
    else:
        there.sendto(question, ("127.0.0.1", 8053))
        answer = there.recv(4096)
    here.sendto(answer, client)
PY
dns=$!
mkdir "$dir/sender"
cat >"$dir/sender/posthaste.toml" <<TOML
host_name = "mx.sender.example"
[relay]
networks = ["127.0.0.1"]
mta_sts_ca_file = "$dir/root.pem"
[dns]
servers = ["127.0.0.1:8153"]
TOML
route() { (cd "$dir/sender" && "$POSTHASTE" route bob@example.org) | tee /dev/stderr | grep -Eq "^ *MTA-STS +$1"; }
check "a sender finds the policy" route 'testing$'
sed -i "s|^mta_sts_ca_file.*|mta_sts_ca_file = \"$dir/pebble.pem\"|" "$dir/sender/posthaste.toml"
check "no policy from a web server that is not trusted" route 'no policy .*mta-sts.example.org at 9.9.9.9: .*certificate'
curl -sf -d '{"host": "mta-sts.example.org."}' http://127.0.0.1:8055/clear-a
kill "$dns"
stop

start http '[[listener]]
address = "127.0.0.1:80"
protocol = "http"
tls = "off"'
check "HTTP-01: each name has a certificate" each_has_its_own
stop

cat >"$dir/program" <<'SH'
#!/bin/sh
exec curl -sf -d "{\"host\": \"$1.\", \"value\": \"$2\"}" http://127.0.0.1:8055/set-txt
SH
chmod 755 "$dir/program"
start dns "dns_program = \"$dir/program\""
check "DNS-01: each name has a certificate" each_has_its_own
stop
finish
