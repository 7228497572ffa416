"""How a protocol sizes parts, what it refuses, and which phase it asks about."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from privbench.ground.errors import BadInputError, UnknownNameError
from privbench.measure.data.examples import Card, Examples
from privbench.measure.data.protocol import PROTOCOLS, Part, Protocol, protocol_named
from privbench.measure.data.split import cut


def _card(**sources: int) -> Card:
    return Card(name="fake", kind="image", shape=(1,), classes=2, scale=1, sources=sources)


def test_quarters_are_four_equal_quarters() -> None:
    sizes = PROTOCOLS["quarters"].sizes(_card(all=1000))
    assert {n: s for n, s in sizes.items() if s} == {"members": 250, "nonmembers": 250, "pool": 500}


def test_encodermi_is_10k_10k_20k_and_10k_downstream() -> None:
    sizes = PROTOCOLS["encodermi"].sizes(_card(train=50_000, test=10_000))
    assert {n: s for n, s in sizes.items() if s} == {
        "members": 10_000, "nonmembers": 10_000, "pool": 20_000, "downstream": 10_000,
    }  # fmt: skip


def test_all_parts_that_do_not_fit_are_listed() -> None:
    protocol = Protocol(
        members=Part(30, "train"), nonmembers=Part(30, "test"), pool=Part(80, "train"),
        public=Part(5, "web"), encoder=("public", "members"),
    )  # fmt: skip
    with pytest.raises(BadInputError) as error:
        protocol.sizes(_card(train=100, test=20))
    message = str(error.value)
    assert "public needs source 'web', which is not in train, test" in message
    assert "members 30 + pool 80 exceed the 100 rows of source 'train'" in message
    assert "nonmembers 30 exceed the 20 rows of source 'test'" in message


@pytest.mark.parametrize(
    ("protocol", "says"),
    [
        (Protocol(members=0, nonmembers=1, pool=2), "members is empty"),
        (Protocol(members=-5, nonmembers=1, pool=2), "members has size -5"),
        (Protocol(members=10, nonmembers=10, pool=19), "less than twice the members"),
        (Protocol(members=10, nonmembers=10, pool=24, reference=5), "and a reference of 5"),
        (Protocol(members=30, nonmembers=30, pool=60), "exceed the 100 rows of the dataset"),
    ],
)
def test_each_misfit_is_refused(protocol: Protocol, says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        protocol.sizes(_card(all=100))


def test_a_null_victim_that_has_no_rows_is_refused() -> None:
    small = Protocol(members=40, nonmembers=30, pool=30, shadow=10)
    with pytest.raises(BadInputError, match="the null victim needs 40 members, and neither"):
        small.sizes(_card(all=100))
    assert small.sizes(_card(all=140))["pool"] == 30


def test_a_fraction_is_not_lost_to_rounding() -> None:
    assert Part(0.29).count(_card(all=100)) == 29
    assert Part(0.25).count(_card(all=1797)) == 449
    assert Part(0.5, "test").count(_card(train=100, test=10)) == 5


def test_the_phase_names_those_that_see_members() -> None:
    assert PROTOCOLS["quarters"].phase == "encoder+classifier"
    assert PROTOCOLS["talos"].phase == "encoder+classifier"
    assert PROTOCOLS["encodermi"].phase == "encoder"
    assert PROTOCOLS["alm"].phase == "classifier"


def test_a_protocol_without_a_question_is_refused() -> None:
    with pytest.raises(BadInputError, match="no phase sees the members"):
        Protocol(
            members=1, nonmembers=1, pool=2, public=1, encoder=("public",), classifier="public"
        )
    with pytest.raises(BadInputError, match="downstream has no size"):
        Protocol(members=1, nonmembers=1, pool=2, classifier="downstream")
    with pytest.raises(BadInputError, match="at least one part"):
        Protocol(members=1, nonmembers=1, pool=2, encoder=())


def test_a_dataset_may_replace_a_protocol_and_misspelt_names_get_help() -> None:
    mine = Protocol(name="quarters", members=1, nonmembers=1, pool=2)
    assert protocol_named("quarters", {"quarters": mine}) is mine
    with pytest.raises(UnknownNameError, match="did you mean 'quarters'"):
        protocol_named("quarter", {})


def _unlabelled_too(labelled: int, without: int) -> Examples:
    x = torch.randint(0, 256, (labelled + without, 4), dtype=torch.uint8)
    y = torch.cat([torch.arange(labelled) % 2, torch.full((without,), -1)])
    source = torch.arange(2).repeat_interleave(torch.tensor([labelled, without]))
    return Examples.of(x, y, scale=255, source=source)


def test_null_victims_have_labels_if_the_candidates_have() -> None:
    card = Card(
        name="half", kind="real", shape=(4,), classes=2, scale=255,
        sources={"with": 60, "without": 60},
    )  # fmt: skip
    rows, members = _unlabelled_too(60, 60), Part(10, "with")
    known = Protocol(members=members, nonmembers=members, pool=Part(20, "with"))
    null = cut(rows, card, known, 0)
    assert null.null_apart
    assert null.null().members.y.min() >= 0
    # None is left outside the parts: they come from the pool, which has labels too.
    full = replace(known, pool=Part(40, "with"))
    assert not cut(rows, card, full, 0).null_apart
    assert cut(rows, card, full, 0).null().members.y.min() >= 0
    # Candidates without labels may have a null victim without labels.
    mixed = replace(known, members=Part(10, "without"))
    assert cut(rows, card, mixed, 0).null().members.y.min() == -1
