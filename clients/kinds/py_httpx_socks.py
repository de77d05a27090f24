"""Python httpx over SOCKS5 (socksio)."""

import httpx

from common import *

WAYS = (PLAIN, TLS)


def client(proxy=PROXY):
    return httpx.Client(proxy=proxy, verify=trust(), trust_env=False, timeout=50)


def expect_names(base):
    if base == TLS:
        expect("name")


@case(*WAYS)
def bodies_on_one_connection(base):
    expect_names(base)
    with client() as one:
        same(one.get(f"{base}/small").content, SMALL)
        for path in ("big", "chunked/big", "gzip"):
            same(one.get(f"{base}/{path}").content, BIG)
        uploaded(one.post(f"{base}/upload", content=BIG).content, "length")
        uploaded(one.post(f"{base}/upload", content=pieces()).content, "chunked")


@case
def ipv6():
    with client() as one:
        same(one.get(f"{IPV6}/small").content, SMALL)


@case
def refused_port():
    expect("refused")
    fails(PROXY, f"http://{REFUSED}/", "Connection refused")


@case(only=ASKS)
def wrong_login():
    expect("login-1")
    fails(PROXY_WRONG, f"{PLAIN}/small", "Invalid username/password")
    expect("login-255")
    fails(PROXY_PLAIN, f"{PLAIN}/small", "Requested NO AUTHENTICATION REQUIRED from proxy server, but got NO ACCEPTABLE METHODS")


def fails(proxy, url, wanted):
    try:
        with client(proxy) as one:
            one.get(url)
    except httpx.ProxyError as problem:
        check(wanted in str(problem), problem)
    else:
        check(False, "it is connected")


run()
