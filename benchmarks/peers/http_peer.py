"""A server, asked over HTTP: ``http_peer.py MODEL THREADS KIND``, a kind of ``servers.py``.

It runs in our interpreter, and the requests are those of ``kvikk bench serve``.
"""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from protocol import Amount, serve

sys.path.append(str(Path(__file__).parents[1]))

from kvikk.bench.serve import ServeOptions, measure
from kvikk.bench.workloads import Fixed
from servers import KINDS, RunningServer, running


class Http:
    """One server; started anew when it is asked for another number of streams."""

    def __init__(self, model: str, threads: str, kind: str) -> None:
        self._model = model
        self._threads = int(threads)
        self._kind = KINDS[kind]
        self._stack = ExitStack()
        self._streams = 0
        self._server: RunningServer | None = None

    def describe(self) -> dict[str, Any]:
        """What is installed."""
        return {"version": self._kind.version()}

    def batch(self, streams: int, prompt: int, output: int) -> Amount:
        """As many clients as streams, a request each."""
        if self._server is None or self._streams != streams:
            self._stack.close()
            # A text's length in tokens is an estimate, and texts of some 300 are tried first.
            context = streams * max(512, prompt + output + 128)
            self._server = self._stack.enter_context(
                running(
                    self._kind,
                    self._model,
                    threads=self._threads,
                    slots=streams,
                    context=context,
                )
            )
            self._streams = streams
        return _batch(self._server, streams, prompt, output)

    def close(self) -> None:
        """End the server."""
        self._stack.close()


def _batch(server: RunningServer, streams: int, prompt: int, output: int) -> Amount:
    options = ServeOptions(server.base_url, "completions", concurrency=streams)
    done = measure(options, Fixed(streams, prompt, output)).summary
    if done.completed < streams or done.completion_tokens != streams * output:
        raise RuntimeError(f"{done.completion_tokens} tokens came: {done.error_messages}")
    return done.completion_tokens, done.duration_s


if __name__ == "__main__":
    serve(Http)
