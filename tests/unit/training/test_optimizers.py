from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from bertie.base.config import load
from bertie.base.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.encoders.static import StaticConfig
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.recipe import PretrainConfig
from bertie.training.muon import Muon, orthogonalized
from bertie.training.optimizers import AdamW, BertAdam, Lamb, Optimizer


class Small(nn.Module):
    """One matrix and one bias, in double precision, so that rounding errors are negligible."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.matrix = nn.Parameter(torch.from_numpy(rng.normal(size=(3, 2))))
        self.bias = nn.Parameter(torch.from_numpy(rng.normal(size=3)))


RATES = [0.01, 0.02, 0.03, 0.02, 0.01, 0.0]
BETAS, EPS, DECAY = (0.8, 0.95), 1e-3, 0.1


def gradients() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"matrix": rng.normal(size=(3, 2)), "bias": rng.normal(size=3)} for _ in RATES]


def trained(optimizer: Optimizer) -> dict[str, np.ndarray]:
    model = Small()
    built = optimizer.build(model)
    for rate, gradient in zip(RATES, gradients(), strict=True):
        for group in built.param_groups:
            group["lr"] = rate
        for name, parameter in model.named_parameters():
            parameter.grad = torch.from_numpy(gradient[name])
        built.step()
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def reference(bias_correction: bool) -> dict[str, np.ndarray]:
    """Compute algorithm 2 of Loshchilov & Hutter in NumPy or, without bias correction, the update of BERT's release.

    update = m / (√v + ε) + decay · w;  w ← w - rate · update, with decay for matrices only.
    """
    found = {}
    for name, parameter in Small().named_parameters():
        w, m, v = parameter.detach().numpy().copy(), 0.0, 0.0
        decay = DECAY if name == "matrix" else 0.0
        for step, (rate, gradient) in enumerate(zip(RATES, gradients(), strict=True), 1):
            g = gradient[name]
            m = BETAS[0] * m + (1 - BETAS[0]) * g
            v = BETAS[1] * v + (1 - BETAS[1]) * g**2
            m_hat = m / (1 - BETAS[0] ** step) if bias_correction else m
            v_hat = v / (1 - BETAS[1] ** step) if bias_correction else v
            w = w - rate * (m_hat / (np.sqrt(v_hat) + EPS) + decay * w)
        found[name] = w
    return found


@pytest.mark.parametrize(("kind", "bias_correction"), [(AdamW, True), (BertAdam, False)])
def test_adam_matches_the_published_algorithm(kind: type[AdamW] | type[BertAdam], bias_correction: bool) -> None:
    found, expected = trained(kind(betas=BETAS, eps=EPS, weight_decay=DECAY)), reference(bias_correction)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)


def test_lamb_matches_the_published_algorithm() -> None:
    """You et al. 2020, algorithm 2: AdamW with its update scaled to the norm of the matrix. φ is the identity."""
    found = trained(Lamb(betas=BETAS, eps=EPS, weight_decay=DECAY))
    for name, parameter in Small().named_parameters():
        w, m, v = parameter.detach().numpy().copy(), 0.0, 0.0
        for step, (rate, gradient) in enumerate(zip(RATES, gradients(), strict=True), 1):
            m = BETAS[0] * m + (1 - BETAS[0]) * gradient[name]
            v = BETAS[1] * v + (1 - BETAS[1]) * gradient[name] ** 2
            update = m / (1 - BETAS[0] ** step) / (np.sqrt(v / (1 - BETAS[1] ** step)) + EPS)
            if name == "matrix":
                update = update + DECAY * w
                update = update * np.linalg.norm(w) / np.linalg.norm(update)
            w = w - rate * update
        np.testing.assert_allclose(found[name], w, rtol=1e-12)


def test_lamb_updates_a_matrix_of_zeros() -> None:
    """A matrix of zeros has norm 0. Its update is not scaled, so that it does not stay at zero."""
    model = Small()
    model.matrix.data.zero_()
    optimizer = Lamb().build(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    model.matrix.grad = torch.ones_like(model.matrix)
    optimizer.step()
    torch.testing.assert_close(model.matrix.detach(), torch.full_like(model.matrix, -0.1), rtol=1e-5, atol=0)


def test_bert_adam_counts_steps_in_single_precision() -> None:
    """At the step count that disables bias correction, fp32 must still count, and the correction must be exactly 1."""
    model = Small().float()
    optimizer = BertAdam().build(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = [float(state["step"]) for state in optimizer.state.values()]
    optimizer.step()
    after = [float(state["step"]) for state in optimizer.state.values()]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1.0, 1.0]
    assert np.float32(1 - 0.9999 ** before[0]) == 1
    assert before[0] + 1_000_000 < 2**24


RECIPES = ["mini-xlnet", "mini-transformer-xl", "mini-reformer", "mini-elmo", "mini-skip-thoughts"]


@pytest.mark.parametrize("recipe", [*RECIPES, "electra-small-paper", "modern-tiny", "tiny"])
def test_muon_updates_all_matrices_of_all_layers(recipe: str) -> None:
    config = load(PretrainConfig, recipe, "pretrain")
    model = new_model(replace(config.model, vocab_size=300), config.objectives, 0)
    groups = Muon().build(model).param_groups
    parts = {parameter: group.get("parts", 0) for group in groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        in_layer = ".layers." in name and parameter.ndim == 2 and "segment" not in name
        stacked = {"qkv": 3, "qk_v": 2, "up": 2 if recipe == "modern-tiny" else 1}
        gates = dict.fromkeys(("weight_ih_l0", "weight_hh_l0"), 4 if recipe == "mini-elmo" else 3)
        *_, module, leaf = name.split(".")
        assert parts[parameter] == (gates.get(leaf, stacked.get(module, 1)) if in_layer else 0), name


@pytest.mark.parametrize("frozen", [False, True])
def test_muon_refuses_a_model_without_matrices_to_train(frozen: bool, tiny_config: TransformerConfig) -> None:
    model = Model(build_encoder(tiny_config if frozen else StaticConfig(8, vocab_size=20)), {})
    model.encoder.requires_grad_(not frozen)
    with pytest.raises(
        UsageError, match="layers of the encoder are frozen" if frozen else "no layers, only vectors of"
    ):
        Muon().build(model)


def test_weight_decay_applies_to_matrices_only(tiny_config: TransformerConfig) -> None:
    encoder = build_encoder(tiny_config)
    heads = {o.kind: o.head(encoder) for o in (MaskedLM(), NextSentence())}
    model = Model(encoder, heads)
    for kind in (AdamW, BertAdam, Lamb):
        decay = {
            id(parameter): group["weight_decay"]
            for group in kind().build(model).param_groups
            for parameter in group["params"]
        }
        found = {name: decay[id(parameter)] for name, parameter in model.named_parameters()}
        # BERT's release excludes these parameters by name.
        excluded = {name for name in found if "norm" in name or name.endswith("bias")}
        assert {name for name, value in found.items() if value == 0} == excluded
        assert {value for name, value in found.items() if name not in excluded} == {0.01}
        assert len(decay) == len(list(model.parameters()))


def muon_model(**changes: object) -> Model:
    config = TransformerConfig(2, 16, 2, 32, vocab_size=50, max_position_embeddings=8, **changes)  # type: ignore[arg-type]
    torch.manual_seed(0)
    encoder = build_encoder(config)
    return Model(encoder, {"mlm": MaskedLM().head(encoder)})


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 6, 20), (2, 20, 6)])
def test_orthogonalized_matrices_have_the_singular_vectors_and_values_near_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    found = orthogonalized(x, 8)
    for one, other in zip(x, found, strict=True):
        u, _, v = torch.linalg.svd(one, full_matrices=False)
        along = u.T @ other @ v.T
        assert float(along.diagonal().min()) > 0.6
        assert float(along.diagonal().max()) < 1.3
        assert float((along - along.diagonal().diag()).abs().max()) < 1e-10


def test_matrices_are_orthogonalized_in_the_precision_of_the_run() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 20, 6)
    exact = orthogonalized(x.double(), 5)
    assert float((orthogonalized(x, 5) - exact).abs().max()) < 1e-4
    with torch.autocast("cpu", torch.bfloat16):
        in_bf16 = orthogonalized(x, 5)
    assert in_bf16.dtype == torch.float32
    assert 1e-4 < float((in_bf16 - exact).abs().max()) < 0.1


def test_muon_matches_its_algorithm_for_every_stacked_matrix() -> None:
    """Momentum with Nesterov's correction, orthogonalized for queries, keys, values and halves of a gated layer alone."""
    model = muon_model(hidden_act="geglu").double()
    settings = Muon(momentum=0.9, weight_decay=0.1)
    built = settings.build(model)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    means = {name: torch.zeros_like(p) for name, p in weights.items()}
    for rate in (0.01, 0.02):
        for group in built.param_groups:
            group["lr"] = rate
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            means[name] = 0.9 * means[name] + 0.1 * parameter.grad
            direction = 0.1 * parameter.grad + 0.9 * means[name]
            parts = 3 if "qkv" in name else 2 if ".up." in name else 1
            for rows, part in zip(weights[name].chunk(parts), direction.chunk(parts), strict=True):
                if part.ndim == 2:
                    update = 0.2 * max(part.shape) ** 0.5 * orthogonalized(part[None], 5)[0]
                    rows.sub_(rate * (0.1 * rows + update))
        built.step()
    checked = 0
    for name, parameter in model.named_parameters():
        if name.startswith("encoder.layers.") and parameter.ndim == 2:
            torch.testing.assert_close(parameter.detach(), weights[name])
            checked += 1
    assert checked == 8


def test_muon_updates_the_rest_as_adamw_does() -> None:
    ours, theirs = muon_model(), muon_model()
    muon = Muon().build(ours)
    adamw = AdamW(betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1).build(theirs)
    for _ in range(3):
        for (_, one), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in (muon, adamw):
            for group in optimizer.param_groups:
                group["lr"] = 0.01
            optimizer.step()
    for (name, one), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        by_muon = name.startswith("encoder.layers.") and one.ndim == 2
        assert torch.equal(one, other) != by_muon, name


def test_muon_takes_no_step_that_is_to_be_skipped() -> None:
    model = muon_model()
    optimizer = Muon().build(model)
    before = [p.detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimizer.step()
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new)
    assert all(not tensor.any() for state in optimizer.state.values() for tensor in state.values())


@pytest.mark.parametrize("changes", [{"momentum": 1.0}, {"iterations": 0}, {"betas": (0.9,)}, {"eps": 0}])
def test_muon_refuses_settings_out_of_range(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"optimizer\."):
        Muon(**changes)  # type: ignore[arg-type]
