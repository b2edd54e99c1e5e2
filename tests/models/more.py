"""Further models of public libraries, as records like those of records.py: read by survey.py, too many for CI.

`attentions` is how many attention calls one forward makes. Only sizes are small; no code of a library is changed.
"""

from __future__ import annotations

import torch

from tests.models.records import (
    BERT,
    DENSE,
    MLA,
    PATCHES,
    SPEECH,
    T5,
    TOKENS,
    VOCABULARY,
    Model,
    causal,
    encoded,
    image,
    maker,
    padded,
    tokens,
)

_DECODER = {"vocab_size": VOCABULARY, **TOKENS}
BOTH_SIDES = {"d_model": 64, "max_position_embeddings": 64, "decoder_start_token_id": 1, **SPEECH, **_DECODER}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
_MANY_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 8, **_DECODER}
TEXT = {**BERT, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
CONVOLUTIONS = {"conv_dim": (16, 16), "conv_stride": (4, 2), "conv_kernel": (8, 4), "num_feat_extract_layers": 2}
WAVE = {**BERT, **CONVOLUTIONS, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4}
_SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}


def encoder(name: str, model: str, config: str, attentions: int = 2, **sizes) -> Model:
    return Model(name, maker(model, config, **{**BERT, **sizes}), padded(), attentions)


def both(name: str, model: str, config: str, **sizes) -> Model:
    return Model(name, maker(model, config, **{**BOTH_SIDES, **sizes}), encoded, 6)


def pictures(name: str, model: str, config: str, attentions: int = 2, **sizes) -> Model:
    return Model(name, maker(model, config, **{**PATCHES, **sizes}), image, attentions)


def _two_towers():
    return {"input_ids": tokens(), **image()}


def wave():
    return {"input_values": torch.randn(2, 400)}


def audio():
    return {"input_features": torch.randn(2, 40, 16)}


def _long():
    return {"input_ids": tokens(length=64), "attention_mask": torch.ones(2, 64, dtype=torch.int64)}


def _bytes():
    return {"inputs": torch.randn(2, 30, 24)}


def picture_64():
    return {"pixel_values": torch.randn(1, 3, 64, 64)}


_TOWERS = {"text_config": TEXT, "vision_config": PATCHES}
MORE = (
    encoder("RoBERTa", "RobertaModel", "RobertaConfig", max_position_embeddings=64),
    encoder("XLM-R", "XLMRobertaModel", "XLMRobertaConfig", max_position_embeddings=64),
    encoder("ELECTRA", "ElectraModel", "ElectraConfig", embedding_size=32),
    encoder("ALBERT", "AlbertModel", "AlbertConfig", embedding_size=32),
    encoder("CamemBERT", "CamembertModel", "CamembertConfig", max_position_embeddings=64),
    encoder("ModernBERT", "ModernBertModel", "ModernBertConfig", local_attention=8, pad_token_id=0),
    encoder("ESM", "EsmModel", "EsmConfig", position_embedding_type="rotary", pad_token_id=0, mask_token_id=1),
    encoder("RoFormer", "RoFormerModel", "RoFormerConfig"),
    encoder("MPNet", "MPNetModel", "MPNetConfig"),
    encoder("ConvBERT", "ConvBertModel", "ConvBertConfig", embedding_size=64),
    encoder("FNet", "FNetModel", "FNetConfig", 0, tpu_short_seq_length=19),
    encoder("YOSO", "YosoModel", "YosoConfig", use_expectation=True),
    encoder("DeBERTa", "DebertaModel", "DebertaConfig", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    Model(
        "DistilBERT",
        maker("DistilBertModel", "DistilBertConfig", dim=64, n_layers=2, n_heads=4, hidden_dim=128, vocab_size=97),
        padded(),
    ),
    Model(
        "XLNet",
        maker("XLNetModel", "XLNetConfig", d_model=64, n_layer=2, n_head=4, d_inner=128, vocab_size=VOCABULARY),
        padded(use_mems=False),
    ),
    both("BART", "BartModel", "BartConfig"),
    both("mBART", "MBartModel", "MBartConfig"),
    both("Pegasus", "PegasusModel", "PegasusConfig"),
    both("Marian", "MarianModel", "MarianConfig"),
    both("M2M-100", "M2M100Model", "M2M100Config"),
    both("Blenderbot", "BlenderbotModel", "BlenderbotConfig"),
    both("BigBird-Pegasus", "BigBirdPegasusModel", "BigBirdPegasusConfig", attention_type="original_full"),
    both("LED", "LEDModel", "LEDConfig", attention_window=8),
    Model("mT5", maker("MT5Model", "MT5Config", **T5, **TOKENS), encoded, 6),
    Model("UMT5", maker("UMT5Model", "UMT5Config", **T5, **TOKENS), encoded, 6),
    Model("T5, gated", maker("T5Model", "T5Config", **T5, **TOKENS, feed_forward_proj="gated-gelu"), encoded, 6),
    Model("GPT-J", maker("GPTJForCausalLM", "GPTJConfig", **_GPT), padded(use_cache=False)),
    Model("CodeGen", maker("CodeGenForCausalLM", "CodeGenConfig", **_GPT), padded(use_cache=False)),
    Model(
        "GPT-Neo",
        maker("GPTNeoForCausalLM", "GPTNeoConfig", hidden_size=64, num_layers=2, num_heads=4, window_size=8,
              attention_types=[[["global", "local"], 1]], max_position_embeddings=64, **_DECODER),
        padded(use_cache=False),
    ),
    Model(
        "MPT",
        maker("MptForCausalLM", "MptConfig", d_model=64, n_layers=2, n_heads=4, max_seq_len=64, **_DECODER),
        padded(use_cache=False),
    ),
    Model(
        "GPT-BigCode",
        maker("GPTBigCodeForCausalLM", "GPTBigCodeConfig", n_embd=64, n_layer=2, n_head=4, n_positions=64, **_DECODER),
        padded(use_cache=False),
    ),
    causal("Falcon", "FalconForCausalLM", "FalconConfig"),
    causal("Falcon, ALiBi", "FalconForCausalLM", "FalconConfig", alibi=True, new_decoder_architecture=True),
    causal("StableLM", "StableLmForCausalLM", "StableLmConfig"),
    causal("Qwen2", "Qwen2ForCausalLM", "Qwen2Config"),
    causal("Mixtral", "MixtralForCausalLM", "MixtralConfig", **_EXPERTS),
    causal("Qwen2-MoE", "Qwen2MoeForCausalLM", "Qwen2MoeConfig", shared_expert_intermediate_size=32, **_MANY_EXPERTS),
    causal("Qwen3-MoE", "Qwen3MoeForCausalLM", "Qwen3MoeConfig", head_dim=16, **_MANY_EXPERTS),
    causal("OLMoE", "OlmoeForCausalLM", "OlmoeConfig", num_experts=4, num_experts_per_tok=2),
    causal("Gemma", "GemmaForCausalLM", "GemmaConfig", head_dim=16),
    causal("Gemma-3", "Gemma3ForCausalLM", "Gemma3TextConfig", head_dim=16, sliding_window=8),
    causal("Cohere", "CohereForCausalLM", "CohereConfig"),
    causal("Cohere-2", "Cohere2ForCausalLM", "Cohere2Config", sliding_window=8),
    causal("Granite", "GraniteForCausalLM", "GraniteConfig", attention_multiplier=0.1),
    causal("Phi-3", "Phi3ForCausalLM", "Phi3Config"),
    causal("Starcoder2", "Starcoder2ForCausalLM", "Starcoder2Config", sliding_window=8),
    causal("Nemotron", "NemotronForCausalLM", "NemotronConfig"),
    causal("Persimmon", "PersimmonForCausalLM", "PersimmonConfig", num_key_value_heads=4),
    causal("OLMo", "OlmoForCausalLM", "OlmoConfig"),
    causal("GLM", "GlmForCausalLM", "GlmConfig", head_dim=16),
    causal("Helium", "HeliumForCausalLM", "HeliumConfig", head_dim=16),
    causal("SmolLM3", "SmolLM3ForCausalLM", "SmolLM3Config"),
    causal("Llama 4", "Llama4ForCausalLM", "Llama4TextConfig", head_dim=16, intermediate_size_mlp=64, **_EXPERTS),
    causal("Jamba", "JambaForCausalLM", "JambaConfig", 1, attn_layer_period=2, attn_layer_offset=1, num_experts=2,
            use_mamba_kernels=False, mamba_d_state=4, mamba_dt_rank=4),
    causal("DeepSeek-V2", "DeepseekV2ForCausalLM", "DeepseekV2Config", **{**MLA, **DENSE, "num_key_value_heads": 4}),
    Model(
        "Mamba",
        maker("MambaForCausalLM", "MambaConfig", hidden_size=64, num_hidden_layers=2, state_size=4, **_DECODER),
        lambda: {"input_ids": tokens(), "use_cache": False},
        0,
    ),
    Model("CLIP", maker("CLIPModel", "CLIPConfig", projection_dim=32, **_TOWERS), _two_towers, 4),
    Model("SigLIP", maker("SiglipModel", "SiglipConfig", **_TOWERS), _two_towers, 5),
    pictures("DINOv2", "Dinov2Model", "Dinov2Config"),
    pictures("DeiT", "DeiTModel", "DeiTConfig"),
    pictures("BEiT", "BeitModel", "BeitConfig", use_relative_position_bias=True),
    pictures("ViT-MAE", "ViTMAEModel", "ViTMAEConfig", mask_ratio=0.0),
    pictures("Data2Vec, images", "Data2VecVisionModel", "Data2VecVisionConfig", use_relative_position_bias=True),
    pictures("I-JEPA", "IJepaModel", "IJepaConfig"),
    Model("Swin", maker("SwinModel", "SwinConfig", **_SWIN), image, 4),
    Model("Swin v2", maker("Swinv2Model", "Swinv2Config", **_SWIN), image, 4),
    Model("Wav2Vec2", maker("Wav2Vec2Model", "Wav2Vec2Config", **WAVE), wave),
    Model("HuBERT", maker("HubertModel", "HubertConfig", **WAVE), wave),
    Model("WavLM", maker("WavLMModel", "WavLMConfig", **WAVE), wave),
    Model(
        "SAM, images",
        maker("SamVisionModel", "SamVisionConfig", hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
              mlp_dim=64, image_size=64, patch_size=8, window_size=4, global_attn_indexes=[1], output_channels=16),
        picture_64,
    ),
    Model(
        "Longformer",
        maker("LongformerModel", "LongformerConfig", **TEXT | {"max_position_embeddings": 96}, attention_window=8),
        _long,
    ),
    Model(
        "Nystromformer",
        maker("NystromformerModel", "NystromformerConfig", **TEXT, num_landmarks=8, segment_means_seq_len=64),
        lambda: {"input_ids": tokens(length=64)},
        6,
    ),
    Model(
        "BigBird",
        maker("BigBirdModel", "BigBirdConfig", **TEXT, attention_type="original_full"),
        _long,
    ),
    Model(
        "Perceiver",
        maker("PerceiverModel", "PerceiverConfig", d_model=24, d_latents=32, num_latents=8, num_blocks=1,
              num_self_attends_per_block=2, num_self_attention_heads=4, num_cross_attention_heads=4),
        _bytes,
        3,
    ),
    Model(
        "SegFormer",
        maker("SegformerModel", "SegformerConfig", num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1],
              hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2]),
        image,
    ),
)  # fmt: skip
