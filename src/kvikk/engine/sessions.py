"""Conversations, from their first request to long after the last: what there is to put to sleep.

A session is named by whoever sends it (``prompt_cache_key``) or else by the id of its first
request: of two turns of a conversation, the later prompt begins with the whole earlier one. Any of
its requests' ids is a name for it as well.
"""

import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvikk.engine.requests import Request

WAKE_ROUTE = "wake"
"""The route of requests that bring a session back and are no turns of it."""
KEPT_SESSIONS = 1024
KEPT_TOKENS = 1 << 22
# Of those that begin alike, so many are compared with a new prompt.
_MOST_ALIKE = 16


@dataclass(slots=True, eq=False)
class Session:
    """One conversation as its latest request left it. ``tokens`` are that one's, answer included;
    ``keys`` those of their full blocks that were computed.
    """

    name: str
    tenant: str
    salt: bytes
    adapter: str
    request_ids: list[str]
    tokens: "array[int]"
    num_prompt_tokens: int
    keys: Sequence[bytes]
    used_s: float
    asleep: bool = False

    def idle_s(self, now_s: float) -> float:
        """Seconds since the end of its latest request."""
        return now_s - self.used_s


class Sessions:
    """The last ones, owned by the engine's thread."""

    def __init__(self, block_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._block_size = block_size
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()
        self._names: dict[tuple[str, str], str] = {}  # of each request id, by tenant
        self._alike: dict[bytes, list[Session]] = {}  # by the last full block of their prompt
        self._num_tokens = 0

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def find(self, name: str, tenant: str) -> Session | None:
        """By its name, or a request's of it."""
        own = self._names.get((tenant, name), name)
        return self._sessions.get((tenant, own))

    def woken(self, name: str, tenant: str) -> None:
        """Its blocks are back where they were."""
        session = self.find(name, tenant)
        if session is not None:
            session.asleep, session.used_s = False, self.clock()

    def ended(self, request: Request, tokens: Sequence[int], keys: Sequence[bytes]) -> Session:
        """A request has its answer: it is one more turn of its session, or the first of one."""
        tenant, num_prompt = request.origin.tenant, len(request.prompt_token_ids)
        prompt = array("I", request.prompt_token_ids)
        prompt_keys = keys[: num_prompt // self._block_size]
        known = self._continued(request, prompt, prompt_keys)
        name = known.name if known else request.session or request.id
        known = known or self._sessions.get((tenant, name))
        if known is not None:
            self._forget(known)
        ids = [*(known.request_ids if known else ()), request.id]
        session = Session(
            name,
            tenant,
            request.salt,
            request.adapter,
            ids,
            array("I", tokens),
            num_prompt,
            tuple(keys),
            self.clock(),
        )
        self._sessions[tenant, name] = session
        self._names.update(((tenant, one), name) for one in ids)
        self._alike.setdefault(_last(session, prompt_keys), []).append(session)
        self._num_tokens += len(session.tokens)
        while len(self._sessions) > KEPT_SESSIONS or (
            self._num_tokens > KEPT_TOKENS and len(self._sessions) > 1
        ):
            self._forget(next(iter(self._sessions.values())))
        return session

    def _continued(
        self, request: Request, prompt: "array[int]", keys: Sequence[bytes]
    ) -> Session | None:
        """The session whose latest prompt is most of this one."""
        if request.session:
            return None
        for stop in range(len(keys), -1, -1):
            alike = self._alike.get(_last(request, keys[:stop]), ())
            found = [
                session
                for session in alike[-_MOST_ALIKE:]
                if session.tenant == request.origin.tenant
                and session.tokens[: session.num_prompt_tokens]
                == prompt[: session.num_prompt_tokens]
            ]
            if found:
                return max(found, key=lambda session: session.num_prompt_tokens)
        return None

    def _forget(self, session: Session) -> None:
        del self._sessions[session.tenant, session.name]
        for one in session.request_ids:
            self._names.pop((session.tenant, one), None)
        last = _last(session, session.keys[: session.num_prompt_tokens // self._block_size])
        alike = self._alike[last]
        alike.remove(session)
        if not alike:
            del self._alike[last]
        self._num_tokens -= len(session.tokens)


def _last(one: Request | Session, keys: Sequence[bytes]) -> bytes:
    """The last key; where there is none, what is the same for all of a salt and an adapter."""
    return keys[-1] if keys else b"\0".join((b"", one.salt, one.adapter.encode()))
