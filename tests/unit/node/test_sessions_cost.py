from pathlib import Path

import pytest

import node.sessions
from mesh.base.errors import Damaged
from node.sessions.cost import ModelTotal, cost_of, parse_prices

PRICES = parse_prices((Path(node.sessions.__file__).parent / "prices.toml").read_text(encoding="utf-8"))


def total(model, sent=0, output=0, read=0, write_5m=0, write_1h=0):
    return ModelTotal(model, sent, output, read, write_5m, write_1h)


def test_the_five_prices():
    million = 1_000_000
    cost = cost_of([total("claude-opus-5-5", million, million, million, million, million)], PRICES)
    assert cost.micro == (4 + 20 + 5 + 8) * million + 200_000


def test_a_cost_measured_with_the_agent_itself():
    assert cost_of([total("claude-opus-5-5", 72, 189, 50_675, 16_888)], PRICES).micro == 98_643


@pytest.mark.parametrize("model", ["claude-haiku-4-5-20251001", "claude-haiku-4-5", "claude-haiku-4-5[1m]"])
def test_a_date_or_a_context_behind_the_name_is_ignored(model):
    assert cost_of([total(model, 1_000_000)], PRICES).micro == 1_000_000


@pytest.mark.parametrize("model", ["model-never-heard-of-9", "claude-opus-5-5:fast", "gpt-5-codex", "unknown", ""])
def test_an_unknown_model_makes_the_sum_unknown_and_is_named(model):
    """O-S7"""
    cost = cost_of([total("claude-opus-5-5", 1_000_000), total(model, 5, 7)], PRICES)
    assert cost.micro is None
    assert cost.known_micro == 4_000_000
    assert cost.unpriced == (model or "unknown",)


def test_a_missing_price_counts_only_where_such_tokens_were_used():
    assert cost_of([total("claude-opus-4-8", 10, 10)], PRICES).micro == 300
    assert cost_of([total("claude-opus-4-8", 10, 10, 0, 0, 1)], PRICES).micro is None


def test_a_model_without_tokens_needs_no_price():
    assert cost_of([total("whatever")], PRICES).micro == 0


def test_windows():
    assert PRICES.window("claude-haiku-4-5") == 200_000
    assert PRICES.window("claude-haiku-4-5[1m]") is None
    assert PRICES.window("claude-opus-5-5") is None
    assert PRICES.window("x") is None
    assert PRICES.window(None) is None


@pytest.mark.parametrize("text", ["", "x", "dated=1", "[models.a]\ninput='x'", "dated='x'\n[models]\na=1"])
def test_a_table_that_is_not_one_is_damaged(text):
    with pytest.raises(Damaged):
        parse_prices(text)
