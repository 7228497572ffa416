"""Frozen public encoders against the libraries that build them, from tiny random weights."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from privbench.cli.main import main
from privbench.grid.trial import Trial
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.errors import BadInputError
from privbench.ground.store.store import Store
from privbench.measure.data.canaries import Canaries
from privbench.measure.data.protocol import PROTOCOLS, Part, Protocol
from privbench.measure.data.split import cut
from privbench.measure.games.membership import Membership, MembershipAttack
from privbench.measure.methods.access import Access
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.attack import Shadows
from privbench.measure.methods.cell import Cell
from privbench.measure.victims.spec import VictimSpec
from privbench.plugins.requirements import reason_to_skip
from privbench.testing import CPU, TinyImages, TinyTarget, checks
from privbench.testing.fixtures import AnyAttack, rebuild, tiny_builder, tiny_split
from privbench.toolbox import public_encoder
from privbench.toolbox.public_encoder import PublicEncoder, fitted
from privbench_plugins.defenses.early_stopping import EarlyStopping
from privbench_plugins.defenses.none import NoDefense
from privbench_plugins.defenses.talos import Talos
from privbench_plugins.targets.clip import CLIP
from privbench_plugins.targets.hf import HuggingFace
from privbench_plugins.targets.timm import Timm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from privbench import Card, Examples

KINDS = ("clip", "timm", "hf")
#: The encoder trained elsewhere, the classifier on members.
CLASSIFIER = Protocol(
    name="default", members=80, nonmembers=80, reference=40, pool=300, public=60, test=80,
    encoder=("public",), classifier="members",
)  # fmt: skip


@pytest.fixture(scope="module")
def libraries() -> tuple[Any, Any, Any]:
    open_clip, timm, transformers = (
        pytest.importorskip(name) for name in ("open_clip", "timm", "transformers")
    )
    return open_clip, timm, transformers


@pytest.fixture(scope="module")
def saved(
    libraries: tuple[Any, Any, Any], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, tuple[PublicEncoder, Callable[[Tensor], Tensor]]]:
    """A target of each kind, and the library's own embedding of normalised images."""
    open_clip, timm, transformers = libraries
    folder = tmp_path_factory.mktemp("weights")
    config = folder / "tiny-clip.json"
    config.write_text(json.dumps({
        "embed_dim": 16,
        "vision_cfg": {"image_size": 16, "layers": 1, "width": 32, "patch_size": 8,
                       "head_width": 16},
        "text_cfg": {"context_length": 8, "vocab_size": 32, "width": 16, "heads": 1, "layers": 1},
    }))  # fmt: skip
    open_clip.add_model_config(config)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        clip = open_clip.create_model("tiny-clip").eval()
        resnet = timm.create_model("test_resnet", pretrained=False).eval()
        vit = transformers.ViTForImageClassification(
            transformers.ViTConfig(
                hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
                image_size=16, patch_size=8,
            )
        ).eval()  # fmt: skip
    torch.save(clip.state_dict(), folder / "clip.pt")
    state = {f"module.{key}": value for key, value in resnet.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, folder / "timm.pt")
    vit.save_pretrained(folder / "hf")
    transformers.ViTImageProcessor(
        size={"height": 16, "width": 16}, image_mean=[0.5, 0.4, 0.3], image_std=[0.2, 0.3, 0.4]
    ).save_pretrained(folder / "hf")
    return {
        "clip": (CLIP(weights=str(folder / "clip.pt"), model="tiny-clip"), clip.encode_image),
        "timm": (
            Timm(weights=str(folder / "timm.pt"), model="test_resnet", size=32),
            lambda x: resnet.forward_head(resnet.forward_features(x), pre_logits=True),
        ),
        "hf": (
            HuggingFace(weights=str(folder / "hf")),
            lambda x: vit.vit(pixel_values=x).last_hidden_state[:, 0],
        ),
    }  # fmt: skip


SIZES = {"clip": 16, "timm": 32, "hf": 16}
INPUTS = {
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "timm": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "hf": ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
}


def cell(target: PublicEncoder, protocol: Protocol, **changes: Any) -> Cell:
    card = replace(tiny_split().card, sources={"train": 300, "test": 300, "elsewhere": 120})
    made = Cell(card, protocol, target, (NoDefense(),), Adversary(), AnyAttack(), ("bright",))
    return replace(made, **changes)


def spec(target: PublicEncoder, origin: str = "victim", protocol: Protocol = CLASSIFIER) -> Any:
    data = TinyImages()
    split = cut(data.load(None), data.card(None), protocol, 0)
    world = split.null() if origin == "null" else split.victim()
    return VictimSpec(split.card, protocol, world, target, (), ())


# ── the encoder ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_are_the_librarys(kind: str, saved: Any) -> None:
    target, theirs = saved[kind]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in INPUTS[kind])
    x = torch.rand(3, 3, SIZES[kind], SIZES[kind], generator=torch.Generator().manual_seed(0))
    encoder = target._loaded()
    with torch.no_grad():
        torch.testing.assert_close(encoder(x), theirs((x - mean) / std), rtol=1e-4, atol=1e-5)
        grey = x[:, :1]
        torch.testing.assert_close(encoder(grey), encoder(grey.repeat(1, 3, 1, 1)))
    assert encoder(x).shape == (3, encoder.width)


@pytest.mark.parametrize("shape", [(8, 8), (40, 40), (20, 33), (33, 16), (16, 16)])
def test_images_are_fitted_as_torchvision_fits_them(shape: tuple[int, int]) -> None:
    from torchvision.transforms.v2 import functional as V

    x = torch.rand(2, 3, *shape, generator=torch.Generator().manual_seed(1))
    want = V.resize(x, [16], interpolation=V.InterpolationMode.BICUBIC, antialias=True)
    want = V.center_crop(want.clamp(0, 1), [16, 16])
    torch.testing.assert_close(fitted(x, (16, 16)), want, rtol=0, atol=1e-5)


def test_own_means_and_deviations(saved: Any) -> None:
    target, theirs = saved["clip"]
    given = target.replace(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(given._loaded()(x), theirs(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(BadInputError, match=r"clip\.std"):
        target.replace(std=(1.0, 0.0, 1.0))


@pytest.mark.parametrize("kind", KINDS)
def test_conformance(kind: str, saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit on rows of which the encoder sees public ones; otherwise all cells are skipped."""
    target, _ = saved[kind]
    with monkeypatch.context() as patch:
        patch.setattr(TinyImages, "protocols", {"default": CLASSIFIER})
        rebuild()
        for check in checks(target):
            if check.name != "says what it is":  # of the defaults
                check()
    rebuild()  # the kit remembers its split, which other tests need as it was
    assert reason_to_skip(target, cell(target, CLASSIFIER)) is None


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_classifier_is_trained(kind: str, saved: Any, tmp_path: Path) -> None:
    target, _ = saved[kind]
    builder = tiny_builder(str(tmp_path))
    draft = builder.draft(spec(target))
    assert [phase.name for phase in draft.phases] == ["classifier"]
    before = {n: t.clone() for n, t in target._loaded().state_dict().items()}
    assert not any(p.requires_grad for p in target._loaded().parameters())
    victim = builder.victim(spec(target))
    for name, tensor in victim.model["encoder"].state_dict().items():
        assert torch.equal(tensor, before[name])
    assert "trained elsewhere" in victim.facts["notes"]["encoder"]
    assert all(stage.changed == ("classifier",) for stage in draft.stages)


def test_the_classifier_starts_alike_whether_the_encoder_is_read_or_kept(saved: Any) -> None:
    target, _ = saved["clip"]
    card, made = TinyImages().card(None), []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(1)
            made.append(target.build(card, None)["classifier"].weight)
    public_encoder._LOADED.clear()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        made.append(target.build(card, None)["classifier"].weight)
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])


# ── keys ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_keys_hold_the_content_and_not_the_path(kind: str, saved: Any, tmp_path: Path) -> None:
    target, _ = saved[kind]
    here = tmp_path / "copy"
    if kind == "hf":
        shutil.copytree(target.weights, here)
    else:
        shutil.copy(target.weights, here)
    again = target.replace(weights=str(here))
    assert again.digest == target.digest
    assert again.label == target.label
    assert re.search(r"weights=[0-9a-f]{8}\b", target.label)
    assert str(tmp_path) not in again.label
    builder = tiny_builder(str(tmp_path / "store"))
    old = builder.planned(spec(again))
    builder.victim(spec(again))
    _change(here)
    changed = target.replace(weights=str(here))
    assert changed.digest != target.digest
    assert changed.label != target.label
    assert not set(tiny_builder(str(tmp_path / "store")).planned(spec(changed))) & set(old)
    with pytest.raises(BadInputError, match="changed since the run began: run it again"):
        again.build(TinyImages().card(None), None)


def _change(path: Path) -> None:
    """Write other numbers of the same shapes."""
    if path.is_dir():
        from safetensors.torch import load_file, save_file

        file = path / "model.safetensors"
        save_file({k: v + 0.01 for k, v in load_file(file).items()}, file, {"format": "pt"})
        return
    held = torch.load(path, weights_only=True)
    tensors = held.get("state_dict", held)
    for value in tensors.values():
        value.add_(1 if not value.is_floating_point() else 0.01)
    torch.save(held, path)


def test_another_version_of_the_library_is_another_key(
    saved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, _ = saved["timm"]
    known = target.digest
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.0.1")
    assert replace(target).digest != known


# ── whose membership ─────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Shadowed(AnyAttack):
    name: ClassVar[str] = "shadowed"
    shadows: ClassVar[Shadows] = Shadows(1, "offline")


TWO = replace(PROTOCOLS["two-sets"], members=Part(80, "train"), nonmembers=Part(80, "elsewhere"))


@pytest.mark.parametrize(
    ("trained_on", "protocol", "changes", "reason"),
    [
        ("", CLASSIFIER, {}, None),
        ("", PROTOCOLS["quarters"], {}, "was trained elsewhere, so it has no members here"),
        ("", TWO, {}, "was trained elsewhere, so it has no members here"),
        ("train", TWO, {}, None),
        ("train", PROTOCOLS["two-sets-matched"], {}, None),
        ("train", PROTOCOLS["encodermi"], {}, None),
        ("train", PROTOCOLS["quarters"], {}, "does not draw members from it and nonmembers from"),
        ("test", TWO, {}, "was trained on source 'test', and protocol 'two-sets' does not draw"),
        ("train", replace(TWO, nonmembers=Part(80, "train")), {}, "nonmembers from another"),
        ("train", replace(TWO, nonmembers=Part(80)), {}, "nonmembers from another"),
        (
            "train", replace(TWO, canaries=Canaries(kind="mislabelled", count=8)), {},
            "nonmembers from another",
        ),
        ("train", TWO, {"attack": Shadowed()}, "cannot be trained on theirs: give the adversary"),
        ("train", TWO, {"attack": Shadowed(), "adversary": Adversary(target=TinyTarget())}, None),
        ("", CLASSIFIER, {"attack": Shadowed()}, None),
    ],
)  # fmt: skip
def test_a_cell_without_an_honest_question_is_skipped(
    trained_on: str, protocol: Protocol, changes: dict[str, Any], reason: str | None, saved: Any
) -> None:
    target = saved["clip"][0].replace(trained_on=trained_on)
    found = reason_to_skip(target, cell(target, protocol, **changes))
    assert (found is None) == (reason is None), found
    assert (reason or "") in (found or "")


def test_property_attacks_ask_about_victims_on_other_rows(saved: Any, registry: Any) -> None:
    target = saved["clip"][0].replace(trained_on="train")
    attack = registry.get("attack", "property-inference")
    assert "clip has one" in str(reason_to_skip(target, cell(target, TWO, attack=attack)))


@pytest.mark.parametrize(
    ("defense", "reason"),
    [
        (Talos(), "talos needs a phase that trains the encoder, and that of clip is frozen"),
        (EarlyStopping(patience=None), "the encoder of clip is frozen"),
    ],
)
def test_defenses_of_the_encoders_training_are_skipped(
    defense: Any, reason: str, saved: Any
) -> None:
    target = saved["clip"][0].replace(trained_on="train")
    for protocol in (CLASSIFIER, TWO):
        assert reason in str(reason_to_skip(defense, cell(target, protocol)))


def test_without_weights_nothing_runs() -> None:
    for target in (CLIP(), Timm(), HuggingFace()):
        told = f"{target.name} reads its encoder from a local path: set {target.name}.weights"
        assert reason_to_skip(target, cell(target, CLASSIFIER)) == told


@dataclass(frozen=True)
class TwoSets(TinyImages):
    """The tiny images; those collected elsewhere are brighter."""

    name: ClassVar[str] = "two-sets-of-images"
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": Protocol(
            name="default", members=Part(100, "train"), nonmembers=Part(100, "elsewhere"),
            pool=240, downstream=60, classifier="downstream",
        )
    }  # fmt: skip

    def card(self, root: Path | None) -> Card:
        return replace(super().card(root), name=self.name, sources={"train": 400, "elsewhere": 320})

    def load(self, root: Path | None) -> Examples:
        rows = super().load(root)
        x, source = rows.x.clone(), torch.arange(len(rows.x)) // 400
        x[400:] = x[400:] // 2 + 127
        return replace(rows, x=x, source=source).rekeyed()


@dataclass(frozen=True)
class Norm(MembershipAttack):
    """Distance of an embedding from the mean of all that are asked about."""

    name: ClassVar[str] = "norm"
    needs: ClassVar[Access] = Access.EMBEDDINGS

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        del ctx
        h = oracle.embeddings(question.examples)
        direction = torch.linalg.svd(h - h.mean(0), full_matrices=False).Vh[0]
        return Membership((h - h.mean(0)) @ direction)


def test_an_architecture_of_ones_own_is_a_file(saved: Any, tmp_path: Path) -> None:
    target, _ = saved["clip"]
    file = Path(target.weights).with_name("tiny-clip.json")
    own = target.replace(model=str(file))
    assert torch.equal(_embedded(own), _embedded(target))
    moved = tmp_path / file.name
    moved.write_text(file.read_text())
    assert target.replace(model=str(moved)).digest == own.digest != target.digest
    assert "model=tiny-clip.json" in own.label
    moved.write_text(file.read_text().replace('"head_width": 16', '"head_width": 8'))
    assert target.replace(model=str(moved)).digest != own.digest
    for text, why in (
        ("{", "cannot read the architecture .* set clip.model to a file of JSON"),
        ('{"embed_dim": 16}', "cannot build the architecture .* .KeyError"),
        ("[]", "cannot build the architecture"),
        (file.read_text().replace('"width": 32', '"width": 64'), "are not those of"),
    ):
        moved.write_text(text)
        with pytest.raises(BadInputError, match=why):
            target.replace(model=str(moved))
    with pytest.raises(BadInputError, match=r"cannot read .*gone\.json"):
        target.replace(model=str(tmp_path / "gone.json"))


def _embedded(target: PublicEncoder) -> Tensor:
    x = torch.linspace(0, 1, 3 * 16 * 16).view(1, 3, 16, 16)
    with torch.no_grad():
        embedded: Tensor = target._loaded()(x)
    return embedded


def test_the_null_victim_shows_distribution_shift_of_two_sets(saved: Any, tmp_path: Path) -> None:
    """An encoder with random weights tells bright from dark images too, and the result says so.

    The weights of ``saved`` are random as well: nothing was ever a member of anything.
    """
    target = saved["clip"][0].replace(trained_on="train", classifier_epochs=2)
    data = TwoSets()
    one = Cell(
        data.card(None), data.protocols["default"], target, (NoDefense(),), Adversary(), Norm(),
        (), data,
    )  # fmt: skip
    record = TrialRunner(Store(tmp_path), CPU).run(Trial(one, 0))
    assert (record.status, record.reason) == ("ok", "")
    assert record.phase == "encoder"
    assert "on source 'train', as the user says (not checked)" in record.notes["encoder"]
    leak, null = record.metrics["auc"].value, record.controls["null"]["auc"].value
    assert leak is not None
    assert null is not None
    assert min(abs(leak - 0.5), abs(null - 0.5)) > 0.25
    assert leak != null
    assert any("a victim that saw none of these samples" in flag for flag in record.flags)


def test_null_victims_and_the_untrained_control_have_random_weights(
    saved: Any, tmp_path: Path
) -> None:
    target = saved["clip"][0].replace(trained_on="train", classifier_epochs=1)
    builder = tiny_builder(str(tmp_path))
    asked = Protocol(members=80, nonmembers=80, pool=300, downstream=40, classifier="downstream")

    def trained(victim: Any) -> bool:
        own = target._loaded().net.state_dict()
        found = victim.model["encoder"].net.state_dict()
        return all(torch.equal(value, own[key]) for key, value in found.items())

    assert trained(builder.victim(spec(target, "victim", asked)))
    assert not trained(builder.victim(spec(target, "null", asked)))  # nothing else is unseen
    assert trained(builder.victim(spec(target, "null")))  # the question is about the classifier
    assert not trained(builder.untrained(spec(target)))
    assert builder.untrained(spec(target)).key == builder.keys(spec(target)).untrained
    first, other = (builder.draft(spec(target, o, asked)).base for o in ("victim", "null"))
    assert first != other


# ── bad input ────────────────────────────────────────────────────────────────


@pytest.fixture
def refused(registry: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The one sentence of a run that ends with status 2."""
    from privbench.plugins import registry as plugins

    monkeypatch.setattr(plugins, "load", lambda *_, **__: registry)
    monkeypatch.chdir(tmp_path)

    def call(name: str, *settings: str) -> str:
        args = ["run", "--attack", "metric-loss", "--target", name, "--protocol", "alm"]
        done = CliRunner().invoke(main, [*args, *(a for s in settings for a in ("--set", s))])
        assert done.exit_code == 2, done.output
        (line,) = done.stderr.splitlines()
        assert len(line) < 600
        return str(line)

    return call


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_bad_paths_get_one_sentence(kind: str, refused: Any, libraries: Any) -> None:
    del libraries
    assert f"set {kind}.weights" in refused(kind)
    assert f"{kind}: cannot read 'gone.pt'" in refused(kind, f"{kind}.weights=gone.pt")
    assert f"{kind}: cannot read" in refused(kind, f'{kind}.weights="a\\0b"')


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_extra_gets_one_sentence(
    kind: str, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    told = refused(kind, f"{kind}.weights=x.pt")
    assert f"pip install 'privbench[{kind}]'" in told


class Code:
    """Pickles as a call."""

    def __reduce__(self) -> Any:
        return print, ("ran",)


@pytest.mark.slow  # it imports their libraries
@pytest.mark.parametrize("kind", ["clip", "timm"])
def test_wrong_files_get_one_sentence(
    kind: str, refused: Any, saved: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"{kind}.model={saved[kind][0].model}"
    (tmp_path / "text.pt").write_text("no weights")
    (tmp_path / "code.pt").write_bytes(pickle.dumps(Code()))
    torch.save({"code": Code()}, tmp_path / "code2.pt")
    torch.save([torch.zeros(2)], tmp_path / "list.pt")
    for name in ("text.pt", "code.pt", "code2.pt"):
        told = refused(kind, model, f"{kind}.weights={name}")
        assert "neither safetensors nor tensors that torch.save wrote" in told
    (tmp_path / "text.safetensors").write_text("no weights")
    assert "neither" in refused(kind, model, f"{kind}.weights=text.safetensors")
    assert "does not hold tensors" in refused(kind, model, f"{kind}.weights=list.pt")
    assert "ran" not in capsys.readouterr().out

    held = torch.load(saved[kind][0].weights, weights_only=True)
    held = held.get("state_dict", held)
    key = next(key for key in held if "visual" in key or kind == "timm")
    torch.save({k: v for k, v in held.items() if k != key}, tmp_path / "less.pt")
    torch.save({**held, f"{key}x": held[key]}, tmp_path / "more.pt")
    torch.save({**held, key: torch.zeros(5, 4, 3)}, tmp_path / "shape.pt")
    for name, why in (("less", "is missing"), ("more", "it has no"), ("shape", "(5, 4, 3)")):
        told = refused(kind, model, f"{kind}.weights={name}.pt")
        assert "the weights are not those of" in told
        assert why in told
    assert "no model 'nonsense'" in refused(
        kind, f"{kind}.model=nonsense", f"{kind}.weights=less.pt"
    )


def test_safetensors_are_read(saved: Any, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    target, _ = saved["clip"]
    save_file(torch.load(target.weights, weights_only=True), tmp_path / "clip.safetensors")
    again = target.replace(weights=str(tmp_path / "clip.safetensors"))
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again._loaded()(x), target._loaded()(x))


def test_a_size_that_the_model_cannot_read(libraries: Any, tmp_path: Path) -> None:
    _, timm, _ = libraries
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "vit.pt")
    with pytest.raises(BadInputError, match="test_vit cannot read images of 17x17 pixels"):
        Timm(weights=str(tmp_path / "vit.pt"), model="test_vit", size=17)


@pytest.mark.slow
def test_bad_folders_get_one_sentence(
    refused: Any, saved: Any, libraries: Any, tmp_path: Path
) -> None:
    _, _, transformers = libraries
    good = saved["hf"][0].weights

    def told(change: Callable[[Path], object]) -> str:
        shutil.rmtree("hf", ignore_errors=True)
        shutil.copytree(good, "hf")
        change(tmp_path / "hf")
        line = refused("hf", "hf.weights=hf")
        assert "hf: cannot read 'hf" in line
        return str(line)

    def edited(name: str, **fields: Any) -> Callable[[Path], object]:
        def change(folder: Path) -> None:
            held = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps({**held, **fields}))

        return change

    def pickled(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Code()))

    def less(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        file = folder / "model.safetensors"
        held = {k: v for k, v in load_file(file).items() if "layernorm" not in k}
        save_file(held, file, {"format": "pt"})

    def text(folder: Path) -> None:
        config = transformers.BertConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            vocab_size=32,
        )  # fmt: skip
        transformers.BertModel(config).save_pretrained(folder)

    assert "no *.safetensors, and pickled weights are not read" in told(pickled)
    assert "the weights leave 'layernorm" in told(less)
    assert "reads input_ids, not images" in told(text)
    assert "No such file" in told(lambda folder: (folder / "config.json").unlink())
    for wrong in ({"size": None}, {"image_std": [1, 0, 1]}, {"image_mean": [0.5]}):
        assert "does not say size" in told(edited("preprocessor_config.json", **wrong))
    told(lambda folder: (folder / "model.safetensors").write_text("no weights"))
    told(edited("config.json", hidden_size=32))
    told(edited("config.json", model_type="nonsense"))
