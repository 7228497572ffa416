"""An attack: embeddings of members are longer."""

from dataclasses import dataclass
from typing import ClassVar

from privbench import Access, Membership, MembershipAttack, hookimpl

PRIVBENCH_API = "1.0"


@dataclass(frozen=True)
class NormAttack(MembershipAttack):
    """Calls a row a member if its embedding is long."""

    name: ClassVar[str] = "norm-attack"
    needs: ClassVar[Access] = Access.EMBEDDINGS

    def answer(self, oracle, question, ctx):
        return Membership(oracle.embeddings(question.examples).norm(dim=1))


@hookimpl
def privbench_attacks():
    return [NormAttack()]
