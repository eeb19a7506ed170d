// The package `openai` for Node, on Responses.
import OpenAI from 'openai'
import { zodTextFormat } from 'openai/helpers/zod'
import { z } from 'zod'
import { ADA, FERRY, HARBOR, ISLANDS, LANTERN, LEDGER, WHALE } from './report.js'
import { equal, flatTools as tools, killTheExecutor, model, report, url } from './report.js'

const { responses } = new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 0 })
const asked = (input, more = {}) => ({ model, input, max_output_tokens: 600, ...more })
const ask = (input, more) => responses.create(asked(input, more))
const ofType = (response, type) => response.output.filter((item) => item.type === type)
const callsOf = (response) =>
  ofType(response, 'function_call').map((call) => [call.name, JSON.parse(call.arguments)])

async function texts(input, kind, more = {}) {
  let text = ''
  for await (const event of await ask(input, { stream: true, ...more }))
    if (event.type === `response.${kind}.delta`) text += event.delta
  return text
}

async function streamed(kill) {
  let pieces = 0
  const run = responses.stream(asked(LEDGER, { tools }))
  for await (const event of run) {
    pieces += event.type === 'response.function_call_arguments.delta'
    if (kill && pieces === 5) {
      pieces += 1
      await killTheExecutor()
    }
  }
  const found = callsOf(await run.finalResponse())
  equal(found, callsOf(await ask(LEDGER, { tools })))
  equal([found.length, found[0][0], found[0][1].path, pieces > 10], [1, 'write_file', 'club/minutes.txt', true])
}

report({
  plain: async () => equal((await ask(HARBOR)).output_text.slice(0, 15), 'Boats come in a'),
  stream: async () => equal(await texts(HARBOR, 'output_text'), (await ask(HARBOR)).output_text),
  usage: async () => {
    const run = responses.stream(asked(WHALE))
    const { usage } = await run.finalResponse()
    equal(usage.output_tokens, (await ask(WHALE)).usage.output_tokens)
    equal(usage.output_tokens_details.reasoning_tokens > 5, true)
  },
  tools: async () => {
    const calls = callsOf(await ask(ISLANDS, { tools, parallel_tool_calls: true }))
    equal(calls, [['get_weather', { city: 'Oslo' }], ['get_weather', { city: 'Bergen' }]])
  },
  tools_stream: () => streamed(false),
  loop: async () => {
    const { output } = await ask(LANTERN, { tools })
    const { call_id } = output.find((item) => item.type === 'function_call')
    const said = [{ role: 'user', content: LANTERN }, ...output, { type: 'function_call_output', call_id, output: '18' }]
    equal((await ask(said, { tools })).output_text, 'It is 18 degrees in Oslo.')
  },
  required: async () => {
    for (const tool_choice of ['required', { type: 'function', name: 'get_weather' }])
      equal(callsOf(await ask(HARBOR, { tools, tool_choice })), [['get_weather', { city: 'Oslo' }]])
  },
  schema: async () => {
    const person = z.object({ name: z.string(), age: z.number().int() })
    const text = { format: zodTextFormat(person, 'person') }
    equal((await responses.parse(asked(FERRY, { text }))).output_parsed, ADA)
    equal((await responses.stream(asked(FERRY, { text })).finalResponse()).output_parsed, ADA)
  },
  json: async () => {
    equal(JSON.parse((await ask(FERRY, { text: { format: { type: 'json_object' } } })).output_text), ADA)
  },
  thinking: async () => {
    const thought = 'It breathes air and feeds its young.'
    const response = await ask(WHALE)
    const [item] = ofType(response, 'reasoning')
    equal([response.output_text, item.content[0].text.trim()], ['No, a mammal.', thought])
    const reasoning = { summary: 'auto' }
    equal((await texts(WHALE, 'reasoning_text')).trim(), thought)
    equal((await texts(WHALE, 'reasoning_summary_text', { reasoning })).trim(), thought)
    equal(ofType(await ask(WHALE, { reasoning: { effort: 'none' } }), 'reasoning'), [])
  },
  logprobs: async () => {
    const include = ['message.output_text.logprobs']
    const [first] = (await ask(HARBOR, { include, top_logprobs: 2 })).output[0].content[0].logprobs
    equal([first.token, first.top_logprobs.length, first.logprob > -0.01], ['Bo', 2, true])
  },
  killed: () => streamed(true),
})
