"""Memory and bandwidth of the accelerators people serve on: a small table with a date.

Memory is what the vendor calls GB, taken as GiB as the field does (an H100 of "80 GB" shows
79.6 GiB). Bandwidth is in decimal bytes a second, the peak. ``source`` says where a figure was
read: mostly in others' tables of vendors' figures, which agree with one another, not in the
vendors' own sheets. A plan that hangs on one is checked with the machine.
"""

from dataclasses import dataclass

from kvikk.errors import ModelError

# When the figures were last looked up.
TABLE_DATE = "2026-11"


@dataclass(frozen=True)
class Accelerator:
    """One device: ``memory_gib`` and ``bandwidth_gb_per_s``, and where they were read."""

    name: str
    memory_gib: int
    bandwidth_gb_per_s: float
    source: str

    @property
    def memory_bytes(self) -> int:
        """All of its memory."""
        return self.memory_gib * 2**30

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Peak read bandwidth."""
        return self.bandwidth_gb_per_s * 1e9


_CLOUDS = "clouds' and resellers' comparisons"
_REVIEWS = "reviews' tables of specifications"
_GOOGLE = "Google Cloud's TPU documentation"
_BRIEF = "NVIDIA's product brief PB-11133-001"

ACCELERATORS = {
    accelerator.name.lower(): accelerator
    for accelerator in (
        Accelerator("B300", 288, 8000, _CLOUDS),
        Accelerator("B200", 180, 8000, _CLOUDS),  # others say 192; a DGX has 1,440 in eight
        Accelerator("H200", 141, 4800, _CLOUDS),
        Accelerator("H100", 80, 3350, _CLOUDS),  # SXM
        Accelerator("H100-PCIe", 80, 2000, _BRIEF),
        Accelerator("H100-NVL", 94, 3900, _CLOUDS),
        Accelerator("A100-80GB", 80, 2039, _CLOUDS),  # SXM
        Accelerator("A100-40GB", 40, 1555, _CLOUDS),
        Accelerator("L40S", 48, 864, _CLOUDS),
        Accelerator("L4", 24, 300, _CLOUDS),
        Accelerator("A10G", 24, 600, _CLOUDS),
        Accelerator("T4", 16, 320, _CLOUDS),
        Accelerator("RTX-PRO-6000", 96, 1792, _REVIEWS),
        Accelerator("RTX-5090", 32, 1792, _REVIEWS),
        Accelerator("RTX-4090", 24, 1008, _REVIEWS),
        Accelerator("RTX-3090", 24, 936, _REVIEWS),
        Accelerator("MI355X", 288, 8000, _REVIEWS),
        Accelerator("MI325X", 256, 6000, _REVIEWS),
        Accelerator("MI300X", 192, 5300, _REVIEWS),
        Accelerator("TPU-v6e", 32, 1638, _GOOGLE),
        Accelerator("TPU-v5e", 16, 819, _GOOGLE),
    )
}


def accelerator(name: str) -> Accelerator:
    """The device called ``name``, in any case and with spaces for dashes.

    Raises ModelError, listing the table, for one it does not have.
    """
    key = name.strip().lower().replace(" ", "-").replace("_", "-")
    if key not in ACCELERATORS:
        known = ", ".join(device.name for device in ACCELERATORS.values())
        raise ModelError(
            f"no accelerator {name!r} in the table; known: {known}. "
            "For any other give --memory and --bandwidth"
        )
    return ACCELERATORS[key]
