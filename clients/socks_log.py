"""What the access log says of a SOCKS listener, against what the origin saw and what the client expects."""

import collections


def wrong_in_socks_log(lines, users, refused, expected, origin, datagrams):
    """The first thing that is wrong; nothing if all is well. `users` are those that a line may be of."""
    found, connected, up, down = collections.Counter(), collections.Counter(), 0, 0
    for line in lines:
        host, _, port = (line["target"] or "").rpartition(":")
        if line["end"] == "challenged":
            found[f"login-{line['status']}"] += 1
            continue
        if line["user"] not in users:
            return f"not of this user: {line}"
        if line["method"] == "ASSOCIATE" and line["status"] == 0 and line["end"] == "client-finished":
            found["associate"] += 1
            up, down = up + line["up"], down + line["down"]
        elif line["target"] == refused and (line["status"], line["end"], line["error"]) in REFUSALS:
            found["refused"] += 1
        elif line["method"] == "CONNECT" and line["status"] in CONNECTED and line["error"] is None:
            connected[port] += 1
            found["name"] += host == "localhost"
        elif host in OURS or not (line["error"] or "").startswith("name-"):
            # (A browser also asks for hosts of its maker, of which there are none.)
            return f"not expected: {line}"
    for name, arrived in origin.arrived.items():
        logged = connected.pop(origin.urls[name].rpartition(":")[2], 0)
        if logged != arrived.connections:
            return f"{logged} tunnels to {name} in the log, {arrived.connections} at the origin"
    if connected:
        return f"tunnels to nowhere: {connected}"
    return wrong_counts(found, expected) or datagrams.wrong(up, down, expected.get("elsewhere", 0))


def wrong_counts(found, expected):
    """Holds all numbers against those expected; `None` is for one that the client does not know."""
    wanted = collections.Counter({what: count for what, count in expected.items() if count is not None})
    del wanted["elsewhere"]
    for what, count in expected.items():
        if count is None:
            del found[what]
    return "" if +found == +wanted else f"{dict(+found)} in the log, not {dict(+wanted)}"


# SOCKS5 and SOCKS4.
CONNECTED = (0, 90)
REFUSALS = ((5, "connect-failed", "refused"), (91, "connect-failed", "refused"))
OURS = ("localhost", "127.0.0.1", "[::1]", "")
