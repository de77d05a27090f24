"""Runs real clients against a real proxyd, and holds what they, the origin and the access log say against each other.

    suite.py PROXYD WORK_FOLDER [NAME ...]

Every client program of `kinds/` runs once with each listener of proxyd. It prints a line for each case. What it did must
have reached the origin through proxyd, and must be in the access log as it was.
"""

import asyncio
import collections
import json
import os
import pathlib
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import time

from origin import Origin
from datagrams import Datagrams
from proxyd import PASSWORD, SIMPLE_PASSWORD, SIMPLE_USER, USER, Proxyd
from socks_log import wrong_in_socks_log

HERE = pathlib.Path(__file__).resolve().parent

# Program, listeners, and how many exchanges the busiest of its connections has to have carried.
KINDS = [
    ("curl.py", ("open", "login", "secure"), 5),
    ("wget.py", ("open", "login"), 1),
    ("py_requests.py", ("open", "login"), 5),
    ("py_httpx.py", ("open", "login", "secure"), 5),
    ("py_aiohttp.py", ("open", "login"), 5),
    ("py_websockets.py", ("open", "login", "secure"), 1),
    ("undici.mjs", ("open", "login"), 5),
    ("agents.mjs", ("open", "login"), 5),
    ("ws.mjs", ("open", "login"), 1),
    ("git.py", ("open", "login"), 1),
    ("chromium.py", ("open", "login", "secure", "socks"), 5),
    ("curl_socks.py", ("socks", "socks_login", "auto"), 2),
    ("py_pysocks.py", ("socks", "socks_login", "auto"), 5),
    ("py_aiohttp_socks.py", ("socks", "socks_login", "auto"), 5),
    ("py_httpx_socks.py", ("socks", "socks_login"), 5),
    ("socks_agent.mjs", ("socks", "socks_login", "auto"), 5),
    ("proxychains.py", ("socks", "socks_login"), 2),
    ("ncat.py", ("socks", "socks_login", "auto"), 1),
    ("py_dns.py", ("socks", "socks_login", "auto"), 1),
    ("py_quic.py", ("socks", "socks_login", "auto"), 1),
]


class Suite:
    def __init__(self, binary, work):
        self.work = work
        certificate, key = issue(work)
        self.certificate = certificate
        make_files(work)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        context.set_alpn_protocols(["http/1.1"])
        self.origin = Origin(work, context)
        self.datagrams = Datagrams(certificate, key)
        self.proxyd = Proxyd(binary, work, certificate, key)
        self.title, self.passed, self.failed, self.told = "suite", 0, [], time.monotonic()

    async def run(self, names):
        await self.origin.start()
        await self.datagrams.start()
        try:
            await self.proxyd.start()
            at_rest = self.proxyd.descriptors()
            for program, listeners, reuse in KINDS:
                if names and program.partition(".")[0] not in names:
                    continue
                for listener in listeners:
                    await self.client(program, listener, reuse)
            self.title = "suite"
            self.origin.hang_up()
            await self.case("descriptors are back", self.settled(
                lambda: difference(self.proxyd.descriptors(), at_rest)))
        finally:
            status = await self.proxyd.stop()
            self.datagrams.stop()
        self.tell("proxyd ends in order", "" if status == 0 else f"with status {status}")
        errors = [line for line in self.proxyd.errors.read_text().splitlines() if re.search(" (WARN|ERROR) |panic", line)]
        self.tell("proxyd has nothing to complain of", "; ".join(errors[:5]))

    # ------------------------------------------------------------ one program

    async def client(self, program, listener, reuse):
        await self.proxyd.forget()
        self.origin.forget()
        self.datagrams.forget()
        self.expected = None
        self.title = f"{program.partition('.')[0]}, {listener}"
        started = time.monotonic()
        log = self.work / "logs" / f"{program}-{listener}.txt"
        log.parent.mkdir(exist_ok=True)
        runner = "node" if program.endswith(".mjs") else sys.executable
        with open(log, "wb") as errors:
            process = await asyncio.create_subprocess_exec(
                runner, HERE / "kinds" / program, env=self.environment(listener), cwd=self.work,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors, start_new_session=True)
        try:
            async with asyncio.timeout(PROGRAM_SECONDS):
                cases = [self.line(line) async for line in process.stdout if not self.takes_expected(line)]
                status = await process.wait()
            expected = 1 if any(not good for good in cases) else 0
            problem = "" if status == expected and cases and self.expected is not None else f"exit status {status} after {len(cases)} cases; see {log}"
        except TimeoutError:
            problem = f"not done after {PROGRAM_SECONDS} s; see {log}"
        finally:
            end_group(process.pid)
        if problem:
            print(log.read_text(errors="replace")[-3000:])
        self.tell("program ends", problem)
        await self.case("log and origin agree", self.settled(lambda: self.disagreement(listener)))
        self.tell("connections are kept", difference_below(self.busiest(listener), reuse))
        print(f"   {self.title}: {time.monotonic() - started:.1f} s, {self.counts()}", flush=True)

    def takes_expected(self, line):
        """Keeps what a program says last: what it expects to find in the access log, beside its connections."""
        if not line.startswith(b"expected "):
            return False
        self.expected = json.loads(line.partition(b" ")[2])
        return True

    def line(self, line):
        """Passes on what a program says of one case: `ok NAME` or `FAILED NAME: WHY`."""
        word, _, rest = line.decode(errors="replace").rstrip("\n").partition(" ")
        name, _, problem = rest.partition(": ")
        self.tell(name, "" if word == "ok" else problem or f"it said {line!r}")
        return word == "ok"

    async def case(self, name, outcome):
        self.tell(name, await outcome)

    def tell(self, name, problem):
        title = f"{self.title}: {name}"
        if problem:
            self.failed.append(f"{title}: {problem}")
            print(f"FAILED {title}: {problem}", flush=True)
        else:
            self.passed += 1
            print(f"ok     {title} ({time.monotonic() - self.told:.1f} s)", flush=True)
        self.told = time.monotonic()

    def environment(self, listener):
        kept = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
        asks = listener not in Proxyd.UNASKED
        url = self.proxyd.url
        return kept | {
            "LISTENER": listener,
            "PROXY": url(listener, USER, PASSWORD) if asks else url(listener),
            "PROXY_PLAIN": url(listener),
            "PROXY_WRONG": url(listener, USER, "guessed") if asks else "",
            "PROXY_USER": USER if asks else "",
            "PROXY_PASSWORD": PASSWORD if asks else "",
            "PROXY_SIMPLE_USER": SIMPLE_USER if asks else "",
            "PROXY_SIMPLE_PASSWORD": SIMPLE_PASSWORD if asks else "",
            "PLAIN": self.origin.urls["plain"],
            "TUNNEL": self.origin.urls["tunnel"],
            "TLS": self.origin.urls["tls"],
            "IPV6": self.origin.urls["ipv6"],
            "DNS": self.datagrams.dns_address,
            "QUIC": self.datagrams.quic_address,
            "REFUSED": REFUSED,
            "CA": str(self.work / "ca.pem"),
            "CERTIFICATE": str(self.certificate),
            "NODE_EXTRA_CA_CERTS": str(self.work / "ca.pem"),
            "NODE_PATH": str(self.work.parent / "node" / "node_modules"),
            "WORK": str(self.work),
            "HOME": str(self.work / "home"),
            "LC_ALL": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    # --------------------------------------------- the log against the origin

    def disagreement(self, listener):
        """What is wrong with the access log, or with the way on which requests came; nothing if all is well."""
        if violations := self.origin.violations + self.datagrams.violations:
            return "; ".join(violations[:5])
        # Lines are written up to a quarter of a second late: those of another listener are of the program before.
        lines = [line for line in self.proxyd.lines() if line["service"] == listener]
        if listener in Proxyd.SOCKS:
            users = (None,) if listener in Proxyd.UNASKED else (USER, SIMPLE_USER)
            return wrong_in_socks_log(lines, users, REFUSED, self.expected or {}, self.origin, self.datagrams)
        user = None if listener == "open" else USER
        for line in lines:
            if line["user"] != user and line["end"] != "challenged":
                return f"not of this user: {line}"
            if REFUSED in (line["target"] or "") and line["end"] != "challenged" and (line["status"], line["error"]) != (502, "refused"):
                return f"not a refused port: {line}"
        return self.forwarded(lines) or self.tunnelled(lines)

    def forwarded(self, lines):
        base = self.origin.urls["plain"]
        # A browser asks for it on its own, and drops the question when it ends.
        lines = [line for line in lines if line["target"] != f"{base}/favicon.ico"]
        logged = collections.Counter(
            (line["method"], line["target"].removeprefix(base), line["status"])
            for line in lines if (line["target"] or "").startswith(base) and line["end"] != "challenged")
        # A page that has heard the last event closes the stream, at times before its end has come.
        ends = {f"{base}/events": (*WELL_ENDED, "client-reset")}
        broken = [line for line in lines if (line["target"] or "").startswith(base)
                  and line["end"] not in ends.get(line["target"], WELL_ENDED)]
        if broken:
            return f"not ended in order: {broken[:3]}"
        arrived = collections.Counter(request[1:] for request in self.origin.arrived["plain"].requests
                                      if request[2] != "/favicon.ico")
        if logged != arrived:
            return f"only in the log: {list(logged - arrived)[:5]}; only at the origin: {list(arrived - logged)[:5]}"
        return ""

    def tunnelled(self, lines):
        for port in ("tunnel", "tls"):
            target = self.origin.urls[port].partition("://")[2]
            logged = sum(line["method"] == "CONNECT" and line["target"] == target and line["status"] == 200
                         for line in lines)
            arrived = self.origin.arrived[port].connections
            if logged != arrived:
                return f"{logged} tunnels to {port} in the log, {arrived} at the origin"
        return ""

    def busiest(self, listener):
        """Exchanges of the busiest connection: of a client's in the log, and of a tunnel at the origin."""
        if listener in Proxyd.SOCKS:
            counters = [collections.Counter(request[0] for request in self.origin.arrived[port].requests)
                        for port in ("plain", "tls")]
            return min(max(counter.values(), default=1) for counter in counters)
        forwarded = collections.Counter(
            line["client"] for line in self.proxyd.lines() if line["method"] != "CONNECT" and line["status"] == 200)
        tunnelled = collections.Counter(request[0] for request in self.origin.arrived["tls"].requests)
        return min(max(counter.values(), default=1) for counter in (forwarded, tunnelled))

    def counts(self):
        return ", ".join(f"{port}: {len(arrived.requests)} requests on {arrived.connections} connections"
                         for port, arrived in self.origin.arrived.items())

    async def settled(self, problem):
        """What is wrong for good: asks again until nothing is, for some seconds."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (wrong := problem()) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        return wrong


def difference(found, wanted):
    return "" if found == wanted else f"{found}, not {wanted}"


def difference_below(found, wanted):
    return "" if found >= wanted else f"{found} exchanges on the busiest connection, not {wanted}"


def end_group(leader):
    """Ends what a program left running; the group is its own."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def issue(work):
    """An authority of our own and a certificate of the origin."""
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, cwd=work, stderr=subprocess.DEVNULL)
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *curve, "-days", "2", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl("req", *curve, "-keyout", "origin.key", "-out", "origin.csr", "-subj", "/CN=localhost")
    (work / "origin.ext").write_text(
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\nextendedKeyUsage=serverAuth\n")
    openssl("x509", "-req", "-in", "origin.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "origin.ext", "-out", "origin.pem")
    return work / "origin.pem", work / "origin.key"


def make_files(work):
    """What is sent in both directions; the same bytes in every run."""
    chance = random.Random(1)
    (work / "small").write_bytes(b"a small body\n" + chance.randbytes(200))
    (work / "big").write_bytes(chance.randbytes(5_000_011))
    (work / "home").mkdir(exist_ok=True)
    (work / "git").mkdir(exist_ok=True)


def refused():
    """An address where nobody listens: bound, so that nobody else can."""
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    return holder, f"127.0.0.1:{holder.getsockname()[1]}"


async def main(binary, work, *names):
    suite = Suite(pathlib.Path(binary).resolve(), pathlib.Path(work).resolve())
    task = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await suite.run(names)
    for failure in suite.failed:
        print(f"FAILED {failure}")
    print(f"clients: {suite.passed} passed, {len(suite.failed)} failed")
    return 1 if suite.failed or not suite.passed else 0


# The two in the middle: a WebSocket. (Tunnels may end in other ways, since clients just drop them.)
WELL_ENDED = ("completed", "client-finished", "origin-finished", "challenged")
# What the machine may say of proxies and authorities is not for these clients.
FOREIGN = re.compile("(?i).*_proxy$|GIT_|SSL_CERT_|.*_CA_BUNDLE$|NODE_|npm_|PIP_|PYTHON")
# Far more than any program needs, on a machine that is busy.
PROGRAM_SECONDS = 180
SETTLE_SECONDS = 10
REFUSED_HOLDER, REFUSED = refused()

if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(*sys.argv[1:])))
    except asyncio.CancelledError:
        sys.exit("clients: interrupted")
