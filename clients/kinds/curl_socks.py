"""curl with its four schemes of SOCKS: names looked up here or there, logins, IPv6, both directions."""

from common import *

SCHEMES = ("socks4", "socks4a", "socks5", "socks5h")
LOOKS_UP_ELSEWHERE = ("socks4a", "socks5h")
# SOCKS4 has no password, so a listener that asks for one takes none of it.
WORKING = SCHEMES[2:] if ASKS else SCHEMES
ADDRESS = PROXY_PLAIN.partition("://")[2]
BIG_FILE = f"@{WORK / 'big'}"
WAYS = (PLAIN, TLS)


def curl(scheme, *arguments, status=0, login=LOGIN, connects=1):
    """Body, and what `--verbose` tells; `connects` is how many connections it makes to a name."""
    named = any(str(argument).startswith(TLS) for argument in arguments)
    if named and status == 0 and scheme in LOOKS_UP_ELSEWHERE:
        expect("name", connects)
    user = ["--proxy-user", ":".join(login)] if login and login[0] else []
    return command("curl", "--silent", "--show-error", "--verbose", "--noproxy", "", "--proxy", f"{scheme}://{ADDRESS}",
                   *user, "--cacert", CA, "--max-time", "50", *arguments, status=status)


def each(*others):
    return [(scheme, *rest) for scheme in WORKING for rest in others]


@case(*each((PLAIN,), (TLS,)))
def small_and_big(way):
    scheme, base = way
    same(curl(scheme, f"{base}/small")[0], SMALL)
    same(curl(scheme, f"{base}/until-close")[0], BIG)
    same(curl(scheme, "--compressed", f"{base}/gzip")[0], BIG)


@case(*each((PLAIN,), (TLS,)))
def upload_and_both_directions(way):
    scheme, base = way
    uploaded(curl(scheme, "--data-binary", BIG_FILE, f"{base}/upload")[0], "length")
    same(curl(scheme, "--data-binary", BIG_FILE, f"{base}/mirror")[0], BIG)


@case(*each((PLAIN,), (TLS,)))
def connection_is_kept(way):
    scheme, base = way
    told = curl(scheme, *[word for path in ("small", "big") for word in ("-o", "body", f"{base}/{path}")])[1]
    same(told.count("Re-using existing"), 1)


@case(*each((PLAIN,), (TLS,)))
def many_at_once(way):
    scheme, base = way
    urls = [word for _ in range(10) for word in ("-o", "/dev/null", f"{base}/big")]
    printed, _ = curl(scheme, "--parallel", "--parallel-max", "10", "--parallel-immediate", "-w",
                      "%{http_code}:%{size_download} ", *urls, connects=10)
    same(printed.decode().split(), [f"200:{len(BIG)}"] * 10)


@case(*WORKING)
def ipv6(scheme):
    if scheme == "socks4":
        _, told = curl(scheme, f"{IPV6}/small", status=97)
        check("not supported" in told, told[-300:])
    else:
        same(curl(scheme, f"{IPV6}/small")[0], SMALL)


@case(*WORKING)
def login_in_the_url(scheme):
    if ASKS:
        user = PROXY.partition("://")[2].rpartition("@")[0] + "@"
    else:
        # A listener that asks for none takes any; of SOCKS4 it is the field for the user's name.
        user = "any%20body@" if scheme in SCHEMES[:2] else "any%20body:at%20all@"
    body, _ = command("curl", "--silent", "--show-error", "--noproxy", "", "--proxy", f"{scheme}://{user}{ADDRESS}",
                      "--max-time", "50", f"{PLAIN}/small")
    same(body, SMALL)


@case(*WORKING)
def refused_port(scheme):
    expect("refused")
    _, told = curl(scheme, f"http://{REFUSED}/", status=97)
    check("(91)" in told if scheme in SCHEMES[:2] else "(5)" in told, told[-300:])


@case(*SCHEMES[2:], only=ASKS)
def wrong_login(scheme):
    for login in ((LOGIN[0], "guessed"), ("nobody", LOGIN[1]), (LOGIN[0], LOGIN[1] + "x")):
        expect("login-1")
        _, told = curl(scheme, f"{PLAIN}/small", status=97, login=login)
        check("User was rejected by the SOCKS5 server (1 1)" in told, told[-300:])


@case(*SCHEMES[2:], only=ASKS)
def no_login(scheme):
    expect("login-255")
    _, told = curl(scheme, f"{PLAIN}/small", status=97, login=None)
    check("No authentication method was acceptable" in told, told[-300:])


@case(*SCHEMES[:2], only=ASKS)
def no_way_to_log_in(scheme):
    expect("login-93")
    _, told = curl(scheme, f"{PLAIN}/small", status=97)
    check("(93)" in told, told[-300:])


run()
