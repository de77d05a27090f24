"""The origin's side of WebSocket (RFC 6455): what arrives goes back."""

import base64
import hashlib

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def accept(key):
    """The head that begins the conversation."""
    digest = hashlib.sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    return (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n")


def frame(kind, payload):
    length = len(payload)
    if length < 126:
        size = bytes([length])
    elif length < 1 << 16:
        size = b"\x7e" + length.to_bytes(2, "big")
    else:
        size = b"\x7f" + length.to_bytes(8, "big")
    return bytes([0x80 | kind]) + size + payload


async def echo(reader, writer):
    """Sends every message back until the client closes."""
    message, kind = b"", TEXT
    while True:
        final, opcode, payload = await read_frame(reader)
        if opcode == CLOSE:
            writer.write(frame(CLOSE, payload))
            await writer.drain()
            return
        if opcode == PING:
            writer.write(frame(PONG, payload))
        elif opcode != PONG:
            kind = opcode or kind
            message += payload
            if final:
                writer.write(frame(kind, message))
                message = b""
        await writer.drain()


async def read_frame(reader):
    first, second = await reader.readexactly(2)
    length = second & 127
    if length > 125:
        length = int.from_bytes(await reader.readexactly(2 if length == 126 else 8), "big")
    mask = await reader.readexactly(4)
    masked = await reader.readexactly(length)
    pad = (mask * (length // 4 + 1))[:length]
    plain = (int.from_bytes(masked, "big") ^ int.from_bytes(pad, "big")).to_bytes(length, "big")
    return first & 0x80, first & 15, plain
