// The package `openai` for Node: files and batches.
import OpenAI, { toFile } from 'openai'
import { close, EMBEDDER, TEXTS, vectors } from './pooled.js'
import { flatTools, HARBOR, LEDGER, WHALE } from './report.js'
import { equal, killTheExecutor, model, refused, report, url } from './report.js'

const { batches, completions, files } = new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 0 })
const upload = async (text) => files.create({ file: await toFile(Buffer.from(text), 'lines.jsonl'), purpose: 'batch' })
const tools = flatTools.map(({ type, ...told }) => ({ type, function: told }))
const chat = (prompt, more = {}) => ({ model, messages: [{ role: 'user', content: prompt }], max_tokens: 600, ...more })

async function create(bodies, endpoint = '/v1/chat/completions', more = {}) {
  const lines = bodies.map((body, i) => JSON.stringify({ custom_id: `line ${i}`, method: 'POST', url: endpoint, body }))
  const { id } = await upload(lines.join('\n'))
  return batches.create({ input_file_id: id, endpoint, completion_window: '24h', ...more })
}

async function until({ id }, condition) {
  for (;;) {
    const found = await batches.retrieve(id)
    if (condition(found)) return found
  }
}
const ended = (batch) => until(batch, ({ status }) => ['completed', 'failed', 'expired', 'cancelled'].includes(status))

async function results(id) {
  const text = await (await files.content(id)).text()
  return text.trim().split('\n').map(JSON.parse).map(({ custom_id, response }) => [custom_id, response.body])
}
const answers = async ({ output_file_id }) =>
  (await results(output_file_id)).map(([name, { choices }]) => [name, choices[0].message.content])

report({
  files: async () => {
    const content = '{"a": "naïve"}\n'
    const [first, second] = [await upload(content), await upload('{}')]
    equal([first.bytes, first.filename, first.purpose], [Buffer.byteLength(content), 'lines.jsonl', 'batch'])
    equal((await files.retrieve(first.id)).id, first.id)
    equal(await (await files.content(first.id)).text(), content)
    const listed = []
    for await (const { id } of files.list({ limit: 1 })) listed.push(id)
    equal(listed.filter((id) => [first.id, second.id].includes(id)), [second.id, first.id])
    equal((await files.delete(first.id)).deleted, true)
    await refused(404, files.retrieve(first.id))
  },
  batch: async () => {
    const found = await ended(await create([chat(HARBOR), chat(WHALE)], undefined, { metadata: { what: 'two' } }))
    equal([found.status, found.request_counts.completed, found.metadata], ['completed', 2, { what: 'two' }])
    const [[first, said], second] = await answers(found)
    equal([first, said.slice(0, 15), second], ['line 0', 'Boats come in a', ['line 1', 'No, a mammal.']])
  },
  bad_lines: async () => {
    const found = await ended(await create([chat(WHALE), chat(WHALE, { temperature: 9 })]))
    equal([found.request_counts.completed, found.request_counts.failed], [1, 1])
    const [[name, { error }]] = await results(found.error_file_id)
    equal([name, error.param], ['line 1', 'temperature'])
  },
  embeddings: async () => {
    const found = await ended(await create(TEXTS.map((input) => ({ model: EMBEDDER, input })), '/v1/embeddings'))
    close((await results(found.output_file_id)).map(([, { data }]) => data[0].embedding), await vectors(TEXTS))
  },
  completions: async () => {
    const bodies = TEXTS.map((prompt) => ({ model, prompt, max_tokens: 5, temperature: 0 }))
    const found = await ended(await create(bodies, '/v1/completions'))
    const wanted = []
    for (const body of bodies) wanted.push((await completions.create(body)).choices[0].text)
    equal((await results(found.output_file_id)).map(([, { choices }]) => choices[0].text), wanted)
  },
  listed: async () => {
    const made = []
    for (const prompt of [WHALE, WHALE]) made.unshift((await ended(await create([chat(prompt)]))).id)
    const found = []
    for await (const { id } of batches.list({ limit: 1 })) if (found.push(id) === 2) break
    equal(found, made)
  },
  cancel: async () => {
    const endless = chat(WHALE, { max_tokens: 12_000, ignore_eos: true })
    const asked = await create([chat(WHALE), ...Array(8).fill(endless)])
    await until(asked, ({ request_counts }) => request_counts.completed > 0)
    equal((await batches.cancel(asked.id)).status, 'cancelling')
    const found = await ended(asked)
    equal([found.status, await answers(found)], ['cancelled', [['line 0', 'No, a mammal.']]])
  },
  killed: async () => {
    const asked = await create(Array(6).fill(chat(LEDGER, { tools })))
    await killTheExecutor()
    const found = await results((await ended(asked)).output_file_id)
    const paths = found.map(([, { choices }]) => choices[0].message.tool_calls[0].function.arguments)
    equal(paths.map((text) => JSON.parse(text).path), Array(6).fill('club/minutes.txt'))
  },
})
