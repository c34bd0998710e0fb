"""Every test here needs network namespaces; where none can be made it is skipped with the reason."""

from __future__ import annotations

import functools

import pytest

from tests.lan.lab import missing

_why_not = functools.cache(missing)


@pytest.fixture(autouse=True)
def namespaces() -> None:
    reason = _why_not()
    if reason is not None:
        pytest.skip(reason)
