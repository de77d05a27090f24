"""Python httpx (httpcore, h11): forwarded requests, and tunnels to an origin inside TLS; asynchronous, and once not."""

import asyncio

import httpx

from common import *

WAYS = (PLAIN, TLS)


def proxy(url):
    return httpx.Proxy(url, ssl_context=trust() if url.startswith("https") else None)


def client(url=PROXY, **settings):
    return httpx.AsyncClient(proxy=proxy(url), verify=trust(), trust_env=False, timeout=50, **settings)


@case(*WAYS)
async def small_and_big(base):
    async with client() as one:
        answer = await one.get(f"{base}/small")
        same((answer.status_code, answer.content), (200, SMALL))
        same(answer.headers.get_list("set-cookie"), ["a=1", "b=2"])
        for path in ("big", "chunked/big", "gzip", "until-close"):
            same((await one.get(f"{base}/{path}")).content, BIG)


@case(*WAYS)
def not_asynchronous(base):
    with httpx.Client(proxy=proxy(PROXY), verify=trust(), trust_env=False, timeout=50) as one:
        same(one.get(f"{base}/big").content, BIG)
        uploaded(one.post(f"{base}/upload", content=pieces()).content, "chunked")


@case(*WAYS)
async def upload(base):
    async def stream():
        for piece in pieces():
            yield piece

    async with client() as one:
        uploaded((await one.post(f"{base}/upload", content=BIG)).content, "length")
        uploaded((await one.put(f"{base}/upload", content=BIG)).content, "length", "PUT")
        uploaded((await one.post(f"{base}/upload", content=stream())).content, "chunked")


@case(*WAYS)
async def head_and_no_content(base):
    async with client() as one:
        same((await one.head(f"{base}/big")).headers["Content-Length"], str(len(BIG)))
        for status in (204, 404, 500):
            answer = await one.get(f"{base}/status/{status}")
            same((answer.status_code, answer.content), (status, b"" if status == 204 else b"status %d\n" % status))


@case(*WAYS)
async def conditional(base):
    async with client() as one:
        tag = (await one.get(f"{base}/tagged")).headers["ETag"]
        answer = await one.get(f"{base}/tagged", headers={"If-None-Match": tag})
        same((answer.status_code, answer.content), (304, b""))


@case(*WAYS)
async def redirects(base):
    async with client(follow_redirects=True) as one:
        same((await one.get(f"{base}/redirect/5")).content, SMALL)
        same((await one.get(f"{base}/to-tls")).content, SMALL)
        uploaded((await one.post(f"{base}/moved", content=BIG)).content, "length")


@case(*WAYS)
async def login_of_the_origin(base):
    async with client() as one:
        same((await one.get(f"{base}/private", auth=("reader", "of pages"))).content, SMALL)
        same((await one.get(f"{base}/private", auth=("reader", "guessed"))).status_code, 401)


@case(*WAYS)
async def connection_is_kept(base):
    async with client() as one:
        streams = set()
        for path in ("small", "big", "chunked/big", "status/204", "gzip") * 4:
            answer = await one.get(f"{base}/{path}")
            streams.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
        same(len(streams), 1)


@case(*WAYS)
async def many_at_once(base):
    async with client(limits=httpx.Limits(max_connections=10)) as one:
        for answer in await asyncio.gather(*[one.get(f"{base}/big") for _ in range(40)]):
            same(answer.content, BIG)


@case
async def refused_port():
    async with client() as one:
        same((await one.get(f"http://{REFUSED}/")).status_code, 502)
        await refused(one, f"https://{REFUSED}/", "502")


@case(only=ASKS)
async def wrong_login():
    for url in (PROXY_WRONG, PROXY_PLAIN):
        async with client(url) as one:
            same((await one.get(f"{PLAIN}/small")).status_code, 407)
            await refused(one, f"{TLS}/small", "407")


async def refused(one, url, status):
    try:
        await one.get(url)
    except httpx.ProxyError as problem:
        check(str(problem).startswith(status), problem)
    else:
        check(False, "there is a tunnel")


run()
