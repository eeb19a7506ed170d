// Vercel's AI SDK with its provider for OpenAI-compatible services, and with that for OpenAI, which speaks Responses.
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateObject, generateText, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'
import { ADA, FERRY, HARBOR, ISLANDS, LANTERN, LEDGER, WHALE } from './report.js'
import { DoesNotApply, equal, killTheExecutor, model, report, url } from './report.js'

const onResponses = process.env.API === 'responses'
const bodies = []
/** What the client sends is kept. */
const seen = (address, request) => (bodies.push(JSON.parse(request.body)), fetch(address, request))
const where = { name: onResponses ? 'openai' : 'baton', baseURL: url, apiKey: 'none', fetch: seen }
const provider = (more = {}) =>
  onResponses ? createOpenAI(where)(model) : createOpenAICompatible({ ...where, includeUsage: true, ...more })(model)
const asked = { model: provider(), maxRetries: 0, maxOutputTokens: 600 }
/** Of a model that the client does not know as one that thinks. */
const thinks = { forceReasoning: true, reasoningSummary: 'auto' }
const openai = (options) => ({ providerOptions: { openai: options } })
const calls = []
const tools = {
  get_weather: tool({
    description: 'Tell the weather.',
    inputSchema: z.object({ city: z.string() }),
    execute: ({ city }) => (calls.push(city), city === 'Oslo' ? '18' : '14'),
  }),
  write_file: tool({
    description: 'Write a text file.',
    inputSchema: z.object({ path: z.string(), content: z.string() }),
    execute: (file) => (calls.push(file), 'written'),
  }),
}
const person = z.object({ name: z.string(), age: z.number().int() })

async function withTools(prompt, more = {}) {
  calls.length = 0
  return generateText({ ...asked, prompt, tools, stopWhen: stepCountIs(3), ...more })
}

/** A call, its result and a question afterwards; the kinds of items that the last request had. */
async function conversation(options) {
  const first = await withTools(LANTERN, openai(options))
  equal([first.text, calls], ['It is 18 degrees in Oslo.', ['Oslo']])
  const messages = [{ role: 'user', content: LANTERN }, ...first.response.messages, { role: 'user', content: WHALE }]
  const second = await generateText({ ...asked, messages, tools, ...openai(options) })
  equal(second.text, 'No, a mammal.')
  return bodies.at(-1).input.map((item) => item.type)
}

const noSuch = () => {
  throw new DoesNotApply('has no such call')
}

async function streamed(kill) {
  calls.length = 0
  let pieces = 0
  const run = streamText({ ...asked, prompt: LEDGER, tools, stopWhen: stepCountIs(3) })
  for await (const part of run.fullStream) {
    if (part.type === 'error') throw part.error
    pieces += part.type === 'tool-input-delta'
    if (kill && pieces === 5) {
      pieces += 1
      await killTheExecutor()
    }
  }
  equal([calls.length, calls[0].path, await run.text, pieces > 10], [1, 'club/minutes.txt', 'The minutes are written.', true])
  const [file] = calls
  await withTools(LEDGER)
  equal(file, calls[0])
}

report({
  plain: async () => equal((await generateText({ ...asked, prompt: HARBOR })).text.slice(0, 15), 'Boats come in a'),
  stream: async () => {
    let text = ''
    for await (const part of streamText({ ...asked, prompt: HARBOR }).textStream) text += part
    equal(text, (await generateText({ ...asked, prompt: HARBOR })).text)
  },
  usage: async () => {
    const run = streamText({ ...asked, prompt: WHALE })
    await run.consumeStream()
    equal((await run.usage).outputTokens, (await generateText({ ...asked, prompt: WHALE })).usage.outputTokens)
    equal((await run.usage).outputTokens > 5, true)
  },
  tools: async () => {
    equal((await withTools(ISLANDS)).text, 'Oslo has 18 degrees, Bergen 14.')
    equal(calls, ['Oslo', 'Bergen'])
  },
  tools_stream: () => streamed(false),
  loop: async () => equal((await withTools(LANTERN)).text, 'It is 18 degrees in Oslo.'),
  required: async () => {
    for (const toolChoice of ['required', { type: 'tool', toolName: 'get_weather' }]) {
      const { toolCalls } = await withTools(HARBOR, { toolChoice, stopWhen: stepCountIs(1) })
      equal(toolCalls.map((call) => [call.toolName, call.input]), [['get_weather', { city: 'Oslo' }]])
    }
  },
  schema: async () => {
    const strict = provider({ supportsStructuredOutputs: true })
    equal((await generateObject({ ...asked, model: strict, prompt: FERRY, schema: person })).object, ADA)
  },
  json: async () => {
    const wanted = onResponses ? { output: 'no-schema' } : { schema: person }
    equal((await generateObject({ ...asked, prompt: FERRY, ...wanted })).object, ADA)
  },
  thinking: async () => {
    const { text, reasoningText } = await generateText({ ...asked, prompt: WHALE, ...(onResponses && openai(thinks)) })
    equal([text, reasoningText.trim()], ['No, a mammal.', 'It breathes air and feeds its young.'])
  },
  logprobs: async () => {
    if (!onResponses) throw new DoesNotApply('has none for this provider')
    const { providerMetadata } = await generateText({ ...asked, prompt: HARBOR, ...openai({ logprobs: 2 }) })
    const [first] = providerMetadata.openai.logprobs[0]
    equal([first.token, first.top_logprobs.length, first.logprob > -0.01], ['Bo', 2, true])
  },
  killed: () => streamed(true),
  goes_on: async () => {
    const first = await withTools(LANTERN)
    const { responseId: previousResponseId } = first.providerMetadata.openai
    const second = await withTools(WHALE, openai({ previousResponseId }))
    const alone = await withTools(WHALE)
    equal([second.text, second.usage.inputTokens > alone.usage.inputTokens], ['No, a mammal.', true])
  },
  own_items: async () => {
    const kinds = await conversation({ ...thinks, store: false })
    equal([kinds.includes('reasoning'), kinds.includes('item_reference')], [true, false])
  },
  references: async () => equal((await conversation(thinks)).includes('item_reference'), true),
  ...Object.fromEntries(['input_items', 'background', 'resumed', 'cancel', 'delete'].map((each) => [each, noSuch])),
})
