"""``FLEET.yaml``: what a fleet is, as people write it.

model: smollm2
port: 8000
policy: weighted
replicas: {min: 1, max: 4, waiting_tokens: 4096}
engine: {threads: 2, kv_memory: 2GiB}
tiers: {redis: $KVIKK_REDIS}
keys: {tenants: [$KEY_OF_A, $KEY_OF_B], operator: $OPERATOR}
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvikk.engine.options import EngineOptions
from kvikk.errors import ModelError, RequestError
from kvikk.fleet.options import FleetOptions, Replicas
from kvikk.fleet.yaml_file import Field, open_yaml
from kvikk.server.options import ServerOptions

# Each field's name in the file, in the options, and how it is read.
_Fields = Mapping[str, tuple[str, Callable[[Field], Any]]]

_REPLICAS: _Fields = {
    "min": ("least", Field.integer),
    "max": ("most", Field.integer),
    "waiting_tokens": ("waiting_tokens", Field.integer),
    "window": ("window_s", Field.number),
    "upscale_delay": ("upscale_delay_s", Field.number),
    "downscale_delay": ("downscale_delay_s", Field.number),
    "cpus": ("cpus", Field.number),
    "gpus": ("gpus", Field.number),
    "per_node": ("per_node", Field.integer),
}
_ENGINE: _Fields = {
    "backend": ("backend", Field.text),
    "threads": ("threads", Field.integer),
    "kv_memory": ("kv_memory_bytes", Field.size),
    "kv_dtype": ("kv_dtype", Field.text),
    "block_size": ("block_size", Field.integer),
    "max_context": ("max_context_tokens", Field.integer),
    "prefix_cache": ("prefix_caching", Field.boolean),
    "speculation": ("speculation", Field.boolean),
    "step_tokens": ("step_tokens", Field.integer),
    "max_running": ("max_running", Field.integer),
    "max_queue": ("max_queue", Field.integer),
    "chat_template": ("chat_template", lambda field: Path(field.text()).expanduser()),
    "ledger_memory": ("ledger_memory_bytes", Field.size),
    "eviction": ("eviction", lambda field: field.text().replace("-", "_")),
    "tenant_share": ("tenant_share", Field.number),
}
_TIERS: _Fields = {
    "host": ("host_tier_bytes", Field.size),
    "disk": ("disk_tier", lambda field: Path(field.text()).expanduser()),
    "disk_size": ("disk_tier_bytes", Field.size),
    "redis": ("redis_tier", Field.text),
    "redis_expire": ("redis_tier_expire_s", Field.number),
}
_SERVER: _Fields = {
    "host": ("host", Field.text),
    "port": ("port", Field.integer),
    "max_body": ("max_body_bytes", Field.size),
    "drain": ("drain_s", Field.number),
    "sleep_after": ("sleep_after_s", Field.number),
    "rules": ("rules", Field.text),
    "price_per_hour": ("price_per_hour", Field.number),
}
_KEYS: _Fields = {
    "tenants": ("api_keys", lambda field: tuple(item.text() for item in field.items())),
    "operator": ("operator_key", Field.text),
    "tenant_requests": ("tenant_requests", Field.integer),
}
_FLEET: _Fields = {
    "name": ("name", Field.text),
    "ray": ("ray", Field.text),
    "proxies": ("proxies", Field.text),
    "policy": ("policy", lambda field: field.text().replace("-", "_")),
    "retries": ("retries", Field.integer),
    "waiting": ("most_waiting", Field.integer),
}
_SECTIONS = ("model", "replicas", "engine", "tiers", "keys")


def read_fleet(file: Path) -> FleetOptions:
    """The options that a file asks for. RequestError, naming file, line and field, for nonsense."""
    top = open_yaml(file)
    fields = top.members({*_SECTIONS, *_SERVER, *_FLEET})
    model = fields["model"]
    replicas = Replicas(**_section(fields["replicas"], _REPLICAS, Replicas))
    engine = _section(fields["engine"], _ENGINE, EngineOptions)
    engine |= {} if model.is_absent else {"model": model.text()}
    engine |= _section(fields["tiers"], _TIERS, EngineOptions, **engine)
    whole_engine = EngineOptions(**engine)
    keys = _section(fields["keys"], _KEYS, ServerOptions, engine=whole_engine)
    with _blaming(top):
        server = ServerOptions(engine=whole_engine, **keys, **_read_from(fields, _SERVER))
        return FleetOptions(server=server, replicas=replicas, **_read_from(fields, _FLEET))


def _section(
    section: Field, table: _Fields, options: Callable[..., object], **known: Any
) -> dict[str, Any]:
    """What a section says, which ``options`` take together with what is ``known`` before it."""
    with _blaming(section):
        found = _read_from(section.members(table), table)
        options(**known, **found)
    return found


def _read_from(fields: Mapping[str, Field], table: _Fields) -> dict[str, Any]:
    return {
        name: read(fields[key]) for key, (name, read) in table.items() if not fields[key].is_absent
    }


@contextmanager
def _blaming(field: Field) -> Iterator[None]:
    """What the options say of values that make no sense, with the place that they came from."""
    try:
        yield
    except RequestError:
        raise
    except ModelError as error:
        field.fail(f"makes no sense: {error}" if field.path else str(error))
