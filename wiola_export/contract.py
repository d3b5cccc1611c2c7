"""Names of the graph's inputs and outputs, the same for every family and target."""

from wiola_runtime.manifest import TensorSpec

TOKEN_IDS, PAST_LENGTHS, OUTPUT_POSITIONS = "input_ids", "past_lengths", "output_positions"
LOGITS = "logits"
INPUTS = (
    TensorSpec(name=TOKEN_IDS, dtype="int64", axes=("B", "T"), role="token_ids"),
    TensorSpec(name=PAST_LENGTHS, dtype="int64", axes=("B",), role="past_lengths"),
    TensorSpec(name=OUTPUT_POSITIONS, dtype="int64", axes=("R",), role="output_positions"),
)
