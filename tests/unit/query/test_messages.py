import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.codec import Malformed, decode_untrusted, encode
from query.messages import CONTENT_BYTES_MAX, GrantBody, RevocationBody

BODIES = st.builds(
    GrantBody,
    grant=st.binary(min_size=10, max_size=10),
    hash=st.binary(min_size=32, max_size=32),
    project=st.text(alphabet="abc.-_9", min_size=1, max_size=64),
    scopes=st.lists(st.sampled_from(["project.query", "project.docs"]), max_size=4).map(tuple),
    expires_s=st.integers(0, 1 << 36),
    rate_per_min=st.integers(1, 6000),
    per_day=st.integers(1, 1_000_000),
    serve_at=st.binary(min_size=16, max_size=16),
    label=st.text(alphabet="é a", max_size=40),
)


@given(BODIES)
def test_a_grant_survives_its_encoding_and_fits_the_record(body):
    data = encode(body)
    assert len(data) <= CONTENT_BYTES_MAX
    assert decode_untrusted(GrantBody, data, bytes_max=CONTENT_BYTES_MAX) == body


@given(st.binary(min_size=10, max_size=10), st.text(alphabet="é a", max_size=60))
def test_a_revocation_survives_its_encoding(grant, reason):
    body = RevocationBody(grant, reason)
    assert decode_untrusted(RevocationBody, encode(body), bytes_max=200) == body


@pytest.mark.parametrize(
    "body",
    [
        GrantBody(b"short", bytes(32), "p", ("project.query",), 1, 1, 1, bytes(16), ""),
        GrantBody(bytes(10), bytes(32), "", ("project.query",), 1, 1, 1, bytes(16), ""),
        GrantBody(bytes(10), bytes(32), "p", ("project.query",) * 5, 1, 1, 1, bytes(16), ""),
        GrantBody(bytes(10), bytes(32), "p", ("project.query",), 1, 0, 1, bytes(16), ""),
        GrantBody(bytes(10), bytes(32), "p", ("project.query",), 1, 1, 1_000_001, bytes(16), ""),
        GrantBody(bytes(10), bytes(32), "p", ("project.query",), 1, 1, 1, bytes(16), "x" * 81),
        RevocationBody(bytes(9), ""),
        RevocationBody(bytes(10), "x" * 121),
    ],
)
def test_fields_out_of_range_are_refused(body):
    with pytest.raises(Malformed):
        encode(body)
