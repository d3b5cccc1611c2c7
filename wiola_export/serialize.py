"""Write a lowered graph: `model.onnx` and its weights, each made when its turn comes."""

from pathlib import Path
from typing import IO

import numpy as np
import onnx_ir as ir

from wiola_export.progress import Progress
from wiola_export.quantize.recipes import Array, PartTensor, Recipe
from wiola_export.weights import WeightTensor

MODEL_FILE = "model.onnx"
DATA_FILE = "model.onnx.data"
# Tensors that a runtime maps start on a page; the small ones on a cache line.
PAGE, LINE = 4096, 64
INLINE_BYTES = 1024


def stored_bytes(graph: ir.Graph) -> int:
    """Return how many bytes the weights of a lowered graph will take, before any is read."""
    sizes = {}
    for name, value in graph.initializers.items():
        tensor = value.const_value
        assert tensor is not None
        key = (tensor.recipe, tensor.role) if isinstance(tensor, PartTensor) else name
        sizes[key] = tensor.nbytes
    return sum(sizes.values())


def write_model(model: ir.Model, folder: Path, progress: Progress) -> None:
    """Write graph and weights into a folder; the data file has a bare relative name.

    Tensors that are two views of one recipe's bytes get the same place in the file. The same graph
    gives the same bytes.
    """
    with (folder / DATA_FILE).open("wb") as data:
        _DataFile(data, folder).place_all(model.graph, progress)
    write_graph(model, folder)
    if not (folder / DATA_FILE).stat().st_size:
        (folder / DATA_FILE).unlink()


def write_graph(model: ir.Model, folder: Path) -> None:
    """Write the graph alone, for weights that are in their places already."""
    proto = ir.serde.serialize_model(model)
    (folder / MODEL_FILE).write_bytes(proto.SerializeToString(deterministic=True))


class _DataFile:
    """The growing file of weights."""

    def __init__(self, data: IO[bytes], folder: Path) -> None:
        self._data = data
        self._folder = folder

    def place_all(self, graph: ir.Graph, progress: Progress) -> None:
        """Put every big initializer in the file, all parts of one recipe at once."""
        waiting: dict[Recipe, list[ir.Value]] = {}
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, PartTensor):
                waiting.setdefault(tensor.recipe, []).append(value)
            elif isinstance(tensor, WeightTensor) or (
                tensor is not None and tensor.nbytes > INLINE_BYTES
            ):
                assert tensor is not None
                value.const_value = self._place(tensor, tensor.numpy())
        for recipe, values in progress.track(waiting.items(), len(waiting)):
            self._place_recipe(recipe, values)

    def _place_recipe(self, recipe: Recipe, values: list[ir.Value]) -> None:
        arrays, places = recipe.make(), dict[str, ir.ExternalTensor]()
        for value in values:
            tensor = value.const_value
            assert isinstance(tensor, PartTensor)
            if tensor.role not in places:
                places[tensor.role] = self._place(tensor, arrays[tensor.role])
            first = places[tensor.role]
            assert first.length is not None
            value.const_value = self._reference(tensor, first.offset or 0, first.length)

    def _place(self, tensor: ir.TensorProtocol, array: Array) -> ir.ExternalTensor:
        contiguous = np.ascontiguousarray(array)
        boundary = PAGE if contiguous.nbytes >= PAGE else LINE
        self._data.write(b"\0" * (-self._data.tell() % boundary))
        offset = self._data.tell()
        self._data.write(contiguous.reshape(-1).view(np.uint8).data)
        return self._reference(tensor, offset, contiguous.nbytes)

    def _reference(self, tensor: ir.TensorProtocol, offset: int, length: int) -> ir.ExternalTensor:
        return ir.ExternalTensor(
            DATA_FILE,
            offset,
            length,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=str(tensor.name),
            base_dir=self._folder,
        )
