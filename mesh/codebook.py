"""The codes of this node that are open: made, answered, burned; and the joiner's side of getting a link by one.

A try is written down as failed before the answer that makes it one, and taken back when the joiner proves the password;
so a crash, a cut line or many tries at once never give anybody more than TRIES_MAX guesses at one code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from mesh import store
from mesh.base.clock import Now
from mesh.base.crypto import Entropy
from mesh.base.db import Connection, Database
from mesh.base.errors import Refused, Unreachable
from mesh.codes import (
    ADDRESS_SLOT,
    SLOTS,
    Code,
    address_payload,
    code_of,
    slot_payload,
    write_code,
    write_words,
)
from mesh.guesses import Guesses
from mesh.invites import BadInvite
from mesh.pake import CodeIssuer, CodeJoiner, slot_of_untrusted

TTL_S = 600
TRIES_MAX = 3
OPEN_MAX = 8
"""Codes open at a time; one of them may name an address."""
STEP_TIMEOUT_S = 15.0
_SAID = {
    b"HC-none": ("no_open_code", "no such code is open there: it was used, has expired, or is another machine's"),
    b"HC-wrong": ("wrong", "that code is wrong"),
    b"HC-burned": ("burned", "that code is wrong, and after three wrong tries it is burned"),
    b"HC-slow": ("limit", "too many codes were tried there in the last minute"),
}
"""What the issuer answers in place of C2 or C4. It is not signed: who can change it could as well have cut the line."""
_HINTS = {"wrong": "type it once more; three wrong tries burn it", "limit": "wait a minute and try again"}

log = logging.getLogger("hivemesh.codebook")


class Pipe(Protocol):
    """Two ends exchanging whole messages before they are members."""

    remote: str

    async def send(self, message: bytes) -> None:
        """Send one message."""
        ...

    async def receive(self) -> bytes:
        """Wait for one message."""
        ...


@dataclass(frozen=True, slots=True)
class Minted:
    """A code that was made, in both ways of writing it."""

    code: str
    words: str
    expires_s: int


@dataclass(frozen=True, slots=True)
class CodeState:
    """What became of a code.

    Attributes:
        word: ``open``, ``used``, ``burned`` or ``expired``.
    """

    word: str
    tries_left: int


class Codebook:
    """The codes of one node.

    Args:
        database: ``mesh.db``.
        read_clock: Reads both clocks.
        entropy: Randomness.
    """

    def __init__(self, database: Database, read_clock: Callable[[], Now], entropy: Entropy) -> None:
        self._database = database
        self._read_clock = read_clock
        self._entropy = entropy
        self._guesses = Guesses()

    def _now_s(self) -> int:
        return self._read_clock().wall_ms // 1000

    async def mint(self, link: str, invite: bytes, address: tuple[str, int] | None) -> Minted:
        """Make a code for a link of one use.

        Args:
            link: The signed link it stands for.
            invite: The link's id.
            address: IPv4 address and port to name in it, or None: the joiner is on this LAN.

        Raises:
            Refused: Too many codes are open, or one that names an address is.
        """
        secret, draw = int.from_bytes(self._entropy(4), "big"), int.from_bytes(self._entropy(2), "big")
        expires_s = self._now_s() + TTL_S

        def add(connection: Connection) -> int | None:
            taken = store.open_code_slots(connection, self._now_s())
            if len(taken) >= OPEN_MAX or (address is not None and ADDRESS_SLOT in taken):
                return None
            slot = ADDRESS_SLOT
            if address is None:
                slot = next(n for n in ((draw + step) % SLOTS for step in range(SLOTS)) if n not in taken)
            payload = slot_payload(slot, secret) if address is None else address_payload(*address, secret)
            store.add_code(connection, slot, code_of(payload, long=address is not None).password, invite, link, expires_s)
            return payload

        payload = await self._database.write(add)
        if payload is None:
            raise Refused(
                "too many codes are open on this machine" if address is None else "a code that names this machine's address is open already",
                reason="limit",
                hint="wait until one was used or has expired, or use the link",
            )
        long = address is not None
        return Minted(write_code(payload, long=long), write_words(payload, long=long), expires_s)

    def state(self, invite: bytes) -> CodeState | None:
        """What became of the code for an invite; None where there is none."""
        held = store.code_of_invite(self._database.reader, invite)
        if held is None:
            return None
        word = "expired" if held.state == "open" and self._now_s() > held.expires_s else held.state
        return CodeState(word, max(0, TRIES_MAX - held.failures))

    def burned(self) -> int:
        """How many codes were burned by wrong tries and would not have expired yet."""
        return store.burned_codes(self._database.reader, self._now_s())

    async def serve(self, hello: bytes, pipe: Pipe) -> None:
        """Answer one C1 to the end.

        Args:
            hello: The first message.
            pipe: The connection it came over.

        Raises:
            PeerFault, BadInvite: The joiner failed, or there is no such code.
            Unreachable: The connection ended.

        If cancelled: the try counts as failed.
        """
        slot = slot_of_untrusted(hello)
        if not self._guesses.admit(pipe.remote, self._read_clock().steady_s):
            raise await _refuse(pipe, b"HC-slow")
        now_s = self._now_s()
        held = await self._database.write(lambda connection: store.begin_guess(connection, slot, now_s, TRIES_MAX))
        if held is None:
            raise await _refuse(pipe, b"HC-none")
        issuer = CodeIssuer(held.password, hello, entropy=self._entropy)
        proved = False
        try:
            await pipe.send(issuer.reply)
            proved = issuer.is_proved(await _receive(pipe))
        finally:
            with trio.CancelScope(shield=True):
                burned = await self._database.write(
                    lambda connection: store.end_guess(connection, slot, held.invite, TRIES_MAX, proved=proved)
                )
            if not proved:
                log.warning("a code was tried with a wrong password from %s%s", pipe.remote, "; it is burned" if burned else "")
        if not proved:
            raise await _refuse(pipe, b"HC-burned" if burned else b"HC-wrong")
        await pipe.send(issuer.link(held.link))


async def open_code(pipe: Pipe, code: Code, entropy: Entropy) -> str:
    """Get the link a code stands for, as the joiner.

    Raises:
        BadInvite: The code is wrong, burned, or not known there; or the other side does not know it.
        PeerFault: The other side does not speak this.
        Unreachable: The connection ended.
    """
    joiner = CodeJoiner(code, entropy=entropy)
    await pipe.send(joiner.hello)
    await pipe.send(joiner.proof_untrusted(_answered(await _receive(pipe))))
    return joiner.link_untrusted(_answered(await _receive(pipe)))


def _answered(answer: bytes) -> bytes:
    if answer in _SAID:
        raise _said(answer)
    return answer


def _said(word: bytes) -> BadInvite:
    reason, message = _SAID[word]
    return BadInvite(message, reason=reason, hint=_HINTS.get(reason, "ask whoever made it for a new one"))


async def _refuse(pipe: Pipe, word: bytes) -> BadInvite:
    await pipe.send(word)
    return _said(word)


async def _receive(pipe: Pipe) -> bytes:
    with trio.move_on_after(STEP_TIMEOUT_S):
        return await pipe.receive()
    raise Unreachable("the other side stopped answering")
