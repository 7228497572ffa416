"""Datasets in a user's own files: found by content, split by shares, described by the files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from privbench.ground.errors import BadInputError
from privbench.ground.store.content import file_digest
from privbench.measure.data.protocol import Protocol
from privbench.measure.methods.dataset import Dataset
from privbench.toolbox import views as shown
from privbench.toolbox.messages import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np

    from privbench.measure.data.augmentation import Augmentation

#: Shares that all rows are divided into, and the most rows that one share has.
SHARES, MOST = 23, 500


@dataclass(frozen=True)
class OwnDataset(Dataset):
    """Rows in files of the user; the key of a result depends on their content, not on their place.

    Attributes:
        path: of the file or folder; relative to the current folder.
        sha256: of its content, filled in when it is not given; another content is refused.
    """

    reads_given_files: ClassVar[bool] = True

    path: str = ""
    sha256: str = ""

    def __post_init__(self) -> None:
        """Find the files and compute their digest.

        Raises:
            BadInputError: if there are none, or if they are not those of the given digest.
        """
        super().__post_init__()
        if not self.path:
            return
        object.__setattr__(self, "_folder", Path.cwd())  # that of a worker may be another
        found = self._content()
        if self.sha256 not in ("", found):
            raise self.wrong(
                f"its content has the digest {found}, not {plain(self.sha256)}: give that file, "
                "or leave out sha256"
            )
        object.__setattr__(self, "sha256", found)

    def _content(self) -> str:
        """Return the digest of all that rows depend on."""
        return self._digest_of(self.location)

    def _digest_of(self, file: Path) -> str:
        try:
            return file_digest(file)
        except (OSError, ValueError) as error:  # ValueError: no name of a file
            why = getattr(error, "strerror", None) or error
            raise BadInputError(f"{self.name}: cannot read {plain(file)} ({why}): name an existing "
                                "file") from None  # fmt: skip

    @property
    def location(self) -> Path:
        """The file or folder."""
        if not self.path:
            raise BadInputError(
                f"{self.name}: no file is named: give --set {self.name}.path=FILE, or write "
                f"`datasets: [{{{self.name}: {{path: FILE}}}}]`"
            )
        folder: Path = vars(self)["_folder"]
        return folder / Path(self.path).expanduser()

    @property
    def label(self) -> str:
        """As of all methods, with the first digits of the digest."""
        return super().label.replace(self.sha256, self.sha256[:8]) if self.sha256 else self.name

    @property
    def identity(self) -> Mapping[str, Any]:
        """As of all methods, without the path."""
        fields = {name: value for name, value in self.hyperparameters().items() if name != "path"}
        return {**super().identity, "fields": fields}

    def _unchanged(self) -> None:
        """Refuse files that changed since their digest was computed.

        Raises:
            BadInputError: if they did.
        """
        if self._content() != self.sha256:
            raise self.wrong("it changed since the run began: run the command again")

    def _while_unchanged(self, rows: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield rows that are read from the files, and refuse files that changed meanwhile."""
        self._unchanged()
        yield from rows
        self._unchanged()

    def wrong(self, problem: str) -> BadInputError:
        """Return the error that names the files and says what is wrong with them."""
        return BadInputError(f"{self.name}: {plain(self.path)}: {problem}")


def default_protocol(rows: int | None) -> Protocol:
    """Return the default protocol of that many rows; of any number in shares if None.

    Members, nonmembers, reference, pool and test are as 4 : 4 : 1 : 10 : 4. They are whole
    multiples of a share: a 23rd of the rows, of 100 shares and more in steps of ten, at most 500.

    >>> parts = default_protocol(1797).parts()
    >>> {name: part.size for name, part in parts.items() if part.size}
    {'members': 312, 'nonmembers': 312, 'reference': 78, 'pool': 780, 'test': 312}
    """
    if rows is None:
        share: float = 1 / SHARES
    else:
        share = min(rows // SHARES, MOST)
        share -= share % 10 if share >= 100 else 0  # noqa: PLR2004 - as the docstring says
    return Protocol(
        name="default", members=4 * share, nonmembers=4 * share, reference=share, pool=10 * share,
        test=4 * share,
    )  # fmt: skip


def views(channels: int, height: int, width: int, *, attributes: bool) -> Augmentation:
    """Return the strongest views that probably keep label and attributes, without looking at them.

    Grey images get MNIST's. Colour images get UTKFace's if there are attributes, otherwise
    CIFAR-10's.
    """
    side = min(height, width)
    if channels == 1:
        return shown.of_grey(side)
    return shown.of_faces() if attributes else shown.of_objects(side)
