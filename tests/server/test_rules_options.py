"""What can be wrong with rules, prices and clocks is told in one line before a model is loaded."""

import time
from pathlib import Path

import pytest

from kvikk.errors import ModelError
from kvikk.server.clock import Clock
from kvikk.server.options import ServerOptions


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rules": "openai:gpt-7"}, "no rules of 'openai:gpt-7' are known on 2.*openai:gpt-5.6"),
        ({"rules": "mistral:large"}, "known providers are openai, anthropic"),
        ({"rules": "gpt-5.6"}, "expected PROVIDER:MODEL"),
        ({"rules_file": Path("none.toml")}, "none.toml: cannot be read"),
        ({"rules": "openai:gpt-5.6", "price_map": Path("none.json")}, "none.json: cannot be read"),
        ({"rules": "openai:gpt-5.6", "clock": Path("none")}, "clock file none cannot be read"),
    ],
)
def test_rules_that_cannot_be_used(options, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=says) as error:
        ServerOptions(**options).load_rules()
    assert "\n" not in str(error.value)


def test_files_without_a_rule_set_are_for_nothing(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text("")
    with pytest.raises(ModelError, match="choose one with --rules"):
        ServerOptions(rules_file=file).load_rules()


def test_without_rules_there_are_none():
    assert ServerOptions().load_rules() is None


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_a_price_is_a_number_from_0_on(price):
    with pytest.raises(ModelError, match="price per hour"):
        ServerOptions(price_per_hour=price)


def test_rows_are_those_of_the_clocks_day(tmp_path):
    clock = tmp_path / "clock"
    clock.write_text(str(-1.2 * 365 * 86_400))  # before 2026
    with pytest.raises(ModelError, match=r"no rules of 'openai:gpt-5\.6'"):
        ServerOptions(rules="openai:gpt-5.6", clock=clock).load_rules()
    assert ServerOptions(rules="openai:gpt-4o", clock=clock).load_rules() is not None


def is_ahead(clock: Clock, seconds: float) -> bool:
    before_s = time.time()
    told_s = clock()
    return before_s + seconds - 0.01 < told_s < time.time() + seconds + 0.01


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e300", "1e12", "-1e12", "\0"])
def test_a_number_that_leads_to_no_day_is_no_time_at_first_nor_later(text, tmp_path):
    file = tmp_path / "clock"
    file.write_text(text)
    with pytest.raises(ModelError, match="leads to a day"):
        Clock(file)
    file.write_text("60")
    clock = Clock(file)
    file.write_text(text)
    assert is_ahead(clock, 60)


def test_a_clock_is_ahead_by_what_the_file_says_and_keeps_the_last_number(tmp_path):
    file = tmp_path / "clock"
    file.write_text("nothing")
    with pytest.raises(ModelError, match="holds no number"):
        Clock(file)
    file.write_text("100\n")
    clock = Clock(file)
    assert is_ahead(clock, 100)
    file.write_text("3600.5")
    assert is_ahead(clock, 3600.5)
    file.write_text("")
    assert is_ahead(clock, 3600.5)
    file.unlink()
    assert is_ahead(clock, 3600.5)
    assert is_ahead(Clock(), 0)
