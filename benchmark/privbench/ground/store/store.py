"""Artifacts on disk, each identified by the digest of all that it depends on.

`<root>/<kind>/<2 hex>/<digest>/` holds `manifest.json` and, unless there are no tensors,
`tensors.safetensors`. A folder is written under a temporary name and renamed when complete, so an
artifact is complete or absent, and it never changes.

torch is imported only to read or write tensors.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import secrets
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from privbench.ground.errors import BadInputError, WriteError
from privbench.ground.store.artifacts import (
    MANIFEST,
    Artifact,
    DamagedError,
    Explanation,
    Key,
    KeyDifference,
    Row,
    read_manifest,
    same_key,
    verify,
    write_files,
)
from privbench.ground.store.canonical import canonical, leaves, loads
from privbench.ground.store.files import naming, set_aside
from privbench.ground.store.machine import machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

__all__ = ["Artifact", "Explanation", "Key", "KeyDifference", "Row", "Store", "default_root"]

#: An artifact is compared with at most this many older ones of its kind, the newest first.
COMPARED = 2000
#: Prefixes for the names of folders that are being written or deleted, and of damaged ones.
DRAFT, DAMAGED, UNFINISHED = ".draft-", ".damaged-", ".unfinished-"
LOCKS = ".locks"
#: Prefix of a folder in which an import is written, beside the kinds, so that `gc` leaves it alone.
IMPORTED = ".import-"
_DAY = 86400  # seconds
NOTES = "finished"  #: notes about finished grids, see `privbench.grid.kept`
INDEX = "methods"  #: what plugins offer, see `privbench.cli.index`
_DIGEST = re.compile(r"[0-9a-f]{32}")


def default_root() -> Path:
    """Return the folder given by `PRIVBENCH_CACHE`, or else the user's cache folder."""
    import platformdirs

    given = os.environ.get("PRIVBENCH_CACHE")
    return Path(given).expanduser() if given else Path(platformdirs.user_cache_dir("privbench"))


class Store:
    """Artifacts in one folder, which many processes may use at the same time.

    Attributes:
        root: the folder.
        code: digest of the code of others that this process has loaded; "" for none. What such a
            process makes is kept for processes with the same code: no other finds it. It finds
            also what processes without such code made.
    """

    code: ClassVar[str] = ""

    def __init__(self, root: Path) -> None:
        """Use the folder; it is created when the first artifact is stored.

        Args:
            root: the folder, for example `default_root()`.

        Raises:
            BadInputError: if something else is in its place.
        """
        if os.path.lexists(root) and not root.is_dir():
            raise BadInputError(
                f"the store {root} is not a folder: set PRIVBENCH_CACHE to a folder"
            )
        self.root = root

    @classmethod
    @contextlib.contextmanager
    def of_code(cls, code: str) -> Iterator[None]:
        """Have ``code`` for a while; "" changes nothing."""
        before, Store.code = Store.code, code or Store.code
        try:
            yield
        finally:
            Store.code = before

    @property
    def missing(self) -> str:
        """That its folder does not exist, in words; "" if it does."""
        return "" if self.root.is_dir() else f"the store {self.root} does not exist"

    # ---- reading and writing -------------------------------------------------------------------

    def __contains__(self, key: Key) -> bool:
        """Whether `find` would probably succeed; fast, because it reads no tensors."""
        for one in self._readable(key):
            with contextlib.suppress(DamagedError):
                manifest = read_manifest(self._folder(one))
                if manifest is not None and same_key(manifest, one):
                    return True
        return False

    def facts(self, key: Key) -> Mapping[str, Any] | None:
        """The facts recorded when the artifact of this key was built; None if it is not stored.

        A damaged artifact is renamed with a warning and treated as missing.
        """
        return next((facts for one in self._readable(key)
                     if (facts := self._facts(one)) is not None), None)  # fmt: skip

    def _facts(self, key: Key) -> Mapping[str, Any] | None:
        folder = self._folder(key)
        try:
            manifest = read_manifest(folder)
        except DamagedError as error:
            self._set_aside(folder, str(error))
            return None
        return manifest.facts if manifest is not None and same_key(manifest, key) else None

    def find(self, key: Key) -> Artifact | None:
        """Return the complete artifact of exactly this key, or None.

        A damaged artifact is renamed with a warning and treated as missing.
        """
        return next((held for one in self._readable(key) if (held := self._find(one))), None)

    def _find(self, key: Key) -> Artifact | None:
        folder = self._folder(key)
        try:
            manifest = read_manifest(folder)
            if manifest is None:
                return None
            verify(folder, manifest, key)
        except DamagedError as error:
            self._set_aside(folder, str(error))
            return None
        with contextlib.suppress(OSError):  # the store may be read-only for this user
            os.utime(folder / MANIFEST)
        return Artifact(key, manifest.facts, folder, bool(manifest.tensors))

    def keep(self, key: Key, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Artifact:
        """Store an artifact; if it exists already, that one is kept and returned.

        Args:
            key: all that the artifact depends on.
            tensors: by name, of any shape, dtype and device; views are copied.
            facts: notes that JSON can represent; listings show `seconds`.
        """
        with self._lock(self._own(key).digest):
            return self.find(key) or self._write(self._own(key), tensors, facts)

    def make(
        self, key: Key, build: Callable[[], tuple[Mapping[str, Tensor], Mapping[str, Any]]]
    ) -> Artifact:
        """Return the artifact of this key; if it is missing, build and store it.

        If several processes ask at the same time, one builds and the others wait for it. The
        result is read from the store even after building, so a miss gives the same as a hit.

        Args:
            key: all that `build` depends on.
            build: returns tensors and facts; `seconds` is added unless it is given.
        """
        found = self.find(key)
        if found is not None:
            return found
        own = self._own(key)
        with self._lock(own.digest):
            found = self.find(key)
            if found is not None:
                return found
            start = time.perf_counter()
            tensors, facts = build()
            seconds = time.perf_counter() - start
            timed = {"seconds": seconds, "made_on": machine(), **facts}
            return self._write(own, tensors, timed)

    def unfinished(self, key: Key) -> Path:
        """The file for what is known of an artifact that is being made; it goes when that is kept.

        Whoever makes the artifact may write it, and find it again after an interruption.
        """
        return self._unfinished(self._folder(self._own(key)))

    def _unfinished(self, folder: Path) -> Path:
        return folder.with_name(f"{UNFINISHED}{folder.name}")

    def _own(self, key: Key) -> Key:
        """The key under which this process keeps what it makes."""
        return Key(key.kind, {**key.fields, "code of others": self.code}) if self.code else key

    def _readable(self, key: Key) -> tuple[Key, ...]:
        """The keys under which this process looks for an artifact."""
        return (key, self._own(key)) if self.code else (key,)

    def _write(self, key: Key, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Artifact:
        folder = self._folder(key)
        draft = aside(folder, DRAFT)
        try:
            with naming(folder):
                draft.mkdir(parents=True)
                write_files(draft, key, tensors, facts)
                try:
                    os.replace(draft, folder)  # noqa: PTH105
                except OSError:  # another machine was first; locks may not work across machines
                    if self._find(key) is None:  # its artifact is damaged
                        os.replace(draft, folder)  # noqa: PTH105
            self._unfinished(folder).unlink(missing_ok=True)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return Artifact(key, loads(canonical(facts)), folder, bool(tensors))

    def adopt(self, key: Key, folder: Path) -> bool:
        """Take a folder, verified by the caller, as the artifact of exactly this key.

        Returns:
            Whether it was missing; otherwise the stored one is kept.
        """
        with self._lock(key.digest):
            if self._find(key) is not None:
                return False
            with naming(self._folder(key)):
                self._folder(key).parent.mkdir(parents=True, exist_ok=True)
                os.replace(folder, self._folder(key))  # noqa: PTH105
            return True

    # ---- explaining ----------------------------------------------------------------------------

    def why(self, prefix: str) -> Explanation:
        """Explain why an artifact had to be built.

        Args:
            prefix: of its digest, long enough to be unique.

        Raises:
            BadInputError: if no artifact or several match, or if the artifact is damaged.
        """
        folders = {folder.name: folder for folder in self._folders()}
        found = sorted(name for name in folders if name.startswith(prefix))
        if len(found) > 1:
            shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")  # noqa: PLR2004
            raise BadInputError(
                f"{len(found)} artifacts begin with '{prefix}': {shown}; add digits"
            )
        if not found:
            near = difflib.get_close_matches(prefix.ljust(32, "."), folders, n=1, cutoff=0)
            empty = f"the store {self.root} is empty" if self.root.is_dir() else self.missing
            tail = f"nearest is {near[0]}" if near else empty
            raise BadInputError(f"no artifact begins with '{prefix}': {tail}")
        try:
            manifest = read_manifest(folders[found[0]])
        except DamagedError as error:
            raise BadInputError(
                f"artifact {found[0]} is damaged ({error}): run `privbench cache gc` to remove it"
            ) from error
        if manifest is None:
            raise BadInputError(f"artifact {found[0]} was just deleted: choose another")
        key = Key(manifest.kind, manifest.fields)
        nearest, differs = self._nearest(key, folders[found[0]])
        names = {**self._names(folders.get(nearest or "")), **manifest.facts.get("names", {})}
        return Explanation(key, manifest.created, manifest.seconds, nearest, differs, names)

    def _names(self, folder: Path | None) -> dict[str, str]:
        """The names that an artifact gives to digests in its key; artifacts of 0.2.0 give none."""
        with contextlib.suppress(DamagedError):
            manifest = read_manifest(folder) if folder else None
            return dict(manifest.facts.get("names", {})) if manifest else {}
        return {}

    def _nearest(self, key: Key, folder: Path) -> tuple[str | None, Sequence[KeyDifference]]:
        """Of the artifacts of this kind that were built before, the one that differs least."""
        if any(folder.parent.glob(f"{DAMAGED}{key.digest}-*")):
            return key.digest, ()
        wanted = leaves(key.fields)
        best: tuple[int, str, dict[str, str]] | None = None
        for other in self._before(folder, key.kind):
            there = self._leaves_of(other)
            if there is not None:
                count = len({path for path, _ in there.items() ^ wanted.items()})
                if best is None or count < best[0]:
                    best = count, other.name, there
        if best is None:
            return None, ()
        _, name, old = best
        paths = [path for path in old | wanted if old.get(path) != wanted.get(path)]
        return name, tuple(KeyDifference(path, old.get(path), wanted.get(path)) for path in paths)

    def _before(self, folder: Path, kind: str) -> tuple[Path, ...]:
        """The newest artifacts of a kind that are older than the one in this folder."""
        built = folder.stat().st_mtime_ns
        dated = []
        for other in self._folders(kind):
            with contextlib.suppress(OSError):
                dated.append((other.stat().st_mtime_ns, other))
        older = sorted((one for one in dated if one[0] < built), reverse=True)
        return tuple(other for _, other in older[:COMPARED])

    def _leaves_of(self, folder: Path) -> dict[str, str] | None:
        with contextlib.suppress(DamagedError):
            manifest = read_manifest(folder)
            if manifest is not None:
                return leaves(manifest.fields)
        return None

    # ---- housekeeping --------------------------------------------------------------------------

    def list(self) -> Iterator[Row]:
        """Yield one row per artifact, damaged ones included, in no particular order."""
        for folder in self._folders():
            try:
                manifest = read_manifest(folder)
            except DamagedError as error:
                yield Row(folder.parent.parent.name, folder.name, 0, None, "", str(error))
                continue
            if manifest is not None:
                size, seconds = manifest.bytes, manifest.seconds
                yield Row(manifest.kind, folder.name, size, seconds, manifest.created)

    def gc(self, older_than_days: float | None = None) -> int:
        """Delete leftovers of killed processes, damaged and old artifacts; return freed bytes.

        Artifacts and drafts that a process is writing are not deleted, and what an import has left
        only after a day. An artifact that a process
        has found but not yet read may be deleted: give a day or more while something runs.

        Args:
            older_than_days: since an artifact was last found or built, or an unfinished one was
                written; None keeps all that are not damaged.
        """
        cutoff = None if older_than_days is None else time.time() - older_than_days * _DAY
        freed = 0
        for lock in [*self.root.glob(f"{LOCKS}/*")]:
            if lock.is_symlink() or not lock.is_file():
                freed += _remove(lock)
        old = [*self.root.glob(f"[a-z]*/??/{UNFINISHED}*")]
        for entry in [*self.root.glob("[a-z]*/??/*")]:
            aside = re.match(rf"(?:{DRAFT}|{DAMAGED})([0-9a-f]{{32}})-", entry.name)
            if aside or (_DIGEST.fullmatch(entry.name) and _is_waste(entry, cutoff)):
                digest = aside[1] if aside else entry.name
                with self._lock(digest, wait=False) as locked:
                    freed += _delete(entry, digest) if locked else 0
        old += [*self.root.glob(f"{NOTES}/*.json"), *self.root.glob(f"{INDEX}/*.json")]
        until = dict.fromkeys(old, cutoff)
        until |= dict.fromkeys(self.root.glob(f"{IMPORTED}*"), time.time() - _DAY)
        for one, limit in until.items():
            with contextlib.suppress(FileNotFoundError):  # another process was first
                if limit is not None and one.lstat().st_mtime < limit:
                    freed += _remove(one)
        for lock in [*self.root.glob(f"{LOCKS}/*")]:
            with self._lock(lock.stem, wait=False) as locked:
                if locked:
                    # A process that waits for the lock notices this and creates a new one.
                    lock.unlink(missing_ok=True)
        return freed

    def remove(self, key: Key) -> None:
        """Delete the artifact of a key that a process like this one made, if there is one."""
        own = self._own(key)
        with self._lock(own.digest):
            _delete(self._folder(own), own.digest)

    # ---- folders and locks ---------------------------------------------------------------------

    def _folder(self, key: Key) -> Path:
        return self.root / key.kind / key.digest[:2] / key.digest

    def _folders(self, kind: str = "[a-z]*") -> Iterator[Path]:
        for folder in self.root.glob(f"{kind}/??/*"):
            if _DIGEST.fullmatch(folder.name):
                yield folder

    def _set_aside(self, folder: Path, reason: str) -> None:
        set_aside(folder, aside(folder, DAMAGED), f"artifact {folder.name}", reason)

    @contextlib.contextmanager
    def _lock(self, digest: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold the lock of a digest and yield whether it was acquired.

        The kernel releases it if the process dies.
        """
        from filelock import FileLock, Timeout

        path = self.root / LOCKS / f"{digest}.lock"
        lock = FileLock(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=-1 if wait else 0)
        except Timeout:
            yield False
            return
        except OSError as error:
            raise WriteError(error.errno, error.strerror or str(error), str(path)) from error
        try:
            yield True
        finally:
            lock.release()


def aside(folder: Path, prefix: str) -> Path:
    """A path beside a folder, for one that is being written or deleted, or is damaged."""
    return folder.parent / f"{prefix}{folder.name}-{secrets.token_hex(4)}"


def _is_waste(folder: Path, cutoff: float | None) -> bool:
    try:
        if read_manifest(folder) is None:
            return False
        return cutoff is not None and (folder / MANIFEST).stat().st_mtime <= cutoff
    except DamagedError:
        return True
    except FileNotFoundError:  # another gc was first
        return False


def _delete(entry: Path, digest: str) -> int:
    draft = aside(entry.with_name(digest), DRAFT)
    try:
        os.replace(entry, draft)  # noqa: PTH105 - atomic: no reader may see half of it
    except FileNotFoundError:  # another gc was first
        return 0
    return _remove(draft)


def _remove(path: Path) -> int:
    """Delete a folder, or whatever is in its place; of a link, not what it leads to."""
    if path.is_symlink() or not path.is_dir():
        size = path.lstat().st_size
        path.unlink()
        return size
    held = [one.lstat() for one in path.rglob("*")]
    shutil.rmtree(path, ignore_errors=True)
    return sum(one.st_size for one in held if not stat.S_ISDIR(one.st_mode))
