// What `pooled.py` is, for clients in JavaScript.
import assert from 'node:assert/strict'
import { url } from './report.js'

export const EMBEDDER = 'embedder'
export const TEXTS = ['ROMEO:\nBut, soft!', 'What light through yonder window breaks?', 'naïve 東京 🐟']
export const SIZE = 100

/** A vector for each input, asked for alone, by plain requests. */
export async function vectors(inputs, more = {}) {
  const found = []
  for (const input of inputs) {
    const body = JSON.stringify({ model: EMBEDDER, input: [input], ...more })
    const headers = { 'content-type': 'application/json' }
    const answer = await fetch(`${url}/embeddings`, { method: 'POST', headers, body })
    found.push((await answer.json()).data[0].embedding)
  }
  return found
}

export function close(found, wanted) {
  assert.deepEqual(found.map((vector) => vector.length), wanted.map((vector) => vector.length))
  for (const [row, vector] of wanted.entries())
    for (const [place, number] of vector.entries()) assert(Math.abs(found[row][place] - number) < 1e-6)
}
