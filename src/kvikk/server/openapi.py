"""What ``/openapi.json`` says of a route beyond its path and its docstring."""

from typing import Any

from kvikk.wire.schemas import Schema


def takes(schema: Schema) -> dict[str, Any]:
    """The description of a route that takes a JSON body of this ``schema``."""
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


def query(**parameters: Schema) -> dict[str, Any]:
    """The description of a route with these parameters in its query, all of them optional."""
    described = [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in parameters.items()
    ]
    return {"parameters": described}
