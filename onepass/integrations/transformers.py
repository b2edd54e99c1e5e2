"""onepass as an attention implementation of `transformers`, for training, inference and `generate`.

An argument that changes the result is taken or refused by name, never ignored. Example:
`register()`, then `AutoModelForCausalLM.from_pretrained(..., attn_implementation="onepass")`.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from ..errors import InputError, OptionError
from .attention import AttentionVariant
from .compiled import CompiledAttention

# What models pass along that says nothing about this attention, or that the mask already says (a sliding window,
# positions of packed sequences).
HARMLESS = frozenset(
    """cache_position cu_seq_lens_k cu_seq_lens_q deterministic kernel_options labels logits_to_keep max_length_k
    max_length_q num_items_in_batch output_hidden_states output_router_logits position_embeddings position_ids
    return_dict seq_idx sliding_window use_cache""".split()
)
WAY_OUT = 'use attn_implementation="eager" or "sdpa" for this model'


def register(name: str = "onepass", **options: object) -> None:
    """Makes `attn_implementation=name` known to transformers. `options` are those of the backend.

    A second call with the same name replaces the options. Raises OptionError for bad options, and for a name that
    transformers uses for another implementation.
    """
    known = AttentionInterface()
    if name == "eager" or (name in known and not isinstance(known[name], Attention)):
        raise OptionError(f"{name!r} is an implementation of transformers: choose another name")
    AttentionInterface.register(name, Attention(options))
    AttentionMaskInterface.register(name, sdpa_mask)


class Attention:
    """The attention function that layers call. Raises OptionError for bad options when it is made."""

    def __init__(self, options: dict[str, object]):
        self.compiled = CompiledAttention(options)

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **given: Any,
    ) -> tuple[torch.Tensor, None]:
        """The weighted values [batch, queries, heads, dim], and no weights.

        query: [batch, heads, queries, dim]. key and value: [batch, key heads, keys, dim]. attention_mask: boolean or
        added, as `attend` takes it. Raises InputError for what it does not take; the message names the argument.
        """
        bias, sinks = given.pop("position_bias", None), given.pop("s_aux", None)
        causal = given.pop("is_causal", None)
        causal = getattr(module, "is_causal", True) if causal is None else causal
        # In the order of transformers' own function for SDPA: a length first, which may be a symbol.
        causal = bool(query.shape[2] > 1 and attention_mask is None and causal)
        variant = variant_of(module, query, causal, given)
        refuse_what_is_left(given, attention_mask, query, sinks)
        if causal:  # the keys behind the last query are those that a static cache has not been given yet
            key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
            bias = None if bias is None else bias[..., : query.shape[2]]
        tensors = {"query": query, "key": key, "value": value, "mask": attention_mask, "bias": bias, "sinks": sinks}
        return self.compiled(variant, **tensors), None


def variant_of(module: torch.nn.Module, query: torch.Tensor, causal: bool, given: dict) -> AttentionVariant:
    """Takes scaling, softcap and dropout out of the arguments. query: [batch, heads, queries, dim]."""
    scaling, softcap, dropout = given.pop("scaling", None), given.pop("softcap", None), given.pop("dropout", 0.0)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if torch.is_tensor(scaling):
        raise InputError(f"scaling is a number for onepass, not a tensor: {WAY_OUT}")
    return AttentionVariant(float(scaling), softcap or None, causal, dropout if module.training else 0.0)


def refuse_what_is_left(
    given: dict, mask: torch.Tensor | None, query: torch.Tensor, sinks: torch.Tensor | None
) -> None:
    """Raises InputError for arguments that would change the result. query: [batch, heads, queries, dim]."""
    if given.pop("output_attentions", False):
        raise InputError('output_attentions: onepass stores no weights; use attn_implementation="eager" to see them')
    # No difference of sets: torch 2.11 cannot trace one.
    unknown = sorted(name for name, value in given.items() if name not in HARMLESS and not _says_nothing(value))
    if unknown:
        raise InputError(f"{', '.join(unknown)}: an argument that attention by onepass does not know; {WAY_OUT}")
    if mask is not None and not (torch.is_tensor(mask) and (mask.dtype == torch.bool or mask.is_floating_point())):
        raise InputError(f"attention_mask is a tensor, boolean or to be added to scores, for onepass: {WAY_OUT}")
    if sinks is not None and sinks.shape != query.shape[1:2]:
        raise InputError(f"s_aux is one score for each head for onepass, not of shape {tuple(sinks.shape)}: {WAY_OUT}")
    packed = given.get("cu_seq_lens_q")
    if packed is not None and mask is None and packed.numel() > 2:
        raise InputError("cu_seq_lens_q: pass position_ids too, which start anew in each sequence and give the mask")


def _says_nothing(value: object) -> bool:
    return value is None or value is False
