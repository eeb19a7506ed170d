// Vercel's AI SDK with its provider for OpenAI: embeddings.
import { createOpenAI } from '@ai-sdk/openai'
import { embed, embedMany } from 'ai'
import { close, EMBEDDER, SIZE, TEXTS, vectors } from './pooled.js'
import { DoesNotApply, report, url } from './report.js'

const model = createOpenAI({ baseURL: url, apiKey: 'none' }).embedding(EMBEDDER)
const asked = { model, maxRetries: 0 }
const doesNotApply = (why) => () => {
  throw new DoesNotApply(why)
}

report({
  vector: async () => {
    const { embedding } = await embed({ ...asked, value: TEXTS[0] })
    close([embedding], await vectors(TEXTS.slice(0, 1)))
  },
  several: async () => close((await embedMany({ ...asked, values: TEXTS })).embeddings, await vectors(TEXTS)),
  encodings: doesNotApply('asks for floats only'),
  dimensions: async () => {
    const providerOptions = { openai: { dimensions: SIZE } }
    const { embeddings } = await embedMany({ ...asked, values: TEXTS, providerOptions })
    close(embeddings, await vectors(TEXTS, { dimensions: SIZE }))
  },
  token_ids: doesNotApply('sends texts only'),
  ranking: doesNotApply('has embeddings only with this provider'),
  top_n: doesNotApply('has embeddings only with this provider'),
})
