"""The smallest change for each class, in the request's own terms."""

from kvikk.audit.findings import excerpt

_SHOWN = 40

_MENDS = {
    "volatile_value.timestamp": "move the time{value} behind what stays the same, into the newest "
    "message, or round it to the day",
    "volatile_value.relative_time": "write when it was instead of how long ago{value}, or move it "
    "into the newest message",
    "volatile_value.nonce": "leave the random value{value} out, or move it into the newest message",
    "volatile_value.counter": "move the number{value} into the newest message, or leave it out",
    "volatile_value.identifier": "move the id{value} into the newest message or into metadata",
    "volatile_value.path": "move what depends on files and folders{value} into the newest message",
    "volatile_value.user": "put what is personal{value} behind what all users share",
    "context.injected_before_history": "put fresh context behind the history, in the newest "
    "message, and leave earlier turns as they were",
    "tools.order": "sort the tools by name before each call",
    "tools.set": "declare all tools from the first request on; do not add or remove any midway",
    "tools.definition": "keep each tool's definition as it was; or group calls by definition",
    "serialization.key_order": "write objects with their keys in one order",
    "serialization.args_reordered": "replay tool calls with their arguments as they were generated",
    "serialization.whitespace": "keep texts byte for byte: strip and re-indent nothing",
    "serialization.unicode": "keep texts byte for byte: one normal form, one way of escaping",
    "history.replay_differs": "store what was really sent, and replay exactly that",
    "history.rewritten": "leave earlier turns alone; prune in one batch, when the context is full",
    "history.trimmed_front": "drop old messages in one large batch, not a few each turn",
    "history.ids_regenerated": "keep the ids of calls with the history, or derive them from it",
    "history.thinking_dropped": "send earlier thinking blocks back as they came",
    "history.images_changed": "keep images of earlier turns as the same blocks",
    "params.effort": "keep the effort constant for the life of a conversation",
    "params.thinking": "keep the thinking setting constant for the life of a conversation",
    "params.tool_choice": "keep tool_choice constant; say in the newest message what to call",
    "params.response_schema": "keep one response schema for all requests that share a prefix",
    "params.verbosity": "keep the verbosity constant; ask for short answers in the message",
    "params.other": "keep this parameter constant for all requests that share a prefix",
    "model.switched": "stay with one model, by one name, for the life of a conversation",
    "below_minimum": "lengthen what is shared past the minimum, or use a model with a lower one",
    "breakpoint.missing": "set a marker here, at the end of what stays the same",
    "breakpoint.placement": "set a marker at the end of what stays the same, in its own block or "
    "message",
    "breakpoint.on_volatile_block": "set the marker on the last piece before this one",
    "breakpoint.lookback_overflow": "set one more marker at most 20 positions behind the last one",
    "breakpoint.implicit_boundary_moved": "append a message instead of text to one, or mark the "
    "end of the reusable part in both requests",
    "breakpoint.dropped_by_gateway": "let the gateway pass the marker on",
    "breakpoint.too_many": "leave this marker out: four are the most, counted after every layer",
    "breakpoint.ttl_order": "let lifetimes not grow along tools, system and messages",
    "ttl.expired": "ask for a longer lifetime, or send something within the one there is",
    "ttl.tier_changed": "use one lifetime for the whole conversation",
    "concurrency.cold_race": "send one request, wait for its first byte, then the others",
    "routing.key_missing": "send a stable prompt_cache_key for requests that share a prefix",
    "routing.key_volatile": "use the conversation's or workload's id as key, not the request's",
    "routing.key_shared_overflow": "split the key: about 15 requests a minute for each",
    "routing.account_rotated": "stay on one account for the life of a conversation",
    "routing.upstream_switched": "pin the host, or pass an id of the conversation to keep it",
    "expected.common_prefix_detection": "nothing: the third request with this prefix reads it; to "
    "read it on the second, end one request where the prefix ends",
    "expected.first_request": "nothing: nobody sent this text before",
    "accounting.normalisation": "it hit: take the provider's own counters, and add reads to no "
    "total that has them already",
    "experiment.contaminated": "put one random value for each arm and run at the very start",
    "provider.unexplained": "nothing in the requests: leave the prompt as it is; wait a moment or "
    "try again",
}

CLASSES = tuple(_MENDS)


def mend(cause: str, after: str = "") -> str:
    """What to change, with the value as it stands in the request where that helps."""
    value = ""
    if cause.startswith("volatile_value.") and after.strip():
        value = f' "{excerpt(" ".join(after.split()), _SHOWN)}"'
    return _MENDS[cause].format(value=value)
