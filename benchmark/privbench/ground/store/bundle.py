"""Artifacts in one file, to bring from one store into another.

A ZIP file, stored without compression, with `<kind>/<digest>/manifest.json` and
`<kind>/<digest>/tensors.safetensors` of each artifact, as in a store. Nothing in it is unpickled or
run.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import struct
import zipfile
from typing import TYPE_CHECKING

from privbench.ground.errors import BadInputError
from privbench.ground.store.artifacts import (
    MANIFEST,
    TENSORS,
    DamagedError,
    Key,
    read_manifest,
    verify,
)
from privbench.ground.store.files import naming
from privbench.ground.store.store import DRAFT, IMPORTED, aside
from privbench.ground.text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from privbench.ground.store.store import Artifact, Store

_NAME = re.compile(
    rf"([a-z][a-z0-9_-]*)/([0-9a-f]{{32}})/({re.escape(MANIFEST)}|{re.escape(TENSORS)})"
)

#: What reading a file raises that is no bundle, or a damaged one.
_UNREADABLE = (zipfile.BadZipFile, DamagedError, EOFError, NotImplementedError, RuntimeError,
               ValueError, struct.error)  # fmt: skip


def size(artifacts: Sequence[Artifact]) -> int:
    """Bytes of all files of these artifacts."""
    return sum(path.stat().st_size for one in artifacts for path in _files(one))


def _files(artifact: Artifact) -> list[Path]:
    """Its files; what a file manager left beside them is none."""
    return [path for path in sorted(artifact.path.iterdir()) if path.name in (MANIFEST, TENSORS)]


def pack(artifacts: Sequence[Artifact], file: Path) -> None:
    """Write artifacts into a file; a reader sees the old file or the whole new one.

    Raises:
        WriteError: if that is impossible; then the old file stays.
    """
    draft = aside(file, DRAFT)
    try:
        with naming(file), zipfile.ZipFile(draft, "x", strict_timestamps=False) as bundle:
            for one in artifacts:
                for path in _files(one):
                    bundle.write(path, f"{one.key.kind}/{one.key.digest}/{path.name}")
        with naming(file):
            os.replace(draft, file)  # noqa: PTH105
    finally:
        draft.unlink(missing_ok=True)


def unpack(file: Path, store: Store) -> tuple[int, int]:
    """Add the artifacts of a file to a store: all of them, or none if one is not right.

    Returns:
        How many were added, and how many were there.

    Raises:
        BadInputError: if the file is not one of ``pack``, or has changed since.
        WriteError: if the store cannot be written.
    """
    drafts: list[tuple[Path, Key]] = []
    place = store.root / f"{IMPORTED}{secrets.token_hex(4)}"
    try:
        with zipfile.ZipFile(file) as bundle:
            for (kind, digest), entries in _entries(bundle).items():
                draft = place / kind / digest
                with naming(draft):
                    draft.mkdir(parents=True)
                for entry in entries:
                    path = draft / entry.filename.rpartition("/")[2]
                    with bundle.open(entry) as source, naming(path), path.open("xb") as target:
                        shutil.copyfileobj(source, target)
                drafts.append((draft, _checked(draft, kind, digest)))
        added = sum(store.adopt(key, draft) for draft, key in drafts)
    except _UNREADABLE as error:
        raise BadInputError(
            f"{shown(str(file), 200)} cannot be imported: {shown(str(error), 200)}; export it again"
        ) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return added, len(drafts) - added


def _entries(bundle: zipfile.ZipFile) -> dict[tuple[str, str], list[zipfile.ZipInfo]]:
    """The entries of each artifact, by kind and digest.

    Raises:
        DamagedError: if there are others, or none.
    """
    found: dict[tuple[str, str], list[zipfile.ZipInfo]] = {}
    for entry in bundle.infolist():
        name = _NAME.fullmatch(entry.filename)
        if name is None or entry.compress_type != zipfile.ZIP_STORED:
            raise DamagedError(f"{entry.filename!r} is not a file of an artifact")
        mine = found.setdefault((name[1], name[2]), [])
        if entry.filename in {one.filename for one in mine}:
            raise DamagedError(f"{entry.filename} is there twice")
        mine.append(entry)
    if not found:
        raise DamagedError("it holds no artifacts")
    return found


def _checked(folder: Path, kind: str, digest: str) -> Key:
    """The key of an artifact; its manifest, key and tensors are as their checksums say.

    Raises:
        DamagedError: if they are not.
    """
    from safetensors import SafetensorError, safe_open

    try:
        manifest = read_manifest(folder)
        if manifest is None or not isinstance(manifest.facts, dict):
            raise DamagedError(f"artifact {digest} has no facts")
        key = Key(manifest.kind, manifest.fields)
        if (key.kind, key.digest) != (kind, digest):
            raise DamagedError(f"the manifest of artifact {digest} belongs to another one")
        verify(folder, manifest, key)
        if bool(manifest.tensors) != (folder / TENSORS).exists():
            raise DamagedError(f"artifact {digest} has tensors that its manifest does not name")
        if manifest.tensors:
            with safe_open(folder / TENSORS, framework="np") as tensors:
                tensors.keys()
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"artifact {digest}: {error}") from error
    return key
