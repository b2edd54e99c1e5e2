"""onepass as an attention backend of vLLM: one program in plain PyTorch over vLLM's pages, compiled for each variant.

vLLM calls `register` as a plug-in; then `attention_backend="CUSTOM"` runs it. What is not known is refused by name.
Keys of padded tokens (slot -1) are not written; a padded sequence (length 0) gets zeros. Example of a cache:
[pages, 2, slots, key heads, width].
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from ..api.compile import compile
from ..errors import InputError
from .attention import AttentionVariant
from .paged import paged, write

try:
    from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder
except ImportError:  # without vLLM nobody asks for these classes
    AttentionBackend = AttentionImpl = AttentionMetadataBuilder = object


def register() -> None:
    """Makes onepass the CUSTOM backend of vLLM."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

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

    options: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # of onepass's backend

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
            raise InputError(f"attention of type {kind} with a cache of {self.kv_cache_dtype}: none for vLLM here")
        window = self.window
        self._run = compile(lambda q, c, b, h, rows: paged(q, c, b, h, rows, window, variant), **self.options)
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
        **scales: torch.Tensor | None,
    ) -> torch.Tensor:
        """Writes the keys of new tokens, and gives their attention [tokens, heads, width] in `output`."""
        if unknown := sorted(name for name, value in scales.items() if value is not None):
            raise InputError(f"{', '.join(unknown)}: onepass gives no quantised output to vLLM")
        if attn_metadata is None:  # vLLM measures memory
            return output.zero_()
        facts, count = attn_metadata, attn_metadata.num_actual_tokens
        caches = kv_cache[:, 0], kv_cache[:, 1]
        if not self.shares_keys and key is not None and value is not None:
            for cache, new in zip(caches, (key, value)):
                write(cache, new[:count], facts.slot_mapping[:count])
        if self.slopes is not None and self._bias is None:
            self._bias = torch.tensor(self.slopes, dtype=torch.float32, device=query.device)
        query = query[:count].view(count, self.num_heads, -1)
        batch = facts.block_table_tensor, facts.seq_lens, facts.query_start_loc
        for tensor in (query, *batch):  # heads, slots and widths are those of the model
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        found = self._run(query, caches, batch, (self._bias, self.sinks), facts.max_query_len)
        output[:count].view(found.shape).copy_(found)
        return output
