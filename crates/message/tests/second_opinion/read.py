"""Reads the messages whose paths come on standard input with Python's email package: one JSON line for each, null where that raises an exception."""

import base64, email, email.header, email.policy, email.utils, json, sys, warnings

warnings.simplefilter("ignore")


def text_of(value):
    return str(email.header.make_header(email.header.decode_header(value))) if value is not None else ""


def read(path):
    with open(path, "rb") as file:
        message = email.message_from_binary_file(file, policy=email.policy.compat32)
    fields = [str(value) for name in ("from", "to", "cc") for value in message.get_all(name, [])]
    date = email.utils.parsedate_tz(str(message["date"])) if message["date"] else None
    leaves = []
    for part in message.walk():
        if part.is_multipart():
            continue
        content = part.get_payload(decode=True) or b""
        is_text = part.get_content_maintype() in ("text", "multipart")
        if is_text:
            charset = part.get_content_charset() or "utf-8"
            try:
                content = content.decode(charset, "replace")
            except LookupError:
                content = content.decode("latin-1")
        else:
            content = base64.b64encode(content).decode()
        leaves.append([part.get_content_type(), content, is_text])
    return {
        "subject": text_of(message["subject"]),
        "addresses": [address for _, address in email.utils.getaddresses(fields) if address],
        "date": email.utils.mktime_tz(date) if date else None,
        "message_id": str(message["message-id"] or "").strip().strip("<>"),
        "leaves": leaves,
    }


for line in sys.stdin:
    try:
        print(json.dumps(read(line.rstrip("\n"))))
    except Exception:
        print("null")
