from mesh.base.codec import encode
from mesh.base.names import GrantId
from query.grants import DAY_MS, Budget
from query.permits import GrantRow, Permit

DAY = 20_000


def row(**changes) -> GrantRow:
    values = {
        "grant": GrantId(bytes(10)), "hash": bytes(32), "project": "p", "scopes": ("project.query",), "label": "l", "created_ms": 0,
        "expires_ms": 10 * DAY_MS, "serve_at": "http://127.0.0.1:8787", "budget": Budget(5, 50, DAY, 7), "uses": 9, "last_ms": None,
        "revoked_ms": None, "revoked_reason": "",
    }  # fmt: skip
    return GrantRow(**{**values, **changes})


def test_a_new_grant_is_shown_in_exactly_these_fields():
    shown = row().granted_json("hmq_token")
    assert list(shown) == ["grant", "token", "project", "scopes", "label", "expires_at", "rate_per_min", "per_day", "serve_at"]
    assert shown["expires_at"] == "1970-01-11T00:00:00.000Z"


def test_a_listed_grant_never_shows_token_or_hash():
    shown = row().as_json(DAY * DAY_MS)
    assert "token" not in shown
    assert "hash" not in shown
    assert shown["used_today"] == 7
    assert row().as_json((DAY + 1) * DAY_MS)["used_today"] == 0


def test_states():
    assert row().state(0) == "active"
    assert row().state(10 * DAY_MS) == "expired"
    assert row(revoked_ms=5).state(10 * DAY_MS) == "revoked"


def test_it_fits_its_record():
    assert len(encode(row().body(b"n" * 16))) < 200


def test_a_permit_shows_what_is_left():
    shown = Permit(GrantId(bytes(10)), Budget(5, 50, DAY, 7)).as_json()
    assert shown == {"per_day": 50, "used": 7, "remaining": 43, "rate_per_min": 5, "resets_at": "2024-10-05T00:00:00.000Z"}
