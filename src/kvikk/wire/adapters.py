"""Bodies that load and unload adapters, in vLLM's form."""

from dataclasses import dataclass

from kvikk.wire.reading import JsonValue


@dataclass(frozen=True)
class LoadAdapterRequest:
    """The body of ``POST /v1/load_lora_adapter``: a name, and a folder on the server's machine."""

    name: str
    path: str

    @classmethod
    def from_json(cls, body: JsonValue) -> "LoadAdapterRequest":
        """Read a body. Raises RequestError, naming the field."""
        return cls(body.get("lora_name").string(), body.get("lora_path").string())


@dataclass(frozen=True)
class UnloadAdapterRequest:
    """The body of ``POST /v1/unload_lora_adapter``."""

    name: str

    @classmethod
    def from_json(cls, body: JsonValue) -> "UnloadAdapterRequest":
        """Read a body. Raises RequestError, naming the field."""
        return cls(body.get("lora_name").string())
