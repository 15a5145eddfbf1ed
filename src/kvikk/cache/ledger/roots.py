"""Root keys by what they are made of."""

from dataclasses import dataclass, fields

from kvikk.cache.keys import root_key


@dataclass(frozen=True, slots=True)
class Root:
    """What a root key is made of, by name, so that a change of it can be named."""

    key: bytes
    model: bytes = b""
    adapter: bytes = b""
    kv_dtype: str = ""
    numerics: str = ""
    salt: bytes = b""

    @classmethod
    def of(
        cls,
        *,
        block_size: int,
        model: bytes,
        kv_dtype: str,
        numerics: str,
        adapter: bytes = b"",
        salt: bytes = b"",
    ) -> "Root":
        """The root key of these parts; see ``keys.root_key``."""
        key = root_key(
            model=model,
            block_size=block_size,
            kv_dtype=kv_dtype,
            numerics=numerics,
            adapter=adapter,
            salt=salt,
        )
        return cls(key, model, adapter, kv_dtype, numerics, salt)

    def differs_in(self, other: "Root") -> list[str]:
        """The names of the parts in which two differ."""
        names = [part.name for part in fields(Root)[1:]]
        return [name for name in names if getattr(self, name) != getattr(other, name)]
