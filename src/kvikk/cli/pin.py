"""``kvikk pin``: keep a prompt in a running server's cache, list what is kept, let it go."""

import json
from typing import Annotated
from urllib.parse import quote

import typer

from kvikk.cli import options
from kvikk.errors import RequestError


def pin(
    request_id: Annotated[
        str | None,
        typer.Argument(metavar="[REQUEST_ID]", help="Whose prompt to keep: a response's id."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Keep only so many tokens from its beginning.")
    ] = None,
    remove: Annotated[int | None, typer.Option(metavar="PIN", help="Let this pin go.")] = None,
    url: options.ServerUrl = options.DEFAULT_URL,
    api_key: options.ServerKey = None,
    as_json: options.Json = False,
) -> None:
    """Pin the prompt of a request, so that nothing evicts it; without one, list the pins."""
    from kvikk.wire.client import ApiClient

    if request_id is not None and remove is not None:
        raise RequestError("choose one: a request to pin, or a pin to --remove")
    if tokens is not None and request_id is None:
        raise RequestError("--tokens says how much of a request to pin; name the request as well")
    client = ApiClient(url, api_key)
    if request_id is not None:
        body = {"request": request_id} | ({} if tokens is None else {"tokens": tokens})
        client.send("POST", "v1/kvikk/pins", body)
    elif remove is not None:
        client.send("DELETE", f"v1/kvikk/pins/{quote(str(remove))}")
    listed = client.get("v1/kvikk/pins")
    found = [
        {name: one.get(name).integer(0) for name in ("pin", "tokens", "blocks")}
        for one in listed.get("pins").items()
    ]
    share = listed.get("most_share").number(0, 1)
    if as_json:
        print(json.dumps({"pins": found, "most_share": share}))
        return
    for one in found:
        print(f"pin {one['pin']}: {one['tokens']:,} tokens in {one['blocks']:,} blocks")
    print(f"{len(found)} pins; together they may take {share:.0%} of the cache")
