"""Short invites a person can read out: eight or sixteen characters, or four or eight words.

A string this short carries a password, never a key: 25 or 27 bits that are worth something only through a password
authenticated key exchange (``mesh.pake``) with very few tries. The short form names a slot on the issuer, which the
joiner looks for on the LAN; the long form names the issuer's IPv4 address and port. Both end in a check, so that a typo
is found before anything is sent.

Source: docs/decisions/0013-codes.md.
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
import re
from dataclasses import dataclass

from mesh.base.crypto import content_id
from mesh.invites import BadInvite

SLOTS = 1 << 10
SLOT_PASSWORD_BITS = 25
ADDRESS_PASSWORD_BITS = 27
ADDRESS_SLOT = 0xFFFF
"""What the request says in place of a slot where the code names an address; one such code is open at a time."""
TEXT_CHARS_MAX = 512

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_READ = {c: n for n, c in enumerate(_DIGITS)} | {"O": 0, "I": 1, "L": 1}
_SHORT_BITS, _LONG_BITS = 10 + SLOT_PASSWORD_BITS, 48 + ADDRESS_PASSWORD_BITS
_SHORT_CHARS, _LONG_CHARS = 8, 16
_SHORT_WORDS, _LONG_WORDS = 4, 8
_WORD_BITS = 11
_FIELD = 0x25
"""x^5 + x^2 + 1: the check character is a sum over GF(32) in which every place has a weight of its own."""


@dataclass(frozen=True, slots=True)
class Code:
    """What a short invite says.

    Attributes:
        slot: Which open code of the issuer it is; ADDRESS_SLOT where ``address`` is there.
        address: ``host:port`` of the issuer, or None: on this LAN.
        password: What both sides put into the exchange: everything the code says.
    """

    slot: int
    address: str | None
    password: bytes


def slot_payload(slot: int, secret: int) -> int:
    """Join a slot and a random number into what the short form carries; only its lowest 25 bits count."""
    assert 0 <= slot < SLOTS
    return slot << SLOT_PASSWORD_BITS | secret & ((1 << SLOT_PASSWORD_BITS) - 1)


def address_payload(host: str, port: int, secret: int) -> int:
    """Join an IPv4 address, a port and a random number into what the long form carries."""
    where = int(ipaddress.IPv4Address(host)) << 16 | port
    return where << ADDRESS_PASSWORD_BITS | secret & ((1 << ADDRESS_PASSWORD_BITS) - 1)


def code_of(payload: int, *, long: bool) -> Code:
    """Take a payload apart."""
    password = payload.to_bytes(10, "big")
    if not long:
        return Code(payload >> SLOT_PASSWORD_BITS, None, password)
    where = payload >> ADDRESS_PASSWORD_BITS
    return Code(ADDRESS_SLOT, f"{ipaddress.IPv4Address(where >> 16)}:{where & 0xFFFF}", password)


def write_code(payload: int, *, long: bool) -> str:
    """Write a payload as characters, as in ``7K-Q4T9F-M``."""
    count = _LONG_CHARS if long else _SHORT_CHARS
    symbols = [payload >> 5 * place & 31 for place in reversed(range(count - 1))]
    text = "".join(_DIGITS[n] for n in (*symbols, _check_symbol(symbols)))
    cuts = ((0, 4), (4, 8), (8, 12), (12, 16)) if long else ((0, 2), (2, 7), (7, 8))
    return "-".join(text[a:b] for a, b in cuts)


def write_words(payload: int, *, long: bool) -> str:
    """Write a payload as words of the BIP 39 list."""
    count, bits = (_LONG_WORDS, _LONG_BITS) if long else (_SHORT_WORDS, _SHORT_BITS)
    check_bits = count * _WORD_BITS - bits
    number = payload << check_bits | _check_number(payload, check_bits)
    return " ".join(_words()[number >> _WORD_BITS * place & 2047] for place in reversed(range(count)))


def read_code_untrusted(text: str) -> Code:
    """Read what a person typed or pasted: case, spaces, dashes, quotes and line breaks do not matter.

    Args:
        text: Anything.

    Returns:
        The code.

    Raises:
        BadInvite: Mistyped, or no code.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise _no_code()
    for separator in "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u00a0\u2018\u2019\u201c\u201d'\"-_.,":
        text = text.replace(separator, " ")
    parts = text.split()
    if not parts or not all(part.isascii() and part.isalnum() for part in parts):
        raise _no_code()
    found = _from_words(parts)
    if found is not None:
        return found
    symbols = [_READ.get(c) for c in "".join(parts).upper()]
    if len(symbols) not in (_SHORT_CHARS, _LONG_CHARS):
        raise _no_code()
    if None in symbols or _check_symbol(read := [n for n in symbols if n is not None][:-1]) != symbols[-1]:
        raise _typo()
    payload = functools.reduce(lambda number, symbol: number << 5 | symbol, read, 0)
    return code_of(payload, long=len(symbols) == _LONG_CHARS)


def _from_words(parts: list[str]) -> Code | None:
    """Read words; None where it is not words at all."""
    if len(parts) not in (_SHORT_WORDS, _LONG_WORDS) or not all(re.fullmatch("[A-Za-z]{3,8}", part) for part in parts):
        return None
    numbers = _numbers()
    spoken = [part.lower() for part in parts]
    unknown = [word for word in spoken if word not in numbers]
    if len(unknown) == len(spoken):
        return None
    if unknown:
        like = difflib.get_close_matches(unknown[0], numbers, 1)
        raise _typo(f"the word after {spoken[spoken.index(unknown[0]) - 1]!r}" if spoken[0] != unknown[0] else "the first word", like)
    number = functools.reduce(lambda whole, word: whole << _WORD_BITS | numbers[word], spoken, 0)
    long = len(spoken) == _LONG_WORDS
    check_bits = len(spoken) * _WORD_BITS - (_LONG_BITS if long else _SHORT_BITS)
    payload = number >> check_bits
    if _check_number(payload, check_bits) != number & ((1 << check_bits) - 1):
        raise _typo()
    return code_of(payload, long=long)


@functools.cache
def _words() -> list[str]:
    from mnemonic import Mnemonic

    return list(Mnemonic("english").wordlist)


@functools.cache
def _numbers() -> dict[str, int]:
    return {word: number for number, word in enumerate(_words())}


def _check_number(payload: int, bits: int) -> int:
    return int.from_bytes(content_id(payload.to_bytes(10, "big"), size=4), "big") >> 32 - bits


def _check_symbol(symbols: list[int]) -> int:
    """Sum the symbols over GF(32), each times another power of x: one changed symbol, or two exchanged, always show."""
    total = 0
    for symbol in symbols:
        total = _times_x(total ^ symbol)
    return total


def _times_x(number: int) -> int:
    number <<= 1
    return number ^ _FIELD if number & 32 else number


def _no_code() -> BadInvite:
    return BadInvite(
        "that is neither an invite link nor a code", reason="not_an_invite", hint="paste what `hivemesh invite` printed on the other machine"
    )


def _typo(where: str = "", like: list[str] | None = None) -> BadInvite:
    at = f" at {where}" if where else ""
    meant = f"; is it {like[0]!r}?" if like else ""
    return BadInvite(
        f"the code has a typo{at}{meant}",
        reason="typo",
        hint="nothing was sent, the same code can be tried again",
    )
