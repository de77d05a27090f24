"""dnspython over the UDP sockets of PySocks: look-ups of a name server through UDP ASSOCIATE."""

import os
import socket

import dns.message
import dns.query
import socks

from common import *

HOST, PORT = PROXY_PLAIN.partition("://")[2].split(":")
SERVER, SERVER_PORT = os.environ["DNS"].split(":")
SERVER_PORT = int(SERVER_PORT)


def associated(login=LOGIN):
    """A UDP socket behind the proxy; its association begins with the first datagram."""
    one = socks.socksocket(socket.AF_INET, socket.SOCK_DGRAM)
    one.settimeout(30)
    one.set_proxy(socks.SOCKS5, HOST, int(PORT), True, *(login if login and login[0] else (None, None)))
    return one


def address_of(one, number):
    query = dns.message.make_query(f"{number}.example", "A")
    answer = dns.query.udp(query, SERVER, timeout=30, port=SERVER_PORT, sock=one)
    return answer.answer[0][0].address


@case
def lookup():
    expect("associate")
    with associated() as one:
        same(address_of(one, 7), "10.1.0.7")


@case
def many_over_one_association():
    expect("associate")
    with associated() as one:
        for number in range(200):
            same(address_of(one, number), f"10.1.0.{number}")


@case
def many_associations():
    """All open at the same time; no answer goes astray."""
    expect("associate", 20)
    ones = [associated() for _ in range(20)]
    for turn in range(2):
        for number, one in enumerate(ones):
            same(address_of(one, 300 + number + 20 * turn), f"10.1.1.{44 + number + 20 * turn}")
    for one in ones:
        one.close()


@case
def server_by_name():
    """The name goes to the proxy, which looks it up."""
    expect("associate")
    query = dns.message.make_query("9.example", "A")
    with associated() as one:
        one.sendto(query.to_wire(), ("localhost", SERVER_PORT))
        answer, origin = one.recvfrom(65535)
    same(origin, ("127.0.0.1", SERVER_PORT))
    same(dns.message.from_wire(answer).answer[0][0].address, "10.1.0.9")


@case
def large_answer():
    expect("associate")
    query = dns.message.make_query("long.example", "TXT")
    with associated() as one:
        answer = dns.query.udp(query, SERVER, timeout=30, port=SERVER_PORT, sock=one)
    same(len(answer.answer[0]), 16)
    check(len(answer.to_wire()) > 3500)


@case
def closed_port_ends_nothing():
    """The refusal of one target (an ICMP error) leaves the association alone."""
    expect("associate")
    with associated() as one, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind(("127.0.0.1", 0))
        nowhere = closed.getsockname()
        closed.close()
        same(address_of(one, 1), "10.1.0.1")
        for _ in range(3):
            one.sendto(b"x" * 10, nowhere)
            expect("elsewhere", 10)
            same(address_of(one, 2), "10.1.0.2")


@case(only=ASKS)
def wrong_login():
    expect("login-1")
    fails((LOGIN[0], "guessed"), "SOCKS5 authentication failed")
    expect("login-255")
    fails(None, "All offered SOCKS5 authentication methods were rejected")


def fails(login, wanted):
    try:
        with associated(login) as one:
            address_of(one, 1)
    except socks.ProxyError as problem:
        check(wanted in str(problem), problem)
    else:
        check(False, "there is an association")


run()
