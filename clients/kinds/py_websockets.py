"""Python websockets: WebSocket through tunnels, to a clear origin and to one inside TLS."""

import asyncio

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidProxyStatus

from common import *

WAYS = (TUNNEL, TLS)


def talk(base, proxy=PROXY, path="/ws"):
    settings = {"ssl": trust()} if base.startswith("https") else {}
    if proxy.startswith("https"):
        settings["proxy_ssl"] = trust()
    return connect(base.replace("http", "ws", 1) + path, proxy=proxy, max_size=None, open_timeout=50, **settings)


@case(*WAYS)
async def messages(base):
    async with talk(base) as one:
        same(await one.recv(), "greeting")
        for message in ("", "short", "x" * 70_000, b"\0" * 126, BIG):
            await one.send(message)
            same(await one.recv(), message)
        await one.send(["in ", "three ", "frames"])
        same(await one.recv(), "in three frames")
        await (await one.ping())
    same(one.close_code, 1000)


@case(*WAYS)
async def both_directions(base):
    """Many messages are under way at the same time."""
    async with talk(base) as one:
        same(await one.recv(), "greeting")

        async def send():
            for number in range(2000):
                await one.send(f"{number} " + "y" * (number % 977))

        sending = asyncio.create_task(send())
        for number in range(2000):
            same(await one.recv(), f"{number} " + "y" * (number % 977))
        await sending


@case(*WAYS)
async def many_at_once(base):
    async def converse(number):
        async with talk(base) as one:
            same(await one.recv(), "greeting")
            await one.send(f"{number}")
            same(await one.recv(), f"{number}")

    await asyncio.gather(*[converse(number) for number in range(30)])


@case
async def refused_port():
    for scheme in ("http", "https"):
        await refused(f"{scheme}://{REFUSED}", PROXY, 502)


@case(only=ASKS)
async def wrong_login():
    for proxy in (PROXY_WRONG, PROXY_PLAIN):
        for base in WAYS:
            await refused(base, proxy, 407)


async def refused(base, proxy, status):
    try:
        async with talk(base, proxy):
            check(False, "there is a tunnel")
    except InvalidProxyStatus as problem:
        same(problem.response.status_code, status)


run()
