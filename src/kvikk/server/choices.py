"""One of the answers to a request, from the engine's tokens and text to what an API writes down."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvikk.engine.requests import Output, TokenLogprob
from kvikk.server.question import Question
from kvikk.text.answer_parts import AnswerSplitter
from kvikk.text.tokenizer import Tokenizer
from kvikk.wire.answer_format import AnswerFormat, Ending
from kvikk.wire.deltas import AnswerDelta, TextDelta, WholeAnswer, join
from kvikk.wire.logprobs import Candidate, TokenLogprobs


@dataclass
class PromptTokens:
    """What was told of a request's prompt; known with the first output of its first answer."""

    logprobs: tuple[TokenLogprobs, ...] | None = None


class Choice:
    """One answer. ``prompt`` is shared by all of a request."""

    def __init__(
        self, form: AnswerFormat, question: Question, tokenizer: Tokenizer, prompt: PromptTokens
    ) -> None:
        self.form = form
        self.has_begun = False
        self.ending: Ending | None = None
        self.num_tokens = 0
        self.num_reasoning_tokens = 0  # the marks around it included
        self._question = question
        self._tokenizer = tokenizer
        self._prompt = prompt
        style = question.prompt.style
        self._splitter = None if style.is_plain else AnswerSplitter(style)
        self._deltas: list[AnswerDelta] = []
        self._logprob = 0.0

    def read(self, output: Output) -> list[AnswerDelta]:
        """What an output of this answer brings; all of it is kept for the whole."""
        deltas = list(self._read(output))
        if not self._question.fields.stream:
            self._deltas += deltas
        self.num_tokens = output.usage.completion_tokens
        self._logprob += sum(token.logprob for token in output.logprobs)
        if output.finish_reason in ("stop", "length"):
            self.ending = Ending(output.finish_reason, output.stop_string)
        return deltas

    @property
    def mean_logprob(self) -> float:
        """Of its tokens: what the best of several has most of."""
        return self._logprob / max(1, self.num_tokens)

    def whole(self) -> WholeAnswer:
        """All that was read."""
        whole = join(self._deltas)
        wants_prompt = self._question.fields.choices.prompt_logprobs is not None
        return replace(whole, prompt_logprobs=self._prompt.logprobs) if wants_prompt else whole

    def _read(self, output: Output) -> Iterator[AnswerDelta]:
        if output.prompt_logprobs is not None:
            self._prompt.logprobs = self._tell_prompt(output.prompt_logprobs)
        logprobs = self._tell(output.logprobs)
        if not self.has_begun and self._question.echo is not None:
            choices = self._question.fields.choices
            told = self._prompt.logprobs if choices.logprobs is not None else None
            yield TextDelta(self._question.echo, told or ())
        self.has_begun = True
        deltas = self._split(output)
        if logprobs and not (deltas and isinstance(deltas[0], TextDelta)):
            yield TextDelta("", logprobs)
        elif logprobs and isinstance(deltas[0], TextDelta):
            deltas[0] = replace(deltas[0], logprobs=logprobs)
        yield from deltas

    def _split(self, output: Output) -> list[AnswerDelta]:
        if self._splitter is None:
            return [TextDelta(output.text)] if output.text else []
        was_thinking = self._splitter.is_thinking
        deltas = self._splitter.push(output.text)
        if was_thinking or self._splitter.is_thinking:
            self.num_reasoning_tokens += len(output.token_ids)
        return deltas + self._splitter.finish() if output.finish_reason else deltas

    def _tell_prompt(self, told: Sequence[TokenLogprob]) -> tuple[TokenLogprobs, ...]:
        first = self._candidate(self._question.prompt.token_ids[0], 0.0)
        return (TokenLogprobs(first, is_first=True), *self._tell(told))

    def _tell(self, told: Sequence[TokenLogprob]) -> tuple[TokenLogprobs, ...]:
        if self._question.fields.choices.tells_nothing:
            return ()
        return tuple(
            TokenLogprobs(
                self._candidate(token.token_id, token.logprob),
                token.rank,
                tuple(self._candidate(*one) for one in token.top),
            )
            for token in told
        )

    def _candidate(self, token_id: int, logprob: float) -> Candidate:
        return Candidate(token_id, self._tokenizer.token_bytes(token_id, special=True), logprob)


@dataclass
class Choices:
    """All answers to one request, by number."""

    choices: list[Choice]
    count: int  # to be sent: the likeliest, where more were made

    def __getitem__(self, number: int) -> Choice:
        return self.choices[number]

    @property
    def num_tokens(self) -> int:
        """Of all answers, those that are not sent included."""
        return sum(choice.num_tokens for choice in self.choices)

    @property
    def num_reasoning_tokens(self) -> int:
        """Of those, what was thought and not said."""
        return sum(choice.num_reasoning_tokens for choice in self.choices)

    @property
    def finish_reasons(self) -> list[str]:
        """Of those that have ended by themselves."""
        return [choice.ending.reason for choice in self.choices if choice.ending is not None]

    def best(self) -> list[Choice]:
        """Those that are sent, in the order in which they are."""
        if self.count == len(self.choices):
            return self.choices
        return sorted(self.choices, key=lambda choice: -choice.mean_logprob)[: self.count]
