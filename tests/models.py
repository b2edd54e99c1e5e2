"""Small random models of public libraries with eager attention, as records: a name, how to build it, its inputs.

`attentions` is how many attention calls one forward makes: each must be fused, and nothing else disturbed.
Read by test_models.py. The library's model code is unchanged; only sizes are small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

LENGTH = 19
VOCABULARY = 97
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
GROUPED = {**SMALL, "vocab_size": VOCABULARY, "num_key_value_heads": 2}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


@dataclass(frozen=True)
class Model:
    """`build` makes the module in float32; `inputs` its keyword arguments for one batch with padding."""

    name: str
    build: Callable[[], torch.nn.Module]
    inputs: Callable[[], dict]
    attentions: int = 2

    def __str__(self) -> str:
        return self.name


def _make(model: str, config: str, /, **sizes):
    def build():
        import transformers

        chosen = getattr(transformers, config)(**sizes, attn_implementation="eager")
        return getattr(transformers, model)(chosen).eval()

    return build


def _ids(batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


def _padded(**more):
    def inputs():
        ids, mask = _ids(), torch.ones(2, LENGTH, dtype=torch.int64)
        mask[1, 12:] = 0
        return {"input_ids": ids, "attention_mask": mask, **more}

    return inputs


def _encoded():
    return {**_padded(use_cache=False)(), "decoder_input_ids": _ids(length=7)}


def _image():
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def _sound():
    return {"input_features": torch.randn(2, 8, 64), "decoder_input_ids": _ids(length=7), "use_cache": False}


def _causal(name: str, model: str, config: str, attentions: int = 2, **sizes) -> Model:
    return Model(name, _make(model, config, **{**GROUPED, **TOKENS, **sizes}), _padded(use_cache=False), attentions)


_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY, **TOKENS}
_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}
_OPT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128, "word_embed_proj_dim": 64}
_SPEECH = {
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 128 for side in ("encoder", "decoder")},
}
_WHISPER = {"d_model": 64, "num_mel_bins": 8, "max_source_positions": 32, "decoder_start_token_id": 1, **_SPEECH}
_DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_position_embeddings": 64}
_MLA = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
_DENSE = {"first_k_dense_replace": 2, "n_routed_experts": 4, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
_BERT = {**SMALL, "vocab_size": VOCABULARY}
_PATCHES = {**SMALL, "image_size": 32, "patch_size": 8}

MODELS = (
    Model("GPT-2", _make("GPT2LMHeadModel", "GPT2Config", **_GPT2), _padded(use_cache=False)),
    _causal("Llama", "LlamaForCausalLM", "LlamaConfig"),
    Model("T5", _make("T5ForConditionalGeneration", "T5Config", **_T5, **TOKENS), _encoded, 6),
    Model("BERT", _make("BertModel", "BertConfig", **_BERT), _padded()),
    _causal("Gemma-2", "Gemma2ForCausalLM", "Gemma2Config", head_dim=16, sliding_window=8),
    _causal("Mistral", "MistralForCausalLM", "MistralConfig", sliding_window=8),
    _causal("Qwen3", "Qwen3ForCausalLM", "Qwen3Config", head_dim=16),
    _causal("Phi", "PhiForCausalLM", "PhiConfig"),
    _causal("OLMo-2", "Olmo2ForCausalLM", "Olmo2Config"),
    _causal("GPT-NeoX", "GPTNeoXForCausalLM", "GPTNeoXConfig"),
    _causal("GPT-OSS", "GptOssForCausalLM", "GptOssConfig", head_dim=16, num_local_experts=2, num_experts_per_tok=1),
    _causal("DeepSeek-V3", "DeepseekV3ForCausalLM", "DeepseekV3Config", **{**_MLA, **_DENSE, "num_key_value_heads": 4}),
    Model(
        "OPT",
        _make("OPTForCausalLM", "OPTConfig", **_OPT, vocab_size=VOCABULARY, max_position_embeddings=64, **TOKENS),
        _padded(use_cache=False),
    ),
    Model(
        "BLOOM",
        _make("BloomForCausalLM", "BloomConfig", hidden_size=64, n_layer=2, n_head=4, vocab_size=VOCABULARY, **TOKENS),
        _padded(use_cache=False),
    ),
    Model("DeBERTa-v2", _make("DebertaV2Model", "DebertaV2Config", **_BERT, **_DEBERTA), _padded()),
    Model("ViT", _make("ViTModel", "ViTConfig", **_PATCHES), _image),
    Model("Whisper", _make("WhisperModel", "WhisperConfig", **_WHISPER, vocab_size=VOCABULARY, **TOKENS), _sound, 6),
)
