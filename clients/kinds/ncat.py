"""ncat: bytes from standard input, to a clear origin and, with a TLS of its own, to one inside TLS."""

import hashlib
import urllib.parse

from common import *

KINDS = ("socks5",) if ASKS else ("socks4", "socks5")
ADDRESS = PROXY_PLAIN.partition("://")[2]
WAYS = [(kind, base) for kind in KINDS for base in (PLAIN, TLS)]


def ncat(kind, url, text=b"", login=LOGIN, status=0):
    """What came back, and what ncat complains of. It ends when the origin does."""
    parts = urllib.parse.urlsplit(url)
    user = ["--proxy-auth", ":".join(login)] if login and login[0] else []
    inside = ["--ssl-verify", "--ssl-trustfile", CA] if url.startswith("https") else []
    file = pathlib.Path(tempfile.mkdtemp(dir=WORK)) / "input"
    file.write_bytes(text)
    script = 'file=$1; shift; exec ncat "$@" <"$file"'
    return command("sh", "-c", script, "sh", str(file), "--proxy", ADDRESS, "--proxy-type", kind, *user, *inside,
                   "--wait", "50", parts.hostname, str(parts.port), status=status)


def ask(kind, base, method, path, body=b""):
    head = f"{method} /{path} HTTP/1.1\r\nHost: origin\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    last = b"GET /until-close HTTP/1.1\r\nHost: origin\r\n\r\n"
    return ncat(kind, base, head + body + last)[0]


@case(*WAYS)
def bodies(way):
    """Two requests in one go; the answer to the second ends with the connection."""
    kind, base = way
    if base == TLS:
        expect("name")
    both = ask(kind, base, "POST", "upload", BIG)
    first, _, rest = both.partition(b"\r\n\r\n")
    check(first.startswith(b"HTTP/1.1 200 "), first)
    told, _, second = rest.partition(b"HTTP/1.1 200 ")
    uploaded(told, "length")
    same(hashlib.sha256(second.partition(b"\r\n\r\n")[2]).hexdigest(), UPLOADED)


@case
def ipv6():
    answer = ask("socks5", IPV6, "GET", "small")
    check(SMALL in answer and answer.endswith(BIG), answer[:300])


@case(*KINDS)
def refused_port(kind):
    expect("refused")
    _, told = ncat(kind, f"http://{REFUSED}", status=1)
    check("refused" in told.lower() or "rejected" in told.lower() or "failed" in told.lower(), told[-300:])


@case(only=ASKS)
def wrong_login():
    expect("login-1")
    _, told = ncat("socks5", PLAIN, login=(LOGIN[0], "guessed"), status=1)
    check("authentication failed" in told, told[-300:])
    expect("login-255")
    _, told = ncat("socks5", PLAIN, login=None, status=1)
    check("no acceptable authentication method" in told, told[-300:])
    expect("login-93")
    ncat("socks4", PLAIN, login=(LOGIN[0], ""), status=1)


run()
