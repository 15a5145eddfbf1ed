"""``requantise.py FROM.gguf TO.gguf``: to Q4_0, llama.cpp's fastest form, by llama.cpp itself."""

import ctypes
import sys

import llama_cpp

LLAMA_FTYPE_MOSTLY_Q4_0 = 2


def requantise(source: str, target: str) -> None:
    """Write ``target``; exits with a line if llama.cpp refuses."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = LLAMA_FTYPE_MOSTLY_Q4_0
    parameters.allow_requantize = True
    failed = llama_cpp.llama_model_quantize(
        source.encode(), target.encode(), ctypes.byref(parameters)
    )
    if failed:
        sys.exit(f"llama.cpp cannot requantise {source}: code {failed}")


if __name__ == "__main__":
    requantise(sys.argv[1], sys.argv[2])
