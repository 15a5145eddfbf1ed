"""Which requests are turns of one conversation, told from their tokens alone.

No API says it. But every turn of a chat sends all that was said before: its prompt begins with the
whole prompt of the turn before it.
"""

from collections import OrderedDict

KEPT_CONVERSATIONS = 64


class Conversations:
    """The latest prompt of each of the last conversations, by the id of its first request."""

    def __init__(self) -> None:
        self._latest: OrderedDict[str, tuple[str, bytes]] = OrderedDict()

    def place(self, request_id: str, tenant: str, prompt: bytes | None) -> str:
        """The conversation of a request: the one whose latest prompt is most of this one's.

        A prompt that continues none, or is not known, begins a conversation of its own.
        """
        if prompt is None:
            return request_id
        name, longest = request_id, 0
        for first, (owner, latest) in self._latest.items():
            if owner == tenant and len(latest) > longest and prompt.startswith(latest):
                name, longest = first, len(latest)
        self._latest[name] = (tenant, prompt)
        self._latest.move_to_end(name)
        if len(self._latest) > KEPT_CONVERSATIONS:
            self._latest.popitem(last=False)
        return name
