"""Where this node can be reached: what it listens on, and what it tells others, as the machine's addresses change."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence

import trio

from mesh.base.errors import Usage
from mesh.interfaces import LocalAddress, choose_announced, read_addresses
from node.addresses import Endpoint

LOOK_S = 5.0
STATED_MAX = 4
STATED_BYTES_MAX = 80
"""The longest address an invite or a presence holds; a longer one to advertise keeps the node from starting."""


class Reach:
    """What a node listens on and advertises.

    Args:
        bound: The addresses it is bound to; ``0.0.0.0`` and ``::`` mean every interface.
        advertise: What the settings state instead of the machine's own addresses; may be empty.
        look: Reads this machine's addresses.

    Raises:
        Usage: An advertised address does not fit into what others are told.
    """

    def __init__(
        self,
        bound: Sequence[Endpoint],
        advertise: Sequence[Endpoint],
        look: Callable[[], list[LocalAddress]] = read_addresses,
    ) -> None:
        for endpoint in advertise:
            if len(str(endpoint).encode()) > STATED_BYTES_MAX:
                raise Usage(
                    f"the address {str(endpoint)[:40]}... is too long to be announced: at most {STATED_BYTES_MAX} bytes",
                    hint="advertise a shorter name, or the IP address",
                )
        self.bound = tuple(dict.fromkeys(bound))
        self._advertise = tuple(advertise)
        self._look = look
        self._own = choose_announced(look())

    @property
    def port(self) -> int:
        """The port on every interface, where there is one; else that of the first address bound."""
        return next((endpoint.port for endpoint in self.bound if _is_any(endpoint.host)), self.bound[0].port)

    @property
    def listening(self) -> tuple[str, ...]:
        """What it is bound to, as text."""
        return tuple(str(endpoint) for endpoint in self.bound)

    @property
    def loopback(self) -> bool:
        """Whether it can be reached from this host only."""
        return all(_is_loopback(endpoint.host) for endpoint in self.bound)

    @property
    def fixed(self) -> list[str] | None:
        """What is announced whatever the machine's addresses are; None where it follows them."""
        if self._advertise:
            return [str(endpoint) for endpoint in self._advertise]
        if any(_is_any(endpoint.host) for endpoint in self.bound):
            return None
        return [str(endpoint) for endpoint in self.bound]

    @property
    def host_names(self) -> tuple[str, ...]:
        """Names that may stand in a request's Host, in lower case."""
        return tuple(endpoint.host.lower() for endpoint in self._advertise)

    def addresses(self) -> tuple[str, ...]:
        """Where others are told to dial, best first; at most four."""
        fixed = self.fixed
        if fixed is not None:
            return tuple(fixed[:STATED_MAX])
        return tuple(str(Endpoint(host, self.port)) for host in self._own)[:STATED_MAX]

    async def run_look(self, changed: Callable[[], None]) -> None:
        """Follow the machine's addresses until cancelled.

        Args:
            changed: Called after they changed.
        """
        while True:
            await trio.sleep(LOOK_S)
            own = choose_announced(await trio.to_thread.run_sync(self._look))
            if own != self._own:
                self._own = own
                changed()


def _is_any(host: str) -> bool:
    return host in ("", "0.0.0.0", "::")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
