"""How many files the system lets this process open."""

import resource

# Listener, logs, events from replicas, checks.
_OWN = 64
_MOST = 1 << 17


def connections_within_limits() -> int:
    """How many clients may be connected, so that each can have a replica's answer as well.

    The process' own limit is raised to what the system allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # macOS says "infinity" and does not mean it
    if soft == resource.RLIM_INFINITY:
        return _MOST
    return max(1, min((soft - _OWN) // 2, _MOST))
