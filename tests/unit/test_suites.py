"""Every published suite names methods that exist and cells that can run."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from privbench.grid.plan import plan
from privbench.grid.suite import read_suite
from privbench.results.statistics import FEWEST_SEEDS

SUITES = sorted(Path(__file__).parents[2].glob("leaderboards/suites/*.yaml"))

#: What stands in a suite to be skipped, and says why on its board.
EXPECTED = (
    "gradient-canary reads canaries that the defense plants",
    "reconstruction-rmle needs GRADIENTS, which only a white-box adversary has",
    "dp-sgd clips gradients of single examples, and the contrastive loss of simclr is not a sum",
    "selena protects by soft labels, and the encoder of simclr sees members without labels",
    "encodermi-baseline-a trains a downstream classifier, and the adversary's rows of stl10",
    "encodermi-baseline-c trains a downstream classifier, and the adversary's rows of stl10",
    "encodermi-baseline-b compares classes, and those of another dataset's pool are others",
    "alm is noise on a classifier trained on a frozen encoder, and supervised trains both at once",
    "crop-range narrows crops of training views, and supervised has none",
    "dp-features trains a classifier on a frozen encoder, and supervised trains both at once",
    "gaussian is noise on a classifier trained on a frozen encoder, and supervised trains both",
    "laplace is noise on a classifier trained on a frozen encoder, and supervised trains both",
    "cmia needs POSTERIORS, which target supervised under confidence-masking(mask=label) does not",
    "lira-head needs POSTERIORS, which target supervised under confidence-masking(mask=label) does",
    "lira-head needs POSTERIORS, which target simclr under confidence-masking(mask=label) does not",
    "lira needs POSTERIORS, which target simclr under confidence-masking(mask=label) does not",
    "lira needs POSTERIORS, which target supervised under confidence-masking(mask=label) does not",
    "rmia needs POSTERIORS, which target simclr under confidence-masking(mask=label) does not",
    "rmia needs POSTERIORS, which target supervised under confidence-masking(mask=label) does not",
    "metric-modified-entropy needs POSTERIORS, which target supervised under confidence-masking(",
    "nn-mia needs POSTERIORS, which target supervised under confidence-masking(mask=label) does",
    "order-lira needs POSTERIORS, which target supervised under confidence-masking(mask=label) do",
    "dual-cmia needs POSTERIORS, which target supervised under confidence-masking(mask=label) doe",
    "dual-cmia-head needs POSTERIORS, which target supervised under confidence-masking(mask=label",
    "dual-lira needs POSTERIORS, which target supervised under confidence-masking(mask=label) doe",
    "dual-head needs POSTERIORS, which target supervised under confidence-masking(mask=label) doe",
)


#: Game -> the strongest known attacks of each access level: posteriors (twice), labels, embeddings,
#: and embeddings with posteriors.
STRONGEST = {
    "membership": {"lira", "rmia", "label-only-boundary", "lira-encoder", "lira-head"},
    "attributes": {"attribute-inference", "attribute-decensoring"},
    "reconstruction": {"reconstruction"},
}
#: Suites of one question that compare no defenses with each other: a paper's own table, and audits,
#: whose attack is named in advance.
OWN_QUESTION = {
    "alm-cifar10", "alm-cifar100", "alm-stl10", "memguard-location", "encodermi-early-stopping",
    "digits-audit", "digits-audit-gradients", "digits-audit-weights",
}  # fmt: skip
#: Cross products: cells that do not fit are left out, for whatever stated reason.
CROSS = {"main", "main-paper", "encoders"}


@cache
def planned_of(path: Path, registry: Any) -> list[Any]:
    """The trials of a suite with one seed."""
    return plan(read_suite(path).model_copy(update={"seeds": 1}), registry, root=None, device="cpu")


def lacking(planned: list[Any], games: set[str]) -> set[str]:
    """Attacks that the suite must have to judge its defenses in these games, and has not."""
    have = {item.trial.cell.attack.name for item in planned}
    if "label-lira" in have:  # it judges defenses by labels, with fewer queries
        have.add("label-only-boundary")
    return {attack for game in games for attack in STRONGEST[game]} - have


@pytest.mark.slow
def test_defenses_meet_the_strongest_attacks(registry: Any) -> None:
    """A board of all defenses has all; another suite has those of what its defenses protect."""
    for path in SUITES:
        if path.stem.removesuffix("-paper") in OWN_QUESTION:
            continue
        planned = planned_of(path, registry)
        protected = {game for i in planned for d in i.trial.cell.defenses for game in d.protects}
        board = path.stem.removesuffix("-paper").endswith(("defenses", "operating-points"))
        assert lacking(planned, set(STRONGEST) if board else protected) == set(), path.stem


def test_boards_of_defenses_are_no_drafts() -> None:
    for path in SUITES:
        if "defenses" in path.stem or "operating-points" in path.stem:
            assert len(read_suite(path).seed_list) >= FEWEST_SEEDS, path.stem


@pytest.mark.slow
def test_memguard_has_its_full_size(registry: Any) -> None:
    full = registry.get("defense", "memguard")
    for path in SUITES:
        for item in planned_of(path, registry):
            for defense in item.trial.cell.defenses:
                if defense.name == "memguard":
                    of_papers = ("distortion", "optimizer", "bisections")
                    same = {name: getattr(full, name) for name in of_papers}
                    assert defense.replace(**same) == full, path.stem


def test_the_sweep_board_has_every_defense(registry: Any) -> None:
    path = next(path for path in SUITES if path.stem == "digits-operating-points")
    suite = read_suite(path)
    assert suite.match_utility == 0.02
    assert len(suite.seed_list) == 5
    cells = [item.trial.cell for item in planned_of(path, registry)]
    swept: dict[str, set[str]] = {}
    for cell in cells:
        assert cell.adversary.adaptive
        for defense in cell.defenses:
            swept.setdefault(defense.name, set()).add(defense.label)
    assert suite.controls
    left_out = {
        "dp-gcl",  # as logit-dp
        "logit-dp",  # on digits a linear classifier needs no trained encoder: no utility
        "ccl",
        "past",  # join when the board is measured afresh
    }
    for defense in (d for d in registry.all("defense") if not d.control and d.name not in left_out):
        settings = len(defense.strength.sweep) if defense.strength else 1
        assert len(swept.get(defense.name, set())) == settings, defense.name


def test_suites_can_be_planned(registry: Any) -> None:
    for path in SUITES:
        planned = planned_of(path, registry)
        assert planned, path.stem
        assert [item.failed for item in planned if item.failed] == [], path.stem
        skips = {item.skip for item in planned if item.skip}
        unexpected = {skip for skip in skips if not skip.startswith(EXPECTED)}
        assert path.stem in CROSS or not unexpected, f"{path.stem}: {unexpected}"


def test_suites_say_what_they_need_to_be_judged() -> None:
    """New suites say what they cost; those of published sizes also what the paper found."""
    for path in SUITES:
        name, text = path.stem, path.read_text(encoding="utf-8")
        assert read_suite(path).name == name
        if name.endswith("-paper"):
            assert "# Cost: " in text, name
            assert name in CROSS or "# Expected" in text, name
            cpu = path.with_name(path.name.replace("-paper", ""))
            assert cpu.is_file(), name
            assert cpu.stem in text or name in cpu.read_text(encoding="utf-8"), name


def test_the_six_cells_of_two_precisions_can_run(registry: Any) -> None:
    path = SUITES[0].parents[1] / "experiments" / "precisions.yaml"
    cells = [one for one in planned_of(path, registry) if not (one.skip or one.failed)]
    assert len({(one.trial.cell.defense, one.trial.cell.attack.name) for one in cells}) == 6
