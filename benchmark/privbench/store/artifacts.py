"""What one artifact is: its key, its two files, and why it had to be made."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from privbench.store.canonical import canonical, digest, leaves, loads, plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

SCHEMA = 1
MANIFEST = "manifest.json"
TENSORS = "tensors.safetensors"


@dataclass(frozen=True, eq=False)
class Key:
    """All that an artifact depends on. Equal keys have equal digests.

    Attributes:
        kind: what the artifact is: "phase", "outputs", "once", "answer".
        fields: whatever `canonical` takes; kept as plain JSON values.
    """

    kind: str
    fields: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Copy the fields, so that the key cannot change, and check that both parts have a text."""
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", self.kind):
            raise ValueError(f"kind '{self.kind}' names a folder: use lower-case letters, - and _")
        object.__setattr__(self, "fields", loads(canonical(self.fields)))

    @functools.cached_property
    def text(self) -> str:
        """The canonical text of kind and fields."""
        return canonical({"kind": self.kind, "fields": self.fields})

    @functools.cached_property
    def digest(self) -> str:
        """32 hex characters."""
        return digest({"kind": self.kind, "fields": self.fields})

    def __eq__(self, other: object) -> bool:
        """Compare texts, for which 1, 1.0 and True differ."""
        return isinstance(other, Key) and self.text == other.text

    def __hash__(self) -> int:
        """Hash the text."""
        return hash(self.text)


@dataclass(frozen=True)
class Artifact:
    """Something stored.

    Attributes:
        key: what it depends on.
        facts: what was noted while it was made, e.g. seconds; no part of its identity.
        path: its folder.
    """

    key: Key
    facts: Mapping[str, Any]
    path: Path

    @functools.cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors by name, on the CPU; read from the file on first use."""
        if not (self.path / TENSORS).exists() and self.path.exists():
            return {}
        from safetensors.torch import load_file

        return load_file(self.path / TENSORS)


class Difference(NamedTuple):
    """A field in which two keys differ; None where a key lacks the field.

    Attributes:
        path: of the field, e.g. `defense.fields.epochs`.
        old: JSON text of its value in the key that was there.
        new: JSON text of its value in the key that was asked for.
    """

    path: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        """`path: old -> new`."""
        return f"{self.path}: {self.old or '(absent)'} -> {self.new or '(absent)'}"


@dataclass(frozen=True)
class Explanation:
    """Why an artifact had to be made, or would have to be.

    Attributes:
        key: the whole of it.
        created: when it was made, ISO 8601 in UTC; None if it is not stored.
        seconds: how long that took, if noted.
        nearest: digest of the nearest artifact of its kind that was there; None if none was.
        differs: the fields in which that one differs; empty if a damaged one was made again.
    """

    key: Key
    created: str | None
    seconds: float | None
    nearest: str | None
    differs: Sequence[Difference]

    def __str__(self) -> str:
        """Several lines for a terminal."""
        took = "" if self.seconds is None else f" in {self.seconds:.1f} s"
        made = f"made {self.created}{took}" if self.created else "not in the store"
        if self.nearest is None:
            reason = f"no other artifact of kind '{self.key.kind}' to compare with"
        elif self.differs:
            reason = f"nearest is {self.nearest}, which differs in"
        else:
            reason = f"{self.nearest} was there, but damaged"
        lines = [f"{self.key.kind} {self.key.digest}: {made}", reason]
        lines += [f"  {one}" for one in self.differs]
        lines += ["key", *(f"  {path} = {text}" for path, text in leaves(self.key.fields).items())]
        return "\n".join(lines)


class Row(NamedTuple):
    """One stored artifact in a listing."""

    kind: str
    digest: str
    bytes: int
    seconds: float | None
    created: str


class DamagedError(Exception):
    """A folder in the store that is not the artifact it claims to be; the message says why."""


@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says."""

    kind: str
    fields: Mapping[str, Any]
    facts: Mapping[str, Any]
    created: str
    tensors: Mapping[str, Any] | None
    nearest: str | None
    differs: Sequence[Difference]

    @property
    def seconds(self) -> float | None:
        """How long making it took, if noted."""
        seconds = self.facts.get("seconds")
        return float(seconds) if isinstance(seconds, (int, float)) else None

    @property
    def bytes(self) -> int:
        """Size of the tensors' file."""
        return self.tensors["bytes"] if self.tensors else 0

    def explain(self) -> Explanation:
        """Say why it had to be made."""
        key = Key(self.kind, self.fields)
        return Explanation(key, self.created, self.seconds, self.nearest, self.differs)


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest in a folder; None if the folder is not there.

    Raises:
        DamagedError: if what is there is no manifest, or the tensors' file has another size.
    """
    if not folder.is_dir():
        return None
    try:
        told = loads((folder / MANIFEST).read_text("utf-8"))
        if told["schema"] != SCHEMA:
            raise DamagedError(f"its schema is {told['schema']}, not {SCHEMA}")
        names = ("kind", "fields", "facts", "created", "tensors", "nearest")
        differs = tuple(Difference(**one) for one in told["differs"])
        manifest = Manifest(**{name: told[name] for name in names}, differs=differs)
        size = (folder / TENSORS).stat().st_size if manifest.tensors else 0
        if size != manifest.bytes:
            raise DamagedError(f"{TENSORS} has {size} bytes, not {manifest.bytes}")
    except FileNotFoundError as error:
        raise DamagedError(f"it has no {os.path.basename(error.filename)}") from error  # noqa: PTH119
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"its {MANIFEST} cannot be read: {error!r}") from error
    return manifest


def same_key(manifest: Manifest, key: Key) -> bool:
    """Whether the manifest is about this very key, by its whole text and not only the digest."""
    return (manifest.kind, canonical(manifest.fields)) == (key.kind, canonical(key.fields))


def verify(folder: Path, manifest: Manifest, key: Key) -> None:
    """Check the whole key, and read the tensors' file once.

    Raises:
        DamagedError: if the manifest is about another key, or the file is not what was written.
    """
    if not same_key(manifest, key):
        raise DamagedError("its manifest is about another key")
    if manifest.tensors:
        try:
            with (folder / TENSORS).open("rb") as file:
                found = hashlib.file_digest(file, _hash).hexdigest()
        except FileNotFoundError as error:
            raise DamagedError(f"it has no {TENSORS}") from error
        if found != manifest.tensors["blake2b"]:
            raise DamagedError(f"{TENSORS} has other content than was written")


def write_files(
    folder: Path,
    artifact: tuple[Key, Mapping[str, Tensor], Mapping[str, Any]],
    nearest: str | None,
    differs: Sequence[Difference],
) -> None:
    """Write both files into an empty folder, the manifest last, and wait for the disk."""
    from importlib.metadata import version

    key, tensors, facts = artifact
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
        "privbench": version("privbench"),
        "nearest": nearest,
        "differs": [one._asdict() for one in differs],
    }
    _write(folder / MANIFEST, json.dumps(manifest, indent=1, allow_nan=False).encode())


def _hash(content: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(content, digest_size=16)


def _serialise(tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    # Contiguous copies: views of one storage are refused. save_file would make files of mode 600.
    copies = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    return save(copies)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
