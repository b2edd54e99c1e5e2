"""What a forward saves and what its gradients read: no more than the laws ask for, under names that are free."""

import torch

from onepass.egraph.terms.traversal import tensors
from onepass.graph.trace import program_of
from onepass.training.derive_backward import backward_stores
from onepass.translate.translate import translate


def softmax(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def linear(q, k, v):
    return (q @ k.mT) @ v


def with_sums(q, k, v):
    s = q @ k.mT
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)


def detached(q, k, v):
    return torch.softmax(q @ k.detach().mT, -1) @ v


def inputs():
    return [torch.randn(2, n, 16) for n in (40, 300, 300)]


def stores(function, needed=(True, True, True), given=None):
    program = program_of(function, *inputs())
    captured = translate(program)
    return backward_stores(program, captured, needed, given or [True] * len(captured.results))


def test_softmax_saves_its_logarithms_and_reads_its_result():
    found = stores(softmax)
    assert [(s.output.name, s.output.shape, s.output.dtype) for s in found.saved] == [("log", (2, 40), "float32")]
    assert found.read == (0,) and [*found.gradients] == [0, 1, 2]
    assert [t.name for t in found.cotangents] == ["grad_output"]


def test_the_gradient_of_values_alone_reads_no_result():
    found = stores(softmax, (False, False, True))
    assert found.read == () and [*found.gradients] == [2] and len(found.saved) == 1


def test_products_without_a_softmax_save_nothing():
    found = stores(linear)
    assert found.saved == () and found.read == () and [*found.gradients] == [0, 1, 2]


def test_a_cotangent_that_is_not_given_reaches_nothing():
    found = stores(with_sums, given=[False, True])
    assert found.cotangents[0] is None and [*found.gradients] == [0, 1]


def test_gradients_pass_by_what_is_detached_and_read_the_inputs_themselves():
    for needed, reached in (((True,) * 3, [0, 2]), ((False, False, True), [2])):
        found = stores(detached, needed)
        assert [*found.gradients] == reached
        terms = [store.term for store in (*found.saved, *found.gradients.values())]
        assert not any(tensor.name.endswith("detached") for term in terms for tensor in tensors(term))


def test_names_of_inputs_are_left_alone():
    function = lambda output, grad_output, output_: torch.softmax(output @ grad_output.mT, -1) @ output_
    program = program_of(function, *inputs())
    captured = translate(program)
    found = backward_stores(program, captured, [True] * 3, [True])
    names = [t.name for t in captured.inputs] + [found.cotangents[0].name] + [r.output.name for r in captured.results]
    names += [s.output.name for s in found.gradients.values()]
    assert len(set(names)) == len(names)
