"""The items that an answer is made of, each built up by its own events."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from kvikk.wire.deltas import AnswerDelta, ReasoningDelta, TextDelta, ToolCallDelta

Data = dict[str, Any]


class OutputItem(ABC):
    """An item that is being said, the ``index``-th of its response; its methods give events."""

    def __init__(self, item_id: str, index: int) -> None:
        self._id = item_id
        self._index = index

    @abstractmethod
    def goes_on_with(self, delta: AnswerDelta) -> bool:
        """Whether ``delta`` is more of this item."""

    @abstractmethod
    def json(self, status: str) -> Data:
        """The item so far."""

    @abstractmethod
    def added(self) -> Iterable[Data]:
        """What it begins with."""

    @abstractmethod
    def more(self, delta: AnswerDelta) -> Iterable[Data]:
        """One more piece."""

    @abstractmethod
    def done(self, status: str) -> Iterable[Data]:
        """What it ends with."""

    def _item_event(self, kind: str, item: Data) -> Data:
        return {"type": f"response.output_item.{kind}", "output_index": self._index, "item": item}

    def _event(self, kind: str, **fields: Any) -> Data:
        place = {"item_id": self._id, "output_index": self._index}
        return {"type": f"response.{kind}", **place, **fields}


class TextItem(OutputItem):
    """What is said, or thought: an item with one part of text."""

    def __init__(self, item_id: str, index: int, *, is_thought: bool) -> None:
        super().__init__(item_id, index)
        self._kind = ReasoningDelta if is_thought else TextDelta
        self._part_type = "reasoning_text" if is_thought else "output_text"
        self._text = ""

    def goes_on_with(self, delta: AnswerDelta) -> bool:
        """Whether it is of the same kind."""
        return isinstance(delta, self._kind)

    def json(self, status: str) -> Data:
        """A message, or a reasoning item."""
        if self._kind is ReasoningDelta:
            item: Data = {"id": self._id, "type": "reasoning", "summary": []}
        else:
            item = {"id": self._id, "type": "message", "role": "assistant"}
        return item | {"status": status, "content": [self._part()]}

    def added(self) -> Iterable[Data]:
        """The item without content, then its part without text."""
        yield self._item_event("added", self.json("in_progress") | {"content": []})
        yield self._event("content_part.added", content_index=0, part=self._part())

    def more(self, delta: AnswerDelta) -> Iterable[Data]:
        """More text."""
        assert isinstance(delta, TextDelta | ReasoningDelta)
        self._text += delta.text
        yield self._text_event("delta", delta=delta.text)

    def done(self, status: str) -> Iterable[Data]:
        """All of the text, of the part and of the item."""
        yield self._text_event("done", text=self._text)
        yield self._event("content_part.done", content_index=0, part=self._part())
        yield self._item_event("done", self.json(status))

    def _text_event(self, kind: str, **fields: Any) -> Data:
        if self._kind is TextDelta:
            fields["logprobs"] = []
        return self._event(f"{self._part_type}.{kind}", content_index=0, **fields)

    def _part(self) -> Data:
        part: Data = {"type": self._part_type, "text": self._text}
        return part if self._kind is ReasoningDelta else part | {"annotations": [], "logprobs": []}


class CallItem(OutputItem):
    """A call of a tool, whose arguments grow."""

    def __init__(self, item_id: str, index: int, first: ToolCallDelta) -> None:
        super().__init__(item_id, index)
        self._call = first
        self._arguments = ""

    def goes_on_with(self, delta: AnswerDelta) -> bool:
        """Whether it is of the same call."""
        return isinstance(delta, ToolCallDelta) and delta.index == self._call.index

    def json(self, status: str) -> Data:
        """The call."""
        return {
            "id": self._id,
            "type": "function_call",
            "status": status,
            "call_id": self._call.id,
            "name": self._call.name,
            "arguments": self._arguments,
        }

    def added(self) -> Iterable[Data]:
        """The call without arguments."""
        yield self._item_event("added", self.json("in_progress"))

    def more(self, delta: AnswerDelta) -> Iterable[Data]:
        """More of the arguments."""
        assert isinstance(delta, ToolCallDelta)
        if delta.arguments:
            self._arguments += delta.arguments
            yield self._event("function_call_arguments.delta", delta=delta.arguments)

    def done(self, status: str) -> Iterable[Data]:
        """All of the arguments, and of the call."""
        yield self._event(
            "function_call_arguments.done", name=self._call.name, arguments=self._arguments
        )
        yield self._item_event("done", self.json(status))


def open_item(delta: AnswerDelta, response_id: str, index: int) -> OutputItem:
    """The item that ``delta`` begins, the ``index``-th of a response."""
    name = f"{response_id.partition('_')[2]}{index:02x}"
    match delta:
        case TextDelta():
            return TextItem(f"msg_{name}", index, is_thought=False)
        case ReasoningDelta():
            return TextItem(f"rs_{name}", index, is_thought=True)
        case ToolCallDelta():
            return CallItem(f"fc_{name}", index, delta)
