"""Stands in for vLLM, which cannot be installed here: the names and signatures that an attention backend meets.

`installed()` puts the modules where imports find them; `Server` is what calls a backend: it deals pages, packs the
tokens of a step, and makes the metadata. Nothing of it is vLLM's code.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType

import torch

CLASSES: dict[object, str] = {}


class StandInEnum(Enum):
    CUSTOM = None


def register_backend(backend, class_path=None, is_mamba=False):
    CLASSES[backend] = class_path
    return lambda x: x


class StandInBackend(ABC):
    @staticmethod
    @abstractmethod
    def get_name(): ...

    @staticmethod
    @abstractmethod
    def get_impl_cls(): ...

    @staticmethod
    @abstractmethod
    def get_builder_cls(): ...

    @staticmethod
    @abstractmethod
    def get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str="auto"): ...


class StandInBuilder(ABC):
    @abstractmethod
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.device = device

    @abstractmethod
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False): ...


class StandInImpl(ABC):
    @abstractmethod
    def forward(
        self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None
    ): ...


@dataclass
class StandInMetadata:
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool = True


@contextmanager
def installed() -> Iterator[None]:
    """The modules of the stand-in, as `vllm`."""
    backend, registry = ModuleType("vllm.v1.attention.backend"), ModuleType("vllm.v1.attention.backends.registry")
    backend.AttentionBackend, backend.AttentionImpl = StandInBackend, StandInImpl
    backend.AttentionMetadataBuilder = StandInBuilder
    registry.AttentionBackendEnum, registry.register_backend = StandInEnum, register_backend
    names = ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends")
    made = {name: ModuleType(name) for name in names} | {backend.__name__: backend, registry.__name__: registry}
    sys.modules.update(made)  # with patch.dict, what is imported meanwhile would be forgotten and imported twice
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]


@dataclass
class Server:
    """Sequences whose keys lie in pages that are dealt in a random order."""

    backend: type
    layers: int
    sizes: tuple[int, int, int]  # slots, key heads, width
    pages: int = 24
    row: int = 6
    caches: list[torch.Tensor] = field(default_factory=list)
    tables: dict[int, list[int]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)

    def __post_init__(self):
        shape = self.backend.get_kv_cache_shape(self.pages, *self.sizes)
        self.caches = [torch.full(shape, torch.nan) for _ in range(self.layers)]
        self.free = (torch.randperm(self.pages - 1) + 1).tolist()
        self.builder = self.backend.get_builder_cls()(None, [], None, torch.device("cpu"))

    def step(self, counts: dict[int, int], padded: int = 0) -> StandInMetadata:
        """The metadata of a step with so many new tokens of each sequence, and padded sequences of one token."""
        slots, places = self.sizes[0], []
        for name, count in counts.items():
            old = self.lengths.get(name, 0)
            table = self.tables.setdefault(name, [])
            self.lengths[name] = old + count
            while len(table) * slots < old + count:
                table.append(self.free.pop())
            places += [table[n // slots] * slots + n % slots for n in range(old, old + count)]
        every = [*counts.values(), *[1] * padded]
        starts = torch.tensor([0, *every]).cumsum(0).int()
        rows = [[*self.tables[name], *[10**6] * self.row][: self.row] for name in counts] + [[0] * self.row] * padded
        common = StandInMetadata(
            query_start_loc=starts,
            seq_lens=torch.tensor([*(self.lengths[name] for name in counts), *[0] * padded]).int(),
            num_reqs=len(every),
            num_actual_tokens=sum(every),
            max_query_len=max(every),
            max_seq_len=max(self.lengths.values()),
            block_table_tensor=torch.tensor(rows).int(),
            slot_mapping=torch.tensor([*places, *[-1] * padded]),
        )
        return self.builder.build(0, common)
