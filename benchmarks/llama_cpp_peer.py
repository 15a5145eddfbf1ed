"""llama.cpp's side of the comparisons; runs under the interpreter that has llama-cpp-python.

    python llama_cpp_peer.py version
    python llama_cpp_peer.py logits MODEL.gguf THREADS CONTEXT     pieces of tokens in, logits out
    python llama_cpp_peer.py speed MODEL.gguf THREADS              one JSON line a round

``logits`` speaks over its pipes: a line of token ids gets as many rows of float32 logits; the line
``new`` starts a new sequence. ``speed`` does a round for every line it is sent.
"""

import json
import sys
import time

import llama_cpp
import numpy as np


def _load(path: str, threads: int, context: int, all_logits: bool) -> llama_cpp.Llama:
    return llama_cpp.Llama(
        model_path=path,
        n_ctx=context,
        n_batch=512,
        n_threads=threads,
        n_threads_batch=threads,
        logits_all=all_logits,
        verbose=False,
    )


def logits(path: str, threads: int, context: int) -> None:
    """Answer each line of token ids with its rows of logits."""
    model = _load(path, threads, context, all_logits=True)
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


def speed(path: str, threads: int) -> None:
    """Tokens a second: a prompt of 512, then 32 tokens at contexts of 64 and 1,024."""
    model = _load(path, threads, 2048, all_logits=False)
    token_ids = np.random.default_rng(0).integers(100, 40_000, 1024).tolist()
    for _ in sys.stdin:
        result = {}
        model.reset()
        start_s = time.perf_counter()
        model.eval(token_ids[:512])
        result["prefill 512"] = 512 / (time.perf_counter() - start_s)
        for context in (64, 1024):
            model.reset()
            model.eval(token_ids[:context])
            start_s = time.perf_counter()
            for token_id in token_ids[:32]:
                model.eval([token_id])
            result[f"decode at {context}"] = 32 / (time.perf_counter() - start_s)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "version":
        print(llama_cpp.__version__)
    elif sys.argv[1] == "logits":
        logits(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        speed(sys.argv[2], int(sys.argv[3]))
