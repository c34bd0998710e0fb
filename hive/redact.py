"""Secrets and personal traces out of any text, before anything is stored, shown or sent.

One choke point: every string field of everything the hive keeps passes :func:`redact`, keys and nested fields
included (:func:`redact_fields`). A placeholder keeps the type of what it replaced and nothing else. The rules run until
they change nothing more, so redacting twice equals redacting once by construction.

Every expression below is bounded or possessive: no text makes the work grow faster than its length.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from hive.named import drop_headers, drop_named, drop_typed

TEXT_CHARS_MAX = 128 * 1024
"""A longer text is replaced as a whole: no lesson is that long, and it could hide anything."""
ROUNDS_MAX = 6
"""Passes of all rules; a text that still changes after the last one is replaced as a whole."""
DEPTH_MAX = 8

PLACEHOLDERS = frozenset(
    f"<{word}>"
    for word in (
        "private-key", "aws-key", "github-token", "gitlab-token", "slack-token", "api-key", "google-key", "token",
        "jwt", "login", "secret", "invite", "email", "user", "ip-address", "too-long", "redacted",
    )
)  # fmt: skip

T = TypeVar("T")
_Rule = Callable[[str], str]

_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)


def strip_hidden(text: str) -> str:
    """Drop control, bidirectional, zero-width and surrogate characters; tab and line ends stay.

    They could cut a secret in two for us and show it whole elsewhere, so they go first.
    """
    return _HIDDEN.sub("", text)


# Private keys in PEM, whole, cut off at the end, or only their tail.

_PEM_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_TAIL = re.compile(r"[A-Za-z0-9+/=\s\\]*\Z")
_PEM_TAIL_CHARS = 8192


def _drop_pem(text: str) -> str:
    if "PRIVATE KEY" not in text:
        return text
    pieces: list[str] = []
    at = 0
    while begin := _PEM_BEGIN.search(text, at):
        end = _PEM_END.search(text, begin.end())
        pieces += [_drop_pem_tails(text[at : begin.start()]), "<private-key>"]
        if end is None:
            return "".join(pieces)
        at = end.end()
    return "".join([*pieces, _drop_pem_tails(text[at:])])


def _drop_pem_tails(text: str) -> str:
    """Take out what stands before an end mark whose beginning is elsewhere (a secret split over two fields)."""
    pieces: list[str] = []
    at = 0
    for end in _PEM_END.finditer(text):
        before = text[at : end.start()]
        window = before[-_PEM_TAIL_CHARS:]
        tail = _PEM_TAIL.search(window[len(window.rstrip(_PEM_ALPHABET)) :])
        assert tail is not None
        pieces += [before[: len(before) - len(tail[0])], "<private-key>"]
        at = end.end()
    return "".join([*pieces, text[at:]])


_PEM_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/= \t\r\n\\"

# Keys that say by their first letters what they are.

_PREFIXED = re.compile(
    r"(?P<aws>(?:AKIA|ASIA|AGPA|AIDA|AROA|ANPA|ANVA|ABIA|ACCA)[A-Z0-9]{16})"
    r"|(?P<github>(?:gh[pousr]_|github_pat_)\w{6,}+)"
    r"|(?P<gitlab>gl(?:pat|ptt|dt|rt|cbt|soat)-[\w-]{8,}+)"
    r"|(?P<slack>xox[a-z]-[A-Za-z0-9-]{8,}+|xapp-[A-Za-z0-9-]{8,}+)"
    r"|(?P<api>(?<![A-Za-z0-9])sk-[\w-]{12,}+|[rsp]k_(?:live|test)_\w{8,}+)"
    r"|(?P<google>AIza[\w-]{24,}+|ya29\.[\w-]{16,}+)"
    r"|(?P<token>npm_[A-Za-z0-9]{20,}+|pypi-[\w-]{20,}+|hf_[A-Za-z0-9]{16,}+|dop_v1_[a-f0-9]{32,}+"
    r"|SG\.[\w-]{16,}+(?:\.[\w-]++)?|AGE-SECRET-KEY-1[A-Z0-9]{16,}+|fq_[\w-]{20,}+|shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{16,}+"
    r"|(?<![A-Za-z0-9])(?:dapi[a-f0-9]{24,}+|key-[a-f0-9]{24,}+|SK[a-f0-9]{32}(?![A-Za-z0-9])|EAA[A-Z][A-Za-z0-9]{24,}+)"
    r"|dckr_[po]at_[\w-]{16,}+|hv[sbr]\.[\w-]{16,}+|ATATT3[\w=-]{16,}+|sq0[a-z]{3}-[\w-]{16,}+|glsa_\w{20,}+"
    r"|lin_api_\w{20,}+|(?<!\d)\d{8,10}:AA[\w-]{30,36}+|(?<![A-Za-z0-9])hm[a-hj-z]_[\w-]{16,}+)"
    r"|(?P<invite>(?<![A-Za-z0-9])hmi_[\w-]{12,}+)"
    r"|(?P<jwt>eyJ[\w-]{12,}+(?:\.[\w-]++){0,4})"
)
_TYPE_OF = {
    "aws": "<aws-key>", "github": "<github-token>", "gitlab": "<gitlab-token>", "slack": "<slack-token>",
    "api": "<api-key>", "google": "<google-key>", "token": "<token>", "invite": "<invite>",
    "jwt": "<jwt>",
}  # fmt: skip


def _drop_prefixed(text: str) -> str:
    return _PREFIXED.sub(lambda found: _TYPE_OF[str(found.lastgroup)], text)


# Passwords in addresses.

_AFTER_SCHEME = re.compile(r"://([^\s'\"`<>]++)")


def _drop_address_credentials(text: str) -> str:
    return _AFTER_SCHEME.sub(_without_credentials, text) if "://" in text else text


def _without_credentials(found: re.Match[str]) -> str:
    rest = found[1]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        cut = authority.rindex("@")
    elif ":" in authority and "@" in rest and not authority.rpartition(":")[2].isdigit():
        cut = rest.rindex("@")  # a password with a slash in it
    else:
        return found[0]
    return found[0] if rest[:cut] == "git" else f"://<login>{rest[cut:]}"


# Strings that look random, beside a word that says they matter, or random beyond doubt.

_RUN = re.compile(r"(?<![\w+/=-])[\w+/=-]{20,}+", re.ASCII)
_NEAR_CHARS = 64
_NEAR = re.compile(r"key|token|secret|passw|passphrase|credential|auth", re.IGNORECASE)
_PARTS = re.compile(r"[_/+=-]")


def _drop_random(text: str) -> str:
    def without(found: re.Match[str]) -> str:
        near = _NEAR.search(text, max(0, found.start() - _NEAR_CHARS), found.start()) is not None
        return "<secret>" if _is_random(found[0][:256], near=near) else found[0]

    return _RUN.sub(without, text)


def _is_random(run: str, *, near: bool) -> bool:
    """Judge a run of 20 or more characters of a key's alphabet."""
    if all(part.isalpha() or part.isdigit() or len(part) <= 4 for part in _PARTS.split(run)):
        return False
    upper = sum(c.isupper() for c in run)
    lower = sum(c.islower() for c in run)
    digits = sum(c.isdigit() for c in run)
    entropy = _entropy_bits(run)
    if near:
        mixed = digits >= 3 and upper + lower >= 3
        return mixed and (entropy >= 3.0 if "/" not in run else min(upper, lower) >= 3 and entropy >= 4.0)
    return len(run) >= 40 and min(upper, lower, digits) >= 5 and entropy >= 4.5


def _entropy_bits(run: str) -> float:
    size = len(run)
    return -sum(n / size * math.log2(n / size) for n in Counter(run).values())


# Personal traces.

_DOMAIN = re.compile(r"@(?=[A-Za-z0-9])(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])")
_LOCAL_CHARS_MAX = 64


def _drop_mail(text: str) -> str:
    if "@" not in text:
        return text
    pieces: list[str] = []
    at = 0
    for domain in _DOMAIN.finditer(text):
        before = text[max(at, domain.start() - _LOCAL_CHARS_MAX) : domain.start()]
        kept = before[: len(before) - _local_chars(before)]
        if len(kept) == len(before) or before[len(kept) :] == "git":
            continue
        pieces += [text[at : domain.start() - len(before) + len(kept)], "<email>"]
        at = domain.end()
    return "".join([*pieces, text[at:]])


def _local_chars(before: str) -> int:
    count = 0
    while count < len(before) and (before[-1 - count].isalnum() or before[-1 - count] in "_.+%-"):
        count += 1
    return count


_NAME = r"[^/\\\s\"'`:;,|&<>()$*?]{1,64}+"
_HOME = re.compile(r"(?P<before>[\w.]?)/(?P<root>home|Users)/(?P<name>" + _NAME + ")")
_WINDOWS_HOME = re.compile(r"[A-Za-z]:\\{1,4}Users\\{1,4}" + _NAME)
_ROOT_HOME = re.compile(r"(?<![\w.~/-])/root(?![\w.-])")
_OTHER_HOME = re.compile(r"(?<![\w~/.])~[a-z_][\w.-]{0,31}+(?=/)")
_FOLDED_HOME = re.compile(r"(?<!\w)-(home|Users)-[A-Za-z0-9_]{1,64}+")
_NAMES_MAX = 16


def _drop_homes(text: str) -> str:
    names = {found["name"] for found in _HOME.finditer(text)}
    text = _HOME.sub(lambda found: f"{found['before']}/{found['root']}/<user>" if found["before"] else "~", text)
    if names:
        known = "|".join(re.escape(name) for name in sorted(names)[:_NAMES_MAX])
        text = re.sub(rf"(?<=/)(?:{known})(?=[/\s\"'`:;,)]|\Z)", "<user>", text)
    text = _FOLDED_HOME.sub(r"-\1-<user>", _ROOT_HOME.sub("~", text))
    return _OTHER_HOME.sub("~", _WINDOWS_HOME.sub("~", text))


_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\.?\w)", re.ASCII)
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")


def _drop_addresses(text: str) -> str:
    return _IPV6.sub(_without_address, _IPV4.sub(_without_address, text))


def _without_address(found: re.Match[str]) -> str:
    try:
        public = ipaddress.ip_address(found[0]).is_global
    except ValueError:
        return found[0]
    return "<ip-address>" if public else found[0]


_SECRETS: tuple[_Rule, ...] = (
    strip_hidden, _drop_pem, _drop_prefixed, _drop_address_credentials, drop_headers, drop_named, drop_typed,
    _drop_random,
)  # fmt: skip
_TRACES: tuple[_Rule, ...] = (_drop_mail, _drop_homes, _drop_addresses)


def redact(text: str) -> str:
    """Take secrets and personal traces out of a text.

    Keys and tokens of known forms, private keys, passwords in addresses, values of names that announce a secret,
    random strings beside such words; e-mail addresses, home folders and the user names in them, public IP addresses.

    Args:
        text: Anything; over TEXT_CHARS_MAX characters it is replaced as a whole.

    Returns:
        The text with typed placeholders; redacting it again changes nothing.
    """
    if len(text) > TEXT_CHARS_MAX:
        return "<too-long>"
    for _ in range(ROUNDS_MAX):
        before = text
        for rule in _SECRETS + _TRACES:
            text = rule(text)
        if text == before:
            return text
    return "<redacted>"


def contains_secret(text: str) -> bool:
    """Say whether a text holds something the secret rules would take out; personal traces do not count."""
    if len(text) > TEXT_CHARS_MAX:
        return True
    shown = clean = strip_hidden(text)
    for rule in _SECRETS:
        clean = rule(clean)
    return clean != shown


def redact_fields(value: T, *, depth: int = 0) -> T:
    """Redact every text inside a value: fields, list items, keys and values of mappings, at any depth up to eight.

    Args:
        value: A text, a dataclass, a tuple, list or dict of such; anything else is returned as it is.
        depth: How deep this call is; callers leave it.

    Returns:
        A copy of the same shape.
    """
    assert depth <= DEPTH_MAX, "a value to redact is nested deeper than anything the hive keeps"
    return _redacted(value, depth)  # type: ignore[no-any-return]


def _redacted(value: Any, depth: int) -> Any:
    inner = depth + 1
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, (list, tuple)):
        return type(value)(redact_fields(item, depth=inner) for item in value)
    if isinstance(value, dict):
        return {redact_fields(k, depth=inner): redact_fields(v, depth=inner) for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: redact_fields(getattr(value, f.name), depth=inner) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value
