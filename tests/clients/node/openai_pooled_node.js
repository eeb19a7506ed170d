// The package `openai` for Node: embeddings.
import OpenAI from 'openai'
import { close, EMBEDDER, SIZE, TEXTS, vectors } from './pooled.js'
import { DoesNotApply, equal, report, url } from './report.js'

const client = new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 0 })
/** By default the client asks for base64, and makes numbers of it. */
const embed = async (input, more = {}) =>
  (await client.embeddings.create({ model: EMBEDDER, input, ...more })).data.map(({ embedding }) => embedding)
const noRanking = () => {
  throw new DoesNotApply('has embeddings only')
}

report({
  vector: async () => close(await embed(TEXTS[0]), await vectors(TEXTS.slice(0, 1))),
  several: async () => close(await embed(TEXTS), await vectors(TEXTS)),
  encodings: async () => {
    close(await embed(TEXTS, { encoding_format: 'float' }), await embed(TEXTS))
    equal(typeof (await embed(TEXTS, { encoding_format: 'base64' }))[0], 'string')
  },
  dimensions: async () => close(await embed(TEXTS, { dimensions: SIZE }), await vectors(TEXTS, { dimensions: SIZE })),
  token_ids: async () => close(await embed([[5, 6, 7], [8, 9]]), await vectors([[5, 6, 7], [8, 9]])),
  ranking: noRanking,
  top_n: noRanking,
})
