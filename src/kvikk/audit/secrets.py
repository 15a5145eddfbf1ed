"""Keys and passwords in texts: found by their form, and never shown or stored.

A body may have them too, where a conversation is about them. Each gets a name of its own, so that
two that differ still differ. Only who has the salt can say whether a secret is the named one.
"""

import os
import re
import secrets
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from kvikk.files.cache_folder import cache_folder

_SALT_BYTES = 32
_AROUND = 2048
_SECRET = re.compile(
    r"\b(?:sk|pk|rk|ghp|gho|ghs|github_pat|xox[abps]|glpat|AKIA|ASIA|AIza|hf|eyJ)"
    r"[-_]?[A-Za-z0-9_\-.]{12,}"
    r"|(?i:bearer|basic)\s+[A-Za-z0-9+/=._\-]{8,}"
    r"|(?i:password|passwd|api[_-]?key|secret|token)[\"']?\s*[:=]\s*[\"']?[^\s\"',;]{4,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_MEMBER = re.compile(
    r"(?i)(?:.*[_-])?(?:api[_-]?key|password|passwd|secret|access[_-]?token|auth[_-]?token|"
    r"authorization|credentials?)"
)


def hidden(text: str) -> str:
    """``text`` with a word in place of each secret."""
    return _SECRET.sub("[secret]", text)


def part(text: str, start: int, stop: int) -> str:
    """Characters of ``text``, with a word in place of each secret that reaches into them.

    A value is a secret by what stands in front of it, so that has to be looked at too.
    """
    shown, at = [], start
    for found in _SECRET.finditer(text, max(0, start - _AROUND), stop + _AROUND):
        if found.end() > start and found.start() < stop:
            shown += [text[at : max(at, found.start())], "[secret]"]
            at = max(at, found.end())
    return "".join((*shown, text[at:stop]))


def without_secrets(value: Any) -> Any:
    """JSON with each secret in it named instead of told."""
    if isinstance(value, str):
        return _SECRET.sub(_named, value)
    if isinstance(value, list):
        return [without_secrets(member) for member in value]
    if isinstance(value, dict):
        return {
            name: f"[secret {digest(member)}]"
            if isinstance(member, str) and member and _MEMBER.fullmatch(name)
            else without_secrets(member)
            for name, member in value.items()
        }
    return value


def digest(text: str) -> str:
    """A name for a secret: the same for the same user of this machine, and no way back."""
    naming = blake2b(text.encode("utf-8", "surrogatepass"), key=_salt(), digest_size=6)
    return naming.hexdigest()


def open_private(file: Path, *flags: int) -> IO[bytes]:
    """Open ``file`` to append to it; nobody but this user may read what is new. Raises OSError."""
    wanted = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for flag in flags:
        wanted |= flag
    return os.fdopen(os.open(file, wanted, 0o600), "ab")


def _named(found: re.Match[str]) -> str:
    return f"[secret {digest(found[0])}]"


@cache
def _salt() -> bytes:
    """Drawn once and kept for this user, so that logs of several days can be one log."""
    file = cache_folder() / "audit-salt"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open_private(file, os.O_EXCL) as new:
                new.write(secrets.token_bytes(_SALT_BYTES))
        except FileExistsError:
            pass
        kept = file.read_bytes()
    except OSError:
        kept = b""
    return kept if len(kept) == _SALT_BYTES else secrets.token_bytes(_SALT_BYTES)
