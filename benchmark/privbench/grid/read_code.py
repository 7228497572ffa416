"""Imported by the server of fresh processes: the digest of the code is computed once for them."""

from privbench.ground.store.source import computing_digest
from privbench.measure.victims.plan import CODE

computing_digest(*CODE)
