"""The experiments against our own server, under the rules of providers that they are not told."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest

from kvikk.engine.options import EngineOptions
from kvikk.errors import ModelError, RequestError
from kvikk.pricing.unknown import Unknown
from kvikk.probe import floor, keys, lifetime, placement, routing
from kvikk.probe.api import Api, Interrupted, Prompt, Style
from kvikk.probe.handbook import handbook
from kvikk.probe.money import Tariff
from kvikk.probe.run import Run
from kvikk.server.options import ServerOptions
from tests.probe.relays import relay, without_cache_counters, without_zeros
from tests.server.live import LiveServer, start

WORDS_OF_1200_TOKENS = 860
WORDS_OF_2300_TOKENS = 1650


Serving = Callable[..., "Served"]


@dataclass(frozen=True)
class Served:
    """A server under rules, and the file that sets its clock ahead."""

    live: LiveServer
    clock: Path


@pytest.fixture(scope="module")
def serving(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A way to a server by its rules; nonces keep apart the tests that share one."""
    running: dict[str, Served] = {}

    with ExitStack() as stack:

        def serve(rules: str | None, **fields: object) -> Served:
            name = repr((rules, fields))
            if name not in running:
                engine = EngineOptions(
                    model=str(tiny_model),
                    threads=1,
                    kv_memory_bytes=64 << 20,
                    max_running=fields.pop("max_running", 8),
                    max_queue=fields.pop("max_queue", 8),
                )
                clock = tmp_path_factory.mktemp("clock") / "ahead"
                clock.write_text("0\n")
                options = ServerOptions(engine, port=0, rules=rules, clock=clock, **fields)
                running[name] = Served(stack.enter_context(start(options)), clock)
            return running[name]

        yield serve


def run_against(
    live: LiveServer, prices: str | None = None, style: Style = "openai", **options: object
) -> Run:
    api = Api(f"{live.url}/v1", style=style, patience_s=options.pop("patience_s", 120))
    api.model = api.first_model()
    return Run(api, Tariff(prices), **options)


def first_words(count: int) -> str:
    return " ".join(handbook().split()[:count])


@pytest.mark.parametrize(
    ("rules", "words", "hits_of_b", "bill_of_c", "bill_of_others"),
    [
        ("openai:gpt-4o", WORDS_OF_1200_TOKENS, 7, None, None),
        ("openai:gpt-5.4", WORDS_OF_2300_TOKENS, 7, None, None),
        ("openai:gpt-5.6", WORDS_OF_1200_TOKENS, 0, 0.25, 1.25),
    ],
)
def test_placement_finds_what_the_essay_measured(
    serving, rules: str, words: int, hits_of_b: int, bill_of_c: float | None, bill_of_others
) -> None:
    live = serving(rules).live
    run = run_against(live, rules)
    found = dict(placement.placement(run, first_words(words)))
    assert {name: (one.hits, one.of) for name, one in found.items()} == {
        "A": (0, 7),
        "B": (hits_of_b, 7),
        "C": (7, 7),
        "D": (0, 7),
    }
    assert not any(one.contaminated for one in found.values())
    if bill_of_c is not None:
        ratios = {name: float(one.bill_ratio) for name, one in found.items()}
        assert ratios.pop("C") == pytest.approx(bill_of_c, abs=0.03)
        assert list(ratios.values()) == pytest.approx([bill_of_others] * 3, abs=0.03)


@pytest.mark.parametrize(
    ("rules", "floor_tokens", "step_tokens"),
    [
        (None, 32, 32),
        ("openai:gpt-4o", 1024, 128),
        ("openai:gpt-5.4", 2048, 128),
        ("openai:gpt-5.6", 1024, 1),
        ("openai:gpt-5.5", 2048 - 128, 2048),  # as many hidden tokens count too
    ],
)
def test_floor_finds_the_minimum_and_the_step_blind(
    serving, rules: str | None, floor_tokens: int, step_tokens: int
) -> None:
    live = serving(rules).live
    found = floor.floor(run_against(live), 4_200)
    assert found.floor_tokens == floor_tokens
    assert found.step_tokens == step_tokens
    assert not found.contaminated


def test_floor_finds_a_models_minimum_over_messages_too(serving) -> None:
    live = serving("anthropic:claude-sonnet-4-5").live
    found = floor.floor(run_against(live, style="anthropic"), 2_000)
    assert found.floor_tokens == 1024
    assert found.step_tokens == 1


def test_a_run_without_nonces_is_contaminated_by_the_one_before_it(serving) -> None:
    live = serving("openai:gpt-4o").live
    text = first_words(WORDS_OF_1200_TOKENS)
    runs = [
        dict(placement.placement(run_against(live, nonces=nonces), text))
        for nonces in (False, False, True)
    ]
    contaminated = [[name for name in found if found[name].contaminated] for found in runs]
    assert contaminated == [[], ["A", "B", "C", "D"], []]
    assert "an earlier run wrote" in (runs[1]["C"].contaminated or "")


def test_routing_hits_on_one_engine_with_a_key_and_without(serving) -> None:
    live = serving(None).live
    found = {name: arm.to_json() for name, arm in routing.routing(run_against(live), 300)}
    expected = {"hits": 7, "of": 7, "contaminated": False}
    assert found == {"without_key": expected, "with_key": expected}


def test_lifetime_brackets_how_long_an_entry_lives_by_the_servers_clock(serving) -> None:
    waits_s = (0, 240, 290, 310, 3_500, 3_700)
    served = serving("anthropic:claude-sonnet-4-5")
    run = run_against(served.live, style="anthropic")
    short = lifetime.lifetime(run, waits_s, lifetime.Clock(served.clock), {}, 1_400)
    assert (short.survived_s, short.gone_s) == (290, 310)
    assert [hit for _, hit in short.waits] == [True, True, True, False, False, False]


def test_keys_tells_what_belongs_to_an_entrys_key(serving) -> None:
    live = serving("openai:gpt-4o").live
    found = {
        name: effect.to_json()["breaks_reuse"]
        for name, effect in keys.keys(run_against(live), None, 1_400)
    }
    assert found["nothing"] is False
    assert found["temperature"] is False
    assert found["order of tools"] is True
    assert found["a tool more"] is True
    assert found["salt"] is True


def test_keys_says_so_where_nothing_is_cached_at_all(serving) -> None:
    live = serving("openai:gpt-4o").live
    with pytest.raises(RequestError, match="below the min"):
        dict(keys.keys(run_against(live), None, 300))


def test_a_busy_api_is_waited_for_and_what_is_done_is_kept(serving, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    live = serving(None, max_running=1, max_queue=0).live

    def occupied(run: Run, then: Callable[[], object]) -> object:
        # Sampled, since what repeats itself is guessed ahead and over too soon.
        body = {"model": run.api.model, "prompt": "x", "max_tokens": 16_000, "stream": True}
        body |= {"ignore_eos": True}
        while True:  # refused for as long as the answer before is on its way out
            with live.http.stream("POST", "/v1/completions", json=body) as answer:
                if answer.is_success:
                    lines = answer.iter_lines()  # dropped, it would hang up
                    next(lines)
                    return then()

    patient = run_against(live, record=record, setup="same")
    waits: list[str] = []
    patient.api._on_wait = lambda seconds, why: waits.append(why)
    asked = threading.Thread(target=lambda: dict(routing.routing(patient, 60)))
    occupied(patient, lambda: (asked.start(), live.wait_for(lambda: waits)))
    asked.join()
    assert len(patient.exchanges) == 4 + 8 + 8

    # Half of it undone: the arm that was whole is not asked for again.
    lines = record.read_text().splitlines()
    record.write_text("\n".join(lines[:2]) + "\n" + lines[2][:50])
    again = run_against(live, record=record, setup="same", patience_s=0.5)
    with pytest.raises(Interrupted, match="is busy"):
        occupied(again, lambda: dict(routing.routing(again, 60)))
    assert len(again.exchanges) == 4 + 8
    rest = run_against(live, record=record, setup="same")
    assert len(dict(routing.routing(rest, 60))) == 2
    assert [json.loads(line)["arm"] for line in record.read_text().splitlines()] == [
        json.loads(line)["arm"] for line in lines
    ]
    other = run_against(live, record=record, setup="another", patience_s=0.5)
    with pytest.raises(Interrupted):
        occupied(other, lambda: dict(routing.routing(other, 60)))
    assert not other.exchanges


def test_a_run_stops_where_its_money_ends(serving) -> None:
    live = serving("openai:gpt-4o").live
    run = run_against(live, "openai:gpt-4o", max_cost=Decimal("0.0005"))
    with pytest.raises(Interrupted, match="--max-cost"):
        dict(routing.routing(run, 100))
    spent = run.tariff.spent(exchange.counts for exchange in run.exchanges)
    assert isinstance(spent, Decimal)
    assert Decimal("0.0005") <= spent < Decimal("0.002")


def run_through(url: str, prices: str | None = None) -> Run:
    return Run(Api(f"{url}/v1", "tiny"), Tariff(prices))


def test_an_api_that_tells_nothing_of_its_cache_is_unknown_and_not_a_miss(serving) -> None:
    served = serving("openai:gpt-5.6")
    with relay(served.live.url, without_cache_counters) as url:
        text = first_words(WORDS_OF_1200_TOKENS)
        found = dict(placement.placement(run_through(url, "openai:gpt-5.6"), text))
        assert {arm.hits for arm in found.values()} == {None}
        assert all(isinstance(arm.bill_ratio, Unknown) for arm in found.values())
        arms = dict(routing.routing(run_through(url), 100))
        assert [arm.to_json()["hits"] for arm in arms.values()] == [None, None]
        clock = lifetime.Clock(served.clock)
        for experiment in (
            lambda: floor.floor(run_through(url), 400),
            lambda: lifetime.lifetime(run_through(url), (0, 60), clock, {}, 100),
            lambda: dict(keys.keys(run_through(url), None, 100)),
        ):
            with pytest.raises(RequestError, match="is unknown"):
                experiment()


def test_an_api_that_leaves_zeros_out_is_told_from_one_that_tells_nothing(serving) -> None:
    live = serving("openai:gpt-4o").live
    with relay(live.url, without_zeros) as url:
        found = floor.floor(run_through(url), 2_000)
        assert (found.floor_tokens, found.step_tokens) == (1024, 128)
        arms = dict(routing.routing(run_through(url), 1_000))
        assert [arm.to_json()["hits"] for arm in arms.values()] == [7, 7]


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        "many",
        {},
        {"prompt_tokens": None},
        {"prompt_tokens": "12"},
        {"prompt_tokens": -1},
        {"prompt_tokens": 12, "prompt_tokens_details": [1]},
        {"prompt_tokens": 12, "prompt_tokens_details": {"cached_tokens": "all"}},
        {"prompt_tokens": 12, "prompt_tokens_details": {"cached_tokens": True}},
        {"prompt_tokens": 12, "prompt_cache_hit_tokens": 1.5},
    ],
)
def test_a_usage_that_makes_no_sense_is_told(serving, usage: object) -> None:
    with (
        relay(serving("openai:gpt-4o").live.url, lambda _: usage) as url,
        pytest.raises(RequestError, match="without a usage that can be read"),
    ):
        Api(f"{url}/v1", "tiny").ask(Prompt(("x",)))


def test_a_limit_that_cannot_be_kept_any_more_stops_the_run(serving) -> None:
    live = serving("openai:gpt-4o").live
    run = run_against(live, "openai:gpt-5.6-sol", max_cost=Decimal(1))
    with pytest.raises(Interrupted, match=r"cannot be kept: no price of .* for output"):
        dict(routing.routing(run, 100))
    assert len(run.exchanges) == 1


def test_money_that_nobody_knows_is_unknown_and_never_zero() -> None:
    assert isinstance(Tariff(None).most(placement.planned("a b c")), Unknown)
    assert isinstance(Tariff(None).ratio([]), Unknown)
    with pytest.raises(ModelError, match="no rules of 'openai:gpt-0'"):
        Tariff("openai:gpt-0")
    most = Tariff("openai:gpt-4o").most(placement.planned(handbook()))
    assert isinstance(most, Decimal)
    assert Decimal("0.3") < most < Decimal(1)


def test_errors_are_one_line_in_the_apis_own_words(serving) -> None:
    with pytest.raises(ModelError, match="cannot be reached"):
        Api("http://127.0.0.1:9/v1", "m").ask(Prompt(("x",)))
    with pytest.raises(ModelError, match="cannot be used"):
        Api("ftp://x", "m")
    live = serving(None, api_keys=("key-of-ada",)).live
    for key in (None, "wrong"):
        with pytest.raises(RequestError, match="answered 401: "):
            Api(f"{live.url}/v1", "tiny", api_key=key).ask(Prompt(("x",)))
    api = Api(f"{live.url}/v1", "no such model", api_key="key-of-ada")
    with pytest.raises(RequestError, match=r"answered 404: .*no such model"):
        api.ask(Prompt(("x",)))
    with pytest.raises(RequestError, match="answered 404"):
        Api(live.url, "tiny", api_key="key-of-ada").ask(Prompt(("x",)))


def test_a_record_that_is_none_is_refused(serving, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    for text in ("{", "[1]", json.dumps({"setup": "x"}) + "\n{}"):
        record.write_text(text)
        with pytest.raises(RequestError, match=r"line [12] is none"):
            Run(Api("http://127.0.0.1:9/v1", "m"), Tariff(None), record=record)


def test_the_handbook_is_as_long_as_the_essays(smollm2_tokenizer, gemma3_tokenizer) -> None:
    for tokenizer in (smollm2_tokenizer, gemma3_tokenizer):
        assert len(tokenizer.encode(handbook(), add_bos=False)) == pytest.approx(5144, rel=0.02)
