"""Plugins that are single files: ``privbench --plugin my_attack.py run …``.

A file is read once, by the process that starts a run. Its workers get the text, so all of them run
the same code, also on machines that do not see the file.
"""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import dataclass, field
from functools import cached_property
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING

from privbench.ground.errors import BadInputError
from privbench.ground.text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

#: What the names of modules from such files begin with; the file's own name follows.
PREFIX = "privbench_file_"
#: Characters of the largest file that is read.
_LONGEST = 10_000_000


@dataclass(frozen=True)
class PluginFile:
    """A file and its text.

    Attributes:
        path: absolute path, for tracebacks.
        text: what it holds.
    """

    path: str
    text: str = field(repr=False)

    @property
    def name(self) -> str:
        """Name of the file, such as ``my_attack.py``."""
        return Path(self.path).name

    @property
    def module(self) -> str:
        """Name of its module; it does not depend on the folder, since keys depend on it."""
        return PREFIX + re.sub(r"\W", "_", Path(self.path).stem)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the text as UTF-8, in hexadecimal digits; that of the file."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def spec(self) -> ModuleSpec:
        """How its module is made."""
        spec = ModuleSpec(self.module, _Loader(self), origin=self.path)
        spec.has_location = True
        return spec

    def load(self) -> ModuleType:
        """Return its module, which is made again only if the text differs from the loaded one."""
        loaded = sys.modules.get(self.module)
        spec = getattr(loaded, "__spec__", None)
        if loaded and spec and getattr(spec.loader, "file", None) == self:
            return loaded
        module = module_from_spec(self.spec)
        sys.modules[self.module] = module  # dataclasses look for it there
        try:
            _Loader(self).exec_module(module)
        except BaseException:
            del sys.modules[self.module]
            raise
        return module


class _Finder(MetaPathFinder):
    """Finds the modules of plugin files by name."""

    def __init__(self, files: Sequence[PluginFile]) -> None:
        self.files = {file.module: file for file in files}

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        del path, target
        return self.files[fullname].spec if fullname in self.files else None


def offer(files: Sequence[PluginFile]) -> None:
    """Let a file be imported where something names its module; before, none is."""
    sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, _Finder)]
    sys.meta_path.append(_Finder(files))


class _Loader(InspectLoader):
    """Runs the text that was read, whatever the file holds now."""

    def __init__(self, file: PluginFile) -> None:
        self.file = file

    def get_source(self, fullname: str) -> str:
        del fullname
        return self.file.text

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_source(fullname), self.file.path)


def read_plugins(paths: Sequence[Path]) -> list[PluginFile]:
    """Read plugin files.

    Raises:
        BadInputError: if one is no readable Python file, or two have the same name.
    """
    files = [_read(path) for path in dict.fromkeys(paths)]
    by_module: dict[str, PluginFile] = {}
    for file in files:
        other = by_module.setdefault(file.module, file)
        if other != file:
            raise BadInputError(
                f"two plugin files are called {shown(file.name)}: {shown(other.path, 200)} and "
                f"{shown(file.path, 200)}; rename one"
            )
    return files


def _read(path: Path) -> PluginFile:
    told = shown(str(path), 200)
    if path.suffix != ".py":
        raise BadInputError(f"--plugin {told}: give a Python file, such as my_attack.py")
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise BadInputError(f"--plugin {told} is larger than 10 MB: give a Python file")
        text = content.decode()
    except FileNotFoundError:
        raise BadInputError(f"no plugin file at {told}: give the path of a Python file") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or no name of a file
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadInputError(f"cannot read the plugin file {told}: {why}") from None
    return PluginFile(str(path.absolute()), text)


def loaded_files() -> tuple[PluginFile, ...]:
    """Return the plugin files whose modules this process has loaded, by name."""
    modules = [sys.modules[name] for name in sorted(sys.modules) if name.startswith(PREFIX)]
    loaders = [getattr(module.__spec__, "loader", None) for module in modules]
    return tuple(loader.file for loader in loaders if isinstance(loader, _Loader))


def file_of(module: str) -> PluginFile | None:
    """Return the plugin file that a module was made from; None for any other module."""
    return next((file for file in loaded_files() if file.module == module), None)
