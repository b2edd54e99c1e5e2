"""vLLM's CUSTOM backend on a tiny random model, against eager, with a stand-in that has vLLM's names and signatures.

vLLM itself cannot be installed here. Prompts are cut in chunks, beside sequences that decode, and batches are padded.
"""

import importlib
import sys
import tomllib

import pytest
import torch

from onepass.errors import InputError
from tests.house.tree import ROOT
from tests.support import vllm_stand_in
from tests.support.vllm_stand_in import CLASSES, Server, StandInEnum

pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore")]
HEADS, GROUPS, WIDTH, SLOTS, WORDS, LAYERS = 4, 2, 8, 4, 50, 2
STEPS = [  # new tokens of each sequence, and padded sequences
    ({0: 5, 1: 1}, 0), ({0: 2, 1: 1, 2: 6}, 1), ({2: 5, 0: 1, 1: 1}, 0), ({0: 1, 1: 1, 2: 1}, 2),
]  # fmt: skip
VARIANTS = {
    "plain": {},
    "window and softcap": {"sliding_window": 5, "logits_soft_cap": 3.0},
    "sinks": {"sinks": torch.linspace(-1, 2, HEADS)},
    "alibi": {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625]},
}


@pytest.fixture
def plugin(monkeypatch):
    with vllm_stand_in.installed():
        monkeypatch.delitem(sys.modules, "onepass.integrations.vllm", raising=False)
        module = importlib.import_module("onepass.integrations.vllm")
        monkeypatch.setattr(module.VllmAttention, "options", {"inner": "eager", "executor": "tiled", "strict": True})
        yield module
    sys.modules.pop("onepass.integrations.vllm", None)


class Tiny(torch.nn.Module):
    """Layers of attention and a projection; `attend` of a layer gets packed q, k, v [tokens, heads, width]."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, HEADS * WIDTH)
        sizes = [HEADS * WIDTH, GROUPS * WIDTH, GROUPS * WIDTH]
        self.layers = torch.nn.ModuleList(torch.nn.Linear(HEADS * WIDTH, sum(sizes)) for _ in range(LAYERS))
        self.sizes = sizes

    def forward(self, tokens, attend):
        x = self.words(tokens)
        for number, layer in enumerate(self.layers):
            q, k, v = layer(x).split(self.sizes, -1)
            shaped = (q.view(-1, HEADS, WIDTH), *(y.view(-1, GROUPS, WIDTH) for y in (k, v)))
            x = x + attend(number, *shaped).reshape(x.shape)
        return x @ self.words.weight.T


def eager(variant):
    """Attention of one sequence as written, in float64."""

    def attend(number, q, k, v):
        q, k, v = (x.transpose(0, 1).double() for x in (q, k, v))
        k, v = (x.repeat_interleave(HEADS // GROUPS, 0) for x in (k, v))
        age = torch.arange(q.shape[1])[:, None] - torch.arange(k.shape[1])
        scores = q @ k.mT * WIDTH**-0.5
        if cap := variant.get("logits_soft_cap"):
            scores = cap * torch.tanh(scores / cap)
        if slopes := variant.get("alibi_slopes"):
            scores = scores - torch.tensor(slopes)[:, None, None] * age
        kept = (age >= 0) & (age < variant.get("sliding_window", 10**6))
        scores = scores.masked_fill(~kept, -torch.inf)
        if "sinks" in variant:
            scores = torch.cat([scores, variant["sinks"].double()[:, None, None].expand(-1, q.shape[1], 1)], -1)
        return (scores.softmax(-1)[..., : v.shape[1]] @ v).transpose(0, 1).float()

    return attend


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_served_tokens_are_those_of_eager(plugin, name):
    torch.manual_seed(0)
    model, variant, backend = Tiny(), VARIANTS[name], plugin.VllmBackend
    impl = backend.get_impl_cls()(HEADS, WIDTH, WIDTH**-0.5, GROUPS, **variant)
    server = Server(backend, LAYERS, (SLOTS, GROUPS, WIDTH))
    texts = {n: torch.randint(0, WORDS, (length,)).tolist() for n, length in enumerate((7, 1, 11))}
    done = dict.fromkeys(texts, 0)
    for counts, padded in STEPS:
        facts = server.step(counts, padded)
        given = [t for n, count in counts.items() for t in texts[n][done[n] : done[n] + count]]
        assert len(given) == sum(counts.values())

        def attend(number, q, k, v, facts=facts):
            return impl.forward(None, q, k, v, server.caches[number], facts, torch.full_like(q, 7.0))

        logits, last = model(torch.tensor(given + [0] * padded), attend), -1
        assert bool(logits.isfinite().all())
        for n, count in counts.items():
            last, done[n] = last + count, done[n] + count
            if done[n] == len(texts[n]):
                right = model(torch.tensor(texts[n]), eager(variant))[-1]
                torch.testing.assert_close(logits[last], right, rtol=1e-4, atol=1e-4)
                texts[n].append(int(right.argmax()))
    assert [len(text) for text in texts.values()] == [10, 5, 13]


def test_the_backend_is_registered_and_measured_without_metadata(plugin):
    plugin.register()
    module, _, name = CLASSES[StandInEnum.CUSTOM].rpartition(".")
    assert getattr(sys.modules[module], name) is plugin.VllmBackend
    impl, tokens = plugin.VllmAttention(HEADS, WIDTH, 1.0), torch.ones(3, HEADS, WIDTH)
    assert not impl.forward(None, tokens, tokens, tokens, None, None, tokens.clone()).any()


def test_vllm_finds_it_by_its_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["vllm.general_plugins"] == {"onepass": "onepass.integrations.vllm:register"}


@pytest.mark.parametrize(
    "given, said",
    [({"kv_cache_dtype": "fp8"}, "cache of fp8"), ({"attn_type": "encoder"}, "type encoder"), ({"odd": 1}, "odd: an")],
)
def test_what_it_does_not_know_is_refused_by_name(plugin, given, said):
    with pytest.raises(InputError, match=said):
        plugin.VllmAttention(HEADS, WIDTH, 1.0, **given)
