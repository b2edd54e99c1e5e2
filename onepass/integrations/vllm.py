"""onepass as an attention backend of vLLM: one program in plain PyTorch over vLLM's pages, compiled for each variant.

vLLM calls `register` as a plug-in; then `attention_backend="CUSTOM"` runs it. What is not known is refused by name.
Keys of padded tokens (slot -1) are not written; a padded sequence (length 0) gets zeros. Example of a cache:
[pages, 2, slots, key heads, width].
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from ..api.compile import compile
from ..errors import InputError
from .attention import AttentionVariant, attend

OPTIONS: dict[str, object] = {}  # of the backend


def register() -> None:
    """Makes onepass the CUSTOM backend of vLLM."""
    register_backend(AttentionBackendEnum.CUSTOM, f"{__name__}.{VllmBackend.__name__}")


class VllmBackend(AttentionBackend):
    """What vLLM asks of a backend."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update = True

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[VllmAttention]:
        return VllmAttention

    @staticmethod
    def get_builder_cls() -> type[VllmMetadataBuilder]:
        return VllmMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        return num_blocks, 2, block_size, num_kv_heads, head_size

    @classmethod
    def supports_sink(cls) -> bool:
        return True


class VllmMetadataBuilder(AttentionMetadataBuilder):
    """Takes what all backends share: lengths, tables and slots are read on the device as they are."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        return common_attn_metadata


class VllmAttention(AttentionImpl):
    """The attention of a layer. Raises InputError for what it does not know when it is made."""

    def __init__(
        self, num_heads: int, head_size: int, scale: float, num_kv_heads: int | None = None, *given: Any, **named: Any
    ):
        names = ("alibi_slopes", "sliding_window", "kv_cache_dtype", "logits_soft_cap", "attn_type")
        known: dict[str, Any] = {**dict(zip((*names, "kv_sharing_target_layer_name"), given)), **named}
        self.num_heads, self.head_size, self.scale = num_heads, head_size, scale
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = known.pop("kv_cache_dtype", "auto")
        self.slopes, self.window = known.pop("alibi_slopes", None), known.pop("sliding_window", None)
        self.sinks: torch.Tensor | None = known.pop("sinks", None)
        self.shares_keys = known.pop("kv_sharing_target_layer_name", None) is not None
        variant = AttentionVariant(float(scale), known.pop("logits_soft_cap", None) or None, False, 0.0)
        kind = known.pop("attn_type", "decoder")
        if unknown := sorted(name for name, value in known.items() if value is not None):
            raise InputError(f"{', '.join(unknown)}: an argument of vLLM that onepass does not know")
        if kind != "decoder" or self.kv_cache_dtype not in VllmBackend.supported_kv_cache_dtypes:
            raise InputError(f"attention of type {kind} with a cache of {self.kv_cache_dtype}: onepass has none for vLLM")
        window = self.window
        self._run = compile(
            lambda *tensors, rows: paged(*tensors, rows=rows, window=window, variant=variant), dynamic=True, **OPTIONS
        )
        self._bias: torch.Tensor | None = None

    @torch.no_grad()
    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Writes the keys of new tokens, and gives their attention [tokens, heads, width] in `output`."""
        if output_scale is not None or output_block_scale is not None:
            raise InputError("output_scale: onepass gives no quantised output to vLLM")
        if attn_metadata is None:  # vLLM measures memory
            return output.zero_()
        facts, count = attn_metadata, attn_metadata.num_actual_tokens
        caches = kv_cache[:, 0], kv_cache[:, 1]
        if not self.shares_keys and key is not None and value is not None:
            for cache, new in zip(caches, (key, value)):
                write(cache, new[:count], facts.slot_mapping[:count])
        if self.slopes is not None and self._bias is None:
            self._bias = torch.tensor(self.slopes, dtype=torch.float32, device=query.device)
        tensors = facts.block_table_tensor, facts.seq_lens, facts.query_start_loc, self._bias, self.sinks
        found = self._run(query[:count].view(count, self.num_heads, -1), *caches, *tensors, rows=facts.max_query_len)
        output[:count].view(found.shape).copy_(found)
        return output


def write(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor) -> None:
    """Writes [tokens, heads, width] to slots of [pages, slots, heads, width]; what has a negative slot is left out."""
    place = slot.clamp(min=0)
    at = place // cache.shape[1], place % cache.shape[1]
    cache[at] = torch.where((slot >= 0)[:, None, None], new.view(-1, *cache.shape[2:]), cache[at])


def paged(query, keys, values, table, lengths, starts, slopes, sinks, *, rows, window, variant):
    """Attention of packed queries [tokens, heads, width] to pages; sequence n has the tokens from starts[n] on."""
    i, token = torch.arange(rows, device=query.device), torch.arange(query.shape[0], device=query.device)
    k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in (keys, values))
    own = starts[1:] - starts[:-1]
    place = (starts[:-1, None] + i).clamp(max=query.shape[0] - 1)
    q = query[place].transpose(1, 2)
    at = (lengths - own)[:, None] + i
    age = at[:, :, None] - torch.arange(k.shape[2], device=query.device)
    kept = (age >= 0) & (i < own[:, None])[:, :, None]
    kept = kept if window is None else kept & (age < window)
    bias = None if slopes is None else -slopes[:, None, None] * age[:, None]
    found = attend(q, k, v, kept[:, None], bias, sinks, variant=variant)
    sequence = torch.searchsorted(starts[1:].contiguous(), token, right=True).clamp(max=table.shape[0] - 1)
    return found[sequence, (token - starts[sequence]).clamp(0, rows - 1)]
