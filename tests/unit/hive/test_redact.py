"""Secrets and personal traces go, the useful sentence stays, and no text makes it slow."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hive.redact import PLACEHOLDERS, TEXT_CHARS_MAX, contains_secret, redact, redact_fields, strip_hidden
from tests.fakes import secrets

PEM = "-----BEGIN " + "PRIVATE KEY-----\nTk9UQVJFQUxLRVk=\n-----END " + "PRIVATE KEY-----"
MADE_UP = [
    "AKIA" + "Q7EXAMPLE7Q7TEST",
    "ghp_" + "a1B2" * 9,
    "xoxb-000000000000-" + "k" * 24,
    PEM,
    "postgres://app:hunter22@db.invalid/x",
]
"""The credentials of the case collection (fx:secrets); none was ever real."""
PARTS = [*MADE_UP[:3], "Tk9UQVJFQUxLRVk=", "hunter22"]

FORMS = [
    ("github_pat_" + "A1b2C3" * 6, "<github-token>"),
    ("gho_" + "Z9" * 18, "<github-token>"),
    ("glpat-" + "xY9_" * 5, "<gitlab-token>"),
    ("sk-" + "ant-api03-" + "q7W" * 12, "<api-key>"),
    ("sk_" + "live_" + "4eC39HqLyjWDarjtT1", "<api-key>"),
    ("AIza" + "SyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY", "<google-key>"),
    ("npm_" + "a1B2" * 9, "<token>"),
    ("hf_" + "a1B2" * 8, "<token>"),
    ("eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4fwpM", "<jwt>"),
]

CONTEXTS = [
    ("export DB_PASSWORD=hunter2 && run", "hunter2", "export DB_PASSWORD=<secret> && run"),
    ('{"password": "hunter2", "port": 5}', "hunter2", '{"password": "<secret>", "port": 5}'),
    ('{\\"api_key\\": \\"hunter2\\"}', "hunter2", None),
    ("deploy --token hunter2 --now", "hunter2", "deploy --token <secret> --now"),
    ("deploy --api-key=hunter2", "hunter2", "deploy --api-key=<secret>"),
    ("curl -H 'Authorization: Bearer abc.def' https://x.dev", "abc.def", "curl -H 'Authorization: Bearer <secret>' https://x.dev"),
    ("curl -H 'X-Api-Key: hunter2' https://x.dev", "hunter2", None),
    ("curl -u bob:hunter2 https://x.dev", "hunter2", "curl -u <login> https://x.dev"),
    ("git clone https://bob:hunter2@git.dev/x.git", "hunter2", "git clone https://<login>@git.dev/x.git"),
    ("git clone https://hunter2@git.dev/x.git", "hunter2", None),
    ("redis://:hun/ter2@cache:6379/0", "ter2", None),
    ("sshpass -p hunter2 ssh box", "hunter2", None),
    ("mysql -uroot -phunter2 shop", "hunter2", None),
    ("Cookie: sid=hunter2; theme=dark", "hunter2", "Cookie: <secret>"),
    ("the deploy key is 9f8a7s6d5f4g3h2j1k0l9m8n", "9f8a7s6d", "the deploy key is <secret>"),
    ("hivemesh join hm1abcdefghijklmnopqrstuvwxyz", "abcdefgh", "hivemesh join <invite>"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalr", "AWS_SECRET_ACCESS_KEY=<secret>"),
    ("wJalrXUtnFEMI3K7MDENG5bPxRfiCYEXAMPLEKEY77aq left alone", "wJalr", "<secret> left alone"),
]

TRACES = [
    ("cd /home/alice/src/app && cat /tmp/alice/x", "alice", "cd ~/src/app && cat /tmp/<user>/x"),
    ("open /Users/alice/Desktop", "alice", "open ~/Desktop"),
    ("C:\\Users\\alice\\x.txt", "alice", "~\\x.txt"),
    ("ls ~/.claude/projects/-home-alice-src", "alice", "ls ~/.claude/projects/-home-<user>-src"),
    ("ls ~alice/src", "alice", "ls ~/src"),
    ("cat /root/notes", "root", "cat ~/notes"),
    ("mail alice@example.com now", "alice", "mail <email> now"),
    ("ping 8.8.8.8", "8.8.8.8", "ping <ip-address>"),
    ("ping 2001:4860:4860::8888", "4860", "ping <ip-address>"),
]

UNTOUCHED = [
    "The deploy fails because the key was rotated; set REGION first.",
    "git push --force origin main",
    "pytest tests/unit/test_token_refresh_2024_long_name.py -q",
    "pip install react@18.2.0 @scope/pkg",
    "git clone git@github.com:org/x.git",
    "https://registry.npmjs.org/@scope/x",
    "max_tokens=4096 and token_count: 7",
    "TOKEN=$GITHUB_TOKEN run --token ${TOKEN}",
    "docker run -u 1000:1000 image",
    "ssh 192.168.1.7 127.0.0.1 ::1 fe80::1",
    "std::vector<int> at 12:34:56 v1.2.3",
    "git show 0123456789abcdef0123456789abcdef01234567",
    "docker login --password-stdin registry.dev",
    "mytool --token *",
]


@pytest.mark.parametrize("secret", MADE_UP)
@pytest.mark.parametrize("frame", ["{}", "TOKEN={}\n", "export X='{}'", '"{}"', "Fix deploy with {}", "a{}", "--{}"])
def test_made_up_credentials_vanish_whatever_stands_around_them(secret: str, frame: str) -> None:
    """O-H3."""
    clean = redact(frame.format(secret))
    assert not any(part in clean for part in PARTS)
    assert contains_secret(frame.format(secret))


def test_a_private_key_split_over_two_fields_vanishes() -> None:
    """O-H3: split fields."""
    head, tail = PEM[:34], PEM[28:]
    assert redact(head) == "<private-key>"
    assert redact(f"before it. {tail} after").endswith("<private-key> after")
    assert "Tk9U" not in redact(tail)
    assert redact(PEM + " between " + PEM) == "<private-key> between <private-key>"


@pytest.mark.parametrize(("secret", "placeholder"), FORMS)
def test_keys_of_known_forms_keep_only_their_type(secret: str, placeholder: str) -> None:
    assert redact(f"use {secret} here") == f"use {placeholder} here"


@pytest.mark.parametrize(("text", "secret", "clean"), CONTEXTS)
def test_what_stands_behind_a_telling_name_vanishes(text: str, secret: str, clean: str | None) -> None:
    assert secret not in redact(text)
    assert clean is None or redact(text) == clean
    assert contains_secret(text)


@pytest.mark.parametrize(("text", "trace", "clean"), TRACES)
def test_personal_traces_vanish_and_are_no_secrets(text: str, trace: str, clean: str) -> None:
    assert trace not in redact(text)
    assert redact(text) == clean
    assert not contains_secret(text)


@pytest.mark.parametrize("text", UNTOUCHED)
def test_useful_text_survives(text: str) -> None:
    """O-H3: the useful sentence survives."""
    assert redact(text) == text
    assert not contains_secret(text)


def test_hidden_characters_cannot_cut_a_secret_in_two() -> None:
    assert redact("gh\u200bp_" + "a1B2" * 9) == "<github-token>"
    assert strip_hidden("a\u202eb\x00c\ud800d\te\n") == "abcd\te\n"


def test_a_text_over_the_limit_is_replaced_as_a_whole() -> None:
    assert redact("a" * (TEXT_CHARS_MAX + 1)) == "<too-long>"
    assert contains_secret("a" * (TEXT_CHARS_MAX + 1))


@dataclass(frozen=True)
class Inner:
    path: str
    size: int


@dataclass(frozen=True)
class Outer:
    title: str
    inner: Inner
    tags: tuple[str, ...]
    extra: dict[str, list[str]]
    nothing: None = None


def test_every_string_field_is_redacted_keys_and_nested_ones_too() -> None:
    """O-H4."""
    secret = MADE_UP[1]
    dirty = Outer(secret, Inner(f"/x/{secret}", 3), (secret, "ok"), {f"k {secret}": [secret]})
    clean = redact_fields(dirty)
    assert secret not in repr(clean)
    assert clean.inner.size == 3
    assert clean.tags == ("<github-token>", "ok")
    assert clean.extra == {"k <github-token>": ["<github-token>"]}
    assert clean.nothing is None


@pytest.mark.parametrize("text", secrets.TYPED + secrets.WRITTEN)
@pytest.mark.parametrize("frame", ["{}", "cd x && {}", "run: {}\n", "[{}]"])
def test_made_up_passwords_vanish_wherever_people_type_them(text: str, frame: str) -> None:
    clean = redact(frame.format(text))
    assert secrets.CANARY not in clean
    assert "CANARY" not in clean
    assert redact(clean) == clean
    assert contains_secret(frame.format(text))


@pytest.mark.parametrize("shape", secrets.SHAPES)
@pytest.mark.parametrize("frame", ["{}", "use {} now", "x={}", '"{}"'])
def test_tokens_of_known_shapes_vanish(shape: str, frame: str) -> None:
    clean = redact(frame.format(shape))
    assert shape[8:24] not in clean
    assert contains_secret(frame.format(shape))


@pytest.mark.parametrize("text", secrets.ORDINARY)
def test_ordinary_sentences_and_commands_survive(text: str) -> None:
    assert redact(text) == text


def test_the_documents_of_this_repository_survive() -> None:
    """But for the one place that shows how a header with a token looks."""
    root = Path(__file__).parents[3]
    lines = [line for page in [*root.glob("docs/**/*.md"), *root.glob("*.md")] for line in page.read_text().splitlines()]
    assert len(lines) > 1000
    found = [line for line in lines if contains_secret(line)]
    assert [line for line in found if "Authorization: Bearer TOKEN" not in line] == []


_FRAGMENTS = st.sampled_from(
    [
        *MADE_UP, *(secret for secret, _ in FORMS), *(text for text, _, _ in CONTEXTS), *(text for text, _, _ in TRACES),
        *UNTOUCHED, *secrets.TYPED, *secrets.SHAPES, *secrets.ORDINARY, *sorted(PLACEHOLDERS), "password=", "token: ", "--secret ", "@", "://", "/home/", "-----BEGIN ",
        "PRIVATE KEY-----", "-----END ", '"', "'", "\\", " ", "\n", ":", "=", "<", ">", "key ", "a.b", "~",
    ]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(_FRAGMENTS | st.text(max_size=12), max_size=8).map("".join))
@example("password=<secret>token=abc")
@example("a@b.cc@d.ee")
@example("/home/a/home/b/home/c")
@example("://a@://b@c")
def test_redacting_twice_is_redacting_once(text: str) -> None:
    once = redact(text)
    assert redact(once) == once
    assert not contains_secret(once)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30), st.sampled_from(MADE_UP), st.text(max_size=30))
def test_a_known_secret_never_survives(before: str, secret: str, after: str) -> None:
    clean = redact(before + " " + secret + " " + after)
    assert not any(part in clean for part in PARTS)


@pytest.mark.parametrize(
    "unit",
    [
        "a", "a ", "aA1/", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----\n", "eyJ", "ghp_", "sk-", "://",
        "://a@", "password", "password=a ", "password='", "--password a ", "--aaaaaaaaaaaaaaaaaaaaaaa ", "@", "a@a.b",
        "/home/a", "1.2.3.", "8.8.8.8 ", ":", "a:", "bearer ", "authorization: bearer a", "-u a:b ", "~a/", "-home-a",
        "key Ab1Cd2Ef3Gh4Ij5Kl6Mn7 ", "\\", '"', "Cookie: a", "a_KEY", "PASS=", "PASS='a", "--pass ", "mysql ", "mysql -p", "redis-cli -a ", "echo a ", "echo 'a", "password=\"\\", "password=\\\"", "docker login ", "login a password ", "X-", "?key=", "pass_", "7z ", "password '", "\u200b", "é@b.co ",
    ],
)  # fmt: skip
def test_a_long_hostile_text_takes_little_work(unit: str) -> None:
    """Processor time, not wall time: a quadratic rule would need minutes here."""
    size = TEXT_CHARS_MAX // 2
    text = (unit * (size // len(unit) + 1))[:size]
    start_s = time.process_time()
    redact(text)
    assert time.process_time() - start_s < 4
