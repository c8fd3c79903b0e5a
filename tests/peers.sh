#!/usr/bin/env bash
# `posthaste load` and `account` against servers that are not ours: Postfix (SMTP, pipelining, a connection for each
# message; and behind our own relay, and in front of it), Dovecot (LMTP over TCP and over a UNIX socket; and behind our own server), aiosmtpd (SMTP with AUTH). Each runs in a scratch directory
# on loopback with a configuration made here; everything acknowledged has to be found in its mailboxes, octet for octet.
# What is not installed, and what needs root without it, is skipped, and said so; with CI_REQUIRE_PEERS=1 that is a failure.
# POSTHASTE names another binary to test than the debug build.
REQUIRE_ALL=${CI_REQUIRE_PEERS:-}
. "$(dirname "$0")/lib.sh"
chmod 755 "$dir" # their own users have to get through
before_the_end() {
    [ ! -e "$dir/postfix/etc/main.cf" ] || postfix -c "$dir/postfix/etc" stop >/dev/null 2>&1 || true
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
listens() { # port
    for _ in $(seq 1200); do
        (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return
        sleep 0.05
    done
    echo "nothing listens on $1"
    return 1
}

# load TARGET STORE MESSAGES COPIES OPTIONS...: all is acknowledged, and all that was acknowledged is in STORE.
load() {
    local target=$1 store=$2 messages=$3 copies=$4
    shift 4
    timeout 300 "$POSTHASTE" load "$target" -q -m "$messages" -l 1k-20k -d localhost -u 5 --settle 60s --account "$store" "$@" |
        tee "$dir/load" || return 1
    grep -q "$messages messages acknowledged, $copies copies expected, $copies found" "$dir/load" &&
        grep -q "0 lost, 0 duplicated, 0 altered, 0 unexpected" "$dir/load"
}

# As load, to a domain that Postfix has another host deliver.
relayed_by_postfix() { # port, account of the sink
    timeout 300 "$POSTHASTE" load "127.0.0.1:$1" -q -m 60 -l 1k-20k -d there.example -u 5 -s 10 --settle 60s --account "$2" |
        tee "$dir/load" || return 1
    grep -q "60 messages acknowledged, 60 copies expected, 60 found" "$dir/load" &&
        grep -q "0 lost, 0 duplicated, 0 altered, 0 unexpected" "$dir/load"
}

start_postfix() { # port, port of our relay
    local root=$dir/postfix
    mkdir -p "$root"/{etc,queue,data,mail}
    chown postfix "$root/data"
    chown nobody "$root/mail"
    cat >"$root/etc/main.cf" <<CF
compatibility_level = 3.6
queue_directory = $root/queue
data_directory = $root/data
maillog_file = $root/log
maillog_file_prefixes = $root
myhostname = localhost
mydestination =
virtual_mailbox_domains = localhost
virtual_mailbox_base = $root/mail
virtual_mailbox_maps = inline:{$(printf '{user%d@localhost=user%d/Maildir/} ' 1 1 2 2 3 3 4 4 5 5)}
virtual_uid_maps = static:65534
virtual_gid_maps = static:65534
inet_interfaces = 127.0.0.1
smtpd_client_connection_rate_limit = 0
smtpd_client_message_rate_limit = 0
smtpd_recipient_restrictions = permit_mynetworks, reject
transport_maps = inline:{ there.example=smtp:[127.0.0.1]:$2 }
CF
    # The distribution's services, one port of our own, nothing in a chroot.
    sed -E "s/^smtp +inet.*/127.0.0.1:$1 inet n - n - 20 smtpd/; s/^([a-z0-9-]+ +(unix|fifo) +[^ ]+ +[^ ]+ +)y /\1n /" \
        /usr/share/postfix/master.cf.dist >"$root/etc/master.cf"
    postfix -c "$root/etc" start && listens "$1"
}

start_dovecot() { # port
    local root=$dir/dovecot
    mkdir -p "$root"/{run,mail}
    chown nobody "$root/mail"
    cat >"$root/dovecot.conf" <<CONF
base_dir = $root/run
state_dir = $root/run
log_path = $root/log
protocols = lmtp
ssl = no
first_valid_uid = 1
mail_location = maildir:$root/mail/%n
default_internal_user = nobody
default_internal_group = nogroup
default_login_user = nobody
userdb {
  driver = static
  args = uid=65534 gid=65534 home=$root/mail/%n allow_all_users=yes
}
passdb {
  driver = static
  args = nopassword=y
}
service lmtp {
  unix_listener lmtp {
    mode = 0666
  }
  inet_listener lmtp {
    address = 127.0.0.1
    port = $1
  }
}
CONF
    dovecot -F -c "$root/dovecot.conf" &
    listens "$1" || { cat "$root/log"; return 1; }
}

# Our own server, which hands everything to Dovecot.
start_before_dovecot() { # port
    mkdir -p "$dir/before"
    cat >"$dir/before/posthaste.toml" <<CONF
[[listener]]
address = "127.0.0.1:$1"
[[domain]]
name = "localhost"
users = ["user1", "user2", "user3", "user4", "user5"]
transport = "lmtp:unix:$dir/dovecot/run/lmtp"
CONF
    (cd "$dir/before" && exec "$POSTHASTE" serve) &
    listens "$1"
}

# Our own server between Postfix and others: mail for there.example goes to a sink, all other mail to Postfix.
start_relay() { # port, port of Postfix, port of the sink
    mkdir -p "$dir/relay"
    cat >"$dir/relay/posthaste.toml" <<CONF
host_name = "relay.example"
[[listener]]
address = "127.0.0.1:$1"
[[domain]]
name = "here.example"
[relay]
networks = ["127.0.0.1"]
[[relay.route]]
domain = "there.example"
host = "[127.0.0.1]"
port = $3
tls = "off"
[[relay.route]]
host = "[127.0.0.1]"
port = $2
tls = "off"
CONF
    "$POSTHASTE" sink "127.0.0.1:$3" --account "$dir/relay/sink.jsonl" >/dev/null 2>&1 &
    (cd "$dir/relay" && exec "$POSTHASTE" serve) &
    listens "$3" && listens "$1"
}

# Through us, to each of Postfix's users: 8-bit text, long lines, and an address that needs SMTPUTF8.
unusual_mail_arrives_unaltered() { # port of our relay
    PORT=$1 MAIL=$dir/postfix/mail python3 - <<'PY'
import glob, os, smtplib, time

bodies = {
    "8bit": "Grüße, żółw\r\n.\r\n..dots\r\n".encode(),
    "long": b"x" * 990 + b"\r\n" + b"y" * 990 + b"\r\n",
    "utf8": "from an address that is not ASCII\r\n".encode(),
}
users = [f"user{n}@localhost" for n in range(1, 6)]
with smtplib.SMTP("127.0.0.1", int(os.environ["PORT"]), "client.example") as client:
    client.ehlo()
    for kind, body in bodies.items():
        options = ["BODY=8BITMIME"] + (["SMTPUTF8"] if kind == "utf8" else [])
        sender = "jürgen@here.example" if kind == "utf8" else "ann@here.example"
        message = f"Subject: unusual-{kind}\r\n\r\n".encode() + body
        client.sendmail(sender, users, message, mail_options=options)

expected = {kind: body.replace(b"\r\n", b"\n") for kind, body in bodies.items()}
for _ in range(600):
    found = {}
    for file in glob.glob(os.environ["MAIL"] + "/user*/Maildir/new/*"):
        head, _, body = open(file, "rb").read().partition(b"\n\n")
        for kind in expected:
            if f"Subject: unusual-{kind}".encode() in head:
                found.setdefault(kind, []).append(body)
    if all(len(found.get(kind, [])) >= len(users) for kind in expected):
        break
    time.sleep(0.1)
for kind, body in expected.items():
    copies = found.get(kind, [])
    assert len(copies) == len(users), f"{kind}: {len(copies)} copies for {len(users)} recipients"
    assert all(copy == body for copy in copies), f"{kind}: {copies[0]!r}"
PY
}

# Keeps each message as it came, and takes mail of those alone who know the password.
start_aiosmtpd() { # port
    mkdir "$dir/aiosmtpd"
    PORT=$1 STORE=$dir/aiosmtpd $python - <<'PY' &
import itertools, os, signal
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

numbers = itertools.count()


class Keep:
    async def handle_DATA(self, server, session, envelope):
        with open(os.path.join(os.environ["STORE"], f"{next(numbers)}.eml"), "wb") as file:
            file.write(envelope.original_content)
        return "250 2.0.0 kept"


def knows(server, session, envelope, mechanism, data):
    # Not handled: the server itself says 235 or 535.
    return AuthResult(success=(data.login, data.password) == (b"load", b"secret"), handled=False)


controller = Controller(
    Keep(), hostname="127.0.0.1", port=int(os.environ["PORT"]),
    authenticator=knows, auth_required=True, auth_require_tls=False,
)
controller.start()
signal.sigwait([signal.SIGTERM])
PY
    listens "$1"
}

wrong_password_is_seen() { # port
    local status=0
    POSTHASTE_LOAD_PASSWORD=wrong timeout 60 "$POSTHASTE" load "127.0.0.1:$1" -q -m 2 -s 1 --auth plain \
        --auth-user load --give-up 5s >"$dir/refused" || status=$?
    cat "$dir/refused"
    [ "$status" -eq 1 ] && grep -q 'auth 535' "$dir/refused"
}

if ! command -v postfix >/dev/null; then
    skip Postfix "not installed"
elif [ "$(id -u)" -ne 0 ]; then
    skip Postfix "has to be started as root"
else
    port=$(free_port)
    relay=$(free_port)
    check "Postfix starts" start_postfix "$port" "$relay"
    check "Postfix takes 100 messages, and all are in its Maildirs" \
        load "127.0.0.1:$port" "$dir/postfix/mail" 100 200 -s 10 -n 2
    check "Postfix takes 20 messages over a connection each, one command at a time" \
        load "127.0.0.1:$port" "$dir/postfix/mail" 20 20 -s 5 --per-connection 1 --pipelining off
    check "Postfix takes 20 messages with BDAT" load "127.0.0.1:$port" "$dir/postfix/mail" 20 20 -s 5 --bdat
    check "Posthaste starts, between Postfix and others" start_relay "$relay" "$port" "$(free_port)"
    check "what Posthaste relays to Postfix, 60 messages of 3 recipients, is in its Maildirs" \
        load "127.0.0.1:$relay" "$dir/postfix/mail" 60 180 -s 10 -n 3
    check "8-bit mail, long lines and SMTPUTF8 come through Posthaste to Postfix unaltered" \
        unusual_mail_arrives_unaltered "$relay"
    check "what Postfix relays through Posthaste, 60 messages, is at the next hop" \
        relayed_by_postfix "$port" "$dir/relay/sink.jsonl"
fi

if ! command -v dovecot >/dev/null || [ ! -e /usr/lib/dovecot/lmtp ]; then
    skip Dovecot "not installed"
elif [ "$(id -u)" -ne 0 ]; then
    skip Dovecot "has to be started as root to deliver as another user"
else
    port=$(free_port)
    check "Dovecot starts" start_dovecot "$port"
    check "Dovecot takes 100 messages of 3 recipients over LMTP, and all are in its Maildirs" \
        load "lmtp://127.0.0.1:$port" "$dir/dovecot/mail" 100 300 -s 5 -n 3
    check "Dovecot takes 50 messages over its UNIX socket" \
        load "lmtp+unix:$dir/dovecot/run/lmtp" "$dir/dovecot/mail" 50 50 -s 5
    port=$(free_port)
    check "Posthaste starts, with Dovecot as its next hop" start_before_dovecot "$port"
    check "what Posthaste takes for Dovecot, 100 messages of 3 recipients, is in Dovecot's Maildirs" \
        load "127.0.0.1:$port" "$dir/dovecot/mail" 100 300 -s 5 -n 3
fi

# ENVELOPE and BODYSTRUCTURE of the corpus: `POSTHASTE_CORPUS`, else the larger one beside the repository, else the project's own.
corpus=${POSTHASTE_CORPUS:-../shared/corpus}
[ -d "$corpus" ] || corpus=tests/corpus
if [ ! -e /usr/lib/dovecot/imap ] || [ "$(id -u)" -ne 0 ]; then
    skip "structures beside Dovecot's" "no imap of Dovecot, or not root"
else
    check "ENVELOPE and BODYSTRUCTURE of the corpus are those of Dovecot, or the difference is explained" \
        timeout 300 python3 tests/structures.py "$POSTHASTE" "$corpus" tests/structures.txt
fi

# The distribution's module belongs to the distribution's Python, which need not be the first in PATH.
python=
for candidate in python3 /usr/bin/python3; do
    "$candidate" -c 'import aiosmtpd' 2>/dev/null && { python=$candidate; break; }
done
if [ -z "$python" ]; then
    skip aiosmtpd "not installed"
else
    port=$(free_port)
    check "aiosmtpd starts" start_aiosmtpd "$port"
    export POSTHASTE_LOAD_PASSWORD=secret
    check "aiosmtpd takes 50 messages with AUTH PLAIN" \
        load "127.0.0.1:$port" "$dir/aiosmtpd" 50 50 -s 5 --auth plain --auth-user load --copies message
    check "aiosmtpd takes 20 messages with AUTH LOGIN over a connection each" \
        load "127.0.0.1:$port" "$dir/aiosmtpd" 20 20 -s 5 --auth login --auth-user load --copies message --per-connection 1
    check "aiosmtpd refuses a wrong password, and the report says so" wrong_password_is_seen "$port"
fi

finish
