#!/usr/bin/env bash
# DANE with Unbound, which validates DNSSEC: zones are signed here, and some records are forged after that.
# Runs in a network of its own, at the port of DNS. Needs root, unbound, ldns-signzone (ldnsutils), swaks, openssl, curl. POSTHASTE names another binary to test than the debug build.
if [ -z "${DNSSEC_NETWORK:-}" ]; then
    exec env DNSSEC_NETWORK=1 unshare --net --mount "$0" "$@"
fi
. "$(dirname "$0")/lib.sh"
ip link set lo up
mount --make-rprivate /

# The mail host: all names lead to it. Its certificate is the one that it makes for itself.
mkdir "$dir/host" "$dir/sender"
cat >"$dir/host/posthaste.toml" <<'TOML'
host_name = "mx.secure.example"
[[listener]]
address = "127.0.0.1:2625"
tls = "starttls"
TOML
for domain in {good,unnamed,wrong,forged,bogus}.secure.example insecure.example; do
    printf '[[domain]]\nname = "%s"\nusers = ["bob"]\n' "$domain"
done >>"$dir/host/posthaste.toml"
serve "$dir/host"
digest=$(openssl s_client -starttls smtp -connect 127.0.0.1:2625 </dev/null 2>/dev/null | openssl x509 -pubkey -noout |
    openssl pkey -pubin -outform der | sha256sum | cut -d' ' -f1)
other=$(printf other | sha256sum | cut -d' ' -f1)

# signed ZONE: signs the records of standard input, and makes their key an anchor.
signed() {
    { printf '%s. 60 IN SOA ns.%s. root.%s. 1 60 60 600 60\n%s. 60 IN NS ns.%s.\nns.%s. 60 IN A 127.0.0.1\n' "$1" "$1" "$1" "$1" "$1" "$1" && cat; } >"$dir/$1"
    (cd "$dir" && key=$(ldns-keygen -a ECDSAP256SHA256 -k "$1") && cat "$key.key" >>anchors && ldns-signzone -f "$1.signed" "$1" "$key")
}
signed secure.example <<ZONE
good.secure.example. 60 IN MX 1 mx.secure.example.
mx.secure.example. 60 IN A 127.0.0.1
_2625._tcp.mx.secure.example. 60 IN TLSA 3 1 1 $digest
unnamed.secure.example. 60 IN MX 1 mx2.secure.example.
mx2.secure.example. 60 IN A 127.0.0.1
wrong.secure.example. 60 IN MX 1 mx3.secure.example.
mx3.secure.example. 60 IN A 127.0.0.1
_2625._tcp.mx3.secure.example. 60 IN TLSA 3 1 1 $other
forged.secure.example. 60 IN MX 1 mx4.secure.example.
mx4.secure.example. 60 IN A 127.0.0.1
_2625._tcp.mx4.secure.example. 60 IN TLSA 3 1 1 $digest
bogus.secure.example. 60 IN MX 1 mx2.secure.example.
ZONE
# The forger has a certificate of his own, or a host.
sed -i "/^_2625._tcp.mx4.*TLSA/s/$digest/$other/i; /^bogus.secure.example.*MX/s/mx2/mx/" "$dir/secure.example.signed"
# Two names by which setup finds out if a resolver validates.
signed org <<'ZONE'
www.dnssec-failed.org. 60 IN A 192.0.2.1
ZONE
sed -i '/^www.dnssec-failed.org.*IN.A/s/192.0.2.1/192.0.2.2/' "$dir/org.signed"
cat >"$dir/insecure.example" <<ZONE
insecure.example. 60 IN SOA ns.insecure.example. root.insecure.example. 1 60 60 600 60
insecure.example. 60 IN NS ns.insecure.example.
ns.insecure.example. 60 IN A 127.0.0.1
insecure.example. 60 IN MX 1 mx.insecure.example.
mx.insecure.example. 60 IN A 127.0.0.1
_2625._tcp.mx.insecure.example. 60 IN TLSA 3 1 1 $other
ZONE
cat >"$dir/unbound.conf" <<CONF
server:
    directory: "$dir"
    chroot: ""
    username: ""
    pidfile: ""
    use-syslog: no
    do-daemonize: no
    interface: 127.0.0.1
    trust-anchor-file: "$dir/anchors"
    val-log-level: 2
remote-control:
    control-enable: no
CONF
for zone in secure.example.signed org.signed insecure.example; do
    printf 'auth-zone:\n    name: %s\n    zonefile: "%s/%s"\n    for-downstream: no\n    for-upstream: yes\n    fallback-enabled: no\n' "${zone%.signed}" "$dir" "$zone"
done >>"$dir/unbound.conf"
resolve() { # starts Unbound, and waits until it answers
    unbound -c "$dir/unbound.conf" 2>"$dir/unbound.log" &
    resolver=$!
    for _ in $(seq 100); do demand insecure.example '^ *host .*mx.insecure' >/dev/null 2>&1 && return; sleep 0.1; done
}

cat >"$dir/sender/posthaste.toml" <<'TOML'
host_name = "mx.sender.example"
[[listener]]
address = "127.0.0.1:2525"
[[listener]]
address = "127.0.0.1:0"
protocol = "http"
[relay]
networks = ["127.0.0.1"]
port = 2625
[dns]
servers = ["127.0.0.1"]
trust_ad = true
TOML
demand() { # demand DOMAIN PATTERN: the preview of its route
    (cd "$dir/sender" && "$POSTHASTE" route "bob@$1") | tee /dev/stderr | grep -Eq "$2"
}
resolve
serve "$dir/sender"
swaks_to() { swaks --server 127.0.0.1:2525 --from ann@sender.example --to "bob@$1" --header "Subject: $1"; }
arrives() {
    swaks_to "$1" >/dev/null
    for _ in $(seq 300); do
        grep -rqs "^Subject: $1" "$dir/host/posthaste-data/mail" && return
        sleep 0.1
    done
    explain "$1"
    return 1
}
explain() { (cd "$dir/sender" && "$POSTHASTE" queue explain "$1"); }
waits() { # waits DOMAIN REASON: mail for it stays in the queue for this reason
    swaks_to "$1" >/dev/null
    for _ in $(seq 300); do
        if explain "$1" | grep -Eq "$2"; then
            ! grep -rqs "^Subject: $1" "$dir/host/posthaste-data/mail"
            return
        fi
        sleep 0.1
    done
    explain "$1"
    return 1
}
check "a signed record names the certificate: mail is delivered" arrives good.secure.example
check "a signed host without records has its mail" arrives unnamed.secure.example
check "records that nobody has signed demand nothing" arrives insecure.example
check "another certificate than that of the record gets nothing" waits wrong.secure.example 'no certificate of the server matches'
check "a forged record of a certificate: mail waits" waits forged.secure.example '_2625._tcp.mx4.secure.example'
check "a forged mail host: mail waits" waits bogus.secure.example 'bogus.secure.example'
are_counted() { # what /metrics shows is up to a second old
    local of
    curl -sf -H "Authorization: Bearer $1" "$(page_in "$dir/sender")metrics" | grep '^posthaste_relay_tls_sessions_total' >"$dir/counts" || return
    for of in dane,verified dane,certificate dane,no_answer opportunistic,encrypted; do
        grep "\"${of%,*}\"" "$dir/counts" | grep "\"${of#*,}\"" | grep -vq ' 0$' || { echo "$of"; return 1; }
    done
}
counted() {
    (cd "$dir/sender" && "$POSTHASTE" token add metrics --scope metrics --output token)
    local secret
    secret=$(head -n 1 "$dir/sender/token")
    for _ in $(seq 300); do are_counted "$secret" && return; sleep 0.1; done
    cat "$dir/counts"
    return 1
}
check "each result is counted by its policy" counted

echo 'nameserver 127.0.0.1' >"$dir/resolv.conf"
mount --bind "$dir/resolv.conf" /etc/resolv.conf
plan() { "$POSTHASTE" setup ann@own.example --dry-run --no-acme --config-dir "$dir/own" --data "$dir/own-data" --port-offset 20000 >"$dir/plan" 2>&1; cat "$dir/plan"; }
proves() { plan; grep -q 'validates DNSSEC: dns.trust_ad = true' "$dir/plan" && grep -q '^ *trust_ad = true' "$dir/plan"; }
check "setup proves that Unbound validates" proves
sed -i 's/trust-anchor-file.*/module-config: "iterator"/' "$dir/unbound.conf"
kill "$resolver"
wait "$resolver" || true
resolve
refuses() { plan; grep -q 'does not validate DNSSEC' "$dir/plan" && ! grep -q '^ *trust_ad' "$dir/plan"; }
check "setup sees that a resolver does not validate" refuses
finish
