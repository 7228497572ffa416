"""Access: the set of outputs that an attacker may read from a served victim."""

from enum import Flag


class Access(Flag):
    """A set of output kinds; a target grants one, a defense may only shrink it.

    An attack declares the set it needs. The kinds are independent: declaring ``POSTERIORS`` does
    not grant ``labels()``, because the oracle provides exactly what was declared.

    >>> str(Access.EMBEDDINGS | Access.LABELS)
    'LABELS+EMBEDDINGS'
    >>> Access.LABELS in (Access.LABELS | Access.POSTERIORS)
    True
    """

    NONE = 0
    LABELS = 1
    POSTERIORS = 2
    EMBEDDINGS = 4
    GRADIENTS = 8
    WEIGHTS = 16

    def __str__(self) -> str:
        """Return the names joined by ``+``, in the order above; ``NONE`` for the empty set."""
        return "+".join(str(kind.name) for kind in self) or "NONE"


#: What a black-box adversary may read; gradients and weights require a white-box adversary.
BLACK_BOX = Access.LABELS | Access.POSTERIORS | Access.EMBEDDINGS
