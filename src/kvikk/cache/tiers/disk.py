"""Blocks in a folder, a file each, for the engine that comes after this one.

    PATH/lock                      held while an engine uses the folder
    PATH/3f/3f9c…a1-0              block key, group
    PATH/3f/3f9c…a1-0.part         being written

A file is written under another name and renamed, so that a process killed at any moment leaves
whole blocks and parts, and parts go at the next start. Nothing waits for the disk: what a power cut
leaves half written does not fit its checksum, which is read with every block.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from kvikk.cache.keys import KEY_BYTES
from kvikk.cache.ledger.records import Cause
from kvikk.cache.tiers.health import Health, log_unfit
from kvikk.cache.tiers.recency import Recency
from kvikk.cache.tiers.stored_block import BlockFormat, fitting
from kvikk.cache.tiers.tier import TierUsage
from kvikk.errors import ModelError

_PART = ".part"


class DiskTier:
    """At most ``limit_bytes`` of files under ``folder``; one engine at a time.

    What an earlier engine left is there, least recently used first by the files' times, whatever
    its model: what nobody asks for any more makes room. Raises ModelError for an unusable folder.
    """

    name = "disk"
    cause = Cause.HIT_DISK
    lasting = True

    def __init__(self, folder: Path, limit_bytes: int, block_format: BlockFormat) -> None:
        self.place = str(folder)
        self._folder = folder
        self._format = block_format
        self._lock = Lock()
        self._recency = Recency(limit_bytes)
        self._reading = Health(f"reading from the disk tier {folder}")
        self._writing = Health(f"writing to the disk tier {folder}")
        self._stored = self._loaded = self._evicted = self._unfit = 0
        self._claim: int | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._claim = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._take_stock()
        except BlockingIOError:
            self.close()
            raise ModelError(
                f"another engine uses the disk tier {folder}; give each a folder of its own"
            ) from None
        except OSError as error:
            self.close()
            raise ModelError(
                f"cannot keep blocks in {folder}: {error.strerror or error}; choose another folder "
                "with --disk-tier"
            ) from None

    @property
    def readable(self) -> bool:
        """Whether the last attempt worked."""
        return self._reading.trouble is None

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> int:
        """Write blocks, if the disk takes them."""
        stored = 0
        for key, block in zip(keys, blocks, strict=True):
            if key in self._recency:
                continue
            if not self._writing.usable:
                break
            value = self._format.pack(key, block)
            with self._lock:
                victims = self._recency.room_for(len(value))
                if victims is None:
                    continue
                self._unlink(victims)
                self._evicted += len(victims)
                try:
                    self._write(key, value)
                except OSError as error:
                    self._writing.failed(error)
                    break
                self._recency.add(key, len(value))
                stored += 1
        if stored:
            self._writing.worked()
            self.touch(keys)
        self._stored += stored
        return stored

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read blocks, each in one piece. What cannot be read now stays for later."""
        values: list[bytes | None] = []
        gone: list[bytes] = []
        for key in keys:
            try:
                values.append(self._read(key))
            except FileNotFoundError:
                values.append(None)
                gone.append(key)
        blocks, unfit = fitting(self._format, keys, values)
        log_unfit(self.place, unfit)
        with self._lock:
            self._unfit += len(unfit)
            self._loaded += sum(block is not None for block in blocks)
        self.evict([*gone, *unfit])
        self.touch(keys)
        return blocks

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Which have a file, as far as this engine knows."""
        usable = self._reading.usable
        return [usable and key in self._recency for key in keys]

    def touch(self, keys: Sequence[bytes]) -> None:
        """Let them go later than others, also after a restart."""
        with self._lock:
            self._recency.touch(keys)
            here = [key for key in keys if key in self._recency]
        for key in reversed(here):
            with suppress(OSError):
                os.utime(self._path(key))

    def evict(self, keys: Sequence[bytes] | None = None) -> bool:
        """Remove these files, or all."""
        with self._lock:
            gone = list(self._recency if keys is None else keys)
            for key in gone:
                self._recency.drop(key)
            return self._unlink(gone)

    def usage(self) -> TierUsage:
        """Figures of this moment."""
        return TierUsage(
            name=self.name,
            place=self.place,
            used_blocks=len(self._recency),
            used_bytes=self._recency.used_bytes,
            limit_bytes=self._recency.limit_bytes,
            trouble=self._writing.trouble or self._reading.trouble,
            stored=self._stored,
            loaded=self._loaded,
            evicted=self._evicted,
            unfit=self._unfit,
            failures=self._writing.failures + self._reading.failures,
        )

    def close(self) -> None:
        """Leave the folder to others."""
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    def _take_stock(self) -> None:
        """Find what is there, the oldest first; remove parts, and what is beyond the limit.

        What no engine would have written is somebody else's, and left alone.
        """
        found: list[tuple[int, bytes, int]] = []
        for entry in self._files():
            key = _key_of(entry.name.removesuffix(_PART))
            if key is None or self._path(key) != Path(entry.path.removesuffix(_PART)):
                continue
            if entry.name.endswith(_PART):
                Path(entry.path).unlink(missing_ok=True)
                continue
            state = entry.stat()
            found.append((state.st_mtime_ns, key, state.st_size))
        for _, key, size in sorted(found):
            victims = self._recency.room_for(size)
            if victims is None:
                self._unlink([key])
                continue
            self._unlink(victims)
            self._recency.add(key, size)

    def _files(self) -> Iterator[os.DirEntry[str]]:
        for folder in list(os.scandir(self._folder)):
            if folder.is_dir(follow_symlinks=False) and len(folder.name) == 2:
                for entry in list(os.scandir(folder.path)):
                    if entry.is_file(follow_symlinks=False):
                        yield entry

    def _path(self, key: bytes) -> Path:
        name = key[:KEY_BYTES].hex()
        return self._folder / name[:2] / f"{name}-{key[-1]}"

    def _write(self, key: bytes, value: bytes) -> None:
        path = self._path(key)
        part = path.with_name(path.name + _PART)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(value)
            part.replace(path)
        except OSError:
            with suppress(OSError):
                part.unlink()
            raise

    def _read(self, key: bytes) -> bytes | None:
        """None where reading fails, and nothing is read for a while then."""
        if not self._reading.usable:
            return None
        try:
            value = self._path(key).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            self._reading.failed(error)
            return None
        self._reading.worked()
        return value

    def _unlink(self, keys: Sequence[bytes]) -> bool:
        done = True
        for key in keys:
            try:
                self._path(key).unlink(missing_ok=True)
            except OSError as error:
                self._writing.failed(error)
                done = False
        return done


def _key_of(name: str) -> bytes | None:
    """The tier key that a file's name says; None for other files."""
    digest, _, group = name.partition("-")
    try:
        key = bytes.fromhex(digest) + int(group).to_bytes(1, "little")
    except (ValueError, OverflowError):
        return None
    return key if len(key) == KEY_BYTES + 1 else None
