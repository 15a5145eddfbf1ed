"""How much memory this process may still take: the machine's, or its control group's if less."""

import os
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def available_bytes(
    meminfo: Path = Path("/proc/meminfo"),
    own_cgroup: Path = Path("/proc/self/cgroup"),
    cgroup_root: Path = _CGROUP_ROOT,
) -> int | None:
    """Bytes that can be allocated without swapping; None where the system does not say.

    The least of ``MemAvailable`` and, for the process's control group and each above it, its limit
    less what it uses (a container's limit is far below its machine's memory). Page cache that the
    kernel can drop counts as free. Both versions of control groups are read.
    """
    found = [value for value in (_machine_bytes(meminfo),) if value is not None]
    for folder, limit_name, usage_name, reclaimable_name in _groups(own_cgroup, cgroup_root):
        limit = _number(folder / limit_name)
        usage = _number(folder / usage_name)
        if limit is not None and usage is not None:
            reclaimable = _entry(folder / "memory.stat", reclaimable_name) or 0
            found.append(max(limit - usage + reclaimable, 0))
    return min(found, default=None)


def _machine_bytes(meminfo: Path) -> int | None:
    kibibytes = _entry(meminfo, "MemAvailable:")
    if kibibytes is not None:
        return kibibytes * 1024
    try:  # no /proc: half of what is installed is a fair guess at what is free
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError):
        return None


def _groups(own_cgroup: Path, root: Path) -> list[tuple[Path, str, str, str]]:
    """Folders of the process's memory groups, own and above, with their files' names."""
    try:
        lines = own_cgroup.read_text().splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = root
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = Path(path.lstrip("/"))
        groups += [(top / folder, *names) for folder in (own, *own.parents)]
    return groups


def _number(path: Path) -> int | None:
    """The one number in a file; None if there is none (``max``: no limit) or no file."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _entry(path: Path, name: str) -> int | None:
    """The number after ``name`` in a file of names and numbers."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) >= 2 and words[0] == name:
            return int(words[1])
    return None
