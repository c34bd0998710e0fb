"""Find secrets in text that is about to be quoted. A hit drops the span; it is counted and never shown.

A table of shapes whose issuers gave them a recognisable form, keys and passwords in PEM blocks and addresses, and one rule
for ``name = value`` where the name says secret and the value looks random. Every shape is bounded, so the scan is linear.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from query.spans import Range

_SHAPES = [
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?![A-Z0-9])",
    r"gh[pousr]_[A-Za-z0-9]{30,255}",
    r"github_pat_[A-Za-z0-9_]{22,255}",
    r"gl(?:pat|dt|rt|ptt|cbt|soat|ft|imt|agent)-[A-Za-z0-9_-]{20,255}",
    r"xox[abeoprs]-[A-Za-z0-9-]{10,255}",
    r"xapp-[0-9]-[A-Za-z0-9-]{20,255}",
    r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{20,255}",
    r"discord(?:app)?\.com/api/webhooks/[0-9]{15,21}/[A-Za-z0-9_-]{30,255}",
    r"[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,45}",
    r"(?:[rs]k|pk)_(?:live|test)_[A-Za-z0-9]{16,255}",
    r"whsec_[A-Za-z0-9+/=]{24,255}",
    r"AIza[A-Za-z0-9_-]{35}",
    r"ya29\.[A-Za-z0-9_-]{20,500}",
    r"GOCSPX-[A-Za-z0-9_-]{20,64}",
    r"npm_[A-Za-z0-9]{36}",
    r"pypi-AgE[A-Za-z0-9_-]{20,500}",
    r"rubygems_[a-f0-9]{40,64}",
    r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,64}",
    r"sk-(?:ant-|proj-|svcacct-|or-v1-)?[A-Za-z0-9_-]{24,255}",
    r"hf_[A-Za-z0-9]{30,64}",
    r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{30,64}",
    r"key-[0-9a-f]{32}",
    r"(?:AC|SK)[0-9a-f]{32}(?![0-9a-f])",
    r"do[opr]_v1_[a-f0-9]{40,80}",
    r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",
    r"sq0[a-z]{3}-[A-Za-z0-9_-]{22,64}",
    r"EAAA[A-Za-z0-9_-]{60}",
    r"hv[sbr]\.[A-Za-z0-9_-]{20,255}",
    r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}",
    r"dapi[a-f0-9]{32}",
    r"dp\.(?:pt|st|ct|sa)\.[A-Za-z0-9]{40,44}",
    r"lin_api_[A-Za-z0-9]{32,64}",
    r"ntn_[A-Za-z0-9]{40,64}",
    r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}",
    r"NRAK-[A-Z0-9]{27}",
    r"[0-9]{8,10}:AA[A-Za-z0-9_-]{32,35}",
    r"AGE-SECRET-KEY-1[A-Z0-9]{58}",
    r"hmq_[a-z2-7]{16}_[A-Za-z0-9]{30,60}",
    r"hmi_[A-Za-z0-9_-]{40,4000}",
    r"ATATT3[A-Za-z0-9_=-]{20,255}",
    r"cctl_gr_[0-9a-f]{6}_[0-9a-f]{32}",
    r"eyJ[A-Za-z0-9_-]{8,2000}\.eyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{8,2000}",
    r"(?:AccountKey|SharedAccessKey|SharedAccessSignature)=[A-Za-z0-9+/=%&-]{20,400}",
    r"[?&]sig=[A-Za-z0-9%+/=]{30,200}",
    r"sbp_[a-f0-9]{40}",
    r"figd_[A-Za-z0-9_-]{36,64}",
]
_KNOWN = re.compile(r"(?<![A-Za-z0-9])(?:" + "|".join(_SHAPES) + ")")
_KEY_BLOCK = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_KEY_BLOCK_END = re.compile(r"-----END (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
KEY_BLOCK_CHARS_MAX = 20_000
"""A private key without an end hides this much behind its beginning."""
_IN_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{1,20}://[^\s/:@'\"<>{}$]{0,100}:([^\s/'\"`]{3,200})@", re.IGNORECASE)
_AUTHORIZATION = re.compile(r"\b(?:bearer|basic|token)\s+([A-Za-z0-9+/_.~-]{20,500}={0,2})", re.IGNORECASE)
_NAMED = re.compile(
    r"(?:passw(?:or)?d|passwd|pwd|passphrase|secret|token|api[_-]?key|apikey|access[_-]?key|private[_-]?key|auth[_-]?key"
    r"|signing[_-]?key|encryption[_-]?key|client[_-]?secret|credentials?)[\w-]{0,40}[\"'`]?\s{0,4}(?::=|=>|[:=])\s{0,4}"
    r"(?:\(\s{0,4})?[brfu]{0,2}([\"'`]?)([^\s\"'`]{8,500})\1",
    re.IGNORECASE,
)
_TYPED = re.compile(
    r"(?:(?<![A-Za-z0-9])[A-Z0-9_]{0,40}(?<!BY)(?<!COM)(?:PASS|PASSWORD|PASSWD|PWD|PW|PASSPHRASE|SECRET|TOKEN|API_?KEY)=(?![\"'`/~.])"
    r"|\s(?:-u|--user)[ =][\"']?(?![0-9]{1,5}:[0-9]{1,5}\b)[^\s:\"'<>$/-][^\s:\"'<>$/]{0,63}:(?!//)"
    r"|\b(?:PASSWORD|password|IDENTIFIED BY|identified by)\s{1,4}(?=['\"])|\bsshpass\s{1,4}-p\s{0,4}|\bmysql[a-z]{0,8}\s[^\n|;&]{0,160}?(?<=\s)-p"
    r"|\bpass:(?=\S))([\"']?)([^\s\"'`]{4,200})\1"
)
"""Where people type passwords: whatever stands there counts, but a placeholder."""
_LIKELY = re.compile(
    r"(?:\b[Xx]-[A-Za-z-]{0,24}?(?:[Aa]uth|[Kk]ey|[Tt]oken|[Ss]ecret)[A-Za-z-]{0,16}:\s{0,4}|[?&](?:key|sig|signature|token|secret|password)="
    r"|(?<![\w-])--?(?:pass|pw|password|passphrase|token|secret|api-key)[ =]{1,4}|(?<![A-Za-z])(?:[a-z0-9_]{0,24}_)?(?:pass|pw)="
    r"|\blogin\s{1,4}\S{1,64}\s{1,4}password\s{1,4})([\"']?)([^\s\"'`&]{6,200})"
)
"""Where a value with letters and digits counts."""
_LITERAL = re.compile(
    r"(?:(?i:passw(?:or)?d|passphrase|\bpwd)|(?<![A-Za-z0-9])[A-Z0-9_]{0,40}(?:TOKEN|SECRET|API_?KEY))[\"'`]?\s{0,4}(?::=|=>|[:=])\s{0,4}"
    r"[brfu]{0,2}([\"'])((?:(?!\1)[^\\\n]|\\.){4,200})\1"
)
"""Where a quoted value of any kind counts, if it is one word."""
_PLACEHOLDER = re.compile(
    r"[<>{}()\[\]*]|\$[A-Za-z_{(]|\.\.\.|x{4}|your|example|sample|dummy|placeholder|changeme|change-me|redacted|insert|replace|"
    r"123456|abcdef|foobar|passw|secret|\A(?:none|null|true|false|self|os|env|settings|config|str|string|token|pass|pw|pwd|api_?key|user"
    r"|bearer|basic|hidden|test|required|optional)\b",
    re.IGNORECASE,
)
_CODE_WORD = re.compile(r"[A-Za-z_]+(?:[._/-][A-Za-z_]+)*[,;:.]*\Z")
_WHOLE_CHARS_MIN = 24
"""A value this long is whole, and dots behind it end a sentence; a shorter one with dots was cut by who wrote it."""
_CONSTANT = re.compile(r"[A-Z_]{1,40}[,;.)]?\Z")
ENTROPY_BITS_MIN = 3.0
"""Bits a character of a named value from which it counts as random."""


def secret_ranges(text: str) -> list[Range]:
    """Find what looks like a secret.

    Args:
        text: A whole file, at most 1 MiB, or a heading or path. The scan runs over whole files so that no cut between
            two spans can hide half a key.

    Returns:
        Ranges in characters, in no order; a private key is one range from its beginning to its end.
    """
    found = [match.span() for match in _KNOWN.finditer(text)]
    found.extend(_key_blocks(text))
    found.extend(match.span() for match in _IN_ADDRESS.finditer(text) if not _PLACEHOLDER.search(match[1]))
    found.extend(match.span() for match in _AUTHORIZATION.finditer(text) if _is_random(match[1]))
    for match in _NAMED.finditer(text):
        quoted = bool(match[1])
        if _is_random(match[2]) or (quoted and _is_password(match[2], match[0])):
            found.append(match.span())
    found.extend(match.span() for match in _TYPED.finditer(text) if _is_chosen(match[2]))
    found.extend(match.span() for match in _LIKELY.finditer(text) if _is_chosen(match[2]) and _is_mixed(match[2]))
    found.extend(match.span() for match in _LITERAL.finditer(text) if " " not in match[2] and _is_chosen(match[2]))
    return found


def _key_blocks(text: str) -> Iterator[Range]:
    """Give whole PEM blocks; the search goes on behind each, so that many beginnings cost no more than one."""
    at = 0
    while match := _KEY_BLOCK.search(text, at):
        limit = min(len(text), match.end() + KEY_BLOCK_CHARS_MAX)
        end = _KEY_BLOCK_END.search(text, match.end(), limit)
        at = end.end() if end else limit
        yield match.start(), at


def has_secret(text: str) -> bool:
    """Whether a short text, such as a heading or a path, holds what looks like a secret."""
    return bool(secret_ranges(text))


def _is_random(value: str) -> bool:
    """Whether a value mixes kinds of characters as keys do, and words and code do not."""
    trimmed = value.rstrip(".,;")
    value = trimmed if len(trimmed) >= _WHOLE_CHARS_MIN else value
    if len(value) < 12 or _PLACEHOLDER.search(value) or _CODE_WORD.match(value):
        return False
    if not re.search(r"[0-9]", value) or not re.search(r"[A-Za-z]", value):
        return False
    counts = Counter(value)
    bits = -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values())
    return bits >= ENTROPY_BITS_MIN


def _is_password(value: str, whole: str) -> bool:
    """Whether a quoted value under a name of a password is one a person could have chosen."""
    if not re.match(r"passw|pwd|passphrase", whole, re.IGNORECASE) or _PLACEHOLDER.search(value):
        return False
    return _is_mixed(value)


def _is_mixed(value: str) -> bool:
    return bool(re.search(r"[0-9]", value)) and bool(re.search(r"[A-Za-z]", value))


def _is_chosen(value: str) -> bool:
    """Whether a value in the place of a password is one, and no placeholder, reference, name of a constant or path."""
    return not (_PLACEHOLDER.search(value) or _CONSTANT.match(value) or value.startswith(("/", "./", "~/", "$", "%")))
