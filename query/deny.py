"""What must never be indexed, by its path: allowed by extension first, denied by name second.

The rules fold case, width, hidden characters and trailing dots first, so a look-alike of a denied name is denied too.
Words such as ``secrets`` or ``token`` deny only files that carry data; ``docs/secrets.md`` is documentation.
"""

from __future__ import annotations

import fnmatch
import re
import unicodedata

PATH_BYTES_MAX = 1_024
"""A longer path is left out."""

FORMATS = {".md": "markdown", ".markdown": "markdown", ".py": "python", ".pyi": "python", ".rst": "rst"}
"""Extensions that may be indexed, and which extractor reads them."""

_DATA_EXTENSIONS = frozenset(("", ".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".txt", ".csv", ".xml", ".properties"))

_FOLDERS = """
.git .ssh .gnupg .aws .azure .gcloud .kube .docker .terraform .vagrant .password-store .claude .claudectl .codex .cursor
.aider* .gemini .idea .vscode node_modules vendor third_party target dist build .venv __pycache__ .tox .cache secrets
credentials private keys certs backups dumps .ipynb_checkpoints
"""
_NAMES = """
.env* *.env .envrc .netrc _netrc .npmrc .yarnrc* .pypirc pip.conf .git-credentials .htpasswd .pgpass .my.cnf .dockercfg
.boto .s3cfg rclone.conf id_rsa* id_dsa* id_ecdsa* id_ed25519* known_hosts authorized_keys *.pem *.key *.crt *.cer *.der
*.p7b *.p8 *.p12 *.pfx *.jks *.keystore *.kdbx *.asc *.gpg *.age *.ovpn *.ppk *.mobileprovision kubeconfig* *.kubeconfig
*.tfstate* *.tfvars* .terraformrc *.tfplan .vault-token *vault_pass* service[-_]account*.json *-credentials.json
*firebase-adminsdk* google-services.json client_secret*.json application_default_credentials.json *.sqlite* *.db *.db-*
*.mdb *.dump *.sql.gz *.bak *.rdb *.har *.pcap* *.log *.jsonl *.session .*_history wp-config.php local_settings.py
appsettings.*.json master.key *.yml.enc .sops.y*ml auth.json *.ipynb *.parquet *.pkl *.npz core.[0-9]* *.hprof
.secrets.baseline transcript.md *-transcript.md
"""
_DATA_NAMES = "secret* secrets* credential* token* cookies* *transcript*"

_HIDDEN = re.compile("[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")


def _one_of(patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns.split()))


_FOLDER_RULE = _one_of(_FOLDERS)
_NAME_RULE = _one_of(_NAMES)
_DATA_RULE = _one_of(_DATA_NAMES)


def path_text_untrusted(raw: bytes) -> str | None:
    """Read a path as a git tree states it.

    Args:
        raw: Anything; a hostile repository chooses it.

    Returns:
        The path, or None where it is too long, not UTF-8, holds control characters or an empty, ``.`` or ``..`` part.
    """
    if not 0 < len(raw) <= PATH_BYTES_MAX:
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    if any(unicodedata.category(c) in ("Cc", "Zl", "Zp") for c in text):
        return None
    return None if any(part in ("", ".", "..") for part in text.split("/")) else text


def format_of(path: str) -> str | None:
    """Name the extractor of a path by its extension, or None where the kind of file is not indexed."""
    return FORMATS.get(_extension(_folded(path.rsplit("/", 1)[-1])))


def is_denied(path: str) -> bool:
    """Whether a path is one that never gets into an index, whatever it holds.

    Args:
        path: As :func:`path_text_untrusted` read it.
    """
    parts = [_folded(part) for part in path.split("/")]
    if any(part in ("", ".", "..") for part in parts):
        return True
    name = parts[-1]
    if any(_FOLDER_RULE.match(part) or _NAME_RULE.match(part) for part in parts[:-1]):
        return True
    if _FOLDER_RULE.match(name) or _NAME_RULE.match(name):
        return True
    return _extension(name) in _DATA_EXTENSIONS and bool(_DATA_RULE.match(name))


def _folded(part: str) -> str:
    """Fold one part of a path so that look-alikes meet: width, case, hidden characters, trailing dots and blanks."""
    text = unicodedata.normalize("NFKC", part).casefold()
    text = _HIDDEN.sub("", unicodedata.normalize("NFKC", text))
    return text.rstrip(". ") or part.strip(". ")


def _extension(name: str) -> str:
    at = name.rfind(".")
    return name[at:] if at > 0 else ""
