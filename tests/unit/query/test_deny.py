import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.deny import PATH_BYTES_MAX, format_of, is_denied, path_text_untrusted

SENSITIVE_TEXT = """
.env .env.local prod.env .envrc config/.netrc .npmrc pip.conf id_rsa id_rsa.pub deploy/id_ed25519.bak known_hosts server.pem
tls/server.key ca.crt store.jks vault.kdbx notes.asc backup.age client.ovpn kubeconfig-prod main.tfstate prod.tfvars
service-account-prod.json app-credentials.json client_secret_1.json app.sqlite3 users.db dump.sql.gz site.bak trace.har
server.log rows.jsonl .bash_history wp-config.php local_settings.py appsettings.Production.json master.key auth.json
model.ipynb frame.parquet core.1234 transcript.md run-transcript.md secrets.yaml token.txt cookies.json credentials
.git/config .ssh/readme.md .aws/notes.md node_modules/a/readme.md vendor/lib/doc.md .venv/x.py secrets/readme.md
private/plan.md keys/how.md a/.claude/notes.md .aider.chat/notes.md build/page.md certs/x.md credentials/use.md
"""
HARMLESS_TEXT = """
README.md docs/secrets.md src/token.py docs/credentials.rst guide/cookies.md src/environment.py docs/private-api.md
docs/keys.md src/build.py docs/vendor.md tests/test_env.py docs/ssh.md src/core.py docs/log.md api/session.py
docs/transcripts.md packages/secretary/readme.md docs/target.md src/database.py .github/CONTRIBUTING.md
"""

SENSITIVE = SENSITIVE_TEXT.split()
HARMLESS = HARMLESS_TEXT.split()


@pytest.mark.parametrize("path", SENSITIVE)
def test_sensitive_paths_are_denied(path):
    assert is_denied(path)


@pytest.mark.parametrize("path", HARMLESS)
def test_documentation_about_sensitive_things_is_not(path):
    assert not is_denied(path)


@pytest.mark.parametrize("path", [".ENV", ".\u200benv", "\uff0eenv", ".env.", "ID_RSA", "Secrets/readme.md", "\uff53ecrets/readme.md", "a/.GIT/x.md", "priva\u00adte/x.md"])
def test_look_alikes_are_denied_too(path):
    assert is_denied(path)


@given(st.sampled_from(SENSITIVE), st.lists(st.sampled_from(["a", "src", "docs"]), max_size=3))
def test_no_folder_above_makes_a_denied_path_allowed(path, above):
    assert is_denied("/".join([*above, path]))


@pytest.mark.parametrize("raw", [b"", b"a/../b.md", b"./a.md", b"/a.md", b"a//b.md", b"a\nb.md", b"a\x00.md", b"\xff.md", b"x" * (PATH_BYTES_MAX + 1), "a\u2028b.md".encode()])
def test_paths_that_are_none(raw):
    assert path_text_untrusted(raw) is None


def test_formats_go_by_extension():
    assert [format_of(path) for path in ("a.md", "B.MD", "c.markdown", "d.py", "e.pyi", "f.rst", "g.txt", "md", ".md", "h.md.exe")] == [
        "markdown", "markdown", "markdown", "python", "python", "rst", None, None, None, None,
    ]  # fmt: skip
