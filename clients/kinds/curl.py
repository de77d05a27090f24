"""curl: forwarded requests, tunnels to a clear origin (`--proxytunnel`) and to one inside TLS."""

import re
import subprocess

from common import *

WAYS = (PLAIN, TUNNEL, TLS)


def curl(base, *arguments, proxy=PROXY, status=0):
    """Body, or whatever else curl prints, and what `--verbose` tells."""
    if base == TUNNEL:
        arguments = ("--proxytunnel", *arguments)
    return command("curl", "--silent", "--show-error", "--verbose", "--noproxy", "", "--proxy", proxy, "--cacert", CA,
                   "--proxy-cacert", CA, "--max-time", "50", *arguments, status=status)


@case(*WAYS)
def small(base):
    body, told = curl(base, f"{base}/small")
    same(body, SMALL)
    same(re.findall(r"< Set-Cookie: (\S+)", told), ["a=1", "b=2"])


@case(*WAYS)
def big(base):
    same(curl(base, f"{base}/big")[0], BIG)


@case(*WAYS)
def chunked(base):
    same(curl(base, f"{base}/chunked/small")[0], SMALL)
    told, _ = curl(base, "--dump-header", "-", "-o", "/dev/null", f"{base}/chunked/big")
    check(b"X-End: reached" in told, "the trailer is lost")
    same(curl(base, f"{base}/chunked/big")[0], BIG)


@case(*WAYS)
def until_close(base):
    same(curl(base, f"{base}/until-close")[0], BIG)


@case(*WAYS)
def http_1_0(base):
    same(curl(base, "--http1.0", f"{base}/small")[0], SMALL)
    same(curl(base, "--http1.0", f"{base}/chunked/big" if base != PLAIN else f"{base}/big")[0], BIG)


@case(*WAYS)
def gzip(base):
    same(curl(base, "--compressed", f"{base}/gzip")[0], BIG)


@case(*WAYS)
def upload(base):
    big = f"@{WORK / 'big'}"
    uploaded(curl(base, "--data-binary", big, f"{base}/upload")[0], "length")
    uploaded(curl(base, "--upload-file", big[1:], f"{base}/upload")[0], "length", "PUT")
    uploaded(curl(base, "-H", "Transfer-Encoding: chunked", "--data-binary", big, f"{base}/upload")[0], "chunked")
    same(curl(base, "--data-binary", f"@{WORK / 'small'}", f"{base}/mirror")[0], SMALL)


@case(*WAYS)
def both_directions(base):
    same(curl(base, "--data-binary", f"@{WORK / 'big'}", f"{base}/mirror")[0], BIG)


@case(*WAYS)
def expect_continue(base):
    body, told = curl(base, "-H", "Expect: 100-continue", "--expect100-timeout", "30", "--data-binary",
                      f"@{WORK / 'big'}", f"{base}/upload")
    uploaded(body, "length")
    check("HTTP/1.1 100 Continue" in told, "no 100")


@case(*WAYS)
def answer_before_the_body(base):
    body, told = curl(base, "-H", "Expect: 100-continue", "--expect100-timeout", "30", "--data-binary",
                      f"@{WORK / 'big'}", f"{base}/too-large")
    same(body, b"too large\n")
    check("HTTP/1.1 413 " in told and "HTTP/1.1 100 " not in told, told[-300:])


@case(*WAYS)
def head_and_no_content(base):
    same(statuses(base, "--head", f"{base}/big"), ["200"])
    same(statuses(base, "--head", f"{base}/chunked/big"), ["200"])
    same(statuses(base, f"{base}/status/204"), ["204"])
    same(statuses(base, f"{base}/status/404"), ["404"])
    same(statuses(base, f"{base}/status/500"), ["500"])


def statuses(base, *arguments):
    return curl(base, "-o", "body", "-w", "%{http_code} ", *arguments)[0].decode().split()


@case(*WAYS)
def conditional(base):
    same(statuses(base, "-H", 'If-None-Match: "v1"', f"{base}/tagged"), ["304"])
    same(statuses(base, "-H", 'If-None-Match: "v0"', f"{base}/tagged"), ["200"])


@case(*WAYS)
def part(base):
    same(curl(base, "--range", "1000000-4999999", f"{base}/big")[0], BIG[1_000_000:5_000_000])


@case(*WAYS)
def redirects(base):
    same(curl(base, "--location", f"{base}/redirect/5")[0], SMALL)
    uploaded(curl(base, "--location", "--data-binary", f"@{WORK / 'big'}", f"{base}/moved")[0], "length")
    same(curl(base, "--location", f"{base}/to-tls")[0], SMALL)


@case(*WAYS)
def connection_is_kept(base):
    mixed = ["small", "big", "chunked/big", "gzip", "status/204", "status/404", "small"]
    _, told = curl(base, "-w", "%{num_connects} ", *[word for path in mixed for word in ("-o", "body", f"{base}/{path}")])
    same(told.count("Re-using existing"), len(mixed) - 1)


@case(*WAYS)
def many_at_once(base):
    urls = [word for _ in range(40) for word in ("-o", "/dev/null", f"{base}/big")]
    printed, _ = curl(base, "--parallel", "--parallel-max", "10", "-w", "%{http_code}:%{size_download} ", *urls)
    same(printed.decode().split(), [f"200:{len(BIG)}"] * 40)


@case(*WAYS)
def login_of_the_origin(base):
    same(curl(base, "--user", "reader:of pages", f"{base}/private")[0], SMALL)
    same(statuses(base, "--user", "reader:guessed", f"{base}/private"), ["401"])
    same(curl(base, "--anyauth", "--user", "reader:of pages", f"{base}/private")[0], SMALL)


@case
def refused_port():
    same(statuses(PLAIN, f"http://{REFUSED}/"), ["502"])
    for arguments in (["--proxytunnel", f"http://{REFUSED}/"], [f"https://{REFUSED}/"]):
        _, told = curl(None, *arguments, status=56)
        check("response 502" in told, told[-300:])


@case(only=ASKS)
def wrong_login():
    for proxy in (PROXY_WRONG, PROXY_PLAIN):
        same(curl(PLAIN, "-o", "body", "-w", "%{http_code}", f"{PLAIN}/small", proxy=proxy)[0], b"407")
        for base in (TUNNEL, TLS):
            _, told = curl(base, f"{base}/small", proxy=proxy, status=56)
            check("response 407" in told, told[-300:])


@case(only=ASKS)
def login_after_a_challenge():
    """The refused request and the one with the login are on the same connection."""
    for base in WAYS:
        body, told = curl(base, "--proxy-anyauth", f"{base}/small")
        same(body, SMALL)
        check("HTTP/1.1 407 " in told and "Re-using existing" in told or "Connected to" in told, told[-300:])
        body, _ = curl(base, "--proxy-anyauth", "--data-binary", f"@{WORK / 'big'}", f"{base}/upload")
        uploaded(body, "length")


run()
