// The package `openai` for Node.
import OpenAI from 'openai'
import { zodResponseFormat } from 'openai/helpers/zod'
import { z } from 'zod'
import { ADA, FERRY, HARBOR, ISLANDS, LANTERN, LEDGER, WHALE } from './report.js'
import { equal, killTheExecutor, model, report, url } from './report.js'

const client = new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 0 })
const string = { type: 'string' }
const tool = (name, properties) => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties, required: Object.keys(properties) } },
})
const tools = [tool('get_weather', { city: string }), tool('write_file', { path: string, content: string })]
const question = (content) => [{ role: 'user', content }]
const ask = (prompt, more = {}) =>
  client.chat.completions.create({ model, messages: question(prompt), max_tokens: 600, ...more })

async function texts(prompt, field, more = {}) {
  let text = ''
  for await (const chunk of await ask(prompt, { stream: true, ...more })) text += chunk.choices[0]?.delta[field] ?? ''
  return text
}

async function streamed(kill) {
  let pieces = 0
  const run = client.chat.completions.stream({ model, messages: question(LEDGER), tools, max_tokens: 600 })
  for await (const chunk of run) {
    pieces += chunk.choices[0]?.delta.tool_calls?.length ?? 0
    if (kill && pieces === 5) {
      pieces += 1
      await killTheExecutor()
    }
  }
  const { choices } = await run.finalChatCompletion()
  const [call, ...others] = choices[0].message.tool_calls
  equal([call.function.name, others.length, choices[0].finish_reason], ['write_file', 0, 'tool_calls'])
  const file = JSON.parse(call.function.arguments)
  const whole = await ask(LEDGER, { tools })
  equal(file, JSON.parse(whole.choices[0].message.tool_calls[0].function.arguments))
  equal([file.path, pieces > 10], ['club/minutes.txt', true])
}

report({
  plain: async () => equal((await ask(HARBOR)).choices[0].message.content.slice(0, 15), 'Boats come in a'),
  stream: async () => equal(await texts(HARBOR, 'content'), (await ask(HARBOR)).choices[0].message.content),
  usage: async () => {
    let usage
    const options = { stream: true, stream_options: { include_usage: true } }
    for await (const chunk of await ask(WHALE, options)) usage = chunk.usage ?? usage
    equal(usage.completion_tokens, (await ask(WHALE)).usage.completion_tokens)
  },
  tools: async () => {
    const { message } = (await ask(ISLANDS, { tools, parallel_tool_calls: true })).choices[0]
    equal(message.tool_calls.map((call) => JSON.parse(call.function.arguments).city), ['Oslo', 'Bergen'])
  },
  tools_stream: () => streamed(false),
  loop: async () => {
    const parsed = tools.slice(0, 1).map(({ type, function: told }) => ({
      type,
      function: { ...told, parse: JSON.parse, function: ({ city }) => (city === 'Oslo' ? '18' : '14') },
    }))
    const run = client.chat.completions.runTools({ model, messages: question(LANTERN), tools: parsed, max_tokens: 600 })
    equal(await run.finalContent(), 'It is 18 degrees in Oslo.')
  },
  required: async () => {
    for (const tool_choice of ['required', { type: 'function', function: { name: 'get_weather' } }]) {
      const [call] = (await ask(HARBOR, { tools, tool_choice })).choices[0].message.tool_calls
      equal([call.function.name, JSON.parse(call.function.arguments)], ['get_weather', { city: 'Oslo' }])
    }
  },
  schema: async () => {
    const person = z.object({ name: z.string(), age: z.number().int() })
    const asked = { model, messages: question(FERRY), response_format: zodResponseFormat(person, 'person') }
    equal((await client.chat.completions.parse(asked)).choices[0].message.parsed, ADA)
  },
  json: async () => {
    const { message } = (await ask(FERRY, { response_format: { type: 'json_object' } })).choices[0]
    equal(JSON.parse(message.content), ADA)
  },
  thinking: async () => {
    const { message } = (await ask(WHALE)).choices[0]
    equal([message.content, message.reasoning_content.trim()], ['No, a mammal.', 'It breathes air and feeds its young.'])
    equal((await texts(WHALE, 'reasoning_content')).trim(), message.reasoning_content.trim())
    equal((await ask(WHALE, { reasoning_effort: 'none' })).choices[0].message.reasoning_content ?? null, null)
  },
  logprobs: async () => {
    const [first] = (await ask(HARBOR, { logprobs: true, top_logprobs: 2 })).choices[0].logprobs.content
    equal([first.token, first.top_logprobs.length, first.logprob > -0.01], ['Bo', 2, true])
  },
  killed: () => streamed(true),
})
