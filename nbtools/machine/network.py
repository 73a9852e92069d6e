"""The address at which other machines reach this one."""

import contextlib
import os
import socket
import threading
from collections.abc import Sequence

import psutil

from nbtools.errors import LaunchError
from nbtools.machine.devices import GLOO_INTERFACE

_ELSEWHERE = "192.0.2.1"
"""An address for documentation (RFC 5737): the system reports the route to it without sending a packet."""
_LARGEST_PORT = 65_535
_LOOPBACK = "127."
LOOPBACK = "127.0.0.1"
"""Address of this machine for itself; unlike localhost, it needs no /etc/hosts and no name server."""
_NAMED_WITHIN_S = 2.0


def meeting_point(peers: Sequence[str] = ()) -> tuple[str, int]:
    """Return the rendezvous endpoint on this machine, (address, port): MASTER_ADDR and MASTER_PORT if they are set.

    By default, the address of the interface that GLOO_SOCKET_IFNAME names, else of the route to one of the `peers`
    (host names), else of the default route; and a free port.

    Raises:
        LaunchError: no interface has an address that other machines reach, or MASTER_PORT is not a port.
    """
    port = os.environ.get("MASTER_PORT")
    if port is not None and not (port.isascii() and port.isdecimal() and 0 < int(port) <= _LARGEST_PORT):
        raise LaunchError(
            f"MASTER_PORT={port[:40]!r}: must be a number from 1 to {_LARGEST_PORT}; unset it for a free port"
        )
    given = os.environ.get("MASTER_ADDR")
    named = dict(reversed(_addresses())).get(os.environ.get(GLOO_INTERFACE, ""))
    address = given or named or _own_address(*peers, _ELSEWHERE)
    if address is None or address == "localhost" or address.startswith(_LOOPBACK):
        what = f"MASTER_ADDR={given[:80]!r}" if given else "no network interface"
        raise LaunchError(
            f"nnodes: {what}: not an address of this machine that others reach; set MASTER_ADDR to one, or "
            "GLOO_SOCKET_IFNAME to an interface"
        )
    return address, _free_port() if port is None else int(port)


def unresolved_name() -> str:
    """Return this machine's name if it leads to no address, or to none within two seconds; empty if it does."""
    has_address = threading.Event()

    def look() -> None:
        with contextlib.suppress(OSError):
            socket.getaddrinfo(socket.getfqdn(), None)  # without a network, a name server's silence takes long
            has_address.set()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(_NAMED_WITHIN_S)
    return "" if has_address.is_set() else socket.gethostname()


def interface_towards(address: str) -> str | None:
    """Return the name of the network interface through which this machine reaches an address; None if unknown."""
    own = _own_address(address, _ELSEWHERE)
    return next((name for name, found in _addresses() if found == own), None)


def _own_address(*others: str) -> str | None:
    """Return the address of this machine from which it reaches the first of others with a route, else any of it.

    It is never a loopback one, which /etc/hosts often gives the own name.
    """
    for other in others:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((other, 9))  # of a datagram socket: sends nothing
            address: str = probe.getsockname()[0]
            if not address.startswith(_LOOPBACK):
                return address
    return next((found for _, found in _addresses() if not found.startswith(_LOOPBACK)), None)


def _addresses() -> list[tuple[str, str]]:
    """Return interfaces and their IPv4 addresses."""
    found = psutil.net_if_addrs().items()
    return [(name, entry.address) for name, entries in found for entry in entries if entry.family == socket.AF_INET]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
