"""What a server says when it starts: where memory goes."""

from collections.abc import Collection

from kvikk.engine.adapters import LoadedAdapter
from kvikk.engine.memory import GroupMemory, MemoryReport
from kvikk.shapes.quantities import format_bytes


def memory_table(memory: MemoryReport, adapters: Collection[LoadedAdapter] = ()) -> str:
    """The memory plan, a line for each part, and what fits into it. Adapters come on top."""
    rows = [("weights", memory.weight_bytes, ""), ("activations", memory.activation_bytes, "")]
    rows += [_group_row(group, memory.block_size) for group in memory.groups]
    adapter_bytes = sum(adapter.num_bytes for adapter in adapters)
    if adapters:
        rows.append(("adapters", adapter_bytes, ", ".join(one.name for one in adapters)))
    table = [("memory", "", "")]
    table += [(name, format_bytes(num_bytes), detail) for name, num_bytes, detail in rows]
    if memory.available_bytes is not None:
        planned = memory.weight_bytes + memory.activation_bytes + memory.kv_bytes + adapter_bytes
        left_bytes = max(0, memory.available_bytes - planned)
        table.append(("left of what was free", format_bytes(left_bytes), ""))
    lines = [f"{name:<24}{size:>12}  {detail}".rstrip() for name, size, detail in table]
    context = f"longest conversation {memory.max_context_tokens:,} tokens"
    if memory.max_context_tokens < memory.wanted_context_tokens:
        context += f" (of {memory.wanted_context_tokens:,} wished for: the KV memory is full then)"
    lines.append(f"{context}; {memory.conversations:.1f} of that length fit at once")
    return "\n".join(lines)


def _group_row(group: GroupMemory, block_size: int) -> tuple[str, int, str]:
    kind = "full" if group.window_tokens is None else f"window {group.window_tokens:,}"
    detail = (
        f"{group.num_layers} layers, {group.num_blocks:,} blocks of {block_size} tokens, "
        f"{format_bytes(group.block_bytes)} each"
    )
    return f"KV blocks ({kind})", group.total_bytes, detail
