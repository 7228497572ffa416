"""What an attacker may ask of a served victim, as a set."""

from enum import Flag


class Access(Flag):
    """Kinds of answer. A target grants a set, an attack needs one, a defense may only shrink it.

    The kinds are independent: declaring ``POSTERIORS`` does not grant ``labels()``, since the
    oracle hands out exactly what was declared.

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
        """Names joined by ``+``, in the order above; ``NONE`` for the empty set."""
        return "+".join(str(kind.name) for kind in self) or "NONE"


#: What a served model answers; gradients and weights take a white-box adversary.
BLACK_BOX = Access.LABELS | Access.POSTERIORS | Access.EMBEDDINGS
