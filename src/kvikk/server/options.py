"""What can be chosen when a server is started."""

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import TIMEOUT_MAX

from kvikk.engine.options import EngineOptions
from kvikk.errors import ModelError
from kvikk.server.billing.rules import ServedRules, load_rules
from kvikk.server.clock import Clock

DEFAULT_PORT = 8000
_MOST_SEND_TIMEOUT_S = 24 * 3600


@dataclass(frozen=True)
class ServerOptions:
    """Options of one server. Raises ModelError for a value that makes no sense.

    Without ``api_keys`` everybody who reaches the port may ask; with more than one, each is a
    tenant that shares no cache with the others, and what touches all of them needs the
    ``operator_key``. A tenant has at most ``tenant_requests`` at once, running or waiting (None:
    half of all that may be, where there are several tenants). ``max_body_bytes`` bounds a request's
    body. A client that takes nothing of its answer for ``send_timeout_s`` is cut off.
    ``access_log`` is a file that gets a line of JSON for each. On SIGTERM running answers get
    ``drain_s`` seconds to finish. ``port`` 0 takes any free one.
    ``ledger_log`` is a file that gets a line for each request, with its prompt if ``ledger_text``.
    ``rules`` names the provider's rules that usage is reported by; ``rules_file`` and ``price_map``
    add to those that are known. ``clock`` is a file with seconds to add to the time for these.
    ``price_per_hour`` is what the machine costs. ``kv_events`` is the ZeroMQ address where changes
    of the cache are published, ``kv_events_replay`` where they are repeated. Conversations go to
    sleep ``sleep_after_s`` after their last answer; None: only when told. ``otlp_traces_endpoint``
    is the address of a collector that gets spans of each request.
    """

    engine: EngineOptions = field(default_factory=EngineOptions)
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    api_keys: tuple[str, ...] = ()
    operator_key: str | None = None
    tenant_requests: int | None = None
    access_log: Path | None = None
    max_body_bytes: int = 4 << 20
    send_timeout_s: float = 60.0
    drain_s: float = 60.0
    ledger_log: Path | None = None
    ledger_text: bool = False
    rules: str | None = None
    rules_file: Path | None = None
    price_map: Path | None = None
    clock: Path | None = None
    price_per_hour: float | None = None
    kv_events: str | None = None
    kv_events_replay: str | None = None
    sleep_after_s: float | None = None
    otlp_traces_endpoint: str | None = None

    @property
    def most_requests_a_tenant(self) -> int | None:
        """How many requests one tenant may have at once; None where there is but one."""
        if self.tenant_requests is not None:
            return self.tenant_requests
        several = len(self.api_keys) + (self.operator_key is not None) > 1
        return max(1, (self.engine.max_running + self.engine.max_queue) // 2) if several else None

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise ModelError(f"port {self.port} is not one of 0 to 65535")
        if self.sleep_after_s is not None:
            if not 0 < self.sleep_after_s <= TIMEOUT_MAX:
                raise ModelError(f"conversations cannot sleep after {self.sleep_after_s:g} s")
            tiers = (self.engine.host_tier_bytes, self.engine.disk_tier, self.engine.redis_tier)
            if all(tier is None for tier in tiers):
                raise ModelError("conversations sleep in a tier; choose --host-tier or another")
        if self.engine.tenant_share * len(self.api_keys) > 1:
            raise ModelError(
                f"{len(self.api_keys)} tenants cannot have {self.engine.tenant_share:g} of the "
                "cache each"
            )
        operator = () if self.operator_key is None else (self.operator_key,)
        for key in self.api_keys + operator:
            # The rules of the header that carries it; the key itself is never shown.
            if not key.isascii() or not key.isprintable() or key != key.strip() or not key:
                raise ModelError("an API key is empty or has characters no header can carry")
        if self.engine.ledger_memory_bytes is None:
            raise ModelError("a server keeps a ledger; its memory is at least 1 byte")
        if self.ledger_text and self.ledger_log is None:
            raise ModelError("prompts are for a ledger log; choose its file with --ledger-log")
        if self.kv_events_replay is not None and self.kv_events is None:
            raise ModelError("nothing is published that could be repeated; choose --kv-events")
        if self.tenant_requests is not None and self.tenant_requests < 1:
            raise ModelError(f"a tenant's limit is {self.tenant_requests}; at least 1 is needed")
        if self.max_body_bytes < 1:
            raise ModelError(f"the body limit is {self.max_body_bytes} bytes; at least 1 is needed")
        if not 0 < self.send_timeout_s <= _MOST_SEND_TIMEOUT_S:
            raise ModelError(
                f"the time for a client to take something is {self.send_timeout_s:g} s; it must be "
                f"above 0 and at most {_MOST_SEND_TIMEOUT_S:,}"
            )
        if not 0 <= self.drain_s <= TIMEOUT_MAX:
            raise ModelError(
                f"the time to drain is {self.drain_s:g} s; it must be 0 to {TIMEOUT_MAX:g}"
            )
        price = self.price_per_hour
        if price is not None and not (math.isfinite(price) and price >= 0):
            raise ModelError(f"the price per hour is {price:g}; it must be a number from 0 on")

    def load_clock(self) -> Clock:
        """The clock of lifetimes and bills. Raises ModelError if its file is not usable."""
        return Clock(self.clock)

    def load_rules(self) -> ServedRules | None:
        """The rules as of today, by that clock. Raises ModelError if there are none of the name."""
        today = datetime.fromtimestamp(self.load_clock()(), UTC).date()
        return load_rules(self.rules, self.rules_file, self.price_map, today)
