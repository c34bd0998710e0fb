"""What hive, query and node ask of the mesh. ``mesh.overlay`` satisfies these; tests have a fake under the same suite."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mesh.base.names import NodeId, OwnerId

if TYPE_CHECKING:
    import trio

CHANNEL_MESSAGE_BYTES_MAX = 60 * 1024
"""The largest message one ``Channel.send`` takes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One replicated register as the mesh holds it now.

    Attributes:
        author: The machine that signed it.
        owner: The person that machine belongs to.
        kind: The record kind's number.
        key: At most 32 bytes.
        version: Hybrid logical version; its upper 48 bits are the author's clock in ms.
        record_id: 32 bytes; changes with every change of the content.
        body: As the author wrote it; never empty (withdrawn registers are not listed).
        received_ms: This machine's clock when it came.
    """

    author: NodeId
    owner: OwnerId
    kind: int
    key: bytes
    version: int
    record_id: bytes
    body: bytes
    received_ms: int


@dataclass(frozen=True, slots=True)
class Member:
    """One machine of the mesh, as its certificate and its newest presence say.

    Attributes:
        state: ``live``, ``stale``, ``gone``, ``expelled`` or ``expired``.
        last_seen_ms: This machine's clock when something new was last heard of it, or None.
    """

    node: NodeId
    public_key: bytes
    name: str
    owner: OwnerId
    owner_name: str
    mine: bool
    roles: frozenset[str]
    state: str
    last_seen_ms: int | None
    linked: bool
    addresses: tuple[str, ...]
    version: str | None


class Records(Protocol):
    """The replicated registers of this mesh."""

    async def publish(self, kind: int, key: bytes, body: bytes) -> bytes:
        """Sign, store durably and push one register of this machine; returns its record id.

        Raises:
            Refused: This machine's roles do not allow the kind, or the body breaks the kind's schema or size.
        """
        ...

    async def withdraw(self, kind: int, key: bytes) -> None:
        """Replace a register of this machine by a tombstone; nothing happens where there is none."""
        ...

    def entries(self, kind: int) -> list[Entry]:
        """List the admitted, unexpired registers of one kind, by current members, newest version first."""
        ...

    def withdrawn(self, kind: int) -> dict[bytes, int]:
        """List this machine's own registers of one kind that stand withdrawn: key to the version of the tombstone.

        What a machine withdrew stays withdrawn when an older copy of its other databases comes back.
        """
        ...

    def changes(self, kinds: Collection[int]) -> trio.MemoryReceiveChannel[None]:
        """Wake whenever a register of these kinds changed. One pending wake at most: re-read ``entries`` on each."""
        ...


class Directory(Protocol):
    """Who is in this mesh."""

    @property
    def me(self) -> Member:
        """This machine."""
        ...

    def member(self, node: NodeId) -> Member | None:
        """Look up one machine, also an expelled one."""
        ...

    def members(self) -> list[Member]:
        """List every machine but this one."""
        ...


class Channel(Protocol):
    """An ordered, flow-controlled stream of messages to one machine."""

    @property
    def peer(self) -> NodeId:
        """The machine at the other end, proved by its key."""
        ...

    async def send(self, data: bytes) -> None:
        """Send one message of at most CHANNEL_MESSAGE_BYTES_MAX; waits for the peer's credit.

        Raises:
            Unreachable: The channel or its link ended.
        """
        ...

    async def receive(self) -> bytes | None:
        """Wait for the next message; None once the peer has closed its side in order.

        Raises:
            Unreachable: The link ended first, or the peer closed with a fault.
        """
        ...

    async def aclose(self, reason: str = "") -> None:
        """End the channel in both directions; a second call does nothing. ``reason`` empty means in order."""
        ...

    def close_nowait(self, reason: str) -> None:
        """End it as ``aclose`` does, for whoever cannot wait."""
        ...


@dataclass(frozen=True, slots=True)
class Incoming:
    """A channel somebody opened to us.

    Attributes:
        purpose: The number of what is wanted, as in ``<package>/messages.py``.
        request: The first message, unchecked bytes.
    """

    channel: Channel
    purpose: int
    request: bytes


class Channels(Protocol):
    """Channels to and from other machines."""

    async def open_channel(self, node: NodeId, purpose: int, request: bytes, *, bulk: bool = False) -> Channel:
        """Open a channel over the link to a machine.

        Args:
            node: Who.
            purpose: What for, a number of ``<package>/messages.py``.
            request: The first message, at most CHANNEL_MESSAGE_BYTES_MAX.
            bulk: Whether it carries much data and goes behind everything else.

        Raises:
            Unreachable: No link to that machine.
        """
        ...

    def incoming(self, purposes: range) -> trio.MemoryReceiveChannel[Incoming]:
        """Receive the channels others open for these purposes; at most 64 wait, the next is refused."""
        ...
