"""What a name, an option, a header or a program announces goes, whole; what only looks like it stays."""

from __future__ import annotations

import pytest

from hive.named import drop_headers, drop_named, drop_typed


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("PASS=hunter2 ./x", "PASS=<secret> ./x"),
        ("password=\"x'tail\"", 'password="<secret>"'),
        ('--password="x\\"tail" y', '--password="<secret>" y'),
        ('PASSWORD=x"tail"', "PASSWORD=<secret>"),
        ("PASSWORD='$(x)tail'", "PASSWORD='<secret>'"),
        ("PASSWORD=$(pass show x)", "PASSWORD=$(pass show x)"),
        ("PASSWORD='$PASSWORD'", "PASSWORD='$PASSWORD'"),
        ('{"password": "a", "port": 5}', '{"password": "<secret>", "port": 5}'),
        ('{\\"password\\": \\"a\\", \\"port\\": 5}', '{\\"password\\": \\"<secret>\\", \\"port\\": 5}'),
        ("ALTER USER x PASSWORD 'a b'", "ALTER USER x PASSWORD '<secret>'"),
        ("machine h login u password x", "machine h login u password <secret>"),
        ("https://x/?a=1&token=abc&b=2", "https://x/?a=1&token=<secret>&b=2"),
        ("secret = entropy(32)", "secret = entropy(32)"),
        ("tokens: 5, secrets: none", "tokens: 5, secrets: none"),
    ],
)
def test_names(text: str, clean: str) -> None:
    assert drop_named(text) == clean
    assert drop_named(clean) == clean


def test_headers() -> None:
    assert drop_headers("-H 'X-Auth: abc' -H 'Accept: x'") == "-H 'X-Auth: <secret>' -H 'Accept: x'"
    assert drop_headers("Authorization: AWS4 Credential=a, Signature=b") == "Authorization: <secret>"
    assert drop_headers("Authorization: $TOKEN") == "Authorization: $TOKEN"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("mysql -h db -p'x' shop", "mysql -h db -p'<secret>' shop"),
        ("curl -u admin:9x https://h", "curl -u <login> https://h"),
        ("docker login -u me -p x r.dev", "docker login -u me -p <secret> r.dev"),
        ("echo 'root:x' | chpasswd", "echo '<secret>' | chpasswd"),
        ("docker run -u 1000:1000 -p 80:80 i", "docker run -u 1000:1000 -p 80:80 i"),
        ("hivemesh join hm1abcdefghijklmnopq", "hivemesh join <invite>"),
    ],
)
def test_what_is_typed_to_programs(text: str, clean: str) -> None:
    assert drop_typed(text) == clean
    assert drop_typed(clean) == clean
