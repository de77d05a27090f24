"""wget: forwarded requests, and tunnels to an origin inside TLS (it makes no others)."""

import os
import tempfile

from common import *

WAYS = (PLAIN, TLS)


def wget(*arguments, status=0, login=LOGIN, folder=None):
    """The body, if it went to standard output, and what wget tells."""
    proxy = [f"--proxy-user={login[0]}", f"--proxy-password={login[1]}"] if login and login[0] else []
    return command("wget", "--no-config", "--no-verbose", "--server-response", "--tries=1", "--timeout=50", "--no-hsts",
                   f"--ca-certificate={CA}", "-O-" if folder is None else "--no-directories", *proxy, *arguments,
                   status=status, folder=folder, http_proxy=PROXY_PLAIN, https_proxy=PROXY_PLAIN)


@case(*WAYS)
def small_and_big(base):
    same(wget(f"{base}/small")[0], SMALL)
    same(wget(f"{base}/big")[0], BIG)
    same(wget(f"{base}/chunked/big")[0], BIG)
    same(wget(f"{base}/until-close")[0], BIG)
    same(wget("--compression=gzip", f"{base}/gzip")[0], BIG)


@case(*WAYS)
def upload(base):
    uploaded(wget(f"--post-file={WORK / 'big'}", f"{base}/upload")[0], "length")
    uploaded(wget("--method=PUT", f"--body-file={WORK / 'big'}", f"{base}/upload")[0], "length", "PUT")


@case(*WAYS)
def head_and_no_content(base):
    _, told = wget("--spider", f"{base}/big")
    check("200 OK" in told, told[-300:])
    _, told = wget(f"{base}/status/204")
    check("204 No Content" in told, told[-300:])
    for status in ("404", "500"):
        body, told = wget("--content-on-error", f"{base}/status/{status}", status=8)
        same(body, f"status {status}\n".encode())


@case(*WAYS)
def redirects(base):
    same(wget(f"{base}/redirect/5")[0], SMALL)
    same(wget(f"{base}/to-tls")[0], SMALL)
    uploaded(wget(f"--post-file={WORK / 'big'}", f"{base}/moved")[0], "length")


@case(*WAYS)
def download_that_goes_on(base):
    folder = tempfile.mkdtemp(dir=WORK)
    with open(f"{folder}/big", "wb") as part:
        part.write(BIG[:1_234_567])
    _, told = wget("--continue", f"{base}/big", folder=folder)
    check("206 Partial Content" in told, told[-300:])
    with open(f"{folder}/big", "rb") as whole:
        same(whole.read(), BIG)


@case(*WAYS)
def conditional(base):
    folder = tempfile.mkdtemp(dir=WORK)
    _, told = wget("--timestamping", f"{base}/tagged", folder=folder)
    check("200 OK" in told, told[-300:])
    _, told = wget("--timestamping", f"{base}/tagged", folder=folder)
    check("304 Not Modified" in told, told[-300:])


@case(*WAYS)
def connection_is_kept(base):
    folder = tempfile.mkdtemp(dir=WORK)
    _, told = wget("--no-verbose", *[f"{base}/{path}" for path in ("small", "big", "tagged", "gzip", "small")],
                   folder=folder)
    same(told.count("200 OK"), 5)
    same(len(os.listdir(folder)), 5)


@case
def refused_port():
    _, told = wget(f"http://{REFUSED}/", status=8)
    check("502 Bad Gateway" in told, told[-300:])
    _, told = wget(f"https://{REFUSED}/", status=4)
    check("Proxy tunneling failed: Bad Gateway" in told, told[-300:])


@case(only=ASKS)
def wrong_login():
    for login in ((LOGIN[0], "guessed"), None):
        _, told = wget(f"{PLAIN}/small", status=8, login=login)
        check("407 Proxy Authentication Required" in told, told[-300:])
        _, told = wget(f"{TLS}/small", status=4, login=login)
        check("Proxy tunneling failed: Proxy Authentication Required" in told, told[-300:])


run()
