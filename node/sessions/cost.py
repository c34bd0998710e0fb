"""Tokens to money, by a dated table of five prices a model.

A reply of an unknown model, or of a kind the table has no price for, makes the sum unknown, never smaller.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass

from mesh.base.errors import Damaged

_DATE = re.compile(r"-20[0-9]{6}\Z")
_LONG_CONTEXT = re.compile(r"\[[0-9]+m\]\Z")
NANO = 1_000
"""A price is kept in billionths of a dollar a token, which is a thousandth of dollars a million tokens."""


@dataclass(frozen=True, slots=True)
class Prices:
    """One model's prices in billionths of a dollar a token (None unknown), and its context in tokens (None unknown)."""

    input: int | None
    output: int | None
    cache_read: int | None
    write_5m: int | None
    write_1h: int | None
    window: int | None


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices of models by name, and the day somebody looked."""

    dated: str
    models: dict[str, Prices]

    def of(self, model: str) -> Prices | None:
        """Look up a model by its name, with or without the date behind it; None where it is not known."""
        plain = _LONG_CONTEXT.sub("", model)
        return self.models.get(plain) or self.models.get(_DATE.sub("", plain))

    def window(self, model: str | None) -> int | None:
        """Look up how many tokens a model's context holds; None where it is not known."""
        if model is None or _LONG_CONTEXT.search(model):
            return None
        prices = self.of(model)
        return prices.window if prices else None


@dataclass(frozen=True, slots=True)
class ModelTotal:
    """Tokens one model used in one session."""

    model: str
    input: int
    output: int
    cache_read: int
    write_5m: int
    write_1h: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a session cost.

    Attributes:
        known_micro: The priced part, in millionths of a dollar.
        unpriced: Models with a part that has no price; not empty means that the whole is unknown.
    """

    known_micro: int
    unpriced: tuple[str, ...]

    @property
    def micro(self) -> int | None:
        """The whole in millionths of a dollar, or None where a part is unknown."""
        return None if self.unpriced else self.known_micro


def parse_prices(text: str) -> PriceTable:
    """Read the table of prices.

    Args:
        text: TOML as in ``prices.toml``.

    Returns:
        The table.

    Raises:
        Damaged: Not such a table.
    """
    try:
        table = tomllib.loads(text)
        models = {name: _prices(row) for name, row in table["models"].items()}
        return PriceTable(str(table["dated"]), models)
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"the table of prices is not readable: {error}", path="prices.toml", hint="install hivemesh again") from None


def _prices(row: dict[str, float]) -> Prices:
    def nano(key: str) -> int | None:
        return round(row[key] * NANO) if key in row else None

    window = int(row["window"]) if "window" in row else None
    return Prices(nano("input"), nano("output"), nano("cache_read"), nano("cache_write_5m"), nano("cache_write_1h"), window)


def cost_of(totals: Iterable[ModelTotal], table: PriceTable) -> Cost:
    """Price what was used.

    Args:
        totals: Tokens by model.
        table: The prices.

    Returns:
        The priced part, and which models it leaves out.
    """
    nano = 0
    unpriced = []
    for total in totals:
        part, whole = _priced(total, table.of(total.model))
        nano += part
        if not whole:
            unpriced.append(total.model or "unknown")
    return Cost(nano // NANO, tuple(sorted(unpriced)))


def _priced(total: ModelTotal, prices: Prices | None) -> tuple[int, bool]:
    """Price one model's tokens: the part that has prices, and whether that is all of it."""
    if prices is None:
        return 0, not (total.input or total.output or total.cache_read or total.write_5m or total.write_1h)
    pairs = (
        (total.input, prices.input),
        (total.output, prices.output),
        (total.cache_read, prices.cache_read),
        (total.write_5m, prices.write_5m),
        (total.write_1h, prices.write_1h),
    )
    known = sum(tokens * price for tokens, price in pairs if price is not None)
    return known, all(price is not None or not tokens for tokens, price in pairs)
