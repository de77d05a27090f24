"""Python aiohttp: forwarded requests, tunnels to an origin inside TLS, and its WebSocket client over both."""

import asyncio

import aiohttp

from common import *

WAYS = (PLAIN, TLS)


class Client(aiohttp.ClientSession):
    """A session that uses the proxy for everything."""

    def __init__(self, proxy=PROXY, **settings):
        super().__init__(timeout=aiohttp.ClientTimeout(50), proxy=proxy, connector=aiohttp.TCPConnector(ssl=trust(), **settings))

    async def body(self, method, url, **settings):
        async with self.request(method, url, **settings) as answer:
            return answer.status, await answer.read()


@case(*WAYS)
async def small_and_big(base):
    async with Client() as one:
        async with one.get(f"{base}/small") as answer:
            same((answer.status, await answer.read()), (200, SMALL))
            same(answer.headers.getall("Set-Cookie"), ["a=1", "b=2"])
        for path in ("big", "chunked/big", "gzip", "until-close"):
            same(await one.body("GET", f"{base}/{path}"), (200, BIG))


@case(*WAYS)
async def upload(base):
    async def stream():
        for piece in pieces():
            yield piece

    async with Client() as one:
        uploaded((await one.body("POST", f"{base}/upload", data=BIG))[1], "length")
        uploaded((await one.body("PUT", f"{base}/upload", data=BIG))[1], "length", "PUT")
        uploaded((await one.body("POST", f"{base}/upload", data=stream()))[1], "chunked")
        uploaded((await one.body("POST", f"{base}/upload", data=BIG, expect100=True))[1], "length")
        # Up and down at the same time, both in chunks.
        same(await one.body("POST", f"{base}/mirror", data=stream()), (200, BIG))


@case(*WAYS)
async def head_and_no_content(base):
    async with Client() as one:
        async with one.head(f"{base}/big") as answer:
            same(answer.headers["Content-Length"], str(len(BIG)))
        for status in (204, 404, 500):
            body = b"" if status == 204 else b"status %d\n" % status
            same(await one.body("GET", f"{base}/status/{status}"), (status, body))


@case(*WAYS)
async def conditional(base):
    async with Client() as one:
        async with one.get(f"{base}/tagged") as answer:
            tag = answer.headers["ETag"]
        same(await one.body("GET", f"{base}/tagged", headers={"If-None-Match": tag}), (304, b""))


@case(*WAYS)
async def redirects(base):
    async with Client() as one:
        same(await one.body("GET", f"{base}/redirect/5"), (200, SMALL))
        same(await one.body("GET", f"{base}/to-tls"), (200, SMALL))
        uploaded((await one.body("POST", f"{base}/moved", data=BIG))[1], "length")


@case(*WAYS)
async def connection_is_kept(base):
    async with Client(limit=1) as one:
        ports = set()
        for path in ("small", "big", "chunked/big", "status/204", "gzip") * 4:
            async with one.get(f"{base}/{path}") as answer:
                # Of an answer without a body the connection is back in the pool by now.
                if answer.connection is not None:
                    ports.add(answer.connection.transport.get_extra_info("sockname"))
                await answer.read()
        same(len(ports), 1)


@case(*WAYS)
async def many_at_once(base):
    async with Client(limit=10) as one:
        for answer in await asyncio.gather(*[one.body("GET", f"{base}/big") for _ in range(40)]):
            same(answer, (200, BIG))


@case(*WAYS)
async def websocket(base):
    async with Client() as one, one.ws_connect(f"{base}/ws", max_msg_size=0) as talk:
        same(await talk.receive_str(timeout=20), "greeting")
        await talk.send_str("short")
        same(await talk.receive_str(timeout=20), "short")
        await talk.send_bytes(BIG)
        same(await talk.receive_bytes(timeout=50), BIG)
        await talk.close()
        same(talk.close_code, 1000)


@case
async def refused_port():
    async with Client() as one:
        same((await one.body("GET", f"http://{REFUSED}/"))[0], 502)
        await refused(one, f"https://{REFUSED}/", 502)


@case(only=ASKS)
async def wrong_login():
    for proxy in (PROXY_WRONG, PROXY_PLAIN):
        async with Client(proxy) as one:
            same((await one.body("GET", f"{PLAIN}/small"))[0], 407)
            await refused(one, f"{TLS}/small", 407)


@case(only=ASKS)
async def login_beside_the_url():
    async with Client(proxy=None) as one:
        settings = {"proxy": PROXY_PLAIN, "proxy_auth": aiohttp.BasicAuth(*LOGIN, encoding="utf-8")}
        for base in WAYS:
            same(await one.body("GET", f"{base}/small", **settings), (200, SMALL))


async def refused(one, url, status):
    try:
        await one.body("GET", url)
    except aiohttp.ClientHttpProxyError as problem:
        same(problem.status, status)
    else:
        check(False, "there is a tunnel")


run()
