"""What the answer of a membership attack says about an epsilon that a defense claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privbench.measure.games.audit import SHARES, assessed, contradiction, guesses
from privbench.measure.games.metrics import Estimate, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from privbench.measure.data.split import Split

#: Protocol ``inclusion`` -> the adjacency of a claim that it can test.
ADJACENCY = {"coin": "add/remove", "pairs": "replace-one"}


def audited(
    claims: Sequence[Mapping[str, Any]],
    scores: NDArray[np.float64],
    truth: NDArray[np.bool_],
    split: Split,
) -> dict[str, Estimate | Refused]:
    """Return what one run says about the claim; see ``assessed``.

    Empty if no defense claims an epsilon.

    Args:
        claims: claims of the defenses. Those without ``epsilon`` are ignored: distortion budgets
            are not differential privacy and are not audited.
        scores: (n,) scores of the attack.
        truth: (n,) true membership.
        split: the split, whose protocol says how members were drawn.
    """
    claims = [claim for claim in claims if "epsilon" in claim]
    if not claims:
        return {}
    if len(claims) > 1:
        return _refused(f"{len(claims)} claims of an epsilon: only a single one can be audited")
    (claim,) = claims
    epsilon = float(claim["epsilon"])
    reason = _untestable(claim, len(truth), split) or contradiction(claim)
    if reason:
        return _refused(reason) | {"claimed_epsilon": Estimate(epsilon, epsilon, epsilon)}
    if split.protocol.inclusion == "pairs":
        first, second = split.pairs.T.cpu().numpy()
        from scipy.stats import rankdata

        ranks = rankdata(scores)  # ranks are finite even where scores are not
        scores, truth = ranks[first] - ranks[second], truth[first]
    return assessed([claim], [{share: guesses(scores, truth, share) for share in SHARES}])


def _refused(reason: str) -> dict[str, Estimate | Refused]:
    names = ("claimed_epsilon", "audited_epsilon", "audit_ceiling", "audited_mu", "audit_p")
    return dict.fromkeys(names, Refused(reason))


def _untestable(claim: Mapping[str, Any], asked: int, split: Split) -> str | None:
    """Return why this cell cannot test the claim, or None if it can."""
    protocol = split.protocol
    adjacency, covered = claim.get("adjacency", "add/remove"), str(claim.get("phase", ""))
    if ADJACENCY.get(protocol.inclusion) != adjacency:
        wanted = next((p for p, a in ADJACENCY.items() if a == adjacency), None)
        return (
            f"the claim uses {adjacency} adjacency, but protocol '{protocol.name}' draws members "
            f"by {protocol.inclusion}"
            + (f": use a protocol with inclusion '{wanted}'" if wanted else "")
        )
    open_phases = set(protocol.phase.split("+")) - set(covered.split("+"))
    if open_phases:
        return (
            f"the claim covers {covered or 'no phase'}, but members are also used to train "
            f"{'+'.join(sorted(open_phases))}"
        )
    if asked < len(split.candidates):
        return (
            f"the attack scored {asked} of {len(split.candidates)} candidates: an audit needs all"
        )
    return None
