"""From a model's configuration to its shape: one small function a family, a file a kind.

A family is known by its ``model_type``. To add one, write its function in the file of its kind and
its line in the table at that file's end.
"""

from kvikk.shapes.families.registry import FAMILIES, normalise, read_shape

__all__ = ["FAMILIES", "normalise", "read_shape"]
