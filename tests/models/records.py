"""Small random models of public libraries with eager attention, as records: a name, how to build it, its inputs.

`attentions` is how many attention calls one forward makes: each must be fused, and nothing else disturbed.
Read by test_models.py. The library's model code is unchanged; only sizes are small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

VOCABULARY = 97
WIDTHS = """hidden_size intermediate_size head_dim d_model d_kv d_ff dff n_embd emb_dim embedding_size ffn_dim
hidden_dim dim d_inner d_head encoder_ffn_dim decoder_ffn_dim word_embed_proj_dim rotary_dim lru_width mlp_dim
q_lora_rank kv_lora_rank
qk_rope_head_dim qk_nope_head_dim v_head_dim moe_intermediate_size intermediate_size_mlp""".split()
PLACES = """max_position_embeddings n_positions max_seq_len block_size max_target_positions
sliding_window""".split()
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
GROUPED = {**SMALL, "vocab_size": VOCABULARY, "num_key_value_heads": 2}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


@dataclass
class Scale:
    """How much wider than their records models are built, how long their inputs are, and which attention the library
    is asked for: survey.py changes it.
    """

    widths: int = 1
    length: int = 19
    attention: str = "eager"

    def of(self, name: str, size):
        if isinstance(size, dict):
            return {inner: self.of(inner, value) for inner, value in size.items()}
        if type(size) is not int or self.widths == 1:
            return size
        return size * (self.widths if name in WIDTHS else 16 if name in PLACES else 1)


SCALE = Scale()


@dataclass(frozen=True)
class Model:
    """`build` makes the module in float32; `inputs` its keyword arguments for one batch with padding."""

    name: str
    build: Callable[[], torch.nn.Module]
    inputs: Callable[[], dict]
    attentions: int = 2

    def __str__(self) -> str:
        return self.name


def maker(model: str, config: str, /, **sizes):
    def build():
        import transformers

        scaled = {name: SCALE.of(name, size) for name, size in sizes.items()}
        chosen = getattr(transformers, config)(**scaled, attn_implementation=SCALE.attention)
        return getattr(transformers, model)(chosen).eval()

    return build


def tokens(batch: int = 2, length: int | None = None) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length or SCALE.length))


def padded(**more):
    def inputs():
        ids, mask = tokens(), torch.ones(2, SCALE.length, dtype=torch.int64)
        mask[1, SCALE.length * 2 // 3 :] = 0
        return {"input_ids": ids, "attention_mask": mask, **more}

    return inputs


def encoded():
    return {**padded(use_cache=False)(), "decoder_input_ids": tokens(length=7)}


def image():
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def _sound():
    return {"input_features": torch.randn(2, 8, 64), "decoder_input_ids": tokens(length=7), "use_cache": False}


def causal(name: str, model: str, config: str, attentions: int = 2, **sizes) -> Model:
    return Model(name, maker(model, config, **{**GROUPED, **TOKENS, **sizes}), padded(use_cache=False), attentions)


_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY, **TOKENS}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}
_OPT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128, "word_embed_proj_dim": 64}
SPEECH = {
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 128 for side in ("encoder", "decoder")},
}
_WHISPER = {"d_model": 64, "num_mel_bins": 8, "max_source_positions": 32, "decoder_start_token_id": 1, **SPEECH}
_DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_position_embeddings": 64}
MLA = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
DENSE = {"first_k_dense_replace": 2, "n_routed_experts": 4, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
BERT = {**SMALL, "vocab_size": VOCABULARY}
PATCHES = {**SMALL, "image_size": 32, "patch_size": 8}

MODELS = (
    Model("GPT-2", maker("GPT2LMHeadModel", "GPT2Config", **_GPT2), padded(use_cache=False)),
    causal("Llama", "LlamaForCausalLM", "LlamaConfig"),
    Model("T5", maker("T5ForConditionalGeneration", "T5Config", **T5, **TOKENS), encoded, 6),
    Model("BERT", maker("BertModel", "BertConfig", **BERT), padded()),
    causal("Gemma-2", "Gemma2ForCausalLM", "Gemma2Config", head_dim=16, sliding_window=8),
    causal("Mistral", "MistralForCausalLM", "MistralConfig", sliding_window=8),
    causal("Qwen3", "Qwen3ForCausalLM", "Qwen3Config", head_dim=16),
    causal("Phi", "PhiForCausalLM", "PhiConfig"),
    causal("OLMo-2", "Olmo2ForCausalLM", "Olmo2Config"),
    causal("GPT-NeoX", "GPTNeoXForCausalLM", "GPTNeoXConfig"),
    causal("GPT-OSS", "GptOssForCausalLM", "GptOssConfig", head_dim=16, num_local_experts=2, num_experts_per_tok=1),
    causal("DeepSeek-V3", "DeepseekV3ForCausalLM", "DeepseekV3Config", **{**MLA, **DENSE, "num_key_value_heads": 4}),
    Model(
        "OPT",
        maker("OPTForCausalLM", "OPTConfig", **_OPT, vocab_size=VOCABULARY, max_position_embeddings=64, **TOKENS),
        padded(use_cache=False),
    ),
    Model(
        "BLOOM",
        maker("BloomForCausalLM", "BloomConfig", hidden_size=64, n_layer=2, n_head=4, vocab_size=VOCABULARY, **TOKENS),
        padded(use_cache=False),
    ),
    Model("DeBERTa-v2", maker("DebertaV2Model", "DebertaV2Config", **BERT, **_DEBERTA), padded()),
    Model("ViT", maker("ViTModel", "ViTConfig", **PATCHES), image),
    Model("Whisper", maker("WhisperModel", "WhisperConfig", **_WHISPER, vocab_size=VOCABULARY, **TOKENS), _sound, 6),
)
