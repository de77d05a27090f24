"""aioquic: megabytes in both directions over QUIC, all its datagrams through UDP ASSOCIATE."""

import asyncio
import contextlib
import hashlib
import ipaddress
import struct

from aioquic.asyncio import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from common import *

HOST, PORT = PROXY_PLAIN.partition("://")[2].split(":")
SERVER = os.environ["QUIC"].split(":")[0], int(os.environ["QUIC"].split(":")[1])
BODY = BIG[:3_000_017]
KINDS = ("in clear", "inside TLS") if LISTENER == "auto" else ("in clear",)


class Association(asyncio.DatagramProtocol, asyncio.DatagramTransport):
    """A UDP socket behind the proxy (RFC 1928 section 7): a transport for the protocol that uses it."""

    def __init__(self, user):
        super().__init__()
        self.user = user

    def connection_made(self, transport):
        self.relay = transport
        self.user.connection_made(self)

    def sendto(self, data, address=None):
        host, port = (address or SERVER)[:2]
        self.relay.sendto(b"\0\0\0\1" + ipaddress.IPv4Address(host).packed + struct.pack(">H", port) + data)

    def datagram_received(self, data, _):
        check(data[:4] == b"\0\0\0\1", data[:4])
        self.user.datagram_received(data[10:], (str(ipaddress.IPv4Address(data[4:8])), *struct.unpack(">H", data[8:10])))

    def close(self):
        self.relay.close()


@contextlib.asynccontextmanager
async def associate(user, kind):
    """Negotiates an association for this protocol; it lasts as long as its TCP connection."""
    inside = {"ssl": trust(), "server_hostname": "localhost"} if kind == "inside TLS" else {}
    reader, writer = await asyncio.open_connection(HOST, int(PORT), **inside)
    try:
        relay = await negotiate(reader, writer)
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: Association(user), remote_addr=relay)
        yield
    finally:
        writer.close()


async def negotiate(reader, writer):
    writer.write(b"\5\1\2" if ASKS else b"\5\1\0")
    same(await reader.readexactly(2), b"\5\2" if ASKS else b"\5\0")
    if ASKS:
        name, password = (word.encode() for word in LOGIN)
        writer.write(b"\1%c%b%c%b" % (len(name), name, len(password), password))
        same(await reader.readexactly(2), b"\1\0")
    writer.write(b"\5\3\0\1" + bytes(6))
    same(await reader.readexactly(4), b"\5\0\0\1")
    host, port = struct.unpack(">4sH", await reader.readexactly(6))
    return str(ipaddress.IPv4Address(host)), port


@contextlib.asynccontextmanager
async def connection(kind):
    expect("associate")
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["mirror"], server_name="localhost")
    configuration.load_verify_locations(CA)
    one = QuicConnectionProtocol(QuicConnection(configuration=configuration))
    async with associate(one, kind):
        one.connect(SERVER)
        await one.wait_connected()
        yield one
        one.close()
        await one.wait_closed()
        one._transport.close()


async def mirrored(one, body):
    reader, writer = await one.create_stream()
    writer.write(body)
    writer.write_eof()
    return hashlib.sha256(await reader.read()).hexdigest()


@case(*KINDS)
async def transfer(kind):
    async with connection(kind) as one:
        same(await mirrored(one, BODY), hashlib.sha256(BODY).hexdigest())


@case(*KINDS)
async def several_streams(kind):
    bodies = [BIG[number * 100_000:(number + 1) * 100_000] for number in range(8)]
    async with connection(kind) as one:
        found = await asyncio.gather(*[mirrored(one, body) for body in bodies])
    same(found, [hashlib.sha256(body).hexdigest() for body in bodies])


run()
