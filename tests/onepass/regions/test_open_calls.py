"""nn.MultiheadAttention: Dynamo keeps its function whole; opened, its attention fuses; else the report says why not."""

import copy

import pytest
import torch
from torch import nn

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")
WIDTH, HEADS, LENGTH = 16, 2, 12


class Layer(nn.Module):
    def __init__(self, dropout=0.0, batch_first=True, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, dropout, batch_first=batch_first)
        self.options = options

    def forward(self, x):
        return self.attention(x, x, x, **self.options)[0]


def causal_mask():
    return nn.Transformer.generate_square_subsequent_mask(LENGTH)


FORMS = {
    "with weights": {"need_weights": True},
    "without weights": {"need_weights": False},
    "sequence first": {"need_weights": False, "batch_first": False},
    "float mask": {"attn_mask": causal_mask(), "need_weights": False},
    "bool mask": {"attn_mask": causal_mask() < 0, "need_weights": True},
    "padding": {"key_padding_mask": torch.arange(LENGTH).expand(2, LENGTH) > 8, "need_weights": False},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FORMS)
def test_attention_in_a_layer_is_fused_and_right(name):
    layer = Layer(**FORMS[name]).eval()
    x = torch.randn((LENGTH, 2, WIDTH) if name == "sequence first" else (2, LENGTH, WIDTH))
    exact = copy.deepcopy(layer).double()
    exact.options = {k: v.double() if getattr(v, "is_floating_point", bool)() else v for k, v in layer.options.items()}
    fast = torch.compile(layer, backend=onepass_backend, options={"inner": "eager", "strict": True})
    with torch.no_grad():
        torch.testing.assert_close(fast(x).double(), exact(x.double()), rtol=1e-5, atol=1e-6)
    (report,) = onepass.reports()
    assert sum(region.count for region in report.regions) == 1, str(report)
    assert report.regions[0].places[0].startswith(__file__)


def test_gradients_reach_the_weights():
    layer = Layer(need_weights=False)
    other = copy.deepcopy(layer)
    x = torch.randn(2, LENGTH, WIDTH)
    torch.compile(layer, backend=onepass_backend, options={"inner": "eager"})(x).square().sum().backward()
    other(x).square().sum().backward()
    assert onepass.reports()[-1].regions
    for mine, theirs in zip(layer.parameters(), other.parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_what_stays_whole_is_said_with_its_line():
    layer = Layer(need_weights=False).train()
    report = onepass.explain(layer, torch.randn(2, LENGTH, WIDTH)[:0])
    assert not report.regions
    line = Layer.forward.__code__.co_firstlineno + 1
    assert [r.where for r in report.refusals] == [f"{__file__}:{line}"]
    assert "without elements" in report.refusals[0].reason


@pytest.mark.slow
def test_an_encoder_layer_is_fused():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True)
    x = torch.randn(2, LENGTH, WIDTH)
    result = torch.compile(layer, backend=onepass_backend, options={"inner": "eager"})(x)
    assert sum(region.count for report in onepass.reports() for region in report.regions) == 1
    torch.testing.assert_close(result, layer(x), rtol=1e-4, atol=1e-5)


def test_the_fast_path_of_torchs_modules_is_said_and_can_be_left():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True).eval()
    x = torch.randn(2, LENGTH, WIDTH)
    with torch.no_grad():
        (refusal,) = onepass.explain(layer, x).refusals
        assert "set_fastpath_enabled(False)" in refusal.reason
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            assert sum(region.count for region in onepass.explain(layer, x).regions) == 1
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
