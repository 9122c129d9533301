"""Compare Transformer-XL with TransfoXLModel of transformers 4, whose memory runs from call to call. Not run by pytest.

    python tests/long/transformer_xl.py [--environment FOLDER]

The environment is that of older_libraries.py, with transformers 4.57, the last 4.x; it is made unless it is there. The models
have random weights, `cutoffs` is empty and distances are not clamped. Fails if hidden states, or the loss of the next token, of
any layer differ by more than 1e-5 of the largest value.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from environments import parser_of
from older_libraries import install

from bertie.base.contracts import Batch, Sequence
from bertie.batches.collate import collate
from bertie.model.encoders.transformer_xl import TransformerXlConfig, TransformerXlEncoder
from bertie.model.initialization import initialize_weights

LIMIT = 1e-5
LENGTHS = (301, 64, 17)
CASES = [  # layers, width, heads, feed-forward, segment, memory
    (3, 32, 4, 64, 32, 32),
    (2, 48, 3, 96, 16, 40),
    (4, 64, 2, 128, 50, 7),
    (2, 32, 4, 64, 64, 0),
    (2, 32, 4, 64, 400, 400),
]
SIDE = """
import sys
import numpy as np
import torch
import transformers
from transformers import TransfoXLConfig, TransfoXLLMHeadModel

def converted(weights, size):
    names = {}
    for name, weight in weights.items():
        parts = name.split(".")
        if name == "embeddings.word.weight":
            names["transformer.word_emb.emb_layers.0.weight"] = names["crit.out_layers.0.weight"] = weight
        elif name == "bias":
            names["crit.out_layers.0.bias"] = weight
        else:
            own = {
                "attention.qkv.weight": "dec_attn.qkv_net.weight", "attention.distance.weight": "dec_attn.r_net.weight",
                "attention.out.weight": "dec_attn.o_net.weight", "attention.content_bias": "dec_attn.r_w_bias",
                "attention.position_bias": "dec_attn.r_r_bias", "attention_norm.weight": "dec_attn.layer_norm.weight",
                "attention_norm.bias": "dec_attn.layer_norm.bias", "up.weight": "pos_ff.CoreNet.0.weight",
                "up.bias": "pos_ff.CoreNet.0.bias", "down.weight": "pos_ff.CoreNet.3.weight",
                "down.bias": "pos_ff.CoreNet.3.bias", "norm.weight": "pos_ff.layer_norm.weight",
                "norm.bias": "pos_ff.layer_norm.bias",
            }[".".join(parts[2:])]
            weight = weight.reshape(size["heads"], -1) if own.endswith(("w_bias", "r_bias")) else weight
            names[f"transformer.layers.{parts[1]}.{own}"] = weight
    return {name: torch.from_numpy(np.ascontiguousarray(weight)) for name, weight in names.items()}

# 4.57 calls type_as(dtype=...), which no torch has.
as_type = torch.Tensor.type_as
torch.Tensor.type_as = lambda x, other=None, dtype=None: x.to(dtype) if other is None else as_type(x, other)
print("transformers", transformers.__version__, flush=True)
given = np.load(sys.argv[1])
size = {name.split("/")[1]: int(given[name]) for name in given.files if name.startswith("size/")}
config = TransfoXLConfig(
    vocab_size=size["vocabulary"], cutoffs=[], d_model=size["width"], d_embed=size["width"], n_head=size["heads"],
    d_head=size["width"] // size["heads"], d_inner=size["inner"], n_layer=size["layers"], mem_len=size["memory"],
    clamp_len=-1, same_length=False, div_val=1, dropout=0.0, dropatt=0.0, proj_share_all_but_first=False,
)
model = TransfoXLLMHeadModel(config).eval()
weights = {name[2:]: given[name] for name in given.files if name.startswith("w/")}
result = model.load_state_dict(converted(weights, size), strict=False)
assert not result.unexpected_keys, result.unexpected_keys
assert all("pos_emb" in name or name.endswith("r_bias") or name.endswith("w_bias") for name in result.missing_keys), result
shared = [name for name in result.missing_keys if "pos_emb" not in name]
assert not shared, shared
found = {}
with torch.no_grad():
    for name in (name for name in given.files if name.startswith("ids/")):
        # Without mems, 4.57 begins with a memory of zeros, which tokens see. As in the paper's code, it is empty here.
        ids, layers = torch.from_numpy(given[name]).long(), []
        mems = [torch.zeros(0, 1, size["width"]) for _ in range(size["layers"])]
        for start in range(0, len(ids), size["segment"]):
            part = ids[None, start : start + size["segment"]]
            out = model.transformer(part, mems=mems, output_hidden_states=True)
            mems = out.mems
            layers.append(torch.stack([*out.hidden_states])[:, 0])
        states = torch.cat(layers, 1)
        logits = model.crit._compute_logit(
            states[-1], model.crit.out_layers[0].weight, model.crit.out_layers[0].bias, model.crit.out_projs[0]
            if len(model.crit.out_projs) else None
        )
        found["states/" + name[4:]] = states.numpy()
        found["log_p/" + name[4:]] = logits.log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]].numpy()
np.savez(sys.argv[2], **found)
"""


def model(case: tuple[int, ...]) -> TransformerXlEncoder:
    """Return an encoder with large random weights and biases."""
    layers, width, heads, inner, segment, memory = case
    config = TransformerXlConfig(layers, width, heads, inner, segment, memory, vocab_size=200)
    encoder = TransformerXlEncoder(config)
    torch.manual_seed(0)
    initialize_weights(encoder, 0.1)
    for parameter in encoder.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return encoder.eval()


def batch_of(texts: list[np.ndarray]) -> Batch:
    made = [Sequence(ids, np.zeros_like(ids), np.ones(len(ids), bool)) for ids in texts]
    return collate(made, max(map(len, texts))).tensors()


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--environment", type=Path)
    asked, worst = parser.parse_args(), 0.0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = install(asked.environment or folder / "environment", ">=4.57,<4.58")
        (folder / "side.py").write_text(SIDE)
        rng = np.random.default_rng(0)
        texts = [rng.integers(0, 200, length).astype(np.int32) for length in LENGTHS]
        for case in CASES:
            encoder = model(case)
            head = encoder.vocabulary_head("next")
            torch.nn.init.normal_(head.bias)
            names = ("layers", "width", "heads", "inner", "segment", "memory")
            sizes = {f"size/{name}": value for name, value in zip(names, case, strict=True)} | {"size/vocabulary": 200}
            weights = {f"w/{name}": weight.numpy() for name, weight in encoder.state_dict().items()}
            weights["w/bias"] = head.bias.detach().numpy()
            ids = {f"ids/{number}": text for number, text in enumerate(texts)}
            np.savez(folder / "given.npz", **sizes, **weights, **ids)
            subprocess.run([python, folder / "side.py", folder / "given.npz", folder / "found.npz"], check=True)
            theirs = np.load(folder / "found.npz")
            with torch.no_grad():
                hidden = encoder(batch_of(texts), all_layers=True)
                log_p = head.logits(hidden.last).log_softmax(-1)
            starts = np.cumsum([0, *LENGTHS])
            assert hidden.layers is not None
            found = []
            for number, (text, start) in enumerate(zip(texts, starts, strict=False)):
                rows = slice(start, start + len(text))
                states = torch.stack(hidden.layers)[:, rows].numpy()
                found.append(difference(states, theirs[f"states/{number}"]))
                next_log_p = log_p[rows][torch.arange(len(text) - 1), torch.from_numpy(text[1:]).long()].numpy()
                found.append(difference(next_log_p, theirs[f"log_p/{number}"]))
            print(f"{dict(zip(names, case, strict=True))}: differ by at most {max(found):.1e}", flush=True)
            worst = max(worst, *found)
    print(f"largest difference {worst:.1e}, limit {LIMIT:.0e}")
    return int(not worst <= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
