"""Which untracked files travel with a tree: listed always, and only after a yes where there are many or one looks secret."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mesh.base.errors import Refused
from node.tasks.asks import shown

UNTRACKED_FILES_MAX = 50
UNTRACKED_BYTES_MAX = 10_000_000
UNTRACKED_LIMIT = 20_000
NAMED_MAX = 5

_SECRET_NAME = re.compile(
    r"""
    \.env(\..+)? | .*\.env | \.netrc | _netrc | \.npmrc | \.pypirc | \.pgpass | \.htpasswd | \.git-credentials | \.dockercfg
    | id_(rsa|dsa|ecdsa|ed25519)(_.*)? | .*\.(pem|key|p12|pfx|jks|keystore|kdbx|ppk|asc|gpg|ovpn)
    | (.*[-_.])?(secrets?|credentials?|passwords?|passwd|api[-_]?keys?|tokens?)([-_.].*)? | service[-_]?account.*\.json
    | .*\.tfstate(\..*)? | kubeconfig | wallet\.dat
    """,
    re.IGNORECASE | re.VERBOSE,
)
_SAFE_NAME = re.compile(r"\.env\.(example|sample|template|dist)|.*\.(py|go|rs|ts|tsx|js|jsx|java|c|h|cc|cpp|md|rst|css|html)", re.IGNORECASE)
_SECRET_FOLDERS = frozenset((".ssh", ".aws", ".gnupg", ".azure", ".kube", ".docker"))


@dataclass(frozen=True, slots=True)
class Untracked:
    """One file that git does not track and does not ignore."""

    path: str
    size_bytes: int


def _size(count_bytes: int) -> str:
    return f"{count_bytes / 1e6:.1f} MB" if count_bytes >= 100_000 else f"{count_bytes} bytes"


def looks_secret(path: str) -> bool:
    """Whether a file's name, or a folder above it, is one that secrets are usually kept under."""
    *folders, name = path.split("/")
    if _SECRET_FOLDERS.intersection(folders):
        return True
    return bool(_SECRET_NAME.fullmatch(name)) and not _SAFE_NAME.fullmatch(name)


def refuse_unasked(files: tuple[Untracked, ...]) -> None:
    """Refuse to send untracked files that a person should first say yes to.

    Args:
        files: Everything untracked and not ignored.

    Raises:
        Refused: With the reason ``untracked`` and a line that says which or how many; ``--yes`` sends them.
    """
    secret = [file.path for file in files if looks_secret(file.path)]
    total = sum(file.size_bytes for file in files)
    hint = "add what must stay to .gitignore, or send everything with --yes, or nothing with --no-tree"
    if secret:
        names = ", ".join(shown(path) for path in secret[:NAMED_MAX])
        more = f" and {len(secret) - NAMED_MAX} more" if len(secret) > NAMED_MAX else ""
        raise Refused(f"untracked files that look like secrets would travel: {names}{more}", reason="untracked", hint=hint)
    if len(files) > UNTRACKED_FILES_MAX or total > UNTRACKED_BYTES_MAX:
        largest = max(files, key=lambda file: file.size_bytes)
        raise Refused(
            f"{len(files)} untracked files with {_size(total)} would travel, the largest {shown(largest.path)}",
            reason="untracked",
            hint=hint,
        )
