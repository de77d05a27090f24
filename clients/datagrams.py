"""The origin's UDP side: a name server, and a QUIC server that sends back what it gets. Both note what arrives."""

import asyncio

import dns.message
import dns.rrset
from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.quic.configuration import QuicConfiguration

from origin import PROXY_ADDRESS

ALPN = ["mirror"]


class Datagrams:
    def __init__(self, certificate, key):
        self.configuration = QuicConfiguration(is_client=False, alpn_protocols=ALPN)
        self.configuration.load_cert_chain(certificate, key)
        self.tasks = set()
        self.forget()

    async def start(self):
        self.dns, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: NameServer(self), local_addr=("127.0.0.1", 0))
        self.dns_address = "%s:%d" % self.dns.get_extra_info("sockname")
        self.quic = await serve(
            "127.0.0.1", 0, configuration=self.configuration, stream_handler=self._stream,
            create_protocol=lambda *arguments, **settings: Noted(self, *arguments, **settings))
        self.quic_address = "127.0.0.1:%d" % self.quic._transport.get_extra_info("sockname")[1]

    def stop(self):
        self.dns.close()
        self.quic.close()

    def forget(self):
        self.dns_up, self.dns_down, self.quic_up, self.violations = 0, 0, 0, []

    def wrong(self, up, down, elsewhere):
        """Holds the bytes of the log's associations against what was seen here; datagrams of QUIC may get lost."""
        if self.quic_up:
            return "" if up >= self.quic_up else f"{up} bytes up in the log, {self.quic_up} arrived"
        found, wanted = (up, down), (self.dns_up + elsewhere, self.dns_down)
        return "" if found == wanted else f"{found} bytes up and down in the log, not {wanted}"

    def came_from(self, address):
        if address[0] != PROXY_ADDRESS:
            self.violations.append(f"a datagram from {address} went past the proxy")

    def _stream(self, reader, writer):
        task = asyncio.create_task(mirror(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class NameServer(asyncio.DatagramProtocol):
    """Answers `NUMBER.example` with an address that is made of the number, and pads the answer of `long.example`."""

    def __init__(self, noted):
        self.noted = noted

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.noted.came_from(address)
        self.noted.dns_up += len(data)
        answer = answer_to(data)
        self.noted.dns_down += len(answer)
        self.transport.sendto(answer, address)


def answer_to(data):
    query = dns.message.from_wire(data)
    answer = dns.message.make_response(query)
    name = query.question[0].name
    label = name.labels[0].decode()
    if label == "long":
        answer.answer.append(dns.rrset.from_text(name, 60, "IN", "TXT", *LONG_TEXTS))
    else:
        number = int(label)
        answer.answer.append(dns.rrset.from_text(name, 60, "IN", "A", f"10.1.{number >> 8}.{number & 255}"))
    return answer.to_wire(max_size=65535)


class Noted(QuicConnectionProtocol):
    def __init__(self, noted, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.noted = noted

    def datagram_received(self, data, address):
        self.noted.came_from(address)
        self.noted.quic_up += len(data)
        super().datagram_received(data, address)


async def mirror(reader, writer):
    writer.write(await reader.read())
    writer.write_eof()


# An answer of some 4,000 bytes. (Texts that are the same would be one.)
LONG_TEXTS = [f'"{number:03}{"z" * 240}"' for number in range(16)]
