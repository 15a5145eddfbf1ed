"""Replicas across machines, on an existing distributed engine.

Ray Serve places, restarts and scales the replicas; what it lacks is here: the router's policies
and its index inside a Serve request router, an ingress, and the fleet's ledger. Importing this
package does not import Ray.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvikk.fleet.deployments import application as application

__all__ = ["application"]


def __getattr__(name: str) -> Any:
    if name == "application":
        from kvikk.fleet.deployments import application

        return application
    raise AttributeError(f"module 'kvikk.fleet' has no attribute {name!r}")
