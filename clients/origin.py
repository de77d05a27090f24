"""The origin of the suite: HTTP/1.1 in clear and inside TLS, WebSocket and git, and a note of all that arrives."""

import asyncio
import base64
import gzip
import hashlib
import json
import os
import urllib.parse
from dataclasses import dataclass, field

import websocket
from page import Page

# Where the tunnels and requests of proxyd come from; whoever comes from elsewhere went past it. (IPv6 has one loopback
# address only: there the numbers have to agree.)
PROXY_ADDRESS, PROXY_ADDRESS_V6 = "127.0.0.2", "::1"


@dataclass
class Arrived:
    """What the origin saw at one of its ports."""

    requests: list = field(default_factory=list)  # (connection, method, path, status)
    connections: int = 0


class Origin:
    """`plain` for requests that a proxy forwards, `tunnel` for clear and `tls` for encrypted tunnels, `ipv6` in clear."""

    PORTS = ("plain", "tunnel", "tls", "ipv6")

    def __init__(self, work, contexts):
        self.small, self.big = (open(work / name, "rb").read() for name in ("small", "big"))
        self.git_root = work / "git"
        self.contexts = contexts
        self.urls, self.servers, self.open, self.connections = {}, [], set(), 0
        self.forget()

    async def start(self):
        for name in self.PORTS:
            secure = name == "tls"
            server = await asyncio.start_server(
                lambda reader, writer, name=name: self._connection(name, reader, writer),
                "::1" if name == "ipv6" else "127.0.0.1", 0, ssl=self.contexts if secure else None, backlog=256, limit=1 << 18)
            self.servers.append(server)
            port = server.sockets[0].getsockname()[1]
            # By name inside TLS, by address in clear: both ways to a target are walked.
            host = {"tls": "localhost", "ipv6": "[::1]"}.get(name, "127.0.0.1")
            self.urls[name] = f"{'https' if secure else 'http'}://{host}:{port}"

        # Browsers tunnel to a WebSocket in clear, too.
        self.page = Page(self.big, self.urls["tunnel"].replace("http", "ws") + "/ws")

    def forget(self):
        self.arrived = {name: Arrived() for name in self.PORTS}
        self.violations = []

    async def _connection(self, port, reader, writer):
        self.arrived[port].connections += 1
        self.connections += 1
        number = self.connections
        self.open.add(writer)
        address = writer.get_extra_info("peername")[0]
        if address not in (PROXY_ADDRESS, PROXY_ADDRESS_V6):
            self.violations.append(f"a connection from {address} went past the proxy")
        try:
            while await Exchange(self, port, number, reader, writer).run():
                pass
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass
        except Exception as problem:  # One exchange must not end the suite, but has to be told.
            self.violations.append(f"the origin failed: {problem!r}")
        finally:
            self.open.discard(writer)
            writer.close()

    def hang_up(self):
        """Closes what is open; nothing but idle connections should be left then."""
        for writer in self.open:
            writer.close()


class Exchange:
    """One request and its answer."""

    def __init__(self, origin, port, number, reader, writer):
        self.origin, self.port, self.number = origin, port, number
        self.reader, self.writer = reader, writer
        self.keep = True

    async def run(self):
        """Serves it; whether the connection may carry another one."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as end:
            if end.partial:
                self.origin.violations.append(f"half a head: {end.partial[:200]!r}")
            return False
        line, *fields = head[:-4].decode("latin-1").split("\r\n")
        self.method, self.target, self.version = line.split(" ")
        self.fields = [tuple(part.strip() for part in field.split(":", 1)) for field in fields]
        self._inspect(line)
        self.framing = "chunked" if self.field("transfer-encoding") else "length"
        self.path, _, self.query = self.target.partition("?")
        self.body = self._chunked() if self.framing == "chunked" else self._counted()
        await self._route()
        if self.keep:
            async for _ in self.body:
                pass
        await self.writer.drain()
        return self.keep

    def field(self, name):
        return next((value for key, value in self.fields if key.lower() == name), None)

    def _inspect(self, line):
        """What a proxy must not forward; what is in a tunnel is the client's own affair."""
        if self.port != "plain":
            return
        for name in ("proxy-authorization", "proxy-connection"):
            if self.field(name) is not None:
                self.origin.violations.append(f"{name} arrived with {line}")
        if not self.target.startswith("/"):
            self.origin.violations.append(f"not in origin-form: {line}")

    # ------------------------------------------------------------------ bodies

    async def _counted(self):
        left = int(self.field("content-length") or 0)
        while left:
            piece = await self.reader.read(min(left, 1 << 16))
            if not piece:
                raise ConnectionError("the body ended early")
            left -= len(piece)
            yield piece

    async def _chunked(self):
        while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield await self.reader.readexactly(size)
            if await self.reader.readexactly(2) != b"\r\n":
                raise ValueError("a chunk does not end where it said")
        while await self.reader.readuntil(b"\r\n") != b"\r\n":
            pass

    async def invite(self):
        """Asks for the body, if the client waits for that."""
        if (self.field("expect") or "").lower() == "100-continue":
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await self.writer.drain()

    async def whole(self):
        return b"".join([piece async for piece in self.body])

    # ----------------------------------------------------------------- answers

    def note(self, status):
        self.origin.arrived[self.port].requests.append((self.number, self.method, self.target, status))

    def head(self, status, *fields):
        self.note(status)
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Whatever')}"]
        lines += [f"{name}: {value}" for name, value in fields]
        if not self.keep:
            lines.append("Connection: close")
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    async def answer(self, body=b"", *fields, status=200, kind="application/octet-stream"):
        self.head(status, ("Content-Type", kind), ("Content-Length", len(body)), *fields)
        if self.method != "HEAD":
            self.writer.write(body)
        await self.writer.drain()

    async def chunks(self, pieces, *fields, status=200, kind="application/octet-stream"):
        """Answers with a chunk for each piece, a chunk extension and a trailer."""
        self.head(status, ("Content-Type", kind), ("Transfer-Encoding", "chunked"), ("Trailer", "X-End"), *fields)
        if self.method == "HEAD":
            return
        async for piece in pieces:
            self.writer.write(b"%x;piece=yes\r\n%b\r\n" % (len(piece), piece))
            await self.writer.drain()
        self.writer.write(b"0\r\nX-End: reached\r\n\r\n")

    # ------------------------------------------------------------------ routes

    async def _route(self):
        name, _, self.rest = self.path[1:].partition("/")
        route = getattr(self, "_on_" + name.replace("-", "_"), None)
        if route is None:
            await self.answer(b"no such page\n", status=404, kind="text/plain")
            return
        if name not in UNINVITED:
            await self.invite()
        await route()

    async def _on_small(self):
        await self.answer(self.origin.small, ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"))

    async def _on_big(self):
        """Also in parts, for downloads that go on."""
        big, wanted = self.origin.big, self.field("range")
        fields = [("Accept-Ranges", "bytes"), ("Last-Modified", CHANGED)]
        if wanted is None:
            return await self.answer(big, *fields)
        begin, _, end = wanted.removeprefix("bytes=").partition("-")
        begin, end = int(begin), int(end or len(big) - 1)
        fields.append(("Content-Range", f"bytes {begin}-{end}/{len(big)}"))
        await self.answer(big[begin:end + 1], *fields, status=206)

    async def _on_chunked(self):
        body = self.origin.big if self.rest == "big" else self.origin.small
        await self.chunks(odd_pieces(body))

    async def _on_gzip(self):
        await self.answer(gzip.compress(self.origin.big, 1), ("Content-Encoding", "gzip"))

    async def _on_until_close(self):
        """A body that ends with the connection."""
        self.keep = False
        self.head(200, ("Content-Type", "application/octet-stream"))
        self.writer.write(self.origin.big)
        await self.writer.drain()

    async def _on_status(self):
        status = int(self.rest)
        if status in (204, 304):
            self.head(status)
        else:
            await self.answer(b"status %d\n" % status, status=status, kind="text/plain")

    async def _on_tagged(self):
        fields = ("ETag", '"v1"'), ("Last-Modified", CHANGED)
        if self.field("if-none-match") == '"v1"' or self.field("if-modified-since") == CHANGED:
            self.head(304, *fields)
        else:
            await self.answer(self.origin.small, *fields)

    async def _on_redirect(self):
        """To `/redirect/COUNT-1`, and in the end to what the query says, or `/small`."""
        count, query = int(self.rest), self.query and "?" + self.query
        onward = f"/redirect/{count - 1}{query}" if count > 1 else self.query or "/small"
        await self.answer(b"", ("Location", onward), status=302)

    async def _on_moved(self):
        """To `/upload`, and the body has to go there too."""
        await self.whole()
        await self.answer(b"", ("Location", "/upload"), status=307)

    async def _on_to_tls(self):
        await self.answer(b"", ("Location", self.origin.urls["tls"] + "/small"), status=302)

    async def _on_upload(self):
        """Tells how a body arrived."""
        digest, length = hashlib.sha256(), 0
        async for piece in self.body:
            digest.update(piece)
            length += len(piece)
        told = {"method": self.method, "length": length, "sha256": digest.hexdigest(), "framing": self.framing}
        await self.answer(json.dumps(told).encode(), kind="application/json")

    async def _on_mirror(self):
        """Answers with the body while it arrives: both directions at the same time."""
        await self.chunks(self.body)

    async def _on_too_large(self):
        """Answers before the body is there, and reads none of it."""
        self.keep = False
        await self.answer(b"too large\n", status=413, kind="text/plain")

    async def _on_private(self):
        wanted = "Basic " + base64.b64encode(b"reader:of pages").decode()
        if self.field("authorization") == wanted:
            await self.answer(self.origin.small)
        else:
            await self.answer(b"who?\n", ("WWW-Authenticate", 'Basic realm="origin"'), status=401, kind="text/plain")

    async def _on_ws(self):
        key = self.field("sec-websocket-key")
        if key is None:
            return await self.answer(b"WebSocket only\n", status=426, kind="text/plain")
        self.keep = False
        self.note(101)
        # The greeting is in the same write as the 101, and must not get lost behind it.
        self.writer.write(websocket.accept(key) + websocket.frame(websocket.TEXT, b"greeting"))
        await websocket.echo(self.reader, self.writer)

    async def _on_page(self):
        body, kind, how = self.origin.page.resource(self.rest)
        if body is None:
            await self.answer(b"no such page\n", status=404, kind="text/plain")
        elif how == "chunked":
            await self.chunks(odd_pieces(body), ("Cache-Control", "no-store"), kind=kind)
        elif how == "gzip":
            packed = gzip.compress(body, 1)
            await self.answer(packed, ("Content-Encoding", "gzip"), ("Cache-Control", "no-store"), kind=kind)
        else:
            await self.answer(body, ("Cache-Control", "no-store"), kind=kind)

    async def _on_events(self):
        async def events():
            for number in range(5):
                yield b"data: %d\n\n" % number
        await self.chunks(events(), kind="text/event-stream")

    async def _on_favicon_ico(self):
        self.head(204)

    async def _on_git(self):
        """Passes everything to `git http-backend` (CGI), both bodies as streams."""
        process = await asyncio.create_subprocess_exec(
            "git", "http-backend", env=os.environ | self._git_variables(),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL)

        async def feed():
            async for piece in self.body:
                process.stdin.write(piece)
                await process.stdin.drain()
            process.stdin.close()

        feeding = asyncio.create_task(feed())
        head = (await process.stdout.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1")
        fields = [tuple(line.split(": ", 1)) for line in head.split("\r\n")]
        status = next((int(value.split()[0]) for name, value in fields if name == "Status"), 200)
        kept = [(name, value) for name, value in fields if name not in ("Status", "Content-Length", "Content-Type")]
        kind = next((value for name, value in fields if name == "Content-Type"), "text/plain")

        async def pieces():
            while piece := await process.stdout.read(1 << 16):
                yield piece

        await self.chunks(pieces(), *kept, status=status, kind=kind)
        await feeding
        await process.wait()

    def _git_variables(self):
        variables = {
            "GIT_PROJECT_ROOT": str(self.origin.git_root), "GIT_HTTP_EXPORT_ALL": "1", "REMOTE_USER": "committer",
            "REMOTE_ADDR": PROXY_ADDRESS, "PATH_INFO": "/" + urllib.parse.unquote(self.rest),
            "QUERY_STRING": self.query, "REQUEST_METHOD": self.method,
        }
        optional = {
            "CONTENT_TYPE": "content-type", "HTTP_CONTENT_ENCODING": "content-encoding",
            "GIT_PROTOCOL": "git-protocol", "CONTENT_LENGTH": "content-length",
        }
        for variable, name in optional.items():
            if (value := self.field(name)) is not None:
                variables[variable] = value
        return variables


async def odd_pieces(body):
    """Cuts at lengths that fit no buffer."""
    at, length = 0, 1
    while at < len(body):
        yield body[at:at + length]
        at += length
        length = length * 3 % 65521 + 1


# Where a client that asks (`Expect`) gets its answer before it sends the body.
UNINVITED = ("too-large",)
CHANGED = "Sat, 01 Mar 2025 12:00:00 GMT"
REASONS = {
    101: "Switching Protocols", 200: "OK", 204: "No Content", 206: "Partial Content", 302: "Found",
    304: "Not Modified", 307: "Temporary Redirect", 401: "Unauthorized", 404: "Not Found",
    413: "Content Too Large", 426: "Upgrade Required", 500: "Internal Server Error",
}
