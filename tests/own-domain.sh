#!/usr/bin/env bash
# The walk of docs/own-domain.md on a fresh machine: setup, its records at a DNS provider, certificates, mail to and from another host. Prints the seconds of each step.
# The machine is a copy of this system without Posthaste, with a network of its own; beside it are the name servers of the domain, an authority (Pebble) and another mail host.
# Needs root, unbound, swaks, curl, script, and PEBBLE, a directory with pebble. POSTHASTE names another binary to test than the debug build. WALK is a file for all that is printed.
if [ -z "${IN_OWN_NETWORK:-}" ]; then
    exec env IN_OWN_NETWORK=1 unshare --net --mount "$0" "$@"
fi
. "$(dirname "$0")/lib.sh"
WALK=${WALK:-$dir/walk}
: >"$WALK"
mount --make-rprivate /
ip link set lo up

# The machine: what it writes stays in memory.
root=$dir/machine
mkdir "$dir/memory" "$root"
mount -t tmpfs memory "$dir/memory"
mkdir "$dir/memory/upper" "$dir/memory/work"
if ! mount -t overlay machine -o "lowerdir=/,upperdir=$dir/memory/upper,workdir=$dir/memory/work" "$root"; then
    umount "$dir/memory"
    skip "the walk" "this kernel has no overlay over /"
    finish
    exit
fi
rm -rf "$root/etc/posthaste" "$root/var/lib/posthaste" "$root"/usr/local/bin/posthaste* "$root/etc/resolv.conf"
sed -i '/^posthaste:/d' "$root"/etc/{passwd,group,shadow,gshadow}
mount --rbind /dev "$root/dev"
mount -t tmpfs run "$root/run"
mount -t tmpfs tmp "$root/tmp"
mkdir -p "$root/root/.cargo/bin"
cp "$POSTHASTE" "$root/root/.cargo/bin/posthaste"
echo 'nameserver 9.9.9.53' >"$root/etc/resolv.conf"
# Processes of its own, too: they end with it.
unshare --net --pid --fork --kill-child sleep infinity &
machine=$!
until [ "$(readlink "/proc/$machine/ns/pid_for_children")" != "$(readlink /proc/self/ns/pid)" ]; do sleep 0.05; done
nsenter --pid="/proc/$machine/ns/pid_for_children" mount -t proc proc "$root/proc"
ip link add eth1 type veth peer name eth0 netns "$machine"
on_machine() { nsenter --net="/proc/$machine/ns/net" --pid="/proc/$machine/ns/pid_for_children" chroot "$root" env HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
on_machine ip link set lo up
on_machine ip address add 9.9.9.10/24 dev eth0
on_machine ip link set eth0 up
on_machine ip route add default via 9.9.9.1
# The first is that of the other mail host, which its mail leaves from.
for host in 25 1 53 80; do ip address add "9.9.9.$host/24" dev eth1; done
ip link set eth1 up
before_the_end() {
    # unshare minds no other signal.
    kill -KILL "$machine" && wait "$machine" 2>/dev/null || true
    umount -R -l "$root" "$dir/memory"
}

# The domain's name servers, which are also the resolver. example.org receives mail elsewhere so far.
zone() { # zone NAME: its file, from the records of standard input
    { printf '%s. 5 IN SOA ns1.provider.example. root.provider.example. 1 60 60 600 5\n%s. 5 IN NS ns1.provider.example.\n' "$1" "$1" && cat; } >"$dir/$1.zone"
}
zone provider.example <<<'ns1.provider.example. 5 IN A 9.9.9.53'
base=$'mx.example.org. 5 IN A 9.9.9.10\nmail.example.org. 5 IN A 9.9.9.99'
zone example.org <<<"$base
example.org. 5 IN MX 10 mail.example.org.
example.org. 5 IN TXT \"v=spf1 ip4:9.9.9.99 -all\""
zone 9.9.9.in-addr.arpa <<<$'10.9.9.9.in-addr.arpa. 5 IN PTR mx.example.org.\n25.9.9.9.in-addr.arpa. 5 IN PTR mx.there.example.'
zone there.example <<<$'there.example. 5 IN MX 10 mx.there.example.\nmx.there.example. 5 IN A 9.9.9.25\nthere.example. 5 IN TXT "v=spf1 mx -all"'
for top in org example arpa; do zone "$top" </dev/null; done
echo 'example.org. 5 IN NS ns1.provider.example.' >>"$dir/org.zone"
echo "9.9.9.in-addr.arpa. 5 IN NS ns1.provider.example." >>"$dir/arpa.zone"
printf '%s. 5 IN NS ns1.provider.example.\n' provider.example there.example >>"$dir/example.zone"
# Setup tries the mail hosts of large domains.
zone gmail.com <<<'gmail.com. 5 IN MX 10 mx.there.example.'
cat >"$dir/unbound.conf" <<CONF
server:
    directory: "$dir"
    chroot: ""
    username: ""
    pidfile: ""
    use-syslog: no
    do-daemonize: no
    interface: 9.9.9.53
    access-control: 9.9.9.0/24 allow
    module-config: "iterator"
    cache-max-negative-ttl: 1
remote-control:
    control-enable: no
CONF
for file in "$dir"/*.zone; do
    name=$(basename "$file" .zone)
    printf 'auth-zone:\n    name: %s\n    zonefile: "%s"\n    for-downstream: yes\n    for-upstream: yes\n    fallback-enabled: no\n' "$name" "$file"
done >>"$dir/unbound.conf"
name_servers() {
    [ -z "${unbound:-}" ] || { kill "$unbound" && wait "$unbound" || true; }
    unbound -c "$dir/unbound.conf" 2>"$dir/unbound.log" &
    unbound=$!
}
name_servers

# The authority, in place of Let's Encrypt.
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=pebble -addext subjectAltName=IP:9.9.9.80 \
    -addext basicConstraints=critical,CA:FALSE -keyout "$dir/pebble.key" -out "$dir/pebble.pem" 2>/dev/null
cat >"$dir/pebble.json" <<JSON
{ "pebble": {
    "listenAddress": "9.9.9.80:14000", "managementListenAddress": "9.9.9.80:15000",
    "certificate": "$dir/pebble.pem", "privateKey": "$dir/pebble.key", "httpPort": 80, "tlsPort": 443,
    "retryAfter": { "authz": 1, "order": 1 },
    "profiles": { "default": { "description": "ninety days", "validityPeriod": 7776000 } }
} }
JSON
PEBBLE_VA_NOSLEEP=1 "$PEBBLE/pebble" -config "$dir/pebble.json" -dnsserver 9.9.9.53:53 >"$dir/pebble.log" 2>&1 &
answers() { # answers COMMAND...: within a minute
    for _ in $(seq 600); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "not within a minute: $*"
    tail -n 20 "$WALK" "$dir/pebble.log"
    return 1
}
answers curl -sf --cacert "$dir/pebble.pem" https://9.9.9.80:14000/dir
curl -sf --cacert "$dir/pebble.pem" https://9.9.9.80:15000/roots/0 >"$dir/root.pem"

# Another mail host, which checks what comes in.
mkdir "$dir/there"
cat >"$dir/there/posthaste.toml" <<'TOML'
host_name = "mx.there.example"
relay = { networks = ["9.9.9.25"] }
dns = { servers = ["9.9.9.53"] }
[[listener]]
address = "9.9.9.25:25"
[[domain]]
name = "there.example"
users = ["bob"]
TOML
serve "$dir/there"

began=$(date +%s%N)
total=0
step() { # step NAME COMMAND...: as check, with its time
    local begun=$(date +%s%N)
    check "$@"
    local took=$((($(date +%s%N) - begun) / 100000000))
    total=$((total + took))
    printf '      %d.%d s\n' $((took / 10)) $((took % 10))
    { printf '== %s\n' "$1" && cat "$dir/out"; } >>"$WALK"
}
posthaste() { on_machine posthaste "$@"; }

# As at a terminal: the password is shown nowhere else.
sets_up() {
    # The user types y, and stays there.
    on_machine sh -c '(echo y && sleep infinity) | script -qefc "/root/.cargo/bin/posthaste setup ann@example.org --foreground" /dev/null' >"$dir/setup" 2>&1 &
    answers grep -q '^Ready' "$dir/setup"
    cat "$dir/setup"
    grep -q 'round trip login on 465, signed, delivered, read by IMAP, DKIM verified .* ok' "$dir/setup"
}
step "setup: a question, a server, a message to itself" sets_up
password=$(tr -d '\r' <"$dir/setup" | sed -n 's/^ Password   \(\S*\) .*/\1/p')
check "setup shows the password" [ -n "$password" ]
check "setup says what is at the provider" grep -q 'MX mail.example.org: you receive mail elsewhere today' "$dir/setup"
lines() { [ "$(wc -l <"$root/etc/posthaste/posthaste.toml")" -le 25 ]; }
check "the configuration has at most 25 lines" lines
again() { on_machine /root/.cargo/bin/posthaste setup ann@example.org | tee /dev/stderr | grep -q '^nothing to do'; }
step "a second run of setup: nothing to do" again

# In place of Let's Encrypt, which is not here.
use_pebble() {
    # Its own certificate, and the one that it signs others with.
    cat "$dir/pebble.pem" "$dir/root.pem" >"$root/etc/posthaste/pebble.pem"
    sed -i 's|^acme = { |&directory = "https://9.9.9.80:14000/dir", ca_file = "/etc/posthaste/pebble.pem", |' "$root/etc/posthaste/posthaste.toml"
    posthaste config check
    on_machine pkill -HUP -x posthaste
}
use_pebble >"$dir/out" 2>&1 || cat "$dir/out"

# The user copies the records to the provider: those that replace others, and new ones.
publish() {
    posthaste dns records example.org --zone >"$dir/records"
    cat "$dir/records"
    { echo "$base" && grep -v '^mx.example.org.*IN *A\|in-addr.arpa\|^;' "$dir/records"; } | zone example.org
    name_servers
}
step "dns records: copied to the provider" publish
renewed() { posthaste acme renew && openssl s_client -connect 9.9.9.10:465 </dev/null 2>/dev/null | openssl x509 -noout -issuer | grep -q Pebble; }
step "acme renew: a certificate of the authority at port 465" renewed
policy() { curl -sSf --cacert "$dir/root.pem" --resolve mta-sts.example.org:443:9.9.9.10 https://mta-sts.example.org/.well-known/mta-sts.txt; }
step "mta-sts.txt is served with its certificate" policy
check "autoconfig is served" curl -sSf --cacert "$dir/root.pem" --resolve autoconfig.example.org:443:9.9.9.10 \
    'https://autoconfig.example.org/mail/config-v1.1.xml?emailaddress=ann@example.org'
step "dns records: _mta-sts joins, once its policy is there" publish
has_sts() { grep -q '^_mta-sts.example.org' "$dir/records"; }
check "the record _mta-sts is printed" has_sts
step "dns check --watch: all records are seen" on_machine timeout 60 posthaste dns check example.org --watch

arrives() {
    swaks --server 9.9.9.10 --port 465 --tls-on-connect --auth PLAIN --auth-user ann@example.org --auth-password "$password" \
        --from ann@example.org --to bob@there.example --header 'Subject: first' --body 'a first message'
    answers grep -rq '^Subject: first' "$dir/there/"
    local file
    file=$(grep -rl '^Subject: first' "$dir/there" | head -n 1)
    cat "$file"
    for result in spf=pass dkim=pass dmarc=pass; do sed '/^\r*$/q' "$file" | grep -q "$result" || { echo "no $result"; return 1; }; done
}
step "mail to another host: SPF, DKIM and DMARC pass there" arrives
is_read() {
    swaks --server 9.9.9.25 --from bob@there.example --to ann@example.org --header 'Subject: reply' --body 'an answer'
    answers curl -sSf --cacert "$dir/root.pem" --resolve mx.example.org:993:9.9.9.10 -u "ann@example.org:$password" 'imaps://mx.example.org/INBOX;MAILINDEX=1;SECTION=HEADER.FIELDS%20(SUBJECT)'
    curl -sSf --cacert "$dir/root.pem" --resolve mx.example.org:993:9.9.9.10 -u "ann@example.org:$password" 'imaps://mx.example.org/INBOX;MAILINDEX=1' | tee /dev/stderr | grep -q '^Subject: reply'
}
step "an answer: read by IMAP, with the certificate of the authority" is_read
printf 'the walk took %d.%d s\n' $((total / 10)) $((total % 10)) | tee -a "$WALK"
finish
