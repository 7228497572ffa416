"""One artifact: its key, its two files, and why it had to be built."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from privbench.ground.store.canonical import canonical, checksum, digest, leaves, loads, plain
from privbench.ground.store.files import BUSY
from privbench.ground.store.files import synced as _write
from privbench.ground.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

SCHEMA = 2
MANIFEST = "manifest.json"
TENSORS = "tensors.safetensors"


@dataclass(frozen=True, eq=False)
class Key:
    """All that an artifact depends on; equal keys have equal digests.

    Attributes:
        kind: of artifact, such as "phase", "outputs" or "answer".
        fields: any values that `canonical` accepts; stored as plain JSON values.
    """

    kind: str
    fields: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Check the kind, and copy the fields so that the key cannot change."""
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", self.kind):
            raise ValueError(
                f"kind '{self.kind}' is not a valid folder name: "
                "use lower-case letters, digits, - and _, with a letter first"
            )
        object.__setattr__(self, "fields", loads(canonical(self.fields)))

    @functools.cached_property
    def text(self) -> str:
        """The canonical text of kind and fields."""
        return canonical({"kind": self.kind, "fields": self.fields})

    @functools.cached_property
    def digest(self) -> str:
        """Digest of kind and fields, as 32 hex characters."""
        return digest({"kind": self.kind, "fields": self.fields})

    def __eq__(self, other: object) -> bool:
        """Compare the canonical texts, in which 1, 1.0 and True differ."""
        return isinstance(other, Key) and self.text == other.text

    def __hash__(self) -> int:
        """Hash the canonical text."""
        return hash(self.text)


@dataclass(frozen=True)
class Artifact:
    """A stored artifact.

    Attributes:
        key: what it depends on.
        facts: notes from building it, for example seconds; not part of its identity.
        path: the folder of the artifact.
        has_tensors: whether there are any.
    """

    key: Key
    facts: Mapping[str, Any]
    path: Path
    has_tensors: bool

    @functools.cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors by name, on the CPU; read from the file at the first access."""
        if not self.has_tensors:
            return {}
        from safetensors.torch import load_file

        return load_file(self.path / TENSORS)


class KeyDifference(NamedTuple):
    """A field in which two keys differ; None where a key lacks the field.

    Attributes:
        path: of the field, for example `defense.fields.epochs`.
        old: JSON text of its value in the stored key.
        new: JSON text of its value in the requested key.
    """

    path: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        """The difference as `path: old -> new`."""
        return f"{self.path}: {self.old or '(absent)'} -> {self.new or '(absent)'}"


@dataclass(frozen=True)
class Explanation:
    """Why an artifact had to be built.

    Attributes:
        key: the full key.
        created: when it was built, ISO 8601 in UTC.
        seconds: build seconds, if recorded.
        nearest: digest of the most similar artifact of its kind among those that are stored and
            were built before; None if there is none.
        differs: the fields in which that one differs; empty if a damaged artifact was rebuilt.
        names: words for digests in the key and in what differs, such as those of methods.
    """

    key: Key
    created: str
    seconds: float | None
    nearest: str | None
    differs: Sequence[KeyDifference]
    names: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Several lines for a terminal."""
        took = "" if self.seconds is None else f" in {self.seconds:.1f} s"
        made = f"built {self.created}{took}"
        if self.nearest is None:
            reason = f"no earlier artifact of kind '{self.key.kind}' to compare with"
        elif self.differs:
            reason = f"the nearest artifact is {self.nearest}; it differs in:"
        else:
            reason = f"{self.nearest} was stored, but damaged"
        lines = [f"{self.key.kind} {self.key.digest}: {made}", reason]
        named = [
            KeyDifference(one.path, *(self._named(text) for text in (one.old, one.new)))
            for one in self.differs
        ]
        lines += [f"  {one}" for one in named]
        parts = leaves(self.key.fields).items()
        lines += ["key", *(f"  {path} = {self._named(text)}" for path, text in parts)]
        return "\n".join(lines)

    def _named(self, text: str | None) -> Any:
        """A value of a key; a digest with a name is shown by it, and by its first digits."""
        digest = (text or "").strip('"')
        name = self.names.get(digest)
        return text if name is None else f"{name} ({digest[:8]})"


class Row(NamedTuple):
    """One stored artifact, as listed; ``damaged`` is why it cannot be used, or ""."""

    kind: str
    digest: str
    bytes: int
    seconds: float | None
    created: str
    damaged: str = ""


class DamagedError(Exception):
    """A folder in the store does not hold a valid artifact; the message says why."""


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`."""

    kind: str
    fields: Mapping[str, Any]
    facts: Mapping[str, Any]
    created: str
    tensors: Mapping[str, Any] | None

    @property
    def seconds(self) -> float | None:
        """Build seconds, if recorded."""
        seconds = self.facts.get("seconds")
        return float(seconds) if isinstance(seconds, (int, float)) else None

    @property
    def bytes(self) -> int:
        """Size of the tensor file."""
        return self.tensors["bytes"] if self.tensors else 0


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest in a folder; None if there is nothing.

    Raises:
        DamagedError: if there is no valid manifest, or the tensor file has the wrong size.
    """
    if not os.path.isdir(folder):  # noqa: PTH112 - False for a link to itself, too
        if os.path.lexists(folder):
            raise DamagedError("it is not a folder")
        return None
    with _reading(MANIFEST):
        text = (folder / MANIFEST).read_text("utf-8")
        told = json.loads(text)
        if told["schema"] != SCHEMA:
            raise DamagedError(f"its schema is {told['schema']}, not {SCHEMA}")
        if told.pop("checksum", None) != checksum(told):
            raise DamagedError(f"its {MANIFEST} has changed since it was written")
        told = loads(text) if '"$float"' in text else told  # which takes twice as long
        names = ("kind", "fields", "facts", "created", "tensors")
        manifest = Manifest(**{name: told[name] for name in names})
    with _reading(TENSORS):
        size = (folder / TENSORS).stat().st_size if manifest.tensors else 0
        if size != manifest.bytes:
            raise DamagedError(f"{TENSORS} has {size} bytes, not {manifest.bytes}")
    return manifest


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn whatever comes of reading a damaged file into a `DamagedError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise DamagedError(f"it has no {name}") from error
    except OSError as error:
        if error.errno in BUSY:
            raise
        raise DamagedError(f"its {name} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedError(f"its {name} cannot be read: {shown(repr(error))}") from error


def same_key(manifest: Manifest, key: Key) -> bool:
    """Whether the manifest belongs to this key; compares the full text, not only the digest."""
    return (manifest.kind, canonical(manifest.fields)) == (key.kind, canonical(key.fields))


def verify(folder: Path, manifest: Manifest, key: Key) -> None:
    """Check the full key and the checksum of the tensor file.

    Raises:
        DamagedError: if the manifest belongs to another key, or the file has changed.
    """
    if not same_key(manifest, key):
        raise DamagedError("its manifest belongs to another key")
    if manifest.tensors:
        with _reading(TENSORS), (folder / TENSORS).open("rb") as file:
            found = hashlib.file_digest(file, _hash).hexdigest()
        if found != manifest.tensors["blake2b"]:
            raise DamagedError(f"{TENSORS} has changed since it was written")


@functools.cache
def _version() -> str:
    from importlib.metadata import version

    return version("privbench")


def write_files(
    folder: Path, key: Key, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Write both files into an empty folder, the manifest last, and sync them to disk."""
    content = None
    if tensors:
        content = _serialise(tensors)
        _write(folder / TENSORS, content)
    manifest = {
        "schema": SCHEMA,
        "kind": key.kind,
        "digest": key.digest,
        "fields": plain(key.fields),
        "facts": plain(facts, "facts"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "tensors": content and {"bytes": len(content), "blake2b": _hash(content).hexdigest()},
        "privbench": _version(),
    }
    manifest["checksum"] = checksum(manifest)
    _write(folder / MANIFEST, json.dumps(manifest, indent=1, allow_nan=False).encode())


def _hash(content: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(content, digest_size=16)


def _serialise(tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    # Contiguous copies: views of one storage are rejected. save_file would create mode 600 files.
    copies = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    return save(copies)
