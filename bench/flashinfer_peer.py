"""FlashInfer beside onepass, where it is installed: decoding from pages, and from pages of latents.

`if available(): call = decode(q, kc, vc, table, lengths)`. What FlashInfer calls a plan is made once, outside of the
time that is measured, and so that a graph of CUDA can take the call. A plan is of these lengths alone. FlashInfer is no
dependency of onepass. Its kernels are compiled at their first call, unless they are beside it.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from onepass.bench.timing import Call

WORKSPACE = 2**27  # bytes, as FlashInfer's documentation recommends


def available() -> bool:
    return importlib.util.find_spec("flashinfer") is not None


def workspace(device: torch.device) -> Tensor:
    return torch.zeros(WORKSPACE, dtype=torch.uint8, device=device)


def pages_in_order(table: Tensor, lengths: Tensor, slots: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where each sequence's pages begin among all of them, these pages, and how many slots of a last page are used."""
    counts = (lengths + slots - 1) // slots
    used = torch.arange(table.shape[1], device=table.device) < counts[:, None]
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return starts.int(), table[used].int(), ((lengths - 1) % slots + 1).int()


def decode(q: Tensor, kc: Tensor, vc: Tensor, table: Tensor, lengths: Tensor, tensor_cores: bool = True) -> Call:
    """One query of each sequence, [sequences, heads, 1, width], and caches [pages, slots, heads of keys, width].

    tensor_cores: FlashInfer has a kernel without them, too. It is the default there, and meant for small groups.
    """
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    heads, width = q.shape[1], q.shape[3]
    starts, pages, last = pages_in_order(table, lengths, kc.shape[1])
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        workspace(q.device),
        "NHD",
        use_cuda_graph=True,
        use_tensor_cores=tensor_cores,
        paged_kv_indptr_buffer=torch.empty_like(starts),
        paged_kv_indices_buffer=torch.empty_like(pages),
        paged_kv_last_page_len_buffer=torch.empty_like(last),
    )
    kinds = {"q_data_type": q.dtype, "kv_data_type": kc.dtype}
    wrapper.plan(starts, pages, last, heads, kc.shape[2], width, kc.shape[1], **kinds)
    queries = q[:, :, 0].contiguous()
    return lambda: wrapper.run(queries, (kc, vc)).unsqueeze(2)


def decode_latents(a: Tensor, rotated: Tensor, c: Tensor, keys: Tensor, slots: int, scale: float) -> Call:
    """Queries [sequences, heads, 1, width] for the latents and for the rotated keys, both [sequences, keys, width]."""
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    sequences, count, width = c.shape
    integers = {"dtype": torch.int32, "device": c.device}
    of_queries = torch.arange(sequences + 1, **integers)
    of_pages = of_queries * (count // slots)
    pages = torch.arange(sequences * count // slots, **integers)
    lengths = torch.full((sequences,), count, **integers)
    buffers = [torch.empty_like(x) for x in (of_queries, of_pages, pages, lengths)]
    wrapper = BatchMLAPagedAttentionWrapper(workspace(c.device), True, *buffers)
    sizes = a.shape[1], width, keys.shape[2], slots
    wrapper.plan(of_queries, of_pages, pages, lengths, *sizes, False, scale, a.dtype, c.dtype)
    queries = [x[:, :, 0].contiguous() for x in (a, rotated)]
    caches = [x.view(-1, slots, x.shape[2]) for x in (c, keys)]
    return lambda: wrapper.run(*queries, *caches).unsqueeze(2)
