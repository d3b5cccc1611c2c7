/**
 * What a host needs of `manifest.json`, and whether it can read it.
 *
 * Axes of tensors are numbers or letters: B rows, T new tokens of a call, R positions that return
 * logits, C capacity of a shared cache, P tokens already cached, S = P + T.
 *
 * @typedef {{name: string, dtype: DType, axes: (string | number)[], role: Role}} TensorSpec
 * @typedef {"int64" | "float32" | "float16" | "int8"} DType
 * @typedef {"token_ids" | "past_lengths" | "output_positions" | "logits" | "state"} Role
 *
 * @typedef {object} StateSpec output `present` of a call is input `past` of the next one
 * @property {string} past
 * @property {string} present
 * @property {"cache" | "sum"} kind
 * @property {"float32" | "float16" | "int8"} dtype
 * @property {(string | number)[]} axes of `past`
 *
 * @typedef {object} Golden
 * @property {number[]} prompt_ids
 * @property {number[]} token_ids the greedy reply
 * @property {{position: number, token_ids: number[], values: number[]}[]} logits
 * @property {number} tolerance largest allowed difference of a logit
 *
 * @typedef {object} Manifest
 * @property {number} format_version
 * @property {string} name
 * @property {string} precision
 * @property {number} context_length
 * @property {"shared" | "growing"} cache
 * @property {TensorSpec[]} inputs
 * @property {TensorSpec[]} outputs
 * @property {StateSpec[]} states
 * @property {{eos_ids: number[]}} tokens
 * @property {{file: string, minimum_onnxruntime: string}} graph
 * @property {Golden | null} self_test
 * @property {Record<string, {size_bytes: number, sha256: string}>} files
 */

const FORMAT_VERSION = 1;

/**
 * Refuse what this code cannot read.
 * @param {Manifest} manifest
 * @param {string} installed version of ONNX Runtime
 */
export function checkManifest(manifest, installed) {
  const version = manifest?.format_version;
  if (!Number.isInteger(version)) {
    throw new Error("the manifest has no format_version; is that an exported bundle?");
  }
  if (version > FORMAT_VERSION) {
    throw new Error(`bundle format ${version} is newer than this host reads (${FORMAT_VERSION})`);
  }
  const minimum = manifest.graph.minimum_onnxruntime;
  if (minimum.localeCompare(installed, "en", { numeric: true }) > 0) {
    throw new Error(`${manifest.name} needs ONNX Runtime ${minimum} or newer, found ${installed}`);
  }
}

/**
 * Return the name of the one tensor of a role.
 * @param {TensorSpec[]} tensors
 * @param {Role} role
 */
export function nameOf(tensors, role) {
  const found = tensors.find((tensor) => tensor.role === role);
  if (!found) throw new Error(`the manifest lists no ${role}; export again`);
  return found.name;
}
