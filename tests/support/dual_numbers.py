"""Whether Dynamo compiles a function that gets dual numbers: since torch 2.15 it runs such a call as written."""

import pytest
import torch

import onepass

RUN_AS_WRITTEN = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)


def dual_numbers_were_compiled():
    """Skips the rest of a test where they were not: there is no region whose report could be read."""
    if RUN_AS_WRITTEN and not any(report.regions for report in onepass.reports()):
        pytest.skip("Dynamo compiles nothing for dual numbers")
