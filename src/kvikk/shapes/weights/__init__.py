"""How many weights a configuration describes, and how many bytes they take as it quantises them.

Layers for multi-token prediction are not counted: engines load them only to speculate.
"""

from kvikk.shapes.weights.model import model_weights
from kvikk.shapes.weights.quantization import weight_bytes
from kvikk.shapes.weights.records import Weight, weight_elements

__all__ = ["Weight", "model_weights", "weight_bytes", "weight_elements"]
