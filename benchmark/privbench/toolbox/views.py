"""Views that leave what a picture shows as it is, by what it shows: cards limit them so."""

from __future__ import annotations

from privbench.measure.data.augmentation import Augmentation


def of_objects(side: int) -> Augmentation:
    """Return limits for colour pictures of things, ``side`` pixels high and wide.

    They are all that SimCLR, MoCo, Talos (vertical flip, blur) and padded crops (shift) use.

    >>> of_objects(32).shift, of_objects(32).blur_kernel, of_objects(8).blur_kernel
    (4, 9, 3)
    """
    kernel = _kernel(side)
    return Augmentation(
        crop=(0.08, 1.0), shift=side // 8, flip=0.5, vflip=0.5, jitter=(0.8, 0.8, 0.8, 0.4),
        jitter_p=1.0, grey=0.2, blur=float(kernel > 1), blur_sigma=(0.1, 2.0), blur_kernel=kernel,
    )  # fmt: skip


def of_faces() -> Augmentation:
    """Return limits for colour pictures of people: sex, age and race stay visible."""
    return Augmentation(crop=(0.5, 1.0), flip=0.5, jitter=(0.2, 0.2, 0.0, 0.0))


def of_grey(side: int, *, flip: float = 0.0) -> Augmentation:
    """Return limits for grey pictures, ``side`` pixels high and wide.

    They are mirrored with probability ``flip``, from 0 to 1; a mirrored character looks wrong.

    >>> of_grey(28).flip, of_grey(28).shift
    (0.0, 3)
    """
    kernel = _kernel(side)
    return Augmentation(
        crop=(0.5, 1.0), shift=side // 8, flip=flip, blur=float(kernel > 1), blur_sigma=(0.1, 1.0),
        blur_kernel=kernel,
    )  # fmt: skip


def _kernel(side: int) -> int:
    """Return pixels per side of the blur that such a picture stands; 1 for none."""
    return next((kernel for kernel, least in ((9, 32), (5, 16), (3, 4)) if side >= least), 1)
