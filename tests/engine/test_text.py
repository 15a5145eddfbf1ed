"""What a reader sees while tokens stream: whole characters, and nothing of a stop string."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from kvikk.backends.base import Batch, SamplingParameters
from kvikk.engine.engine import Engine
from kvikk.engine.requests import Generation, Output, Request
from kvikk.errors import RequestError
from kvikk.files.sources import resolve
from kvikk.text.tokenizer import Tokenizer, load_tokenizer
from tests.engine.driver import make_engine, plan
from tests.engine.exact_backend import ExactBackend

END_OF_TURN = "<|im_end|>"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve("smollm2"))


class Parrot(ExactBackend):
    """Says one text, whatever it is asked; its blocks work as ever."""

    def __init__(self, script: Sequence[int], vocabulary_size: int) -> None:
        super().__init__()
        self.script = script
        self.vocabulary_size = vocabulary_size

    def forward(self, batch: Batch) -> NDArray[np.float32]:
        super().forward(batch)
        positions = batch.positions[batch.logits_rows]
        logits = np.zeros((len(positions), self.vocabulary_size), np.float32)
        logits[np.arange(len(positions)), [self.script[at] for at in positions]] = 1
        return logits


def say(tokenizer: Tokenizer, text: str, **parameters: object) -> list[Output]:
    """The outputs of one request whose answer is ``text`` and then the end of turn."""
    script = tokenizer.encode(text + END_OF_TURN)
    backend = Parrot(script + script, tokenizer.vocabulary_size)
    shape = plan(num_blocks=(64,), max_context_tokens=256)
    backend.load(None, shape)
    engine = Engine(
        backend,
        shape,
        model_digest=b"parrot",
        vocabulary_size=tokenizer.vocabulary_size,
        tokenizer=tokenizer,
        step_tokens=16,
        max_running=8,
    )
    engine.add(Request("a", [1], Generation(**parameters)))  # type: ignore[arg-type]
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    return outputs


def text_of(outputs: list[Output]) -> str:
    return "".join(output.text for output in outputs)


TEXTS = ["Hello there, how are you?", "naïve café 日本語 → done", "👩‍👩‍👧 family 🎉🎊 and 🦜"]


@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_of_a_stream_join_to_the_text(tokenizer: Tokenizer, text: str) -> None:
    outputs = say(tokenizer, text)
    assert text_of(outputs) == text
    assert outputs[-1].finish_reason == "stop"
    assert outputs[-1].usage.completion_tokens == len(tokenizer.encode(text)) + 1
    assert [output.token_ids for output in outputs[:-1]] == [(t,) for t in tokenizer.encode(text)]


@pytest.mark.parametrize("text", TEXTS)
def test_no_piece_ends_in_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    outputs = say(tokenizer, text)
    assert any(output.text == "" for output in outputs[:-1]) or text.isascii()
    assert not any("\ufffd" in output.text for output in outputs)


def test_a_character_that_never_became_whole_is_shown_as_such_at_the_end(
    tokenizer: Tokenizer,
) -> None:
    parrot = tokenizer.encode("🦜")
    assert len(parrot) > 1
    outputs = say(tokenizer, "🦜", max_tokens=len(parrot) - 1)
    assert [output.text for output in outputs[:-1]] == [""] * (len(parrot) - 2)
    assert outputs[-1].text == "\ufffd"
    assert outputs[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (("how",), "Hello there, "),
        (("lo the",), "Hel"),  # begins in one token and ends in another
        (("you?",), "Hello there, how are "),
        (("there, how are you?",), "Hello "),
        (("H",), ""),
        (("are", "there"), "Hello "),  # the earliest in the text, not in the list
        (("you!",), "Hello there, how are you?"),  # nearly, but no
        (("?x",), "Hello there, how are you?"),  # still held back when the answer ends
    ],
)
def test_text_ends_before_the_first_stop_string(
    tokenizer: Tokenizer, stop: tuple[str, ...], expected: str
) -> None:
    outputs = say(tokenizer, "Hello there, how are you?", stop=stop)
    assert text_of(outputs) == expected
    assert outputs[-1].finish_reason == "stop"
    shown = ""
    for output in outputs:  # nothing of a stop string is ever shown, not even for a moment
        shown += output.text
        assert expected.startswith(shown)


def test_a_stop_string_ends_the_computation_too(tokenizer: Tokenizer) -> None:
    outputs = say(tokenizer, "one two three four five", stop=(" two",))
    assert outputs[-1].usage.completion_tokens == 2


def test_held_back_text_is_given_out_when_the_answer_reaches_its_length(
    tokenizer: Tokenizer,
) -> None:
    outputs = say(tokenizer, "one two three four", max_tokens=2, stop=(" two five",))
    assert text_of(outputs) == "one two"
    assert outputs[-1].finish_reason == "length"


def test_a_stop_token_counts_and_is_not_shown(tokenizer: Tokenizer) -> None:
    three = tokenizer.encode(" three")[0]
    outputs = say(tokenizer, "one two three four", stop_token_ids=(three,))
    assert text_of(outputs) == "one two"
    assert outputs[-1].token_ids == (three,)
    assert outputs[-1].finish_reason == "stop"


def test_ignoring_the_end_of_sequence_goes_on_and_shows_no_control_token(
    tokenizer: Tokenizer,
) -> None:
    outputs = say(tokenizer, "one", ignore_eos=True, max_tokens=3)
    assert text_of(outputs) == "oneone"
    assert outputs[-1].finish_reason == "length"


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    engine, _ = make_engine()
    with pytest.raises(RequestError, match="tokenizer"):
        engine.add(Request("a", [1], Generation(stop=("x",))))


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ("a", "")}, "stop"),
        ({"sampling": SamplingParameters(temperature=-0.1)}, "temperature"),
        ({"sampling": SamplingParameters(temperature=math.nan)}, "temperature"),
        ({"sampling": SamplingParameters(top_k=-1)}, "top_k"),
        ({"sampling": SamplingParameters(top_p=0)}, "top_p"),
        ({"sampling": SamplingParameters(top_p=1.01)}, "top_p"),
    ],
)
def test_senseless_parameters_are_refused_by_name(parameters: dict[str, object], name: str) -> None:
    with pytest.raises(RequestError) as caught:
        Generation(**parameters)  # type: ignore[arg-type]
    assert caught.value.parameter == name
