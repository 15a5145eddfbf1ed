"""llama.cpp's predictions, for ``quality.py``; runs where llama-cpp-python is installed.

    python llama_cpp_peer.py version
    python llama_cpp_peer.py logits MODEL.gguf THREADS CONTEXT     pieces of tokens in, logits out

``logits`` speaks over its pipes: a line of token ids gets as many rows of float32 logits; the line
``new`` starts a new sequence.
"""

import sys

import llama_cpp
import numpy as np


def logits(path: str, threads: int, context: int) -> None:
    """Answer each line of token ids with its rows of logits."""
    model = llama_cpp.Llama(
        model_path=path,
        n_ctx=context,
        n_batch=512,
        n_threads=threads,
        n_threads_batch=threads,
        logits_all=True,
        verbose=False,
    )
    for line in sys.stdin:
        if line.strip() == "new":
            model.reset()
            continue
        token_ids = [int(word) for word in line.split()]
        first = model.n_tokens
        model.eval(token_ids)
        rows = np.ascontiguousarray(model.scores[first : first + len(token_ids)], np.float32)
        sys.stdout.buffer.write(rows.tobytes())
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    if sys.argv[1] == "version":
        print(llama_cpp.__version__)
    else:
        logits(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
