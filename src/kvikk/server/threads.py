"""Long work beside the event loop, which serves everybody else meanwhile."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def run_beside_loop_if(long: bool, function: Callable[[], Result]) -> Result:
    """Call ``function``, in a thread of its own if it is ``long``: a thread has its price too."""
    return await asyncio.to_thread(function) if long else function()
