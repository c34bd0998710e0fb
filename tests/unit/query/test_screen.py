import random
import string
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.screen import has_secret, secret_ranges
from tests.fakes import secrets

MIXED = "".join(random.Random(7).choices(string.ascii_letters + string.digits, k=80))
HEX = "".join(random.Random(8).choices("0123456789abcdef", k=80))
UPPER = "".join(random.Random(9).choices("ABCDEFGHJKLMNPQRSTUVWXYZ234567", k=80))

PLANTED = {
    "aws": "AKIA" + UPPER[:16],
    "github": "ghp_" + MIXED[:36],
    "github_fine": "github_pat_" + MIXED[:40],
    "gitlab": "glpat-" + MIXED[:20],
    "slack": "xoxb-" + "12345678901-" + MIXED[:20],
    "slack_hook": "https://hooks.slack.com/services/T0/B0/" + MIXED[:24],
    "stripe": "sk_live_" + MIXED[:24],
    "google": "AIza" + MIXED[:35],
    "npm": "npm_" + MIXED[:36],
    "pypi": "pypi-AgE" + MIXED[:60],
    "model": "sk-ant-" + MIXED[:40],
    "hub": "hf_" + MIXED[:34],
    "mail": "SG." + MIXED[:22] + "." + MIXED[:43],
    "vault": "hvs." + MIXED[:30],
    "telegram": "123456789:AA" + MIXED[:33],
    "ours": "hmq_" + "abcdefgh234567ab_" + MIXED[:43] + "_" + MIXED[:6],
    "signed": "eyJ" + MIXED[:20] + ".eyJ" + MIXED[:30] + "." + MIXED[:40],
    "azure": "AccountKey=" + MIXED[:60] + "==",
    "address": "postgres://admin:" + MIXED[:14] + "@db.internal/x",
    "header": "Authorization: Bearer " + MIXED[:40],
    "named": 'api_key = "' + MIXED[:24] + '"',
    "named_yaml": "client-secret: " + HEX[:32],
    "password": "password = 'Winter2024'",
    "block": "-----BEGIN RSA PRIVATE KEY-----\n" + MIXED + "\n-----END RSA PRIVATE KEY-----",
}


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_planted_secrets_are_found(name):
    before, after = "Some words before. ", " And words after."
    ranges = secret_ranges(before + PLANTED[name] + after)
    assert ranges
    assert any(low < len(before) + len(PLANTED[name]) and high > len(before) for low, high in ranges)


PLAIN = [
    "Set the API key with the API_KEY environment variable.",
    'api_key = os.environ["API_KEY"]',
    "password: str = 'your-password-here'",
    "token = request.headers.get('authorization')",
    "def connect(host, port, password=None, secret: str = SECRET_DEFAULT):",
    "https://user:password@example.com/ is how an address looks",
    "the secret: nobody reads documentation twice",
    "Authorization: Bearer <token>",
    "access_token = get_access_token_from_store(session)",
    "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "token_type: application/json-patch+json",
    "passphrase = getpass.getpass()",
]


@pytest.mark.parametrize("text", PLAIN)
def test_documentation_about_secrets_is_not_one(text):
    assert not has_secret(text)


@pytest.mark.parametrize("text", secrets.WRITTEN)
@pytest.mark.parametrize("frame", ["{}", "Some words.\n\n    {}\n\nMore.", "`{}`"])
def test_made_up_passwords_are_found_wherever_people_write_them(text, frame):
    assert has_secret(frame.format(text))


@pytest.mark.parametrize("shape", secrets.SHAPES)
@pytest.mark.parametrize("frame", ["{}", "use {} now", "x={}", '"{}"'])
def test_tokens_of_known_shapes_are_found(shape, frame):
    assert has_secret(frame.format(shape))


@pytest.mark.parametrize("text", secrets.ORDINARY + secrets.PLACEHOLDERS)
def test_placeholders_and_ordinary_text_are_quoted(text):
    assert not has_secret(text)


def test_the_documents_of_this_repository_can_be_quoted():
    root = Path(__file__).parents[3]
    pages = [*root.glob("docs/**/*.md"), *root.glob("*.md")]
    assert len(pages) > 5
    assert [(page.name, low) for page in pages for low, _ in secret_ranges(page.read_text())] == []


def test_most_of_what_people_type_is_found_too():
    """The table is narrower than the hive's, which may take out more than it must; a quote that is dropped is lost."""
    assert sum(map(has_secret, secrets.TYPED)) >= len(secrets.TYPED) * 3 // 5


def test_a_private_key_is_hidden_to_its_end_or_to_a_limit():
    whole = "x\n" + PLANTED["block"] + "\ny"
    assert (2, 2 + len(PLANTED["block"])) in secret_ranges(whole)
    endless = "-----BEGIN PRIVATE KEY-----\n" + "a\n" * 50_000
    assert any(high - low > 19_000 for low, high in secret_ranges(endless))


@pytest.mark.parametrize(
    "text",
    ["-----BEGIN PRIVATE KEY-----" * 30_000, "password" * 40_000, "://a:" * 60_000, "eyJ" + "a" * 300_000, "token " * 60_000, "secret-" * 50_000, "A" * 300_000, " -u a" * 60_000, "mysql " * 50_000, "PASS=" * 60_000, "pass_" * 60_000, "X-Key" * 60_000, "password='" * 30_000, "login a " * 40_000],
    ids=["keys", "password", "address", "signed", "token", "named", "letters", "user", "mysql", "pass", "prefix", "header", "quote", "login"],
)
def test_hostile_text_is_scanned_in_linear_time(text):
    began = time.process_time()
    secret_ranges(text)
    assert time.process_time() - began < 3.0


@given(st.text(max_size=300), st.sampled_from(sorted(PLANTED)), st.text(alphabet=" \n.,", min_size=1, max_size=5))
def test_what_stands_around_does_not_hide_a_secret(before, name, gap):
    assert has_secret(before + gap + PLANTED[name] + gap)
