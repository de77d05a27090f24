"""PySocks: with requests as most people use it, and its bare sockets, which can also end one direction."""

import hashlib
import socket
import urllib.parse

import requests
import socks

from common import *

HOST, PORT = PROXY_PLAIN.partition("://")[2].split(":")
SCHEMES = ("socks5", "socks5h") if ASKS else ("socks4", "socks4a", "socks5", "socks5h")
TYPES = {"socks4": socks.SOCKS4, "socks5": socks.SOCKS5}
WAYS = [(scheme, base) for scheme in SCHEMES for base in (PLAIN, TLS)]


def session(scheme, proxy=PROXY):
    one = requests.Session()
    one.trust_env, one.verify = False, CA
    one.proxies = dict.fromkeys(("http", "https"), proxy.replace("socks5", scheme))
    return one


def expect_names(scheme, base, count=1):
    if base == TLS and scheme in ("socks4a", "socks5h"):
        expect("name", count)


def connected(scheme, url, login=LOGIN):
    """A bare socket, connected to the host of a URL."""
    one = socks.socksocket()
    one.settimeout(50)
    user = login if login and login[0] else (None, None)
    one.set_proxy(TYPES[scheme], HOST, int(PORT), True, *user)
    parts = urllib.parse.urlsplit(url)
    one.connect((parts.hostname, parts.port))
    return one


@case(*WAYS)
def requests_of_a_session(way):
    scheme, base = way
    expect_names(scheme, base)
    with session(scheme) as one:
        for path in ("small", "big", "chunked/big", "gzip", "status/204"):
            answer = one.get(f"{base}/{path}")
            check(answer.ok)
            same(answer.content, {"small": SMALL, "status/204": b""}.get(path, BIG))
        uploaded(one.post(f"{base}/upload", data=BIG).content, "length")
        uploaded(one.post(f"{base}/upload", data=pieces()).content, "chunked")


@case(*["socks5"] if ASKS else ["socks4", "socks5"])
def half_closed(scheme):
    """The request ends with the direction; the answer must come all the same."""
    with connected(scheme, PLAIN) as one:
        body = BIG[:2_000_003]
        one.sendall(b"POST /upload HTTP/1.0\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body))
        one.sendall(body)
        one.shutdown(socket.SHUT_WR)
        told = json.loads(b"".join(iter(lambda: one.recv(65536), b"")).partition(b"\r\n\r\n")[2])
        same((told["length"], told["sha256"]), (len(body), hashlib.sha256(body).hexdigest()))


@case
def ipv6():
    with session("socks5") as one:
        same(one.get(f"{IPV6}/small").content, SMALL)


@case
def bound_address():
    """Where the connection to the target comes from."""
    with connected("socks5", PLAIN) as one:
        host, port = one.get_proxy_sockname()
        same(host, "127.0.0.2")
        check(port > 0)


@case(*["socks5"] if ASKS else ["socks4", "socks5"])
def refused_port(scheme):
    expect("refused")
    wanted = "0x05: Connection refused" if scheme == "socks5" else "0x5b: Request rejected or failed"
    fails(scheme, f"http://{REFUSED}", LOGIN, wanted)


@case(only=ASKS)
def wrong_login():
    expect("login-1")
    fails("socks5", PLAIN, (LOGIN[0], "guessed"), "SOCKS5 authentication failed")
    expect("login-255")
    fails("socks5", PLAIN, None, "All offered SOCKS5 authentication methods were rejected")
    expect("login-93")
    fails("socks4", PLAIN, (LOGIN[0], None), "0x5d: ")


def fails(scheme, url, login, wanted):
    try:
        connected(scheme, url, login).close()
    except socks.ProxyError as problem:
        check(wanted in str(problem), problem)
    else:
        check(False, "it is connected")


run()
