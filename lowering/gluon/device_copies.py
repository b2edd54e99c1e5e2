"""Gluon's copies between memory and shared memory by tensor maps, which Triton 3.8 renamed, under one name each."""

from triton.experimental.gluon.language.nvidia.hopper import tma

copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
copy_out = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
