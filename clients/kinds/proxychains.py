"""proxychains4, which makes programs that know nothing of proxies go through one; here curl and Python."""

from common import *

KINDS = ("socks5",) if ASKS else ("socks4", "socks5")
HOST, PORT = PROXY_PLAIN.partition("://")[2].split(":")
WAYS = [(kind, base) for kind in KINDS for base in (PLAIN, TLS)]


def chained(kind, *arguments, status=0, login=SIMPLE_LOGIN):
    folder = pathlib.Path(tempfile.mkdtemp(dir=WORK))
    user = " ".join(login) if login and login[0] else ""
    (folder / "chain").write_text(f"strict_chain\nproxy_dns\n[ProxyList]\n{kind} {HOST} {PORT} {user}\n")
    return command("proxychains4", "-f", str(folder / "chain"), *arguments, status=status, folder=folder)


def curl(kind, *arguments, **settings):
    return chained(kind, "curl", "--silent", "--show-error", "--noproxy", "*", "--cacert", CA, "--max-time", "50",
                   *arguments, **settings)


@case(*WAYS)
def bodies(way):
    kind, base = way
    same(curl(kind, f"{base}/small")[0], SMALL)
    same(curl(kind, f"{base}/big")[0], BIG)
    uploaded(curl(kind, "--data-binary", f"@{WORK / 'big'}", f"{base}/upload")[0], "length")
    same(curl(kind, "--data-binary", f"@{WORK / 'big'}", f"{base}/mirror")[0], BIG)


@case(*WAYS)
def connection_is_kept(way):
    kind, base = way
    printed, _ = curl(kind, "-w", "%{num_connects} ", *[word for path in ("small", "big") for word in ("-o", "body", f"{base}/{path}")])
    same(printed, b"1 0 ")


@case(*KINDS)
def another_program(kind):
    program = "import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1]).read())"
    same(chained(kind, sys.executable, "-c", program, f"{PLAIN}/chunked/big")[0], BIG)


@case(*KINDS)
def refused_port(kind):
    expect("refused")
    _, told = curl(kind, f"http://{REFUSED}/", status=7)
    check("<--socket error or timeout!" in told or "<--denied" in told, told[-300:])


@case(only=ASKS)
def wrong_login():
    expect("login-1")
    curl("socks5", f"{PLAIN}/small", status=7, login=(SIMPLE_LOGIN[0], "guessed"))
    expect("login-255")
    curl("socks5", f"{PLAIN}/small", status=7, login=None)


run()
