"""The ledger log of our own server, where its operator asked for text.

A line has the whole prompt as the template rendered it, so a place in it is a character and no
part of a body. Its spans say what was really reused.
"""

from typing import Any

from kvikk.audit.readers.found import Found, number, text


def read_ledger_line(record: dict[str, Any]) -> list[Found] | None:
    """One exchange of a line of the ledger log; none without text; None for any other record."""
    spans = record.get("spans")
    if not isinstance(spans, list) or "block_keys" not in record:
        return None
    prompt = text(record, "text")
    if not prompt:
        return []
    hit = sum(
        span["stop"] - span["start"]
        for span in spans
        if isinstance(span, dict) and str(span.get("cause")).startswith("hit.")
    )
    usage = {
        "input_tokens": record.get("prompt_tokens"),
        "input_tokens_details": {"cached_tokens": hit},
    }
    return [
        Found(
            {"model": text(record, "model"), "input": prompt},
            api="responses",
            provider="self_hosted",
            usage=usage,
            known={
                "id": text(record, "id"),
                "at_s": number(record, "at"),
                "account": text(record, "tenant"),
            },
        )
    ]
