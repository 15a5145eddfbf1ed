"""``kvikk bench memory``: the formula beside real tensors, and slabs beside blocks."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvikk.cli import options
from kvikk.errors import RequestError

if TYPE_CHECKING:
    from kvikk.bench.memory import MemoryProof
    from kvikk.bench.memory_allocators import AllocatorResult

_TRACE, _MODEL = "with --trace", "without --trace"
_MODES = {
    "tokens": (_MODEL,),
    "layers": (_MODEL,),
    "capacity_tokens": (_TRACE,),
    "context": (_TRACE,),
    "block_size": (_TRACE,),
}


def memory(
    command_line: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL…]",
            help="Models, or names of tiny families (all: every one); default: smollm2.",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens to generate, prompt included.")] = 64,
    layers: Annotated[
        int | None, typer.Option(help="Build only so many layers: a slice of a large model.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Replay a Mooncake trace through three allocators."),
    ] = None,
    capacity_tokens: Annotated[
        int, typer.Option(min=1, help="With --trace: the memory, in tokens.")
    ] = 500_000,
    context: Annotated[
        int, typer.Option(min=1, help="With --trace: the longest conversation allowed.")
    ] = 131_072,
    block_size: Annotated[
        int, typer.Option(help="With --trace: token positions a block, a power of two.")
    ] = 32,
    as_json: options.Json = False,
) -> None:
    """Compare the tensors a cache holds with the formula, at four lengths; exact or not."""
    options.check_mode(command_line, _MODEL if trace is None else _TRACE, _MODES)
    if models and trace is not None:
        raise RequestError("a trace is replayed without a model; leave out MODEL or --trace")
    if trace is not None:
        from kvikk.bench.memory_allocators import compare_allocators, read_trace

        results = compare_allocators(
            read_trace(trace), capacity_tokens, context_tokens=context, block_size=block_size
        )
        _print_allocators(results, capacity_tokens, as_json)
        return
    from kvikk.bench.memory import prove
    from kvikk.bench.memory_families import TINY
    from kvikk.cli.report import note

    names = [options.DEFAULT_MODEL] if not models else sorted(TINY) if models == ["all"] else models
    proofs = [
        proof
        for name in names
        for proof in prove(name, num_tokens=tokens, num_layers=layers, progress=note)
    ]
    if as_json:
        print(json.dumps({"proofs": [_document(proof) for proof in proofs]}))
        return
    for proof in proofs:
        _print_proof(proof)


def _document(proof: "MemoryProof") -> dict[str, Any]:
    return {**asdict(proof), "exact": proof.is_exact}


def _print_proof(proof: "MemoryProof") -> None:
    from kvikk.cli.columns import columns

    print(f"{proof.model}  ({proof.layers}; {proof.dtype}; {proof.engine})")
    table = [["tokens", "held, bytes", "formula, bytes", ""]]
    table += [
        [
            f"{point.num_tokens:,}",
            f"{point.held_bytes:,}",
            f"{point.formula_bytes:,}",
            "exact" if point.held_bytes == point.formula_bytes else "DIFFERS",
        ]
        for point in proof.checkpoints
    ]
    print(columns(table, right=(0, 1, 2), indent="  "))
    print("  " + "; ".join(proof.rules) + "\n")


def _print_allocators(
    results: "tuple[AllocatorResult, ...]", capacity_tokens: int, as_json: bool
) -> None:
    from kvikk.cli.columns import columns

    if as_json:
        rows = [asdict(result) for result in results]
        print(json.dumps({"capacity_tokens": capacity_tokens, "allocators": rows}))
        return

    def share(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f} %"

    table = [
        ["", "served", "refused", "cut off", "holding", "empty inside", "free", "free was enough"]
    ]
    table += [
        [
            result.name,
            f"{result.served:,}",
            f"{result.refused:,}",
            f"{result.cut_off:,}",
            share(result.held_share),
            share(result.inside_share),
            share(result.free_share),
            f"{result.free_sufficed:,}",
        ]
        for result in results
    ]
    print(f"memory for {capacity_tokens:,} tokens; shares of it when somebody was refused\n")
    print(columns(table, right=range(1, 8)))
