"""Python requests (urllib3, http.client): forwarded requests, and tunnels to an origin inside TLS."""

import concurrent.futures

import requests

from common import *

WAYS = (PLAIN, TLS)


def session(proxy=PROXY):
    one = requests.Session()
    one.trust_env = False
    one.proxies = {"http": proxy, "https": proxy}
    one.verify = CA
    return one


@case(*WAYS)
def small_and_big(base):
    with session() as one:
        answer = one.get(f"{base}/small")
        same((answer.status_code, answer.content), (200, SMALL))
        same(dict(answer.cookies), {"a": "1", "b": "2"})
        same(one.get(f"{base}/big").content, BIG)
        same(one.get(f"{base}/chunked/small").content, SMALL)
        same(one.get(f"{base}/chunked/big").content, BIG)
        same(one.get(f"{base}/gzip").content, BIG)
        same(one.get(f"{base}/until-close").content, BIG)


@case(*WAYS)
def upload(base):
    with session() as one:
        uploaded(one.post(f"{base}/upload", data=BIG).content, "length")
        uploaded(one.put(f"{base}/upload", data=BIG).content, "length", "PUT")
        uploaded(one.post(f"{base}/upload", data=pieces()).content, "chunked")
        same(one.post(f"{base}/mirror", data=SMALL).content, SMALL)


@case(*WAYS)
def head_and_no_content(base):
    with session() as one:
        same(one.head(f"{base}/big").headers["Content-Length"], str(len(BIG)))
        for status in (204, 404, 500):
            answer = one.get(f"{base}/status/{status}")
            same((answer.status_code, answer.content), (status, b"" if status == 204 else b"status %d\n" % status))
        same(one.get(f"{base}/small").content, SMALL)


@case(*WAYS)
def conditional(base):
    with session() as one:
        tag = one.get(f"{base}/tagged").headers["ETag"]
        answer = one.get(f"{base}/tagged", headers={"If-None-Match": tag})
        same((answer.status_code, answer.content), (304, b""))


@case(*WAYS)
def redirects(base):
    with session() as one:
        answer = one.get(f"{base}/redirect/5")
        same((len(answer.history), answer.content), (5, SMALL))
        same(one.get(f"{base}/to-tls").content, SMALL)
        uploaded(one.post(f"{base}/moved", data=BIG).content, "length")


@case(*WAYS)
def login_of_the_origin(base):
    with session() as one:
        same(one.get(f"{base}/private", auth=("reader", "of pages")).content, SMALL)
        same(one.get(f"{base}/private", auth=("reader", "guessed")).status_code, 401)


@case(*WAYS)
def connection_is_kept(base):
    with session() as one:
        for path in ("small", "big", "chunked/big", "status/204", "gzip") * 4:
            check(one.get(f"{base}/{path}").ok)
        pools = [pool for manager in one.get_adapter(base).proxy_manager.values()
                 for pool in (manager.pools[key] for key in manager.pools.keys())]
        same([(pool.num_connections, pool.num_requests) for pool in pools], [(1, 20)])


@case(*WAYS)
def many_at_once(base):
    with session() as one, concurrent.futures.ThreadPoolExecutor(10) as threads:
        for body in threads.map(lambda _: one.get(f"{base}/big").content, range(40)):
            same(body, BIG)


@case
def refused_port():
    with session() as one:
        same(one.get(f"http://{REFUSED}/").status_code, 502)
        refused(one, f"https://{REFUSED}/", "502")


@case(only=ASKS)
def wrong_login():
    for proxy in (PROXY_WRONG, PROXY_PLAIN):
        with session(proxy) as one:
            same(one.get(f"{PLAIN}/small").status_code, 407)
            refused(one, f"{TLS}/small", "407")


def refused(one, url, status):
    try:
        one.get(url)
    except requests.exceptions.ProxyError as problem:
        check(f"Tunnel connection failed: {status}" in str(problem), problem)
    else:
        check(False, "there is a tunnel")


run()
