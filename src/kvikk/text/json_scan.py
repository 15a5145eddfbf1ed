"""Where a JSON object ends in a text that is still growing."""


class JsonScan:
    """Follows the brackets of one object or list from position ``start`` on, a character once."""

    def __init__(self, start: int = 0) -> None:
        self._position = start
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.stop: int | None = None

    def read(self, text: str) -> int | None:
        """The position behind the value, once it is all there; ``text`` only grows."""
        while self.stop is None and self._position < len(text):
            character = text[self._position]
            self._position += 1
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.stop = self._position
        return self.stop
