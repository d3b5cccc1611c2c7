"""From a torch model to the semantic ONNX graph, without reading a weight.

The model's parameters are fake tensors while it is traced: its initializers are names and
shapes, to be filled with weights that are read when they are written.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence

import onnx_ir as ir
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

from wiola_export.contract import INPUTS, LOGITS
from wiola_export.errors import LoweringError
from wiola_export.families import Config, Family
from wiola_export.functions import DOMAIN, OPSET, VERSION, load_function

IR_VERSION = 10
# Every dynamic axis has a size of its own, two or more: the tracer specialises on 0 and 1.
EXAMPLE_SIZES = {"B": 2, "T": 3, "R": 5, "P": 7}


def trace(family: Family, config: Config) -> ir.Model:
    """Record one step of a model as a graph of `wiola` calls and `ai.onnx` operators.

    Initializers have the checkpoint's tensor names and no values. Inputs and outputs follow the
    bundle contract, in the growing cache layout.

    Raises:
        LoweringError: The model's code ties the graph to the sizes of the example, or makes a
            constant whose size is not known.
    """
    model = _record(family, config)
    if _open_constants(model.graph):
        # Seen twice in hundreds of runs, both on a busy machine and in a thread of a Dask worker:
        # a value on the way is taken for a constant. The cause is not known; once more is right.
        model = _record(family, config)
    if names := _open_constants(model.graph):
        raise LoweringError(
            f"tracing made constants of unknown size ({', '.join(names)}); export again, and "
            "report this if it happens again"
        )
    return model


def _open_constants(graph: ir.Graph) -> list[str]:
    """Return the names of initializers with an axis of unknown size."""
    found = graph.initializers.items()
    return [name for name, v in found if v.shape is None or not v.shape.is_static()]


def _record(family: Family, config: Config) -> ir.Model:
    states = config.states()
    with FakeTensorMode():
        model = family.build_model(config).eval()
        examples = [_example(spec.axes, torch.int64) for spec in INPUTS]
        state_examples = [_example(state.axes, torch.float32) for state in states]
    arguments = (*examples, state_examples)
    names = [spec.name for spec in INPUTS] + [state.past for state in states]
    dims = {axis: Dim(axis) for axis in EXAMPLE_SIZES}
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            model,
            arguments,
            input_names=names,
            output_names=[LOGITS, *(state.present for state in states)],
            dynamic_shapes=(
                *(_dynamic(spec.axes, dims) for spec in INPUTS),
                [_dynamic(state.axes, dims) for state in states],
            ),
            opset_version=OPSET,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    axes = [spec.axes for spec in INPUTS] + [state.axes for state in states]
    _check_axes(program.model.graph, axes)
    return _finish(program.model)


def _finish(model: ir.Model) -> ir.Model:
    """Attach the bodies of the domain's operators and drop what the tracer noted for itself."""
    model.ir_version = IR_VERSION
    model.graph.opset_imports[DOMAIN] = VERSION
    called = sorted({n.op_type for n in model.graph if n.domain == DOMAIN})
    for op_type in called:
        function = load_function(op_type)
        model.functions[function.identifier()] = function
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for node in model.graph:
        node.metadata_props.clear()
        node.doc_string = None
    initializers = model.graph.initializers.values()
    for value in (*model.graph.inputs, *model.graph.outputs, *initializers):
        value.metadata_props.clear()
    return model


def _check_axes(graph: ir.Graph, wanted: Sequence[tuple[str | int, ...]]) -> None:
    """Compare the axes of the inputs with the wanted ones: the tracer fixes some silently."""
    for value, axes in zip(graph.inputs, wanted, strict=True):
        assert value.shape is not None
        found = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        if found != list(axes):
            raise LoweringError(
                f"tracing gave {value.name} the axes {found}, expected {list(axes)}; the "
                f"model's code must not branch on a size or make a number of it"
            )


def _example(axes: Sequence[str | int], dtype: torch.dtype) -> torch.Tensor:
    sizes = [EXAMPLE_SIZES[axis] if isinstance(axis, str) else axis for axis in axes]
    return torch.empty(sizes, dtype=dtype)


def _dynamic(axes: Sequence[str | int], dims: dict[str, Dim]) -> dict[int, Dim]:
    return {i: dims[axis] for i, axis in enumerate(axes) if isinstance(axis, str)}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the tracer says about itself; its errors are exceptions."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
