"""What a request asks of its answers, in the engine's words."""

from kvikk.backends.base import SamplingParameters
from kvikk.engine.requests import Generation
from kvikk.server.question import Question
from kvikk.text.grammars import Grammar


def to_generation(question: Question, grammar: Grammar | None) -> Generation:
    """How to go on from a question's prompt. Raises RequestError for what makes no sense."""
    fields, choices = question.fields, question.fields.choices
    num_prompt_logprobs = choices.prompt_logprobs
    if num_prompt_logprobs is None and choices.echo:
        num_prompt_logprobs = choices.logprobs  # the prompt is part of the answer
    # The best of several is the likeliest.
    num_logprobs = 0 if choices.logprobs is None and choices.best_of else choices.logprobs
    return Generation(
        max_tokens=fields.max_tokens,
        sampling=SamplingParameters(fields.temperature, fields.top_k, fields.top_p, fields.min_p),
        seed=fields.seed,
        stop=fields.stop,
        stop_token_ids=fields.stop_token_ids,
        ignore_eos=fields.ignore_eos,
        min_tokens=fields.min_tokens,
        choices=choices.num_made,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        repetition_penalty=fields.repetition_penalty,
        logit_bias=fields.logit_bias,
        grammar=grammar,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
        shown_token_ids=question.prompt.shown_token_ids,
    )
