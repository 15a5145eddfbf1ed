"""What can be chosen when a fleet is started."""

from dataclasses import dataclass, field
from typing import Literal

from kvikk.errors import ModelError
from kvikk.router.policies import DEFAULT_POLICY, POLICIES
from kvikk.server.options import ServerOptions


@dataclass(frozen=True)
class Replicas:
    """How many engines, and where. Raises ModelError for what makes no sense.

    Serve keeps between ``least`` and ``most`` of them, so many that each has ``waiting_tokens``
    prompt tokens waiting on average over ``window_s``. Each reserves ``cpus`` and ``gpus`` of a
    node, and at most ``per_node`` share one (None: any number).
    """

    least: int = 1
    most: int = 1
    waiting_tokens: int = 4096
    window_s: float = 15.0
    upscale_delay_s: float = 10.0
    downscale_delay_s: float = 300.0
    cpus: float = 1.0
    gpus: float = 0.0
    per_node: int | None = None

    def __post_init__(self) -> None:
        if self.least < 1:
            raise ModelError(f"replicas.min is {self.least}; at least 1 is needed")
        if self.most < self.least:
            raise ModelError(f"replicas.max is {self.most}, below replicas.min, {self.least}")
        if self.waiting_tokens < 1 or not self.window_s > 0:
            raise ModelError("replicas.waiting_tokens and replicas.window must be above 0")
        if min(self.upscale_delay_s, self.downscale_delay_s, self.cpus, self.gpus) < 0:
            raise ModelError("a delay or a resource of replicas is negative")
        if self.per_node is not None and not 1 <= self.per_node <= 100:
            raise ModelError(f"replicas.per_node is {self.per_node}; it must be 1 to 100")


@dataclass(frozen=True)
class FleetOptions:
    """One fleet: an application of Ray Serve of this ``name``.

    ``server`` is what each replica is started with, and where the ingress listens. ``ray`` is the
    address of a cluster, ``auto`` for the one this machine belongs to, ``local`` for one of its
    own that ends with it. ``proxies`` says where Serve listens: on ``every`` node that has a
    replica, or on the ``head`` alone. At most ``most_waiting`` requests wait in the ingress; one
    that failed before its first byte is sent ``retries`` times more.
    """

    name: str = "kvikk"
    ray: str = "local"
    proxies: Literal["every", "head"] = "every"
    server: ServerOptions = field(default_factory=ServerOptions)
    replicas: Replicas = field(default_factory=Replicas)
    policy: str = DEFAULT_POLICY
    most_waiting: int = 1024
    retries: int = 2

    def __post_init__(self) -> None:
        if not self.name or not self.name.replace("-", "").replace("_", "").isalnum():
            raise ModelError(f"the fleet's name {self.name!r} has more than letters, digits, - _")
        if self.policy not in POLICIES:
            raise ModelError(f"policy {self.policy!r} is not one of {', '.join(POLICIES)}")
        if self.proxies not in ("every", "head"):
            raise ModelError(f"proxies is {self.proxies!r}; it must be every or head")
        if self.most_waiting < 0 or self.retries < 0:
            raise ModelError("waiting and retries cannot be negative")
