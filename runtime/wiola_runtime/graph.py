"""One opened graph: new tokens and a state go in, logits and the next state come out.

Axes: B batch row, T new positions of a call, R positions that return logits, V vocabulary,
C cache capacity, P tokens already cached.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from wiola_runtime import devices
from wiola_runtime.errors import BundleError, one_line
from wiola_runtime.manifest import Manifest, StateSpec
from wiola_runtime.opening import GraphOptions, check_tensors, import_onnxruntime, open_session
from wiola_runtime.state import (
    DTYPES,
    Buffer,
    Call,
    State,
    Sums,
    capacity_for,
    copied,
    enlarged,
    shape_of,
    used,
)

if TYPE_CHECKING:
    import onnxruntime


class Graph:
    """A graph that turns new tokens and a state into logits and the next state."""

    def __init__(self, folder: Path, manifest: Manifest, options: GraphOptions) -> None:
        """Open the graph.

        Raises:
            BundleError: ONNX Runtime is too old, cannot read the graph, or the graph is not the
                one that the manifest describes.
            DeviceError: ONNX Runtime or the wanted device cannot be had.
        """
        self._ort = import_onnxruntime()
        self._manifest = manifest
        devices.check_version(self._ort.__version__, manifest)
        self._session = open_session(self._ort, folder / manifest.graph.file, manifest, options)
        self.provider = cast("str", self._session.get_providers()[0])
        self.device = "cuda" if self.provider == devices.CUDA_PROVIDER else "cpu"
        on_gpu = options.provider_options if self.device == "cuda" else {}
        self._place = self.device, int(on_gpu.get("device_id", 0))
        check_tensors(self._session, manifest)
        self._names = tuple(
            manifest.name_of(role) for role in ("token_ids", "past_lengths", "output_positions")
        )
        self._logits_name = manifest.name_of("logits")

    def start(self, batch_size: int = 1) -> State:
        """Return the state of so many rows that have seen no token."""
        capacity = 0
        if self._manifest.cache == "shared":
            capacity = capacity_for(1, self._manifest.context_length)
        sizes = {"B": batch_size, "C": capacity, "P": 0}
        past = [self._zeros(spec, sizes) for spec in self._manifest.states]
        return self._state(past, sizes, 0)

    def run(
        self,
        state: State,
        token_ids: NDArray[np.int64],
        output_positions: NDArray[np.int64],
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Feed new tokens (B, T), advance `state`, return logits (B, R, V).

        Without `out`, the result of a call with T = 1 is overwritten by the next such call on
        the same state.

        Raises:
            BundleError: ONNX Runtime cannot run the graph.
            CapacityError: A row would become longer than the exported context.
        """
        new_tokens = token_ids.shape[1]
        self._reserve(state, int(state.lengths.max()) + new_tokens)
        call = self._call(state, token_ids.shape, output_positions.size, out)
        call.token_ids[...] = token_ids
        call.output_positions[...] = output_positions
        if self.device != "cpu":
            self._upload(call, state)
        try:
            self._session.run_with_iobinding(call.binding)
        except RuntimeError as error:
            raise BundleError(f"onnxruntime cannot run the graph: {one_line(error)}") from error
        state.advance(self._written(call, state), new_tokens)
        return call.logits

    def no_sums(self) -> Sums:
        """Return the running sums of a row that has seen no token."""
        specs = (spec for spec in self._manifest.states if spec.kind == "sum")
        return tuple(np.zeros(shape_of(s.axes, {"B": 1}), DTYPES[s.dtype]) for s in specs)

    def sums(self, state: State) -> Sums:
        """Copy the running sums, which no later call can take back."""
        pairs = zip(self._manifest.states, state.past, strict=True)
        return tuple(copied(buffer) for spec, buffer in pairs if spec.kind == "sum")

    def rewind(self, state: State, length: int, sums: Sums) -> None:
        """Make every row forget what came after `length` tokens, where the sums were `sums`."""
        rest = iter(sums)
        for index, spec in enumerate(self._manifest.states):
            if spec.kind == "sum":
                state.past[index].update_inplace(next(rest))
            elif self._manifest.cache == "growing":
                kept = copied(state.past[index], used(spec.axes, length))
                state.past[index] = self._buffer(kept)
        state.lengths[...] = length

    def dump(self, state: State) -> list[NDArray[Any]]:
        """Copy the state of rows of one length to host memory, without room for more tokens."""
        length = int(state.lengths[0])
        pairs = zip(self._manifest.states, state.past, strict=True)
        return [copied(buffer, used(spec.axes, length)) for spec, buffer in pairs]

    def resume(self, arrays: Sequence[NDArray[Any]], length: int) -> State:
        """Return a state that holds what was dumped, arrays in the order of the manifest."""
        capacity = 0
        if self._manifest.cache == "shared":
            capacity = capacity_for(max(length, 1), self._manifest.context_length)
        sizes = {"B": arrays[0].shape[0] if arrays else 1, "C": capacity, "P": length}
        past = [
            self._buffer(enlarged([array], shape_of(spec.axes, sizes)))
            for spec, array in zip(self._manifest.states, arrays, strict=True)
        ]
        return self._state(past, sizes, length)

    def together(self, states: Sequence[State]) -> State:
        """Return one state whose rows are those of several.

        They may differ in length where the cache is shared.
        """
        lengths = np.concatenate([state.lengths for state in states])
        capacity = max(state.capacity for state in states)
        one_length = len(set(lengths.tolist())) == 1
        assert one_length or self._manifest.cache == "shared", "a growing cache has one length"
        longest = int(lengths.max())
        past = []
        for index, spec in enumerate(self._manifest.states):
            sizes = {"B": lengths.size, "C": capacity, "P": longest}
            parts = [state.past[index].numpy() for state in states]
            past.append(self._buffer(enlarged(parts, shape_of(spec.axes, sizes))))
        return self._with_lengths(past, capacity, lengths)

    def some(self, state: State, rows: Sequence[int]) -> State:
        """Return a state of some rows of another, in the order given."""
        chosen = list(rows)
        past = [self._buffer(copied(buffer, (chosen,))) for buffer in state.past]
        return self._with_lengths(past, state.capacity, state.lengths[chosen])

    def _with_lengths(self, past: list[Buffer], capacity: int, lengths: NDArray[np.int64]) -> State:
        made = self._state(past, {"B": lengths.size, "C": capacity, "P": 0}, 0)
        made.lengths[...] = lengths
        return made

    def _state(self, past: list[Buffer], sizes: dict[str, int], length: int) -> State:
        present = [
            self._target(spec, buffer, sizes)
            for spec, buffer in zip(self._manifest.states, past, strict=True)
        ]
        lengths = np.full(sizes["B"], length, np.int64)
        return State(lengths=lengths, capacity=sizes["C"], past=past, present=present)

    def _reserve(self, state: State, total: int) -> None:
        """Make room for `total` tokens per row."""
        wanted = capacity_for(total, self._manifest.context_length)
        if self._manifest.cache == "growing" or wanted <= state.capacity:
            return
        sizes = {"B": state.lengths.size, "C": wanted}
        for index, spec in enumerate(self._manifest.states):
            if spec.kind == "cache":
                old = state.past[index].numpy()
                grown = self._buffer(enlarged([old], shape_of(spec.axes, sizes)))
                state.past[index] = state.present[index] = grown
        state.capacity = wanted
        state.steps = [None, None]

    def _call(
        self, state: State, shape: tuple[int, ...], outputs: int, out: NDArray[np.float32] | None
    ) -> Call:
        """Return a bound call, the one of the last step but one where it still fits."""
        reusable = (
            self._manifest.cache == "shared" and out is None and shape[1] == 1 and outputs == 1
        )
        if not reusable:
            return self._bind(state, shape, outputs, out)
        call = state.steps[state.turn]
        if call is None:
            call = state.steps[state.turn] = self._bind(state, shape, outputs, None)
        return call

    def _bind(
        self, state: State, shape: tuple[int, ...], outputs: int, out: NDArray[np.float32] | None
    ) -> Call:
        if out is None:
            out = np.empty((state.lengths.size, outputs, self._manifest.vocab_size), np.float32)
        call = Call(
            binding=self._session.io_binding(),
            token_ids=np.zeros(shape, np.int64),
            output_positions=np.zeros(outputs, np.int64),
            logits=out,
        )
        if self.device == "cpu":
            self._upload(call, state)
        for spec, past, target in zip(
            self._manifest.states, state.past, state.present, strict=True
        ):
            call.binding.bind_ortvalue_input(spec.past, past)
            if target is None:
                call.binding.bind_output(spec.present, *self._place)
            else:
                call.binding.bind_ortvalue_output(spec.present, target)
        call.binding.bind_ortvalue_output(self._logits_name, self._host(out))
        return call

    def _upload(self, call: Call, state: State) -> None:
        """Bind the small inputs.

        On the CPU a binding reads the host array at every call. On another device it copies
        when the input is bound, so there this is done for every call.
        """
        arrays = (call.token_ids, state.lengths, call.output_positions)
        for name, array in zip(self._names, arrays, strict=True):
            call.binding.bind_ortvalue_input(name, self._host(array))
        call.binding.synchronize_inputs()

    def _written(self, call: Call, state: State) -> list[Buffer]:
        """Return what the call wrote, in the order of the manifest's states."""
        if self._manifest.cache == "shared":
            return cast("list[Buffer]", state.present)
        # Outputs come in the order they were bound. A buffer of ours is kept as it is: only our
        # own object keeps its host memory alive, the binding's does not.
        allocated = call.binding.get_outputs()
        call.binding.clear_binding_inputs()
        return [
            allocated[index] if target is None else target
            for index, target in enumerate(state.present)
        ]

    def _zeros(self, spec: StateSpec, sizes: dict[str, int]) -> Buffer:
        return self._buffer(np.zeros(shape_of(spec.axes, sizes), DTYPES[spec.dtype]))

    def _target(self, spec: StateSpec, past: Buffer, sizes: dict[str, int]) -> Buffer | None:
        """Return the buffer for a state's next value; None lets the graph allocate it."""
        if spec.kind == "sum":
            return self._zeros(spec, sizes)
        return past if self._manifest.cache == "shared" else None

    def _buffer(self, array: NDArray[Any]) -> Buffer:
        return cast("Buffer", self._ort.OrtValue.ortvalue_from_numpy(array, *self._place))

    def _host(self, array: NDArray[Any]) -> "onnxruntime.OrtValue":
        return self._ort.OrtValue.ortvalue_from_numpy(array)
