"""Base of datasets, targets, attacks and defenses: frozen dataclasses of hyperparameters."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import typing
from abc import ABC
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import TypeAdapter

from privbench.ground.errors import BadInputError, UnknownNameError
from privbench.ground.store.source import digest, source_digest
from privbench.ground.values import is_bounded, misfit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from privbench.measure.methods.cell import Cell


@dataclass(frozen=True)
class Paper:
    """The source of a method.

    >>> print(Paper("A title", "Doe and others", "CCS 2021", "section 4"))
    Doe and others: A title. CCS 2021 (section 4)

    Attributes:
        title: of the paper.
        authors: family names, "and others" allowed.
        venue: with the year, e.g. "CCS 2021".
        where: section, algorithm and equations that the code implements.
    """

    title: str
    authors: str
    venue: str
    where: str = ""

    def __str__(self) -> str:
        """The reference in one line, for cards."""
        where = f" ({self.where})" if self.where else ""
        return f"{self.authors}: {self.title}. {self.venue}{where}"


class Method(ABC):
    """Base of all plugin objects.

    A subclass is a frozen dataclass whose fields are hyperparameters with the paper's defaults.
    Ranges are written once, in the annotation (``epochs: Annotated[int, Ge(1)] = 300``), and are
    enforced everywhere: in Python, in YAML and for ``--set``. Numbers are finite; where an
    annotation names no upper end, it is a million for whole numbers and 1e9 for others.

    >>> from privbench.testing import TinyImages
    >>> floats = TinyImages().replace(real=True)
    >>> floats.label, floats.hyperparameters()
    ('tiny-images(real=True)', {'real': True})

    Attributes:
        name: used on the command line; unique among methods of its kind.
        version: increased when numbers change.
        paper: the paper that describes the method.
        deviations: where and why the code differs from the paper; "" if it does not.
        presets: name of a preset -> hyperparameters that it sets.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    paper: ClassVar[Paper | None] = None
    deviations: ClassVar[str] = ""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __post_init__(self) -> None:
        """Check every hyperparameter against its annotation.

        Raises:
            BadInputError: naming each invalid field, its valid range and the value given.
        """
        wrong = []
        for field, (adapter, bounded) in _adapters(type(self)).items():
            made, problem = misfit(adapter, getattr(self, field), bounded=bounded)
            if problem:
                wrong.append(f"{self.name}.{field}: {problem}")
            else:
                object.__setattr__(self, field, made)
        if wrong:
            raise BadInputError("; ".join(wrong))

    @property
    def requires(self) -> tuple[str, ...]:
        """Names of common requirements (``plugins/requirements.py``); other cells are skipped."""
        return ()

    def incompatible(self, cell: Cell) -> str | None:
        """Why this method cannot run in the cell, or None; a pure function.

        The cell is then skipped with this reason. It is asked only if the cell meets all common
        requirements, so give only the method's own reasons.
        """
        del cell
        return None

    def hyperparameters(self) -> dict[str, Any]:
        """Names and values of the fields."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    def replace(self, **fields: Any) -> Self:
        """The same method with other hyperparameters.

        Raises:
            UnknownNameError: for a field that does not exist, with the nearest name.
            BadInputError: for a value out of range.
        """
        known = self.hyperparameters()
        for field in fields:
            if field not in known:
                raise UnknownNameError(f"hyperparameter of {self.name}", field, known)
        return dataclasses.replace(self, **fields)  # type: ignore[type-var]

    def preset(self, name: str) -> Self:
        """The method with the values of that preset; unchanged if it has no such preset."""
        return self.replace(**self.presets.get(name, {}))

    @property
    def label(self) -> str:
        """Name with the fields that differ from the defaults: ``talos(schedule=simultaneous)``."""
        plain = type(self)().hyperparameters()
        changed = {k: v for k, v in self.hyperparameters().items() if v != plain[k]}
        inside = ", ".join(f"{k}={v}" for k, v in changed.items())
        return f"{self.name}({inside})" if inside else self.name

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that the method's numbers depend on: name, version, source code, hyperparameters."""
        return {
            "name": self.name,
            "version": self.version,
            "source": source_digest(type(self)),
            "fields": self.hyperparameters(),
        }

    @functools.cached_property
    def digest(self) -> str:
        """Digest of ``identity``."""
        return digest(self.identity)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy in another process gets: the digest is computed there from its own code."""
        return {name: value for name, value in vars(self).items() if name != "digest"}


@functools.cache
def _adapters(cls: type) -> dict[str, tuple[TypeAdapter[Any], bool]]:
    """How each field is checked, and whether its annotation names an upper end."""
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls.__name__} must be a frozen dataclass: add @dataclass(frozen=True)")
    found = {f.name: annotation(cls, f.name) for f in dataclasses.fields(cls)}
    return {name: (TypeAdapter(one), is_bounded(one)) for name, one in found.items()}


def annotation(cls: type, field: str) -> Any:
    """The field's annotation, evaluated in the module where it was written.

    ``typing.get_type_hints`` is not used: it evaluates all annotations of all bases, so a single
    ``ClassVar`` that names a type-checking import would make the whole class fail.
    """
    owner = next(base for base in cls.__mro__ if field in _written(base))
    written = _written(owner)[field]
    if isinstance(written, str):
        names = {**vars(typing), **vars(sys.modules[owner.__module__])}
        return eval(written, names)  # noqa: S307 - the plugin's own source, already running
    return written


def _written(cls: type) -> dict[str, Any]:
    """The annotations of one class; since Python 3.14 those that can be evaluated are."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(cls)
