"""Which untracked files travel only after a yes."""

from __future__ import annotations

import pytest

from mesh.base.errors import Refused
from node.tasks.belongings import Untracked, looks_secret, refuse_unasked


@pytest.mark.parametrize(
    "path",
    [
        ".env", ".env.local", "prod.env", "a/.netrc", ".npmrc", "id_rsa", "keys/id_ed25519", "server.pem", "x.key", "cert.p12",
        "credentials.json", "aws-credentials", "secrets.yaml", "my_secret.txt", "api_key.txt", "token", "gh-token.txt",
        "service-account-prod.json", "terraform.tfstate", ".ssh/config", "home/.aws/anything", "ID_RSA", "Secrets.YAML",
    ],
)  # fmt: skip
def test_names_secrets_are_kept_under(path: str):
    assert looks_secret(path)


@pytest.mark.parametrize(
    "path", ["README.md", "main.py", "keyboard.py", "tokenizer.py", "token.py", "secrets.py", ".env.example", "monkey", "environment.txt"]
)
def test_ordinary_names_are_not_secret(path: str):
    assert not looks_secret(path)


def refusal(files: list[Untracked]) -> Refused | None:
    try:
        refuse_unasked(tuple(files))
    except Refused as refused:
        return refused
    return None


def test_limits_are_inclusive():
    few = [Untracked(f"f{n}", 200_000) for n in range(50)]
    assert refusal(few) is None
    for many in ([*few, Untracked("one-more", 0)], [*few[:-1], Untracked("f49", 200_001)]):
        refused = refusal(many)
        assert refused is not None
        assert refused.reason == "untracked"
        assert "--yes" in refused.hint


def test_a_secret_is_named_and_shown_safely():
    refused = refusal([Untracked("ok.txt", 1), Untracked("a\n\u202e.env", 1), Untracked(".env", 1)])
    assert refused is not None
    assert ".env" in refused.message
    assert "\n" not in refused.message
    assert "\u202e" not in refused.message
