"""Made-up secrets in the places people put them, and ordinary text about secrets; none was ever real.

Written in pieces, so that no scanner of this repository takes them for findings.
"""

from __future__ import annotations

CANARY = "hunter2" + "CANARY"
"""What must not survive in any of TYPED."""

TYPED = [
    line.replace("%C", CANARY)
    for line in (
        "PASS=%C ./x", "PW=%C ./x", "KEY=%C ./x", "DB_PASS=%C", "DBPASS=%C", "MYSQL_PWD=%C", "PGPASSWORD=%C psql", "GPG_PASSPHRASE=%C",
        "API_KEYS=%C", "TOKENS=%C ./x", "secrets=%C", "passwords: %C", "--pass %C", "--pass=%C", "--pw=%C", "-pw %C",
        "--password %C", "mysql -uroot -p%C db", "mysql -h db -p%C", "mysql -p%C -u root", "mysql -p'%C'", "sshpass -p %C ssh x",
        "sshpass -p '%C' ssh x", "curl -u admin:%C https://x.invalid/", "curl -u admin:9%C https://x.invalid/",
        "docker login -u me -p %C", "echo %C | docker login -u me --password-stdin", "openssl rsa -passin pass:%C -in k",
        "redis-cli -a %C ping", "mongo -u a -p %C", "ldapsearch -w %C", "smbclient -U user%%C //h/s", "zip -P %C a b",
        "7z x -p%C a.7z", "htpasswd -b f user %C", "ALTER USER x WITH PASSWORD '%C'", 'psql -c "CREATE USER x PASSWORD \'%C\'"',
        "IDENTIFIED BY '%C'", "echo 'root:%C' | chpasswd", "machine h login u password %C",
        "kubectl create secret generic x --from-literal=db=%C", "gh secret set FOO --body %C", "heroku config:set STRIPE=%C",
        "curl -b session=%C https://x", "curl 'https://x/?key=%C'", "curl 'https://x/?sig=%C'", "curl 'https://x/?a=b&token=%C'",
        "PASSWORD='$(x)%C'", "PASSWORD=a\\ %C", "password=\"x'%C\"", '--password="x\\"%C"', 'PASSWORD=x"%C"', "password='it\\'s %C'",
        'password="a b %C"', "-H 'X-Auth: %C'", "-H 'X-Vault-Token: %C'", "-H 'apikey: %C'", "vault login %C",
        "vault kv put secret/x pw=%C", "aws configure set aws_secret_access_key %C", "ansible -e ansible_become_pass=%C",
        "Authorization: %C", "authorization: ApiKey %C", "Authorization: AWS4-HMAC-SHA256 Credential=a/b, Signature=%C",
        "redis://:%C@cache.invalid:6379/0", "postgres://app:x@%C@db.invalid/x", '{"password": "%C", "port": 5}',
    )
]  # fmt: skip

_HEX = "a1b2c3d4e5f60718" * 2
_MIXED = "aB3dE5gH7jK9mN1pQ3sT5vW7"
SHAPES = [
    "shp" + "at_" + _HEX, "da" + "pi" + _HEX, "key" + "-" + _HEX, "S" + "K" + _HEX, "dckr" + "_pat_" + _MIXED, "hv" + "s." + _MIXED,
    "ATA" + "TT3xFfGF0" + _MIXED, "sq0" + "atp-" + _MIXED[:22], "hm" + "i_" + _MIXED * 4, "hm" + "q_abcdefgh234567ab_" + _MIXED * 2,
]  # fmt: skip
"""Tokens that are recognised wherever they stand."""

WRITTEN = [
    line.replace("%C", CANARY)
    for line in (
        "PASS=%C", "DB_PASS=%C", "DBPASS=%C ./run", 'API_TOKEN: "short"', "redis://:%C@cache.internal:6379/0", "postgres://app:x@1%C@db.internal/x",
        "curl -u admin:%C https://x.internal/", "ALTER USER x WITH PASSWORD '%C'", "CREATE USER x IDENTIFIED BY '%C'", "sshpass -p '%C' ssh x",
        "X-Auth: %C", 'password="correct-horse-battery"', "MYSQL_PWD=%C",
    )
]  # fmt: skip
"""Lines of files that nothing may quote, and that are redacted as well."""

PLACEHOLDERS = [
    'password="changeme"', 'password="<your password>"', "password=${PASSWORD}", 'password = "${DB_PASSWORD}"', 'password = os.environ["PASSWORD"]',
    'PASS=$PASS ./x', "DB_PASS=<secret>", 'API_TOKEN: "your-token"', "curl -u user:password https://example.com/", "redis://:password@localhost/0",
    "CREATE USER x PASSWORD 'changeme'", "X-Auth: <token>", "password=\"example\"", "sshpass -p 'your-password' ssh x",
]  # fmt: skip
"""What documentation says instead of a secret: to be quoted."""

ORDINARY = [
    "The deploy fails because the key was rotated; set REGION first.",
    "Give the token to nobody: it proves who asks.",
    "An outsider with a token: asks one project, tries for more.",
    "A password is asked for, never kept.",
    "12 passed, 3 skipped; PASS: tests/test_a.py",
    "COMPASS=north BYPASS=1 make",
    "pytest -p no:cacheprovider -q tests/unit",
    "git log -p src/app.py",
    "mkdir -p build/out && cp -u a b",
    "docker run -u 1000:1000 -p 8080:80 image",
    "docker compose -p shop up",
    "ssh -p 2222 host.internal uptime",
    "pass the file on, then pass again",
    "The secret is hashed before it is compared.",
    "max_tokens=4096 and token_count: 7",
    "credentials: include",
    "grep -rn password src",
    "def exchange(secret: bytes, public: bytes) -> bytes:",
    "token = request.headers.get(name)",
    "https://docs.invalid/page?id=5&lang=en",
    "tar -xzf a.tgz -C out",
    "curl -X POST https://api.invalid/v1/items",
    "The password is checked in login(user).",
    "kubectl get secret app -o yaml",
    "Sort by key: value pairs keep their order.",
    "the user password field is hidden",
    "git commit -m 'Fix the token refresh'",
]  # fmt: skip
"""Sentences, commands and code that must survive both screens."""
