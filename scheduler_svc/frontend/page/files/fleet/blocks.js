// The blocks of an executor's KV pool: what each is and when it last changed; pure. Typed arrays, as a pool may have a
// million of them and changes come four times a second.

export const STATES = ["free", "cached", "in use", "shared"];
export const NUM_AGES = 32;

/** A pool's blocks. */
export class BlockMap {
  /**
   * @param {Uint8Array} snapshot a byte for each block, `state + 8 * age`; it is not kept.
   * @param {number} nowS
   */
  constructor(snapshot, nowS) {
    this.numBlocks = snapshot.length;
    this.states = new Uint8Array(snapshot.length);
    this.counts = [0, 0, 0, 0];
    this.originS = Math.floor(nowS);
    /** Seconds after `originS` at which each block changed last: negative where that was before. */
    this.changedS = new Int32Array(snapshot.length);
    const atAge = Int32Array.from({ length: NUM_AGES }, (_, age) => (age ? -(2 ** (age - 1)) : 0));
    for (let block = 0; block < snapshot.length; block++) {
      const state = snapshot[block] & 3;
      this.states[block] = state;
      this.counts[state]++;
      this.changedS[block] = atAge[snapshot[block] >> 3];
    }
  }

  /**
   * Take in what is told of blocks, each `8 * block + state`. Blocks that the pool does not have are left out.
   *
   * @param {Int32Array} told
   * @param {boolean} isChange whether they have changed now; else it is only said what they are.
   */
  apply(told, isChange, nowS) {
    const { states, changedS, counts, numBlocks } = this;
    const at = this.#since(nowS);
    for (let i = 0; i < told.length; i++) {
      const block = told[i] >>> 3;
      const state = told[i] & 3;
      if (block >= numBlocks) continue;
      counts[states[block]]--;
      counts[state]++;
      states[block] = state;
      if (isChange) changedS[block] = at;
    }
  }

  /** For how many seconds a block has been as it is. */
  ageS(block, nowS) {
    return Math.max(0, this.#since(nowS) - this.changedS[block]);
  }

  /** What `ageBucket` counts from. */
  ageOrigin(nowS) {
    return this.#since(nowS);
  }

  #since(nowS) {
    return Math.floor(nowS) - this.originS;
  }
}

/** A pool of which nothing is told yet: every block begins as free. */
export function emptyMap(numBlocks, nowS) {
  return new BlockMap(new Uint8Array(numBlocks).fill(8 * (NUM_AGES - 1)), nowS);
}

/** 0 for a span within the first second, and one more for each doubling. */
export function ageBucket(seconds) {
  return seconds < 1 ? 0 : 32 - Math.clz32(seconds);
}

/** The bytes of a `map` event's `states`. */
export async function decodeSnapshot(base64) {
  const packed = new Blob([decodeBase64(base64)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(packed).arrayBuffer());
}

/** The numbers of a `blocks` event. */
export function decodeChanges(base64) {
  const bytes = decodeBase64(base64);
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const changes = new Int32Array(bytes.length >> 2);
  for (let i = 0; i < changes.length; i++) changes[i] = view.getInt32(4 * i, true);
  return changes;
}

function decodeBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text); // many times quicker, where there is one
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}
