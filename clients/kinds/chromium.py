"""Chromium without a window: a page of 50 resources, an upload, server-sent events and a WebSocket, in clear and in TLS.

Driven over its DevTools protocol, which is also how it gets the login of the proxy. Every body that it got is compared.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import tempfile

from websockets.asyncio.client import connect

from common import *
from page import PICTURES, RESOURCES, SCRIPTS, STYLES, Page

WAYS = (PLAIN, TLS)
PAGE = Page(BIG)


class Browser:
    """A browser with a profile of its own, and one tab; a context."""

    def __init__(self, proxy):
        self.proxy = proxy
        self.numbers, self.answers, self.events = itertools.count(1), {}, []
        self.arrived = asyncio.Event()

    async def __aenter__(self):
        self.profile = tempfile.mkdtemp(dir=WORK, prefix="profile-")
        self.process = await asyncio.create_subprocess_exec(
            "chromium", *FLAGS, f"--user-data-dir={self.profile}", f"--proxy-server={self.proxy}",
            f"--ignore-certificate-errors-spki-list={fingerprint()}", "about:blank", stderr=asyncio.subprocess.DEVNULL)
        try:
            self.socket = await connect(await self._address(), proxy=None, max_size=None)
            self.listener = asyncio.create_task(self._listen())
            target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
            self.session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
            await self.call("Network.enable", maxTotalBufferSize=1 << 28, maxResourceBufferSize=1 << 26)
            await self.call("Page.enable")
            await self.call("Page.setLifecycleEventsEnabled", enabled=True)
        except BaseException:
            self.process.kill()
            raise
        return self

    async def __aexit__(self, *_):
        with contextlib.suppress(Exception):
            async with asyncio.timeout(10):
                await self.call("Browser.close", session=None)
                await self.process.wait()
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        self.listener.cancel()

    async def _address(self):
        """Where it listens: it writes that into its profile."""
        file = f"{self.profile}/DevToolsActivePort"
        async with asyncio.timeout(40):
            while not (os.path.exists(file) and len(lines := open(file).read().splitlines()) == 2):
                check(self.process.returncode is None, "chromium did not start")
                await asyncio.sleep(0.05)
        return f"ws://127.0.0.1:{lines[0]}{lines[1]}"

    async def _listen(self):
        async for text in self.socket:
            message = json.loads(text)
            if waiting := self.answers.pop(message.get("id"), None):
                waiting.set_result(message)
            elif "method" in message:
                self.events.append((message["method"], message["params"]))
                await self._react(message["method"], message["params"])
                self.arrived.set()

    async def _react(self, method, params):
        """With a login set, every request stops here, and so does the question of the proxy."""
        if method == "Fetch.requestPaused":
            await self.send("Fetch.continueRequest", requestId=params["requestId"])
        elif method == "Fetch.authRequired":
            answer = {"response": "CancelAuth"}
            if params["authChallenge"]["source"] == "Proxy" and self.logins:
                user, password = self.logins.pop(0)
                answer = {"response": "ProvideCredentials", "username": user, "password": password}
            await self.send("Fetch.continueWithAuth", requestId=params["requestId"], authChallengeResponse=answer)

    async def use_logins(self, *logins):
        """What it shows to the proxy: one after the other, each time that it is asked."""
        self.logins = list(logins)
        await self.call("Fetch.enable", handleAuthRequests=True)

    async def send(self, method, session=..., **params):
        message = {"id": next(self.numbers), "method": method, "params": params}
        if session is ... and hasattr(self, "session"):
            message["sessionId"] = self.session
        await self.socket.send(json.dumps(message))
        return message["id"]

    async def call(self, method, session=..., **params):
        waiting = asyncio.get_running_loop().create_future()
        self.answers[await self.send(method, session, **params)] = waiting
        message = await waiting
        check("error" not in message, f"{method}: {message.get('error')}")
        return message["result"]

    async def evaluate(self, expression):
        result = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        check("exceptionDetails" not in result, f"{expression}: {result.get('exceptionDetails')}")
        return result["result"].get("value")

    async def open(self, url):
        """Loads a page; the text of the error, if there is one."""
        going = await self.call("Page.navigate", url=url)
        # Its own end, not that of the page before.
        while "errorText" not in going and not any(
                event["name"] == "load" and event["loaderId"] == going["loaderId"]
                for event in self.seen("Page.lifecycleEvent")):
            self.arrived.clear()
            await self.arrived.wait()
        return going.get("errorText")

    def seen(self, method):
        return [params for name, params in self.events if name == method]


@case(*WAYS)
async def pages(base):
    # How many connections it makes is its own affair.
    EXPECTED["name"] = None
    async with browser() as one:
        await look_at(one, base, f"{base}/page/")
        reused = sum(params["response"]["connectionReused"] for params in responses(one, base).values())
        check(reused >= RESOURCES - 12, f"only {reused} answers came on a connection that was used before")
        await look_at(one, base, f"{base}/redirect/3?/page/")
        check(len(one.seen("Fetch.authRequired")) <= 2, "the browser was asked again and again for its login")
        await ask_for_statuses(one)


async def look_at(one, base, url):
    """Loads the page, and compares all that it got."""
    same(await one.open(url), None)
    told = await one.evaluate("told")
    same(told["pictures"], [16 + 8 * number for number in range(PICTURES)])
    same((told["styles"], told["scripts"], told["upload"]), (STYLES, SCRIPTS, 5_000_000))
    same(told["sizes"], [len(body) for name, (body, *_) in PAGE.files.items() if name.endswith(".bin")])
    same(told["events"], ["0", "1", "2", "3", "4"])
    same(told["socket"], {"heard": ["greeting", "short", "long", 70_000], "code": 1000})
    await compare_bodies(one, base)


async def ask_for_statuses(one):
    for status in (204, 404, 500):
        same(await one.evaluate(f"fetch('/status/{status}').then(answer => answer.text().then(() => answer.status))"), status)
    length = "fetch('/big', {method: 'HEAD'}).then(answer => answer.headers.get('content-length'))"
    same(await one.evaluate(length), str(len(BIG)))
    again = "fetch('/tagged', {headers: {'If-None-Match': '\"v1\"'}}).then(answer => answer.status)"
    same(await one.evaluate(again), 304)


def responses(one, base):
    """The last answer for each resource, by its name."""
    prefix = f"{base}/page/"
    return {params["response"]["url"].removeprefix(prefix): params for params in one.seen("Network.responseReceived")
            if params["response"]["url"].startswith(prefix) and params["response"]["status"] == 200}


async def compare_bodies(one, base):
    found = responses(one, base)
    same(sorted(name for name in found if name), sorted(PAGE.files))
    for name, (body, kind, _) in PAGE.files.items():
        same(found[name]["response"]["mimeType"], kind)
        got = await one.call("Network.getResponseBody", requestId=found[name]["requestId"])
        same(base64.b64decode(got["body"]) if got["base64Encoded"] else got["body"].encode(), body)


@case
async def refused_port():
    async with browser() as one:
        if SOCKS:
            # It tries again as often as it likes.
            EXPECTED["refused"] = None
            for scheme in ("http", "https"):
                same(await one.open(f"{scheme}://{REFUSED}/"), "net::ERR_SOCKS_CONNECTION_FAILED")
            return
        await one.open(f"http://{REFUSED}/")
        same([params["response"]["status"] for params in one.seen("Network.responseReceived")], [502])
        same(await one.open(f"https://{REFUSED}/"), "net::ERR_TUNNEL_CONNECTION_FAILED")


@case(*WAYS, only=ASKS)
async def wrong_logins_and_then_the_right_one(base):
    """Two wrong ones, then none: the page is the refusal, and there is no tunnel. Then a good one is taken."""
    async with browser((LOGIN[0], "guessed"), ("nobody", "guessed")) as one:
        error = await one.open(f"{base}/page/0.css")
        same(len(one.seen("Fetch.authRequired")), 3)
        if base == PLAIN:
            same([params["response"]["status"] for params in one.seen("Network.responseReceived")], [407])
        else:
            same(error, "net::ERR_HTTP_RESPONSE_CODE_FAILURE")
        one.logins = [LOGIN] * 2
        same(await one.open(f"{base}/page/0.css"), None)
        same(await one.evaluate("document.body.innerText.length > 100"), True)


@contextlib.asynccontextmanager
async def browser(*logins):
    async with asyncio.timeout(CASE_SECONDS), Browser(PROXY_PLAIN) as one:
        if ASKS:
            await one.use_logins(*(logins or [LOGIN] * 4))
        yield one


def fingerprint():
    """Of the public key of the origin and of proxyd: the browser takes that one for good."""
    key = command("openssl", "x509", "-in", CERTIFICATE, "-pubkey", "-noout")[0]
    der = base64.b64decode(b"".join(key.splitlines()[1:-1]))
    return base64.b64encode(hashlib.sha256(der).digest()).decode()


FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-default-apps", "--proxy-bypass-list=<-loopback>", "--remote-debugging-port=0",
]

run()
