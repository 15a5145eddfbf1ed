"""What a router is told when it starts."""

from dataclasses import dataclass, field
from pathlib import Path

from kvikk.router.proxy.keys import TenantLimits


@dataclass(frozen=True)
class RouterOptions:
    """A router. Times are seconds, 0 replicas or requests is no limit where a limit is meant."""

    replicas: tuple[str, ...] = ()
    replicas_file: Path | None = None
    replicas_dns: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    admin_key: str | None = field(default=None, repr=False)
    replica_key: str | None = field(default=None, repr=False)
    limits: TenantLimits = field(default_factory=TenantLimits)
    replica_concurrency: int = 0
    max_queue: int = 1024
    queue_timeout_s: float = 30.0
    max_body_bytes: int = 32 << 20
    max_buffered_bytes: int = 1 << 30
    max_connections: int = 0
    retries: int = 2
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 600.0
    idle_timeout_s: float = 300.0
    total_timeout_s: float = 3600.0
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    keep_alive_s: float = 75.0
    health_interval_s: float = 2.0
    drain_s: float = 60.0
    ca_file: Path | None = None
    access_log: Path | None = None
    forward: tuple[str, ...] = ()
