#!/usr/bin/env bash
# Sends mail with real clients through a real server on the loopback address, looks at what lies in the Maildirs, reads it by IMAP and POP3 and changes it.
# Needs swaks, curl, openssl, python3 with dkim and nacl, neomutt, mbsync, offlineimap, msmtp, tmux, fetchmail, mpop and smtp-source (in Postfix). POSTHASTE names another binary to test than the debug build.
. "$(dirname "$0")/lib.sh"

openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=mx.example.org -addext subjectAltName=IP:127.0.0.1 \
    -keyout "$dir/key.pem" -out "$dir/cert.pem" 2>/dev/null
cat >"$dir/posthaste.toml" <<'TOML'
host_name = "mx.example.org"
[tls]
certificate = "cert.pem"
key = "key.pem"
[[listener]]
address = "127.0.0.1:0"
[[listener]]
address = "127.0.0.1:0"
proxy_protocol = true
proxies = "127.0.0.1"
[[listener]]
address = "127.0.0.1:0"
tls = "implicit"
[[listener]]
address = "127.0.0.1:0"
tls = "required"
auth = "required"
[[listener]]
address = "127.0.0.1:0"
tls = "implicit"
auth = "required"
[[listener]]
address = "127.0.0.1:0"
protocol = "imap"
[[listener]]
address = "127.0.0.1:0"
protocol = "pop3"
[[listener]]
address = "127.0.0.1:0"
protocol = "pop3"
tls = "implicit"
[auth]
file = "passwords"
[[domain]]
name = "example.org"
users = ["alice", "bob", "carol", "dave", "erin", "load", "tls", "login", "frank", "signed", "grace"]
TOML
for user in dave frank grace; do
    echo secret | "$POSTHASTE" password --scram "$user@example.org"
done >"$dir/passwords"
serve
port=$(port_of 1)
proxied=$(port_of 2)
implicit=$(port_of 3)
submission=$(port_of 4)
submissions=$(port_of 5)
imap=$(sed -n 's/^ *imap  *[^ ]*:\([0-9]*\)$/\1/p' "$dir/banner")
pop3=$(sed -n 's/^ *pop3  *[^ ]*:\([0-9]*\)$/\1/p' "$dir/banner" | sed -n 1p)
pop3s=$(sed -n 's/^ *pop3  *[^ ]*:\([0-9]*\)$/\1/p' "$dir/banner" | sed -n 2p)

# holds USER COUNT TEXT: the mailbox has COUNT messages, and TEXT is a line of each.
holds() {
    local new="$dir/posthaste-data/mail/example.org/$1/Maildir/new" count=0
    for _ in $(seq 300); do
        count=$(find "$new" -type f 2>/dev/null | wc -l)
        [ "$count" -ge "$2" ] && break
        sleep 0.1
    done
    [ "$count" -eq "$2" ] || { echo "$count messages, $2 expected"; return 1; }
    [ "$(find "$new" -type f -print0 | xargs -0 grep -lxF -- "$3" | wc -l)" -eq "$2" ] || {
        echo "not everywhere: $3"
        return 1
    }
    # LF on disk, one trace field of each kind, in their order.
    ! find "$new" -type f -print0 | xargs -0 grep -l $'\r' || { echo "CR on disk"; return 1; }
    find "$new" -type f -print0 | xargs -0 -n1 awk '
        /^Return-Path: </ && NR == 1 {n++} /^Delivered-To: / && NR == 2 {n++} /^Received: from / && NR == 3 {n++}
        END {exit n != 3}'
}

with_swaks() {
    swaks --silent 1 --server 127.0.0.1 --port "$port" --helo client.example.net --from you@example.net \
        --to alice@example.org --header 'Subject: swaks' --body $'first\n.\n..dots\nlast from swaks'
}
# with_swaks_and_login PASSWORD OPTION…: as dave, who has one.
with_swaks_and_login() {
    local password=$1
    shift
    swaks --silent 1 --server 127.0.0.1 --helo client.example.net --auth-user dave@example.org --auth-password "$password" \
        --from dave@example.org --to login@example.org --header 'Subject: login' --body 'by a login' "$@"
}
with_swaks_and_a_wrong_password() {
    ! with_swaks_and_login wrong --port "$submission" --tls --auth PLAIN
}
with_swaks_as_another() {
    ! with_swaks_and_login secret --port "$submission" --tls --auth PLAIN --from bob@example.org
}
with_curl_and_login() {
    printf 'From: dave@example.org\r\nSubject: curl\r\n\r\nby a login\r\n' | curl -sS --max-time 30 --cacert "$dir/cert.pem" --user dave@example.org:secret \
        "smtps://127.0.0.1:$submissions" --mail-from dave@example.org --mail-rcpt login@example.org -T -
}
# GNU SASL, which msmtp uses for it, also checks that the server has the keys.
with_msmtp_by_scram() { # with_msmtp_by_scram PASSWORD
    printf 'From: dave@example.org\r\nSubject: msmtp\r\n\r\nby a login\r\n' | msmtp --host=127.0.0.1 --port="$submissions" --tls=on --tls-starttls=off \
        --tls-trust-file="$dir/cert.pem" --auth=scram-sha-256 --user=dave@example.org --passwordeval="echo $1" --timeout=30 \
        --from=dave@example.org login@example.org
}
with_msmtp_and_a_wrong_password() {
    ! with_msmtp_by_scram wrong
}
traces_name_logins() {
    local new="$dir/posthaste-data/mail/example.org/login/Maildir/new"
    [ "$(find "$new" -type f -print0 | xargs -0 grep -l ' with ESMTPSA id ' | wc -l)" -eq 4 ]
}
with_swaks_unknown_refused() {
    ! swaks --silent 1 --server 127.0.0.1 --port "$port" --from you@example.net --to nobody@example.org
}
with_swaks_relay_refused() {
    ! swaks --silent 1 --server 127.0.0.1 --port "$port" --from you@example.net --to you@elsewhere.example
}
with_curl() {
    printf 'Subject: curl\r\n\r\nsent by curl\r\n' |
        curl -sS --max-time 30 "smtp://127.0.0.1:$port" --mail-from you@example.net --mail-rcpt bob@example.org -T -
}
with_curl_as_a_proxy() {
    printf 'Subject: proxy\r\n\r\nbehind a proxy\r\n' |
        curl -sS --max-time 30 --haproxy-protocol "smtp://127.0.0.1:$proxied" --mail-from you@example.net --mail-rcpt erin@example.org -T -
}
without_a_header() {
    ! curl -sS --max-time 30 "smtp://127.0.0.1:$proxied" --mail-from you@example.net --mail-rcpt erin@example.org -T /dev/null
}
with_curl_and_tls() { # with_curl_and_tls URL: it knows the certificate
    printf 'Subject: curl\r\n\r\nencrypted\r\n' | curl -sS --max-time 30 --ssl-reqd --cacert "$dir/cert.pem" \
        "$1" --mail-from you@example.net --mail-rcpt tls@example.org -T -
}
with_python_and_tls_1_2() {
    PORT=$port CERT=$dir/cert.pem python3 - <<'PY'
import os, smtplib, ssl
context = ssl.create_default_context(cafile=os.environ["CERT"])
context.maximum_version = ssl.TLSVersion.TLSv1_2
with smtplib.SMTP("127.0.0.1", int(os.environ["PORT"]), timeout=30) as smtp:
    smtp.starttls(context=context)
    smtp.sendmail("you@example.net", ["tls@example.org"], "Subject: y\r\n\r\nencrypted\r\n")
PY
}
with_openssl() {
    openssl s_client -starttls smtp -connect "127.0.0.1:$port" -CAfile "$dir/cert.pem" -verify_return_error -brief \
        </dev/null 2>&1 | grep -x 'Verification: OK'
}
with_openssl_and_tls_1_1_refused() {
    ! openssl s_client -tls1_1 -cipher ALL:@SECLEVEL=0 -connect "127.0.0.1:$implicit" </dev/null
}
traces_say_so() {
    local new="$dir/posthaste-data/mail/example.org/tls/Maildir/new"
    [ "$(find "$new" -type f -print0 | xargs -0 grep -l ' with ESMTPS id ' | wc -l)" -eq 3 ] &&
        [ "$(find "$new" -type f -print0 | xargs -0 grep -l ' tls TLS_[A-Z0-9_]* (TLSv1.2); ' | wc -l)" -eq 1 ]
}
with_python() {
    PORT=$port python3 - <<'PY'
import os, smtplib
from email.message import EmailMessage
message = EmailMessage()
message["From"], message["To"], message["Subject"] = "you@example.net", "carol@example.org", "Grüße"
message.set_content("sent by smtplib\n")
with smtplib.SMTP("127.0.0.1", int(os.environ["PORT"]), timeout=30) as smtp:
    smtp.send_message(message)
    smtp.send_message(message)
    assert smtp.esmtp_features["size"], smtp.esmtp_features
    try:
        smtp.sendmail("you@example.net", ["nobody@example.org"], "Subject: x\r\n\r\n")
        raise SystemExit("an unknown user was accepted")
    except smtplib.SMTPRecipientsRefused as refused:
        code, text = refused.recipients["nobody@example.org"]
        assert code == 550 and b"5.1.1" in text, refused
    refused = smtp.sendmail("you@example.net", ["dave@example.org", "you@elsewhere.example"], "Subject: y\r\n\r\nto dave\r\n")
    assert refused["you@elsewhere.example"][0] == 550, refused
PY
}
with_smtp_source() {
    smtp-source -s 20 -m 2000 -l 5000 -f you@example.net -t load@example.org "127.0.0.1:$port"
}
load_arrived() {
    holds load 2000 "To: <load@example.org>"
}
with_curl_by_imap() {
    local url="imap://127.0.0.1:$imap/INBOX"
    curl -sS --max-time 30 -u dave@example.org:secret "$url" -X 'FETCH 1:* (UID FLAGS ENVELOPE)' | grep -q 'UID 1 .*"y"' &&
        curl -sS --max-time 30 --ssl-reqd --cacert "$dir/cert.pem" -u dave@example.org:secret "$url;UID=1" | grep -qx $'to dave\r'
}
with_curl_by_imap_and_a_wrong_password() {
    ! curl -sS --max-time 30 -u dave@example.org:wrong "imap://127.0.0.1:$imap/INBOX" -X NOOP
}
with_neomutt() {
    cat >"$dir/neomuttrc" <<RC
set imap_user = "dave@example.org"
set imap_pass = "secret"
set certificate_file = "$dir/cert.pem"
set ssl_verify_host = no
set folder = "imap://127.0.0.1:$imap/"
set spoolfile = "+INBOX"
set header_cache = ""
set wait_key = no
set pipe_decode = no
push "<last-entry><pipe-message>cat >'$dir/neomutt.eml'<enter><exit>"
RC
    tmux -L "posthaste-$$" -f /dev/null new-session -d -x 100 -y 30 "HOME='$dir' neomutt -n -F '$dir/neomuttrc' 2>'$dir/neomutt.err'"
    for _ in $(seq 300); do
        grep -q 'to dave' "$dir/neomutt.eml" 2>/dev/null && break
        sleep 0.1
    done
    tmux -L "posthaste-$$" capture-pane -p 2>/dev/null || true
    tmux -L "posthaste-$$" kill-server 2>/dev/null || true
    grep -x 'Subject: y' "$dir/neomutt.eml" && grep -x 'to dave' "$dir/neomutt.eml"
}
# What follows changes the mail of frank.
with_imaplib_changes() {
    mkdir -p "$dir/posthaste-data/mail/example.org/frank/Maildir"/{,.Projects/,.Projects.2024/}{new,cur,tmp}
    PORT=$imap python3 - <<'PY'
import imaplib, os, re, time
imaplib.Commands["MOVE"] = ("SELECTED",)
imap = imaplib.IMAP4("127.0.0.1", int(os.environ["PORT"]), timeout=60)
imap.login("frank@example.org", "secret")
def ok(answer):
    status, data = answer
    assert status == "OK", answer
    return data
assert [re.search(r'"/" "(.*)"', line.decode()).group(1) for line in ok(imap.list('""', "Pro*"))] == ["Projects", "Projects/2024"]
date = imaplib.Time2Internaldate(1_000_000_000)
for n in range(1, 6):
    mail = f"Subject: mail {n}\r\nMessage-ID: <{n}@example.org>\r\n\r\nnumber {n}\r\n".encode()
    (uid,) = ok(imap.append("INBOX", "(\\Seen)" if n == 1 else None, date, mail))
    assert f" {n}]" in uid.decode(), uid
# READ-WRITE: imaplib raises an error otherwise.
assert int(ok(imap.select("INBOX"))[0]) == 5
assert b"\\Flagged" in ok(imap.store("2", "+FLAGS", "(\\Flagged $Work)"))[0]
assert ok(imap.uid("STORE", "3", "+FLAGS.SILENT", "(\\Deleted)")) == [None]
ok(imap.uid("COPY", "1:2", "Projects"))
assert imap.response("COPYUID")[1][0].endswith(b" 1:2 1:2"), imap.untagged_responses
imap.uid("MOVE", "4", "Projects/2024")
ok(imap.expunge())
assert ok(imap.uid("SEARCH", None, "ALL")) == [b"1 2 5"]
assert b"FLAGS (\\Flagged $Work" in ok(imap.uid("FETCH", "2", "(FLAGS INTERNALDATE)"))[0]
assert b"number 5" in ok(imap.uid("FETCH", "5", "(BODY[])"))[0][1]
assert b"\\Seen" in ok(imap.uid("FETCH", "5", "(FLAGS)"))[0]
assert b"(MESSAGES 2 UNSEEN 1)" in ok(imap.status("Projects", "(MESSAGES UNSEEN)"))[0]
ok(imap.close())
imap.logout()
PY
}
with_curl_changes() {
    local url="imap://127.0.0.1:$imap" ask=(curl -sS --max-time 30 -u frank@example.org:secret)
    printf 'Subject: curl\r\n\r\nput there by curl\r\n' >"$dir/curl.eml"
    "${ask[@]}" -T "$dir/curl.eml" "$url/Projects" || return 1
    "${ask[@]}" "$url/Projects" -X 'STORE 3 +FLAGS (\Deleted)' | grep -F '\Deleted' || return 1
    "${ask[@]}" "$url/Projects" -X EXPUNGE | grep -F '* 3 EXPUNGE'
}
# Both ways: messages, flags and removals of each side go to the other, and then there is nothing to do.
with_mbsync() {
    local near="$dir/mbsync"
    mkdir -p "$near"
    cat >"$dir/mbsyncrc" <<RC
IMAPAccount frank
Host 127.0.0.1
Port $imap
User frank@example.org
Pass secret
SSLType None
AuthMechs LOGIN

IMAPStore far
Account frank

MaildirStore near
Path $near/
Inbox $near/INBOX
SubFolders Verbatim

Channel mail
Far :far:
Near :near:
Patterns *
Create Near
Expunge Both
CopyArrivalDate yes
SyncState *
RC
    mbsync -V -c "$dir/mbsyncrc" -a || return 1
    [ "$(find "$near/INBOX" -type f ! -name '.*' | wc -l)" -eq 3 ] && [ "$(find "$near/Projects/new" "$near/Projects/cur" -type f | wc -l)" -eq 2 ] || return 1
    printf 'Subject: near\n\nwritten here\n' >"$near/INBOX/new/1.near"
    local file
    file=$(grep -rlx 'number 5' "$near/INBOX/cur")
    mv "$file" "${file%%:2,*}:2,FRS"
    rm "$(grep -rlx 'number 1' "$near/INBOX/cur")"
    mbsync -V -c "$dir/mbsyncrc" -a || return 1
    local inbox
    inbox=$(curl -sS --max-time 30 -u frank@example.org:secret "imap://127.0.0.1:$imap/INBOX" -X 'UID FETCH 1:* (FLAGS)')
    echo "$inbox"
    grep -q 'UID 6 FLAGS ()' <<<"$inbox" && ! grep -q 'UID 1 ' <<<"$inbox" && grep -q 'UID 5 FLAGS (\\Answered \\Flagged \\Seen' <<<"$inbox" || return 1
    local before
    before=$(cd "$near" && find . -type f ! -name '.*' | sort)
    mbsync -V -c "$dir/mbsyncrc" -a >"$dir/mbsync.out" 2>&1 || { cat "$dir/mbsync.out"; return 1; }
    cat "$dir/mbsync.out"
    [ "$before" = "$(cd "$near" && find . -type f ! -name '.*' | sort)" ] &&
        [ "$inbox" = "$(curl -sS --max-time 30 -u frank@example.org:secret "imap://127.0.0.1:$imap/INBOX" -X 'UID FETCH 1:* (FLAGS)')" ]
}
# As with mbsync, with the mail of grace.
with_offlineimap() {
    local near="$dir/offlineimap" url="imap://127.0.0.1:$imap/INBOX" ask=(curl -sS --max-time 30 -u grace@example.org:secret) n
    for n in 1 2 3; do
        printf 'Subject: mail %s\r\nMessage-ID: <%s@example.org>\r\n\r\nnumber %s\r\n' $n $n $n >"$dir/grace.eml"
        "${ask[@]}" -T "$dir/grace.eml" "$url" || return 1
    done
    cat >"$dir/offlineimaprc" <<RC
[general]
accounts = grace
metadata = $dir/offlineimap.meta
ui = basic
[Account grace]
localrepository = near
remoterepository = far
[Repository near]
type = Maildir
localfolders = $near
[Repository far]
type = IMAP
remotehost = 127.0.0.1
remoteport = $imap
remoteuser = grace@example.org
remotepass = secret
ssl = no
starttls = no
RC
    sync() { HOME=$dir timeout 120 offlineimap -c "$dir/offlineimaprc" -o; }
    sync || return 1
    [ "$(grep -rlx 'number [123]' "$near/INBOX" | wc -l)" -eq 3 ] && [ -d "$near/Archive" ] || return 1
    printf 'Subject: near\n\nwritten here\n' >"$near/INBOX/new/1.near"
    local file
    file=$(grep -rlx 'number 2' "$near/INBOX/cur")
    mv "$file" "${file%%:2,*}:2,FRS"
    rm "$(grep -rlx 'number 1' "$near/INBOX/cur")"
    "${ask[@]}" "$url" -X 'UID STORE 3 -FLAGS (\Seen)' || return 1
    sync || return 1
    local inbox expected before
    expected=$'* 1 FETCH (UID 2 FLAGS (\\Answered \\Flagged \\Seen))\n* 2 FETCH (UID 3 FLAGS ())\n* 3 FETCH (UID 4 FLAGS ())'
    inbox=$("${ask[@]}" "$url" -X 'UID FETCH 1:* (FLAGS)' | tr -d '\r')
    echo "$inbox"
    [ "$inbox" = "$expected" ] || return 1
    before=$(find "$near" -type f | sort)
    grep -rlx 'number 3' "$near/INBOX" | grep -v ',[A-Z]*S[A-Z]*$' || return 1
    sync || return 1
    [ "$before" = "$(find "$near" -type f | sort)" ] && "${ask[@]}" "$url" -X 'UID FETCH 1:* (FLAGS)' | tr -d '\r' | diff <(echo "$expected") - || return 1
    # Reading sets \Seen.
    "${ask[@]}" "$url;UID=4" | grep -x $'written here\r'
}
with_neomutt_changes() {
    cat >"$dir/neomuttrc" <<RC
set imap_user = "frank@example.org"
set imap_pass = "secret"
set certificate_file = "$dir/cert.pem"
set ssl_verify_host = no
set folder = "imap://127.0.0.1:$imap/"
set spoolfile = "+INBOX"
set header_cache = ""
set delete = yes
set sort = mailbox-order
push "<first-entry><flag-message><last-entry><delete-message><sync-mailbox><exit>"
RC
    tmux -L "posthaste-$$" -f /dev/null new-session -d -x 100 -y 30 "HOME='$dir' neomutt -n -F '$dir/neomuttrc' 2>'$dir/neomutt.err'"
    local found=""
    for _ in $(seq 300); do
        found=$(curl -sS --max-time 30 -u frank@example.org:secret "imap://127.0.0.1:$imap/INBOX" -X 'UID FETCH 1:* (FLAGS)')
        [ "$(grep -c FETCH <<<"$found")" -eq 2 ] && break
        sleep 0.1
    done
    tmux -L "posthaste-$$" capture-pane -p 2>/dev/null || true
    tmux -L "posthaste-$$" kill-server 2>/dev/null || true
    echo "$found"
    # The first message was flagged: neomutt takes that away.
    ! grep -q 'UID 2 FLAGS .*\\Flagged' <<<"$found" && [ "$(grep -c FETCH <<<"$found")" -eq 2 ]
}
# Without `keep`: what it has it deletes.
with_fetchmail_that_deletes() {
    cat >"$dir/fetchmailrc" <<RC
set postmaster root
set no bouncemail
poll 127.0.0.1 protocol pop3 service $pop3 uidl
  user "frank@example.org" password "secret" fetchall nokeep
  sslproto "TLS1.2+" sslcertfile "$dir/cert.pem" sslcertck sslcommonname "mx.example.org"
  mda "cat >>$dir/frank.mbox"
RC
    chmod 600 "$dir/fetchmailrc"
    HOME=$dir fetchmail -f "$dir/fetchmailrc" --idfile "$dir/frankids" --nosyslog --nodetach || return 1
    [ "$(grep -cE '^(number|written)' "$dir/frank.mbox")" -eq 2 ] || return 1
    curl -sS --max-time 30 -u frank@example.org:secret "imap://127.0.0.1:$imap/" -X 'STATUS INBOX (MESSAGES)' | grep -F '(MESSAGES 0)'
}
with_curl_by_pop3() {
    curl -sS --max-time 30 -u dave@example.org:secret "pop3://127.0.0.1:$pop3/" | grep -qx $'1 [0-9]*\r' &&
        curl -sS --max-time 30 --ssl-reqd --cacert "$dir/cert.pem" -u dave@example.org:secret "pop3://127.0.0.1:$pop3/1" | grep -qx $'to dave\r' &&
        curl -sS --max-time 30 --cacert "$dir/cert.pem" -u dave@example.org:secret "pop3s://127.0.0.1:$pop3s/1" | grep -qx $'to dave\r'
}
with_curl_by_pop3_and_a_wrong_password() {
    ! curl -sS --max-time 30 -u dave@example.org:wrong "pop3://127.0.0.1:$pop3/1"
}
with_poplib() {
    PORT=$pop3 CERT=$dir/cert.pem python3 - <<'PY'
import os, poplib, ssl
pop = poplib.POP3("127.0.0.1", int(os.environ["PORT"]), timeout=60)
assert {"UIDL", "TOP", "STLS"} <= set(pop.capa())
pop.stls(ssl.create_default_context(cafile=os.environ["CERT"]))
pop.user("dave@example.org")
pop.pass_("secret")
count, octets = pop.stat()
sizes = [int(line.split()[1]) for line in pop.list()[1]]
assert len(sizes) == count and sum(sizes) == octets, (count, octets, sizes)
assert len({line.split()[1] for line in pop.uidl()[1]}) == count
for number, size in enumerate(sizes, 1):
    _, lines, read = pop.retr(number)
    assert read == size, (read, size)
    top = pop.top(number, 0)[1]
    assert top == lines[: len(top)] and top[-1] == b"", top
assert b"to dave" in pop.retr(1)[1]
pop.dele(1)
pop.rset()
pop.quit()
PY
}
# fetchmail remembers by UIDL what it has.
with_fetchmail() {
    cat >"$dir/fetchmailrc" <<RC
set postmaster root
set no bouncemail
poll 127.0.0.1 protocol pop3 service $pop3 uidl
  user "dave@example.org" password "secret" keep
  sslproto "TLS1.2+" sslcertfile "$dir/cert.pem" sslcertck sslcommonname "mx.example.org"
  mda "cat >>$dir/fetchmail.mbox"
RC
    chmod 600 "$dir/fetchmailrc"
    HOME=$dir fetchmail -f "$dir/fetchmailrc" --idfile "$dir/fetchids" --nosyslog --nodetach || return 1
    grep -x 'to dave' "$dir/fetchmail.mbox" || return 1
    local status=0
    HOME=$dir fetchmail -f "$dir/fetchmailrc" --idfile "$dir/fetchids" --nosyslog --nodetach || status=$?
    # 1: there is nothing new.
    [ "$status" -eq 1 ] && [ "$(grep -cx 'to dave' "$dir/fetchmail.mbox")" -eq 1 ]
}
with_mpop() {
    local options=(--file=/dev/null --host=127.0.0.1 --user=dave@example.org "--passwordeval=echo secret" --auth=user
        --tls=on --tls-trust-file="$dir/cert.pem" --keep=on --uidls-file="$dir/mpop.uidls" --delivery="mbox,$dir/mpop.mbox")
    mpop "${options[@]}" --port="$pop3" --tls-starttls=on || return 1
    mpop "${options[@]}" --port="$pop3s" --tls-starttls=off || return 1
    [ "$(grep -cx 'to dave' "$dir/mpop.mbox")" -eq 1 ]
}
with_mpop_by_scram() { # with_mpop_by_scram PASSWORD
    mpop --file=/dev/null --host=127.0.0.1 --port="$pop3s" --user=dave@example.org "--passwordeval=echo $1" --auth=scram-sha-256 \
        --tls=on --tls-starttls=off --tls-trust-file="$dir/cert.pem" --keep=on --uidls-file="$dir/scram.uidls" \
        --delivery="mbox,$dir/scram.mbox"
}
with_mpop_by_scram_alone() {
    with_mpop_by_scram secret && [ "$(grep -cx 'to dave' "$dir/scram.mbox")" -eq 1 ] && ! with_mpop_by_scram wrong
}
# The commands of README, as they stand there, at the default ports, in a network of its own.
the_first_minute() {
    mkdir "$dir/first" && awk -v to="$dir/readme" '
        /^## / { is_first = /^## The first minute/ }
        /^```/ { is_block = is_first && /^```sh/; if (is_block) number++; next }
        is_block { print >(to number) }' "$(dirname "$0")/../README.md" && PATH=$(dirname "$POSTHASTE"):$PATH unshare -n bash -euo pipefail -c '
        cd "$1"
        ip link set lo up
        "$2" serve >banner 2>log &
        server=$!
        trap "kill $server; wait $server || true" EXIT
        refused() { if curl -sS "pop3://127.0.0.1:1110/1" -u "$1"; then echo "$1 got in"; exit 1; fi; }
        for _ in $(seq 600); do grep -q "^Ready" banner && break; sleep 0.1; done
        bash -euo pipefail "$3"2
        for _ in $(seq 300); do ls posthaste-data/mail/localhost/me/Maildir/new/* && break; sleep 0.1; done
        [ "$(bash -euo pipefail "$3"3 | tr -d "\r" | grep -cx world)" = 3 ]
        bash -euo pipefail "$3"4 | grep -F hello
        script -qec "bash -euo pipefail ${3}5" /dev/null </dev/null | grep -F "http://127.0.0.1:8025/#k="
        [ "$(cat "$3"1 | grep -c "^cargo run --release -- serve$")" = 1 ]
        password=$(cat posthaste-data/password)
        curl -sS "imap://127.0.0.1:1143/INBOX;MAILINDEX=1" -u "me@localhost:$password" | grep -x $'\''world\r'\''
        curl -sS "pop3://127.0.0.1:1110/1" -u "me@localhost:$password" | grep -x $'\''world\r'\''
        curl -sS http://127.0.0.1:8025/api/now/v1 -H "Authorization: Bearer $password" | grep -F '\''"not_taking":null'\''
        refused "you@localhost:$password"
        refused me@localhost:wrong
        [ "$(stat -c %a posthaste-data/password)" = 600 ]
        if grep -F "$password" banner log; then exit 1; fi
        grep -F posthaste-data/password banner
        grep -F posthaste-data/password log
        for guess in $(seq 9); do refused "me@localhost:$guess"; done
        refused "me@localhost:$password"
        curl -sS "pop3://127.0.0.1:1110/1" -u "me@localhost:$(cat posthaste-data/password)" | grep -x $'\''world\r'\''
        sed "s/-t 10s/-t 1s/" "$3"6 | bash -euo pipefail
        [ -s report/report.html ]
    ' - "$dir/first" "$POSTHASTE" "$dir/readme"
}
# The four lines of a terminal, with a port that another program has: what they name works.
the_first_minute_on_a_terminal() {
    mkdir "$dir/terminal" && unshare -n bash -euo pipefail -c '
        cd "$1"
        ip link set lo up
        /usr/bin/python3 -c "import signal, socket; kept = socket.create_server((\"127.0.0.1\", 8025)); print(flush=True); signal.pause()" >busy &
        busy=$!
        trap "kill $busy" EXIT
        for _ in $(seq 600); do [ -s busy ] && break; sleep 0.1; done
        script -qefc "\"$2\" serve 2>log & echo \$! >pid; wait" banner >shown 2>&1 </dev/null &
        terminal=$!
        trap "kill $busy; kill \$(cat pid); wait $terminal" EXIT
        for _ in $(seq 600); do grep -q "search  posthaste find" shown && break; sleep 0.1; done
        tr -d "\r" <shown >lines
        [ "$(wc -l <lines)" = 4 ]
        grep -F "(port 8025 is busy; once" lines
        grep -F "127.0.0.1:8025 is busy" log
        send=$(sed -n "s/^ *send *//p" lines)
        eval "$send -sS"
        for _ in $(seq 300); do ls posthaste-data/mail/localhost/me/Maildir/new/* && break; sleep 0.1; done
        read=$(sed -n "s/^ *read *//p" lines)
        address=${read%% *} password=$(sed "s/.*password \([^ ]*\) .*/\1/" <<<"$read")
        curl -sS "$address/INBOX;MAILINDEX=1" -u "me@localhost:$password" | grep -x $'\''world\r'\''
        page=$(sed -n "s/^ *page *//p" lines)
        page=${page%% *}
        curl -sS "${page%%#*}api/session/v1" --json "{\"link\":\"${page##*#k=}\"}" | grep -F mail:read
        search=$(sed -n "s/^ *search *posthaste *//p" lines)
        eval "\"$2\" $search" | grep -F hello
    ' - "$dir/terminal" "$POSTHASTE"
}
# A message of a login has a signature by each key, and dkimpy verifies both.
dkimpy_verifies() {
    local new="$dir/posthaste-data/mail/example.org/signed/Maildir/new"
    (cd "$dir" && "$POSTHASTE" dkim new example.org --json) >"$dir/dkim.json" || return 1
    swaks --silent 1 --server 127.0.0.1 --port "$submission" --tls --auth PLAIN --auth-user dave@example.org --auth-password secret \
        --from dave@example.org --to signed@example.org --header 'X-Other: x' --body '  signed  text ' || return 1
    for _ in $(seq 300); do [ -n "$(ls "$new" 2>/dev/null)" ] && break; sleep 0.1; done
    KEYS=$dir/dkim.json NEW=$new /usr/bin/python3 - <<'PY'
import dkim, glob, json, os
keys = json.load(open(os.environ["KEYS"]))["made"]
records = {key["record"]["name"] + ".": key["record"]["value"].encode() for key in keys}
def txt(name, timeout=5):
    return records.get(name.decode() if isinstance(name, bytes) else name)
[file] = glob.glob(os.environ["NEW"] + "/*")
message = open(file, "rb").read().replace(b"\n", b"\r\n")
assert message.count(b"DKIM-Signature: ") == 2, message
for index in (0, 1):
    assert dkim.DKIM(message).verify(idx=index, dnsfunc=txt), (index, message)
changed = message.replace(b"signed  text", b"changed text")
try:
    assert not dkim.DKIM(changed).verify(dnsfunc=txt)
except dkim.ValidationError as error:
    assert "body hash mismatch" in str(error), error
added = message.replace(b"Subject: ", b"Subject: another\r\nSubject: ", 1)
assert not dkim.DKIM(added).verify(dnsfunc=txt)
PY
}
# The keys that were made are keys to OpenSSL, and RSA's numbers fit each other.
openssl_knows_the_keys() {
    local file
    for file in "$dir"/posthaste-data/dkim/example.org/*.pem; do
        openssl pkey -in "$file" -check -noout || return 1
    done
}
stops() {
    kill -TERM "$server"
    wait "$server"
}

start_sink() {
    "$POSTHASTE" sink 127.0.0.1:0 --tls starttls --store "dir:$dir/sink" --json >"$dir/sink.json" 2>"$dir/sink.log" &
    sink=$!
    for _ in $(seq 600); do
        sink_port=$(sed -n 's/^posthaste: sink listens on .*:\([0-9]*\)$/\1/p' "$dir/sink.log")
        [ -n "$sink_port" ] && return
        kill -0 "$sink" || { cat "$dir/sink.log"; return 1; }
        sleep 0.1
    done
    return 1
}
# Five messages: curl and smtplib encrypted, swaks and smtp-source in the clear.
sink_takes_mail() {
    swaks --silent 1 --server 127.0.0.1 --port "$sink_port" --from you@example.net --to alice@example.org || return 1
    printf 'Subject: curl\r\n\r\nto the sink\r\n' |
        curl -sS --max-time 30 --ssl-reqd -k "smtp://127.0.0.1:$sink_port" --mail-from you@example.net --mail-rcpt bob@example.org -T - || return 1
    smtp-source -m 2 -f you@example.net -t load@example.org "127.0.0.1:$sink_port" || return 1
    PORT=$sink_port python3 - <<'PY'
import os, smtplib
with smtplib.SMTP("127.0.0.1", int(os.environ["PORT"]), timeout=30) as smtp:
    smtp.starttls()
    refused = smtp.sendmail("you@example.net", ["carol@example.org", "452-full@example.org"], "Subject: y\r\n\r\nx\r\n")
    assert refused == {"452-full@example.org": (452, b"you said 452-full")}, refused
    try:
        smtp.sendmail("you@example.net", ["554-eod-spam@example.org"], "Subject: z\r\n\r\nx\r\n")
        raise SystemExit("a message that asked for 554 was accepted")
    except smtplib.SMTPDataError as error:
        assert error.smtp_code == 554, error
PY
}
sink_ends_with_its_summary() {
    kill -TERM "$sink" && wait "$sink" || return 1
    JSON=$dir/sink.json python3 - <<'PY' || return 1
import json, os
summary = json.load(open(os.environ["JSON"]))
assert (summary["messages"], summary["tls_sessions"]) == (5, 2), summary
assert summary["refusals"] == {"rcpt": {"452": 1}, "end-of-data": {"554": 1}}, summary
PY
    [ "$(find "$dir/sink" -name '*.eml' | wc -l)" -eq 5 ] && grep -lx $'to the sink\r' "$dir"/sink/*.eml
}

check "swaks delivers" with_swaks
check "what swaks sent is in the Maildir" holds alice 1 "last from swaks"
check "a line of one dot survives" holds alice 1 "."
check "doubled dots survive" holds alice 1 "..dots"
check "swaks is refused an unknown user" with_swaks_unknown_refused
check "swaks is refused a relay" with_swaks_relay_refused
check "swaks logs in by PLAIN behind STARTTLS" with_swaks_and_login secret --port "$submission" --tls --auth PLAIN
check "swaks logs in by LOGIN over implicit TLS" with_swaks_and_login secret --port "$submissions" --tls-on-connect --auth LOGIN
check "curl logs in over implicit TLS" with_curl_and_login
check "msmtp logs in by SCRAM-SHA-256" with_msmtp_by_scram secret
check "what they sent is in the Maildir" holds login 4 "by a login"
check "its traces tell of logins" traces_name_logins
check "swaks is refused with a wrong password" with_swaks_and_a_wrong_password
check "msmtp is refused a wrong password" with_msmtp_and_a_wrong_password
check "swaks is refused the address of another" with_swaks_as_another
check "curl delivers" with_curl
check "what curl sent is in the Maildir" holds bob 1 "sent by curl"
check "curl delivers with a PROXY header" with_curl_as_a_proxy
check "what it sent is in the Maildir" holds erin 1 "behind a proxy"
check "without the header nothing is said" without_a_header
check "smtplib delivers, and is told of unknown users" with_python
check "what smtplib sent is in the Maildir" holds carol 2 "sent by smtplib"
check "the good one of two recipients got it" holds dave 1 "to dave"
check "curl delivers by STARTTLS" with_curl_and_tls "smtp://127.0.0.1:$port"
check "curl delivers over implicit TLS" with_curl_and_tls "smtps://127.0.0.1:$implicit"
check "smtplib delivers over TLS 1.2" with_python_and_tls_1_2
check "what they sent is in the Maildir" holds tls 3 "encrypted"
check "its traces tell of TLS" traces_say_so
check "openssl knows the certificate behind STARTTLS" with_openssl
check "openssl is refused TLS 1.1" with_openssl_and_tls_1_1_refused
check "smtp-source sends 2000 over 20 connections" with_smtp_source
check "all 2000 are in the Maildir" load_arrived
check "curl reads by IMAP, also behind STARTTLS" with_curl_by_imap
check "curl is refused a wrong password" with_curl_by_imap_and_a_wrong_password
check "neomutt reads by IMAP" with_neomutt
check "imaplib stores, marks, copies, moves and removes messages" with_imaplib_changes
check "curl stores a message and removes it" with_curl_changes
check "mbsync syncs both ways, then has nothing to do" with_mbsync
check "offlineimap syncs both ways, then has nothing to do" with_offlineimap
check "neomutt marks and deletes" with_neomutt_changes
check "curl reads by POP3, also behind STLS and with implicit TLS" with_curl_by_pop3
check "curl is refused a wrong password by POP3" with_curl_by_pop3_and_a_wrong_password
check "poplib reads by POP3 behind STLS" with_poplib
check "fetchmail reads by POP3, and nothing twice" with_fetchmail
check "mpop reads by POP3, and nothing twice" with_mpop
check "mpop logs in by SCRAM-SHA-256" with_mpop_by_scram_alone
check "fetchmail deletes by POP3" with_fetchmail_that_deletes
check "dkimpy verifies the signatures of a login's mail" dkimpy_verifies
check "openssl knows the keys" openssl_knows_the_keys
if unshare -n true 2>/dev/null; then
    check "the first minute: IMAP and POP3 with the password that the server made" the_first_minute
    check "the first minute: the four lines of a terminal" the_first_minute_on_a_terminal
else
    skip "the first minute, two checks" "this machine gives no network of one's own"
fi
check "SIGTERM ends the server well" stops
check "the sink starts" start_sink
check "the sink takes mail of swaks, curl, smtp-source and smtplib, and refuses as asked" sink_takes_mail
check "SIGTERM ends the sink with its summary" sink_ends_with_its_summary
finish
