"""kvikk's own log line: ``request`` is the body, the rest is what is known of it."""

from typing import Any

from kvikk.audit.readers.found import Found, number, text, whole


def read_own_line(record: dict[str, Any]) -> list[Found] | None:
    """One exchange of a line with a ``request``; None for any other record. No header is read."""
    body = record.get("request")
    if not isinstance(body, dict):
        return None
    return [
        Found(
            body,
            api=text(record, "api"),
            provider=text(record, "provider"),
            response=record.get("response"),
            upstream=record.get("upstream_request"),
            usage=record.get("usage"),
            known={
                "id": text(record, "id"),
                "at_s": number(record, "at_s"),
                "first_byte_s": number(record, "first_byte_s"),
                "account": text(record, "account"),
                "host": text(record, "host"),
                "status": whole(record, "status"),
            },
        )
    ]
