"""Models on the Hugging Face hub, by their id. Fetched once, then served from the hub's cache."""

import re
from pathlib import Path

from kvikk.errors import ModelError

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
_CONFIGURATION = ["*.json", "*.jinja", "tokenizer.model"]


def is_hub_id(model: str) -> bool:
    """Whether ``model`` has the form ``org/name``."""
    return _HUB_ID.fullmatch(model) is not None


def fetch(model: str, weights: bool) -> Path:
    """The local folder of the hub's model ``model``, fetching what is not here yet.

    Without ``weights`` only its configuration and tokeniser. Raises ModelError if the hub does not
    have it, does not show it, or cannot be reached.
    """
    # Takes a third of a second to import, and only this function needs it.
    try:
        import httpx
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )
    except ImportError:
        raise ModelError(
            f"fetching {model} from the hub needs `pip install 'kvikk[engine]'`"
        ) from None
    patterns = [*_CONFIGURATION, "*.safetensors"] if weights else _CONFIGURATION
    try:
        return Path(snapshot_download(model, allow_patterns=patterns))
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403, 404):
            raise ModelError(
                f"no model {model!r} here, and the hub has none of that name that you may read"
            ) from None
        raise ModelError(f"the hub answered {status} when asked for {model!r}") from None
    except HFValidationError:
        raise ModelError(f"no model {model!r} here, and the hub has no such names") from None
    except (LocalEntryNotFoundError, httpx.HTTPError, OSError) as error:
        raise ModelError(
            f"no model {model!r} here, and the hub cannot be reached to fetch it "
            f"({type(error).__name__})"
        ) from None
