"""The proxyd under test: its configuration, its process, and what its access log says."""

import asyncio
import json
import os
import re
import urllib.parse

from origin import PROXY_ADDRESS

USER, PASSWORD = "alice", "s3cret:w%rd/+ &"
# For a client whose configuration file can hold no blanks.
SIMPLE_USER, SIMPLE_PASSWORD = "bob", "simple:word"


class Proxyd:
    """`open` asks for no login, `login` for that of `USER`; `secure` is like `login`, inside TLS.

    `socks` and `socks_login` are the same for SOCKS; `auto` takes all protocols, in clear and inside TLS, with a login.
    """

    LISTENERS = ("open", "login", "secure", "socks", "socks_login", "auto")
    UNASKED = ("open", "socks")
    SOCKS = ("socks", "socks_login", "auto")

    def __init__(self, binary, work, certificate, key):
        self.binary, self.log = binary, work / "access.log"
        self.errors = work / "proxyd.err"
        self.file = work / "proxyd.toml"
        self.file.write_text(CONFIG.format(
            log=self.log, source=PROXY_ADDRESS, cert=certificate, key=key, user=USER, password=PASSWORD,
            simple_user=SIMPLE_USER, simple_password=SIMPLE_PASSWORD))
        self.read = 0

    async def start(self):
        with open(self.errors, "wb") as errors:
            self.process = await asyncio.create_subprocess_exec(
                self.binary, "--config", self.file, stdin=asyncio.subprocess.DEVNULL, stdout=errors, stderr=errors)
        async with asyncio.timeout(20):
            while len(found := self._addresses()) < len(self.LISTENERS):
                if self.process.returncode is not None:
                    raise RuntimeError(f"proxyd did not start:\n{self.errors.read_text()}")
                await asyncio.sleep(0.02)
        self.addresses = dict(zip(self.LISTENERS, found))

    def _addresses(self):
        return re.findall(r"^listening \S+ (\S+)\n", self.errors.read_text(), re.MULTILINE)

    def url(self, listener, user=None, password=None):
        """`http://USER:PASSWORD@ADDRESS`, as the environment variables of most clients have it; with `socks5` for SOCKS."""
        address, scheme, login = self.addresses[listener], "http", ""
        if listener == "secure":
            scheme, address = "https", address.replace("127.0.0.1", "localhost")
        elif listener in self.SOCKS:
            scheme = "socks5"
        if user is not None:
            login = ":".join(urllib.parse.quote(word, safe="") for word in (user, password)) + "@"
        return f"{scheme}://{login}{address}"

    def lines(self):
        """What was written to the access log since `forget`."""
        with open(self.log, "rb") as log:
            log.seek(self.read)
            text = log.read()
        return [json.loads(line) for line in text[:text.rfind(b"\n") + 1].splitlines()]

    async def forget(self):
        """Waits for what a client of before has left: lines are written a quarter of a second later."""
        while True:
            self.read = os.path.getsize(self.log)
            await asyncio.sleep(0.4)
            if self.read == os.path.getsize(self.log):
                break

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    async def stop(self):
        """Ends it in order, and returns its exit status."""
        if self.process.returncode is None:
            self.process.terminate()
        try:
            async with asyncio.timeout(20):
                return await self.process.wait()
        except TimeoutError:
            self.process.kill()
            raise


CONFIG = """\
workers = 2
drain = "5s"

[log]
access = "{log}"
format = "json"

# The browser also asks for hosts of its maker: whatever is not on this machine is not to be found.
[resolver]
servers = ["127.0.0.1:9"]
timeout = "1s"

[[source]]
name = "visible"
addresses = ["{source}", "::1"]

[[listener]]
name = "open"
protocol = "http"
address = "127.0.0.1:0"
auth = false
source = "visible"

[[listener]]
name = "login"
protocol = "http"
address = "127.0.0.1:0"
auth = true
source = "visible"

[[listener]]
name = "secure"
protocol = "https"
address = "127.0.0.1:0"
auth = true
source = "visible"
cert = "{cert}"
key = "{key}"

[[listener]]
name = "socks"
protocol = "socks"
address = "127.0.0.1:0"
auth = false
source = "visible"

[[listener]]
name = "socks_login"
protocol = "socks"
address = "127.0.0.1:0"
auth = true
source = "visible"

[[listener]]
name = "auto"
protocol = "auto"
address = "127.0.0.1:0"
auth = true
source = "visible"
cert = "{cert}"
key = "{key}"

[[user]]
name = "{user}"
password = "{password}"

[[user]]
name = "{simple_user}"
password = "{simple_password}"
"""
