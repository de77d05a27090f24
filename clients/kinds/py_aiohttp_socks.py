"""aiohttp-socks: aiohttp over SOCKS, and SOCKS inside TLS where the listener takes that."""

import asyncio

import aiohttp
from aiohttp_socks import ProxyConnector, ProxyError, ProxyType

from common import *

HOST, PORT = PROXY_PLAIN.partition("://")[2].split(":")
INSIDE_TLS = LISTENER == "auto"
KINDS = ([] if ASKS else ["socks4"]) + ["socks5"] + (["socks5 inside TLS"] if INSIDE_TLS else [])
WAYS = [(kind, base) for kind in KINDS for base in (PLAIN, TLS)]


def client(kind="socks5", login=LOGIN, **settings):
    user, password = login if login and login[0] else (None, None)
    if kind == "socks4":
        user, password = "anybody", None
    connector = ProxyConnector(
        proxy_type=ProxyType.SOCKS4 if kind == "socks4" else ProxyType.SOCKS5, host="localhost" if "TLS" in kind else HOST,
        port=int(PORT), username=user, password=password, rdns=True, proxy_ssl=trust() if "TLS" in kind else None,
        ssl=trust(), **settings)
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(50), connector=connector)


async def body(one, method, url, **settings):
    async with one.request(method, url, **settings) as answer:
        return answer.status, await answer.read()


def expect_names(base, count=1):
    if base == TLS:
        expect("name", count)


@case(*WAYS)
async def bodies_on_one_connection(way):
    kind, base = way
    expect_names(base)
    async with client(kind, limit=1) as one:
        same(await body(one, "GET", f"{base}/small"), (200, SMALL))
        for path in ("big", "chunked/big", "gzip"):
            same(await body(one, "GET", f"{base}/{path}"), (200, BIG))
        uploaded((await body(one, "POST", f"{base}/upload", data=BIG))[1], "length")
        same(await body(one, "POST", f"{base}/mirror", data=BIG), (200, BIG))


@case(*WAYS)
async def many_at_once(way):
    kind, base = way
    expect_names(base, 10)
    async with client(kind, limit=10) as one:
        for answer in await asyncio.gather(*[body(one, "GET", f"{base}/big") for _ in range(10)]):
            same(answer, (200, BIG))


@case(*WAYS)
async def websocket(way):
    kind, base = way
    expect_names(base)
    async with client(kind) as one, one.ws_connect(f"{base}/ws", max_msg_size=0) as talk:
        same(await talk.receive_str(timeout=20), "greeting")
        await talk.send_bytes(BIG)
        same(await talk.receive_bytes(timeout=50), BIG)
        await talk.close()
        same(talk.close_code, 1000)


@case(*KINDS)
async def refused_port(kind):
    expect("refused")
    await fails(client(kind), f"http://{REFUSED}/", "Request rejected or failed" if kind == "socks4" else "Connection refused")


@case(*[kind for kind in KINDS if kind != "socks4"], only=ASKS)
async def wrong_login(kind):
    expect("login-1")
    await fails(client(kind, (LOGIN[0], "guessed")), f"{PLAIN}/small", "Username and password authentication failure")
    expect("login-255")
    await fails(client(kind, None), f"{PLAIN}/small", "No acceptable authentication methods were offered")


async def fails(client, url, wanted):
    async with client as one:
        try:
            await body(one, "GET", url)
        except ProxyError as problem:
            check(wanted in str(problem), problem)
        else:
            check(False, "it is connected")


run()
