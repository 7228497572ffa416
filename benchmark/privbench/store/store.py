"""Artifacts on disk, each named by the digest of all it depends on.

`<root>/<kind>/<2 hex>/<digest>/` holds `manifest.json` and, unless there are no tensors,
`tensors.safetensors`. A folder is written under another name and renamed when complete, so an
artifact is there whole or not at all, and it never changes.

Imports no torch; only reading or writing tensors does.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import secrets
import shutil
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from privbench.errors import BadInputError
from privbench.store.artifacts import (
    MANIFEST,
    Artifact,
    DamagedError,
    Difference,
    Explanation,
    Key,
    Row,
    read_manifest,
    same_key,
    verify,
    write_files,
)
from privbench.store.canonical import canonical, leaves, loads
from privbench.store.machine import machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

__all__ = ["Artifact", "Difference", "Explanation", "Key", "Row", "Store", "default_root"]

#: A missing artifact is compared with this many of the newest of its kind.
COMPARED = 2000
#: Starts the name of a folder that is being written or deleted, or was found damaged.
DRAFT, DAMAGED = ".draft-", ".damaged-"
LOCKS = ".locks"
_DIGEST = re.compile(r"[0-9a-f]{32}")
_Nearest: TypeAlias = "tuple[str | None, Sequence[Difference]]"


def default_root() -> Path:
    """Return the folder in `PRIVBENCH_CACHE`, else the user's cache folder."""
    import platformdirs

    given = os.environ.get("PRIVBENCH_CACHE")
    return Path(given).expanduser() if given else Path(platformdirs.user_cache_dir("privbench"))


class Store:
    """Artifacts below one folder, which many processes may use at once."""

    def __init__(self, root: Path) -> None:
        """Use the folder; it is made when something is kept.

        Args:
            root: e.g. `default_root()`.
        """
        self.root = root
        self._leaves: dict[str, dict[str, str]] = {}  # of artifacts seen, for comparisons

    # ---- reading and writing -------------------------------------------------------------------

    def __contains__(self, key: Key) -> bool:
        """Whether `find` would most likely succeed; reads no tensors, for plans of many trials."""
        with contextlib.suppress(DamagedError):
            manifest = read_manifest(self._folder(key))
            return manifest is not None and same_key(manifest, key)
        return False

    def facts(self, key: Key) -> Mapping[str, Any] | None:
        """What was noted when the artifact of this key was made; None if it is not stored."""
        with contextlib.suppress(DamagedError):
            manifest = read_manifest(self._folder(key))
            if manifest is not None and same_key(manifest, key):
                return manifest.facts
        return None

    def find(self, key: Key) -> Artifact | None:
        """Return the artifact of exactly this key, whole, or None.

        A damaged one is renamed, with a warning, and counts as missing.
        """
        folder = self._folder(key)
        try:
            manifest = read_manifest(folder)
            if manifest is None:
                return None
            verify(folder, manifest, key)
        except DamagedError as error:
            self._set_aside(folder, str(error))
            return None
        with contextlib.suppress(OSError):  # a store that others own may be read-only
            os.utime(folder / MANIFEST)
        return Artifact(key, manifest.facts, folder)

    def keep(self, key: Key, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Artifact:
        """Store an artifact; one that is already there stays and is returned.

        Args:
            key: all it depends on.
            tensors: by name, any shape, dtype and device; views are copied.
            facts: JSON-able notes; `seconds` is what listings show.
        """
        with self._lock(key.digest):
            return self.find(key) or self._write(key, tensors, facts, self._nearest(key))

    def make(
        self, key: Key, build: Callable[[], tuple[Mapping[str, Tensor], Mapping[str, Any]]]
    ) -> Artifact:
        """Return the artifact of this key; if it is missing, build and store it.

        Of several processes that ask at once one builds and the others wait for it. What comes
        back is read from the store also after building, so a miss equals a hit.

        Args:
            key: all that `build` depends on.
            build: returns tensors and facts; `seconds` is added unless given.
        """
        found = self.find(key)
        if found is not None:
            return found
        with self._lock(key.digest):
            found = self.find(key)
            if found is not None:
                return found
            nearest = self._nearest(key)  # before building: what could have been a hit
            start = time.perf_counter()
            tensors, facts = build()
            seconds = time.perf_counter() - start
            timed = {"seconds": seconds, "made_on": machine(), **facts}
            return self._write(key, tensors, timed, nearest)

    def _write(
        self,
        key: Key,
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, Any],
        nearest: _Nearest,
    ) -> Artifact:
        folder = self._folder(key)
        draft = _aside(folder, DRAFT)
        draft.mkdir(parents=True)
        try:
            write_files(draft, (key, tensors, facts), *nearest)
            try:
                os.replace(draft, folder)  # noqa: PTH105
            except OSError:  # locks may not reach other machines, and one of them was first
                if self.find(key) is None:  # and damaged
                    os.replace(draft, folder)  # noqa: PTH105
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return Artifact(key, loads(canonical(facts)), folder)

    # ---- explaining ----------------------------------------------------------------------------

    def why(self, prefix: str) -> Explanation:
        """Explain why an artifact was not a hit when it was made.

        Args:
            prefix: of its digest, as long as it takes to be the only one.

        Raises:
            BadInputError: if none or several begin so, or if the one that does is damaged.
        """
        folders = {folder.name: folder for folder in self._folders()}
        found = sorted(name for name in folders if name.startswith(prefix))
        if len(found) > 1:
            shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")  # noqa: PLR2004
            raise BadInputError(f"{len(found)} artifacts begin with '{prefix}': {shown}; give more")
        if not found:
            near = difflib.get_close_matches(prefix.ljust(32, "."), folders, n=1, cutoff=0)
            tail = f"nearest is {near[0]}" if near else f"there are none in {self.root}"
            raise BadInputError(f"no artifact begins with '{prefix}': {tail}")
        try:
            manifest = read_manifest(folders[found[0]])
        except DamagedError as error:
            raise BadInputError(f"artifact {found[0]} is damaged: {error}") from error
        if manifest is None:
            raise BadInputError(f"artifact {found[0]} was deleted a moment ago")
        return manifest.explain()

    def missing(self, key: Key) -> Explanation:
        """Explain why a key is a miss; of one that is stored, why it was."""
        if key in self:
            return self.why(key.digest)
        return Explanation(key, None, None, *self._nearest(key))

    def _nearest(self, key: Key) -> _Nearest:
        """Find the artifact of this kind that differs in the fewest fields, the newest of those."""
        if any(self._folder(key).parent.glob(f"{DAMAGED}{key.digest}-*")):
            return key.digest, ()
        wanted = leaves(key.fields)
        best: tuple[int, str, dict[str, str]] | None = None
        for folder in self._newest(key.kind):
            there = self._leaves_of(folder)
            if there is not None:
                count = len({path for path, _ in there.items() ^ wanted.items()})
                if best is None or count < best[0]:
                    best = count, folder.name, there
        if best is None:
            return None, ()
        _, name, old = best
        paths = [path for path in old | wanted if old.get(path) != wanted.get(path)]
        return name, tuple(Difference(path, old.get(path), wanted.get(path)) for path in paths)

    def _newest(self, kind: str) -> tuple[Path, ...]:
        dated = []
        for folder in self._folders(kind):
            with contextlib.suppress(FileNotFoundError):
                dated.append((folder.stat().st_mtime_ns, folder))
        return tuple(folder for _, folder in sorted(dated, reverse=True)[:COMPARED])

    def _leaves_of(self, folder: Path) -> dict[str, str] | None:
        if folder.name not in self._leaves:
            with contextlib.suppress(DamagedError):
                manifest = read_manifest(folder)
                if manifest is not None:
                    self._leaves[folder.name] = leaves(manifest.fields)
        return self._leaves.get(folder.name)

    # ---- housekeeping --------------------------------------------------------------------------

    def list(self) -> Iterator[Row]:
        """Yield a row for each artifact, in no particular order."""
        for folder in self._folders():
            with contextlib.suppress(DamagedError):
                manifest = read_manifest(folder)
                if manifest is not None:
                    size, seconds = manifest.bytes, manifest.seconds
                    yield Row(manifest.kind, folder.name, size, seconds, manifest.created)

    def gc(self, older_than_days: float | None = None) -> int:
        """Delete what killed processes left, damaged artifacts, and old ones; return freed bytes.

        Artifacts and drafts that a process is making are left alone. An artifact that a process
        has found but not yet read is not: give a day or more while something runs.

        Args:
            older_than_days: since an artifact was last found or made; None keeps all artifacts.
        """
        cutoff = None if older_than_days is None else time.time() - older_than_days * 86400
        freed = 0
        for entry in [*self.root.glob("[a-z]*/??/*")]:
            aside = re.match(rf"(?:{DRAFT}|{DAMAGED})([0-9a-f]{{32}})-", entry.name)
            if aside or (_DIGEST.fullmatch(entry.name) and _is_waste(entry, cutoff)):
                with self._lock(aside[1] if aside else entry.name, wait=False) as locked:
                    freed += _delete(entry) if locked else 0
        for lock in [*self.root.glob(f"{LOCKS}/*")]:
            with self._lock(lock.stem, wait=False) as locked:
                if locked:
                    lock.unlink(missing_ok=True)  # who waits for it notices, and makes a new one
        return freed

    # ---- folders and locks ---------------------------------------------------------------------

    def _folder(self, key: Key) -> Path:
        return self.root / key.kind / key.digest[:2] / key.digest

    def _folders(self, kind: str = "[a-z]*") -> Iterator[Path]:
        for folder in self.root.glob(f"{kind}/??/*"):
            if _DIGEST.fullmatch(folder.name):
                yield folder

    def _set_aside(self, folder: Path, reason: str) -> None:
        aside = _aside(folder, DAMAGED)
        try:
            os.replace(folder, aside)  # noqa: PTH105
        except FileNotFoundError:  # deleted or set aside by another process meanwhile
            return
        warnings.warn(
            f"artifact {folder.name} is damaged ({reason}): moved to {aside}, counts as missing",
            RuntimeWarning,
            stacklevel=3,
        )

    @contextlib.contextmanager
    def _lock(self, digest: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold the lock of a digest; yield whether we do. The kernel frees it with the process."""
        from filelock import FileLock, Timeout

        path = self.root / LOCKS / f"{digest}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=-1 if wait else 0)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()


def _aside(folder: Path, prefix: str) -> Path:
    return folder.parent / f"{prefix}{folder.name}-{secrets.token_hex(4)}"


def _is_waste(folder: Path, cutoff: float | None) -> bool:
    try:
        if read_manifest(folder) is None:
            return False
        return cutoff is not None and (folder / MANIFEST).stat().st_mtime <= cutoff
    except DamagedError:
        return True


def _delete(folder: Path) -> int:
    draft = _aside(folder, DRAFT)
    try:
        os.replace(folder, draft)  # noqa: PTH105 - at once: nobody shall find half of it
    except FileNotFoundError:  # another gc was first
        return 0
    size = sum(path.stat().st_size for path in draft.iterdir())
    shutil.rmtree(draft, ignore_errors=True)
    return size
