"""What a request asks for, read from its body once; the body itself goes on as it came."""

import hashlib

import orjson

from kvikk.router.proxy.keys import Tenant
from kvikk.router.proxy.messages import RefusalError
from kvikk.router.proxy.placement import Asked
from kvikk.router.proxy.request import ClientRequest


def ask(request: ClientRequest, tenant: Tenant, passes_keys: bool) -> Asked:
    """The request as a placement sees it. Raises RefusalError.

    Where the router has no keys of its own and callers' keys go on to replicas (``passes_keys``),
    each key is a tenant to them.
    """
    head, value, model = request.head, None, ""
    if request.body and b"json" in head.by_name.get(b"content-type", b"json"):
        try:
            value = orjson.loads(request.body)
        except orjson.JSONDecodeError as error:
            raise RefusalError(400, f"the body is not valid JSON: {error}") from None
        if not isinstance(value, dict):
            raise RefusalError(400, "the body: expected a JSON object")
        named = value.get("model")
        if named is not None and not isinstance(named, str):
            raise RefusalError(400, "model: expected a string")
        model = named or ""
    salt = tenant.salt
    if not salt and passes_keys:
        bearer = head.by_name.get(b"authorization")
        if bearer is not None:
            salt = hashlib.sha256(b"kvikk tenant\0" + bearer.partition(b" ")[2].strip()).digest()
    return Asked(request.id, head.path, model, tenant.name, salt, request.body, value, head.by_name)
