"""Rules and prices by name: what is known, since when, and what is said of the rest."""

import json
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from kvikk.errors import ModelError
from kvikk.pricing.caching import Breakpoints, MessageEnds, Steps
from kvikk.pricing.litellm import read_price_map
from kvikk.pricing.registry import find, known_names
from kvikk.pricing.rows import read_rows
from kvikk.pricing.unknown import Unknown
from tests.pricing.prompts import rules

MILLION = Decimal(1_000_000)


@pytest.mark.parametrize(
    ("name", "minimum", "scheme", "read", "write"),
    [
        ("openai:gpt-4o", 1024, Steps, "0.5", {}),
        ("openai:gpt-4.1", 1024, Steps, "0.25", {}),
        ("openai:gpt-5", 1024, Steps, "0.1", {}),
        ("openai:gpt-5-mini", 1024, Steps, "0.1", {}),
        ("openai:gpt-5.4", 2048, Steps, None, {}),
        ("openai:gpt-5.5", 1, Steps, None, {}),
        ("openai:gpt-5.6", 1024, MessageEnds, "0.1", {"30m": "1.25", "12h": "1.25"}),
        ("anthropic:*", 1024, Breakpoints, "0.1", {"5m": "1.25", "1h": "2"}),
        ("anthropic:claude-fable-5", 512, Breakpoints, "0.1", {"5m": "1.25", "1h": "2"}),
        ("anthropic:claude-mythos-5-1", 512, Breakpoints, "0.025", {"5m": "1.25", "1h": "2"}),
        ("anthropic:claude-opus-5-5", 512, Breakpoints, "0.05", {"5m": "1.25", "1h": "2"}),
        ("anthropic:claude-sonnet-5-5", 512, Breakpoints, "0.1", {"5m": "1.25", "1h": "2"}),
        ("anthropic:claude-sonnet-5", 1024, Breakpoints, "0.1", {"5m": "1.25", "1h": "2"}),
        ("anthropic:claude-opus-4-8", 1024, Breakpoints, "0.1", {"5m": "1.25", "1h": "2"}),
        ("anthropic:claude-opus-4-20250514", 1024, Breakpoints, "0.1", {"5m": "1.25", "1h": "2"}),
        ("anthropic:claude-opus-4-7", 2048, Breakpoints, "0.1", {"5m": "1.25", "1h": "2"}),
        ("anthropic:claude-opus-4-6", 4096, Breakpoints, "0.1", {"5m": "1.25", "1h": "2"}),
        ("anthropic:claude-opus-4-5-20251101", 4096, Breakpoints, "0.1", {"5m": "1.25", "1h": "2"}),
        ("anthropic:claude-haiku-4-5", 4096, Breakpoints, "0.1", {"5m": "1.25", "1h": "2"}),
        ("gemini:gemini-2.5-pro", 4096, Steps, "0.1", {}),
        ("xai:grok-5", 128, Steps, "0.25", {}),
        ("bedrock:us.anthropic.claude-haiku-4-5-20251001-v1:0", 4096, Breakpoints, "0.1", None),
        ("vertex:claude-sonnet-4-5@20250929", 1024, Breakpoints, "0.1", None),
        ("openrouter:openai/gpt-5.6", 1024, MessageEnds, "0.1", None),
        ("openrouter:anthropic/claude-haiku-4.5", 4096, Breakpoints, "0.1", None),
        ("azure:gpt-4o", 1024, Steps, "0.5", {}),
    ],
)
def test_a_model_has_the_rules_of_the_facts(name, minimum, scheme, read, write):
    found = rules(name)
    assert found.caching.minimum_tokens == minimum
    assert isinstance(found.caching.scheme, scheme)
    prices = found.prices.relative
    assert isinstance(prices.read, Unknown) if read is None else prices.read == Decimal(read)
    if write is not None:
        assert prices.write == {name: Decimal(price) for name, price in write.items()}
    assert found.sources


@pytest.mark.parametrize(
    ("name", "input_price", "read", "write"),
    [
        ("openai:gpt-5.6-sol", "4.00", "0.40", "5.00"),
        ("openai:gpt-4o", "2.50", "1.25", None),
        ("openai:gpt-4.1", "2.00", "0.50", None),
        ("openai:gpt-5", "1.25", "0.125", None),
    ],
)
def test_prices_are_those_of_the_facts(name, input_price, read, write):
    prices = rules(name).prices.base
    assert (prices.input * MILLION, prices.read * MILLION) == (Decimal(input_price), Decimal(read))
    assert write is None or prices.write["30m"] * MILLION == Decimal(write)


def test_what_no_row_says_is_unknown_and_says_of_what():
    found = find("openai:gpt-7")
    assert isinstance(found, Unknown)
    assert "openai:gpt-7" in found.why
    price = rules("openai:gpt-5.6-luna").prices.base.input
    assert isinstance(price, Unknown)
    assert "openai:gpt-5.6-luna" in price.why


def test_what_is_taken_without_being_documented_is_said():
    assert any("minimum" in note for note in rules("anthropic:*").notes)
    assert any("openrouter" in note for note in rules("openrouter:openai/gpt-4o").notes)
    assert not rules("openai:gpt-5.4").notes


def test_rows_hold_from_their_day_on():
    assert isinstance(find("openai:gpt-5", on=date(2025, 8, 6)), Unknown)
    assert not isinstance(find("openai:gpt-5", on=date(2025, 8, 7)), Unknown)


@pytest.mark.parametrize("name", ["", "gpt-5.6", "openai:", ":gpt", "openrouter:gpt-4o"])
def test_a_name_that_is_none_says_what_one_looks_like(name):
    with pytest.raises(ModelError, match="expected"):
        find(name)


def test_known_names_are_all_found():
    for name in known_names():
        assert not isinstance(find(name), Unknown), name


OWN = """
[[caching]]
provider = "openai"
models = ["gpt-5.6*"]
valid_from = 2026-11-20
scheme = "openai-message-ends"
minimum_tokens = 512
source = "our own measurement"

[[price]]
provider = "openai"
models = ["gpt-5.6-luna"]
valid_from = 2026-11-20
input = 0.80
output = 6.40
write_of_input = { 30m = 1.5 }
above = [{ tokens = 272000, input = 1.60 }]
source = "our contract"

[schemes.ours]
boundaries = "steps"
step_tokens = 64
minimum_tokens = 64
lifetimes = { default = { idle_s = 60 } }

[[caching]]
provider = "ours"
models = ["*"]
valid_from = 2026-01-01
scheme = "ours"
source = "us"
"""


def test_a_file_of_ones_own_wins_and_the_rest_stays(tmp_path: Path):
    file = tmp_path / "rules.toml"
    file.write_text(OWN)
    own = read_rows(file)
    found = find("openai:gpt-5.6-luna", own=own)
    assert found.caching.minimum_tokens == 512
    assert found.prices.base.input * MILLION == Decimal("0.80")
    assert found.prices.base.read * MILLION == Decimal("0.080")  # the ratio is of the built-in row
    assert found.prices.relative.write["30m"] == Decimal("1.5")
    assert found.prices.of(272_000).input * MILLION == Decimal("0.80")
    assert found.prices.of(272_001).input * MILLION == Decimal("1.60")
    assert isinstance(found.prices.of(272_001).output, Unknown)
    assert find("openai:gpt-5.6", own=own, on=date(2026, 11, 19)).caching.minimum_tokens == 1024
    assert find("ours:anything", own=own).caching.scheme == Steps(64)


def test_the_same_file_may_be_json(tmp_path: Path):
    file = tmp_path / "rules.json"
    row = {
        "provider": "ours",
        "models": ["x"],
        "valid_from": "2026-01-01",
        "scheme": "anthropic",
        "source": "us",
    }
    file.write_text(json.dumps({"caching": [row]}))
    assert find("ours:x", own=read_rows(file)).caching.scheme == Breakpoints()


ROW = 'provider = "p"\nmodels = ["m"]\nvalid_from = 2026-01-01\nsource = "s"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "not TOML"),
        ("[[caching]]\n", "provider is missing"),
        ("[caching]\n", "expected a list of tables"),
        (f"[[caching]]\n{ROW}", "lifetimes is missing"),
        (f'[[caching]]\n{ROW}scheme = "no"', "no scheme 'no'; known are anthropic"),
        (f'[[caching]]\n{ROW}scheme = "xai"\nstep_token = 3', "unknown field 'step_token'"),
        (f'[[caching]]\n{ROW}scheme = "xai"\nstep_tokens = 0', "a whole number from 1 on, not 0"),
        (f'[[caching]]\n{ROW}scheme = "xai"\nboundaries = "x"', "expected one of steps"),
        (f'[[caching]]\n{ROW}scheme = "xai"\nlifetimes = {{}}', "at least one"),
        (f'[[price]]\n{ROW}input = "4"', "input: expected a number, not a string"),
        (f"[[price]]\n{ROW}input = -4", "from 0 on"),
        (f"[[price]]\n{ROW}input = nan", "from 0 on"),
        (f"[[price]]\n{ROW}inptu = 4", "unknown field 'inptu'"),
        ('[[price]]\nprovider = "p"\nmodels = "m"', "expected a list of strings"),
        ("prices = 3", "unknown field 'prices'; known are caching, price, schemes"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_place(tmp_path: Path, text, says):
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with pytest.raises(ModelError, match=r"rules\.toml") as error:
        read_rows(file)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_or_not_text_is_told(tmp_path: Path):
    with pytest.raises(ModelError, match="cannot be read"):
        read_rows(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(ModelError, match="not UTF-8"):
        read_rows(tmp_path / "bytes.toml")


def test_litellms_price_map_is_read(tmp_path: Path):
    file = tmp_path / "model_prices.json"
    entries = {
        "sample_spec": {"litellm_provider": "one of …", "input_cost_per_token": 0.0},
        "gpt-5.6-luna": {
            "litellm_provider": "openai",
            "input_cost_per_token": 8e-7,
            "cache_read_input_token_cost": 8e-8,
            "cache_creation_input_token_cost": 1e-6,
            "output_cost_per_token": 6.4e-6,
            "input_cost_per_token_above_272k_tokens": 1.6e-6,
        },
        "anthropic.claude-haiku-4-5-20251001-v1:0": {
            "litellm_provider": "bedrock_converse",
            "input_cost_per_token": 1e-6,
            "cache_creation_input_token_cost": 1.25e-6,
            "cache_creation_input_token_cost_above_1hr": 2e-6,
        },
        "dall-e-3": {"litellm_provider": "openai", "input_cost_per_pixel": 1e-8},
    }
    file.write_text(json.dumps(entries))
    own = read_price_map(file)
    luna = find("openai:gpt-5.6-luna", own=own).prices
    assert (luna.base.input * MILLION, luna.base.write["30m"] * MILLION) == (Decimal("0.8"), 1)
    assert luna.of(300_000).input * MILLION == Decimal("1.6")
    haiku = find("bedrock:anthropic.claude-haiku-4-5-20251001-v1:0", own=own)
    assert haiku.prices.base.write["1h"] * MILLION == 2
    assert haiku.caching.minimum_tokens == 4096
    file.write_text("{}")
    with pytest.raises(ModelError, match="LiteLLM"):
        read_price_map(file)
