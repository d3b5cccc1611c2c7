/** Token ids one by one in, whole characters out. */

const REPLACEMENT = "\ufffd";
const PENDING = 3; // a character has at most four bytes, so at most three wait for the rest
const WINDOW_TOKENS = 16;
const CONTEXT_TOKENS = 2; // kept before a window, for decoders that treat a first token differently

/** Decode a growing reply; each step decodes only a window of its last tokens. */
export class TextStream {
  #tokenizer;
  /** @type {number[]} */
  #window = [];
  #emitted = 0;

  /** @param {{decode(ids: number[], options: object): string}} tokenizer */
  constructor(tokenizer) {
    this.#tokenizer = tokenizer;
  }

  /**
   * @param {number} tokenId
   * @returns {string} the text that this token completes
   */
  push(tokenId) {
    this.#window.push(tokenId);
    const text = this.#decode();
    const stable = withoutOpenCharacter(text);
    const piece = stable.slice(this.#emitted);
    this.#emitted = Math.max(this.#emitted, stable.length);
    if (this.#window.length >= WINDOW_TOKENS && stable === text) {
      this.#window = this.#window.slice(-CONTEXT_TOKENS);
      this.#emitted = this.#decode().length;
    }
    return piece;
  }

  /** @returns {string} what is left, with a sign for a character that never ended */
  flush() {
    const text = this.#decode();
    const tail = text.slice(this.#emitted);
    this.#emitted = text.length;
    return tail;
  }

  #decode() {
    if (this.#window.length === 0) return "";
    const options = { skip_special_tokens: true, clean_up_tokenization_spaces: false };
    return this.#tokenizer.decode(this.#window, options);
  }
}

function withoutOpenCharacter(text) {
  let end = text.length;
  while (end > text.length - PENDING && text[end - 1] === REPLACEMENT) end -= 1;
  return text.slice(0, end);
}
