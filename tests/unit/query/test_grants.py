import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.errors import Usage
from query.grants import (
    DAY_MS,
    Budget,
    Wait,
    believed_ms,
    charge,
    check_limits,
    fault,
    label_from,
    mint,
    open_untrusted,
    scope_from,
    secret_hash,
)

NOON_MS = 20_000 * DAY_MS + DAY_MS // 2


def entropy(seed: int):
    return random.Random(seed).randbytes


@given(st.integers(0, 1 << 32))
def test_a_token_reads_back_and_hides_its_secret(seed):
    token = mint(entropy(seed))
    text = token.text()
    assert open_untrusted(f"Bearer {text}") == token
    assert open_untrusted(f"bearer {text}") == token
    assert len(token.secret) == 43
    assert token.secret not in repr(token)


@given(st.integers(0, 200), st.integers(0, 70), st.sampled_from("abcXYZ0189_- é"))
def test_every_changed_character_is_noticed(seed, at, character):
    text = mint(entropy(seed)).text()
    at %= len(text)
    changed = text[:at] + character + text[at + 1 :]
    if changed != text:
        assert open_untrusted(f"Bearer {changed}") is None


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "hmq_x", "Basic abc", "Bearer a b", "Bearer\thmq", "Bearer " + "x" * 500])
def test_what_is_no_token(header):
    assert open_untrusted(header) is None
    text = mint(entropy(1)).text()
    assert open_untrusted(f"Bearer {text} ") is None
    assert open_untrusted(f"Bearer {text}\n") is None
    assert open_untrusted(f"Bearer  {text}") is None
    assert open_untrusted(text) is None


def test_hashes_depend_on_the_pepper():
    assert secret_hash(bytes(32), "s") != secret_hash(b"1" * 32, "s")


def test_scopes_are_a_closed_list():
    """O-R5: no word for all, none for writing."""
    assert {scope_from("query"), scope_from("project.query")} == {"project.query"}
    assert scope_from("docs") == "project.docs"
    for text in ("*", "", "all", "project.*", "project.write", "query,docs", "QUERY"):
        with pytest.raises(Usage):
            scope_from(text)


def test_labels_are_one_safe_line():
    assert label_from(" a\u202eb\n c ") == "ab c"
    with pytest.raises(Usage):
        label_from("x" * 81)


@pytest.mark.parametrize(("life_s", "rate", "per_day"), [(59, 1, 1), (366 * 86400 + 1, 1, 1), (60, 0, 1), (60, 6001, 1), (60, 1, 0), (60, 1, 1_000_001)])
def test_limits_are_checked(life_s, rate, per_day):
    with pytest.raises(Usage):
        check_limits(life_s, rate, per_day)
    check_limits(60, 1, 1)


@given(st.integers(1, 120), st.integers(1, 300), st.lists(st.integers(0, 20_000), max_size=200))
def test_no_minute_holds_more_than_the_rate_and_no_day_more_than_the_budget(rate, per_day, gaps):
    budget = Budget(rate, per_day)
    now_ms = NOON_MS
    allowed = []
    for gap in gaps:
        now_ms += gap
        after = charge(budget, now_ms)
        if isinstance(after, Wait):
            assert after.retry_after_s >= 1
        else:
            budget = after
            allowed.append(now_ms)
    for at in allowed:
        assert sum(at <= other < at + 60_000 for other in allowed) <= 2 * rate
    for _, day in itertools.groupby(allowed, key=lambda at: at // DAY_MS):
        assert len(list(day)) <= per_day


@given(st.integers(1, 200))
def test_a_minutes_worth_may_come_at_once_and_one_more_must_wait(rate):
    budget = Budget(rate, 1_000_000)
    for _ in range(rate):
        after = charge(budget, NOON_MS)
        assert isinstance(after, Budget)
        budget = after
    wait = charge(budget, NOON_MS)
    assert isinstance(wait, Wait)
    assert wait.reason == "rate"
    assert isinstance(charge(budget, NOON_MS + wait.retry_after_s * 1000), Budget)


def test_a_day_is_a_utc_day():
    budget = Budget(60, 1)
    after = charge(budget, NOON_MS)
    assert isinstance(after, Budget)
    wait = charge(after, NOON_MS + 5000)
    assert wait == Wait("budget", 43_195)
    assert isinstance(charge(after, NOON_MS + 43_200_000), Budget)


def test_a_clock_set_back_is_not_believed():
    assert believed_ms(1000, 0) == 1000
    assert believed_ms(NOON_MS - 59_000, NOON_MS) == NOON_MS - 59_000
    assert believed_ms(NOON_MS - 61_000, NOON_MS) == NOON_MS


@pytest.mark.parametrize("wanted", [("docs-private", "q"), ("doc", "q"), ("Docs", "q"), ("docs ", "q"), ("docs/private", "q"), ("*", "q"), ("", "q")])
def test_a_grant_opens_exactly_its_project(wanted):
    """O-R3, O-R4: whole names only; nothing named is nothing."""
    assert fault(known=True, proven=True, revoked=False, expired=False, granted=("docs", ("q",)), wanted=wanted) == "project"


def test_only_one_combination_holds():
    """O-R2: default is no."""
    for known, proven, revoked, expired, project, scope in itertools.product([True, False], repeat=6):
        word = fault(
            known=known, proven=proven, revoked=revoked, expired=expired,
            granted=("p", ("project.query",)), wanted=("p" if project else "x", "project.query" if scope else "project.docs"),
        )  # fmt: skip
        assert (word is None) == (known and proven and not revoked and not expired and project and scope)
