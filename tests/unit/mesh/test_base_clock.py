"""Time as values: durations, versions that only rise, times as text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.clock import (
    VERSION_MAX,
    next_version,
    parse_duration_s,
    parse_rfc3339_ms,
    read_clock,
    rfc3339,
    version_ms,
)
from mesh.base.errors import Usage

WALL = st.integers(0, (1 << 47) - 1)


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1), ("90s", 90), ("15m", 900), ("24h", 86_400), ("30d", 2_592_000), ("99999w", 99_999 * 604_800)]
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: int):
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "s", "1", "0s", "01s", "-1s", "+1s", "1.5h", "1 s", " 1s", "1s ", "1s\n", "1S", "1y", "1ms", "100000s", "1s1s", "١s", "1ｓ", "²s", "1e3s"],
)
def test_anything_else_is_no_duration(text: str):
    with pytest.raises(Usage) as caught:
        parse_duration_s(text)
    assert "90s" in caught.value.hint
    assert "\n" not in caught.value.message


@given(WALL, st.integers(0, VERSION_MAX - 1))
def test_a_version_rises_and_is_not_older_than_the_clock(wall_ms: int, newest: int):
    version = next_version(wall_ms, newest)
    assert version > newest
    assert version_ms(version) >= wall_ms
    assert version <= VERSION_MAX


@given(st.lists(WALL, max_size=20))
def test_versions_rise_whatever_the_clock_does(clock: list[int]):
    """O-G7: a clock that jumps back or stands still never repeats a version."""
    newest, seen = 0, []
    for wall_ms in clock:
        newest = next_version(wall_ms, newest)
        seen.append(newest)
    assert seen == sorted(set(seen))


def test_times_are_written_in_utc_with_milliseconds():
    assert rfc3339(None) is None
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"
    assert rfc3339(1_800_000_000_007) == "2027-01-15T08:00:00.007Z"


@given(st.integers(0, 253_402_300_799_999))
def test_a_written_time_is_read_back(wall_ms: int):
    text = rfc3339(wall_ms)
    assert text is not None
    assert parse_rfc3339_ms(text) == (wall_ms if wall_ms < 1 << 47 else None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2027-01-15T09:00:00+01:00", 1_800_000_000_000),
        ("2027-01-15T08:00:00", None),
        ("2027-01-15", None),
        ("", None),
        ("yesterday", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("1969-12-31T23:59:59Z", None),
        ("9999-12-31T23:59:59-23:59", None),
        ("2027-13-15T08:00:00Z", None),
        ("2027-01-15T08:00:00+99:00", None),
    ],
)
def test_only_a_time_with_a_zone_and_a_plausible_year_is_read(text: str, expected: int | None):
    assert parse_rfc3339_ms(text) == expected


@given(st.text(max_size=60))
def test_any_text_is_a_time_or_none(text: str):
    read = parse_rfc3339_ms(text)
    assert read is None or 0 <= read < 1 << 47


def test_the_clock_is_read_from_this_machine():
    before, now, after = time.time_ns() // 1_000_000, read_clock(), time.time_ns() // 1_000_000
    assert before <= now.wall_ms <= after
    assert read_clock().steady_s >= now.steady_s > 0
