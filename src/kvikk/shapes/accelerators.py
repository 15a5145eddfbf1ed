"""Memory and bandwidth of the accelerators people serve on: a small table with a date.

Memory is what the data sheet calls GB, taken as GiB as the field does (an H100 of "80 GB" shows
79.6 GiB). Bandwidth is in decimal bytes a second, the peak that the vendor states.
"""

from dataclasses import dataclass

from kvikk.errors import ModelError

# When the table was last compared with the vendors' product pages and data sheets.
TABLE_DATE = "2026-11"


@dataclass(frozen=True)
class Accelerator:
    """One device: ``memory_gib`` and ``bandwidth_gb_per_s`` as its vendor states them."""

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


_NVIDIA, _AMD, _GOOGLE = "NVIDIA data sheet", "AMD data sheet", "Google Cloud TPU documentation"

ACCELERATORS = {
    accelerator.name.lower(): accelerator
    for accelerator in (
        Accelerator("B300", 288, 8000, _NVIDIA),
        Accelerator("B200", 180, 8000, _NVIDIA),
        Accelerator("H200", 141, 4800, _NVIDIA),
        Accelerator("H100", 80, 3350, _NVIDIA),  # SXM
        Accelerator("H100-PCIe", 80, 2000, _NVIDIA),
        Accelerator("H100-NVL", 94, 3900, _NVIDIA),
        Accelerator("A100-80GB", 80, 2039, _NVIDIA),  # SXM
        Accelerator("A100-40GB", 40, 1555, _NVIDIA),
        Accelerator("L40S", 48, 864, _NVIDIA),
        Accelerator("L4", 24, 300, _NVIDIA),
        Accelerator("A10G", 24, 600, _NVIDIA),
        Accelerator("T4", 16, 320, _NVIDIA),
        Accelerator("RTX-PRO-6000", 96, 1792, _NVIDIA),
        Accelerator("RTX-5090", 32, 1792, _NVIDIA),
        Accelerator("RTX-4090", 24, 1008, _NVIDIA),
        Accelerator("RTX-3090", 24, 936, _NVIDIA),
        Accelerator("MI355X", 288, 8000, _AMD),
        Accelerator("MI325X", 256, 6000, _AMD),
        Accelerator("MI300X", 192, 5300, _AMD),
        Accelerator("TPU-v6e", 32, 1640, _GOOGLE),
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
