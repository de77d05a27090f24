"""What the Python programs share: the surroundings that the suite gave them, and how they tell of a case.

A program defines functions with `@case` and ends with `run()`. A case that takes an argument runs for each of its values.
"""

import asyncio
import collections
import hashlib
import inspect
import json
import os
import pathlib
import signal
import ssl
import subprocess
import sys
import tempfile
import traceback

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

LISTENER = os.environ["LISTENER"]
ASKS = LISTENER not in ("open", "socks")
SOCKS = LISTENER in ("socks", "socks_login", "auto")
PROXY, PROXY_PLAIN, PROXY_WRONG = (os.environ[name] for name in ("PROXY", "PROXY_PLAIN", "PROXY_WRONG"))
LOGIN = (os.environ["PROXY_USER"], os.environ["PROXY_PASSWORD"])
SIMPLE_LOGIN = (os.environ["PROXY_SIMPLE_USER"], os.environ["PROXY_SIMPLE_PASSWORD"])
PLAIN, TUNNEL, TLS, IPV6 = (os.environ[name] for name in ("PLAIN", "TUNNEL", "TLS", "IPV6"))
REFUSED = os.environ["REFUSED"]
CA, CERTIFICATE = os.environ["CA"], os.environ["CERTIFICATE"]
WORK = pathlib.Path(os.environ["WORK"])
SMALL, BIG = (WORK / "small").read_bytes(), (WORK / "big").read_bytes()
UPLOADED = hashlib.sha256(BIG).hexdigest()

CASES = []
EXPECTED = collections.Counter()


def case(*values, only=True):
    """Registers a case, or one for each of the values; `@case` and `@case(VALUE, ...)` are the same to use."""
    def register(function):
        for value in chosen:
            if only:
                title = function.__name__.replace("_", " ")
                words = value if isinstance(value, tuple) else (value,)
                named = ", ".join([title, *[str(NAMES.get(word, word)) for word in words]])
                CASES.append((named if chosen != [None] else title, function, value))
        return function
    if len(values) == 1 and callable(values[0]):
        chosen = [None]
        return register(values[0])
    chosen = list(values) or [None]
    return register


def check(condition, what="it is not as it should be"):
    if not condition:
        raise AssertionError(str(what)[:600])


def same(found, wanted):
    """Compares bodies and other values, and shows only the beginning of long ones."""
    if found != wanted:
        show = lambda value: f"{value!r}"[:200] + (f" ({len(value)} long)" if hasattr(value, "__len__") else "")
        raise AssertionError(f"{show(found)} instead of {show(wanted)}")


def uploaded(body, framing, method="POST"):
    """Checks what the origin tells of an upload of `BIG`."""
    told = json.loads(body)
    same(told, {"method": method, "length": len(BIG), "sha256": UPLOADED, "framing": framing})


def pieces(size=70_001):
    """`BIG` in pieces, for uploads whose length is not told."""
    return (BIG[at:at + size] for at in range(0, len(BIG), size))


def trust():
    """A TLS context that knows our own authority only."""
    return ssl.create_default_context(cafile=CA)


def expect(what, count=1):
    """Tells the suite what the access log of a SOCKS listener has to have, exactly: `refused` connections, refused logins
    (`login-STATUS`), targets told by `name`, `associate`d sockets, and bytes sent `elsewhere` than to the origin.
    `None` in `EXPECTED` is any number."""
    EXPECTED[what] += count


def command(*arguments, status=0, folder=None, **variables):
    """Runs a program, checks its exit status, and returns what it printed and complained of."""
    done = subprocess.run(arguments, cwd=folder or tempfile.mkdtemp(dir=WORK), env=os.environ | variables,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=CASE_SECONDS)
    complaint = done.stderr.decode(errors="replace")
    check(done.returncode == status, f"{arguments[0]} ended with {done.returncode}: {complaint[-400:]}")
    return done.stdout, complaint


def run():
    """Runs all cases, prints a line for each, and exits."""
    signal.signal(signal.SIGALRM, too_long)
    failed = False
    for name, function, value in CASES:
        problem = outcome(function, value)
        failed = failed or bool(problem)
        print(f"FAILED {name}: {problem}" if problem else f"ok {name}", flush=True)
    print("expected", json.dumps(EXPECTED), flush=True)
    sys.exit(1 if failed else 0)


def outcome(function, value):
    """What went wrong, in one line; the traceback goes to the log of the program."""
    signal.alarm(CASE_SECONDS)
    try:
        result = function() if value is None else function(value)
        if inspect.isawaitable(result):
            asyncio.run(result)
        return ""
    except Exception as problem:
        traceback.print_exc()
        return f"{type(problem).__name__}: {problem}".replace("\n", " ")[:700]
    finally:
        signal.alarm(0)


def too_long(*_):
    raise TimeoutError(f"not done after {CASE_SECONDS} s")


# On a machine that is busy; on an idle one no case takes longer than a second or two.
CASE_SECONDS = 60
NAMES = {PLAIN: "forwarded", TUNNEL: "tunnel in clear", TLS: "tunnel to TLS", IPV6: "IPv6"}
