// Vercel's AI SDK with its provider for OpenAI-compatible services.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateObject, generateText, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'
import { ADA, FERRY, HARBOR, ISLANDS, LANTERN, LEDGER, WHALE } from './report.js'
import { DoesNotApply, equal, killTheExecutor, model, report, url } from './report.js'

const provider = (more = {}) =>
  createOpenAICompatible({ name: 'baton', baseURL: url, apiKey: 'none', includeUsage: true, ...more })(model)
const asked = { model: provider(), maxRetries: 0, maxOutputTokens: 600 }
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
  json: async () => equal((await generateObject({ ...asked, prompt: FERRY, schema: person })).object, ADA),
  thinking: async () => {
    const { text, reasoningText } = await generateText({ ...asked, prompt: WHALE })
    equal([text, reasoningText.trim()], ['No, a mammal.', 'It breathes air and feeds its young.'])
  },
  logprobs: () => {
    throw new DoesNotApply('has none for this provider')
  },
  killed: () => streamed(true),
})
