// The package `openai` for Node: responses that the server keeps, and those in the background.
import OpenAI from 'openai'
import { LANTERN, LEDGER, WHALE } from './report.js'
import { equal, flatTools as tools, killTheExecutor, model, refused, report, url } from './report.js'

const { responses } = new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 0 })
const ask = (input, more = {}) => responses.create({ model, input, max_output_tokens: 600, ...more })
const callOf = (response) => response.output.find((item) => item.type === 'function_call')
const resultOf = (response) => ({ type: 'function_call_output', call_id: callOf(response).call_id, output: '18' })
const fileOf = (response) => JSON.parse(callOf(response).arguments).path
const said = 'It is 18 degrees in Oslo.'

report({
  goes_on: async () => {
    const first = await ask(LANTERN, { tools })
    const second = await ask([resultOf(first)], { tools, previous_response_id: first.id })
    equal([second.output_text, second.previous_response_id], [said, first.id])
    const third = await ask(WHALE, { tools, previous_response_id: second.id })
    equal([third.output_text, third.usage.input_tokens_details.cached_tokens > 0], ['No, a mammal.', true])
  },
  own_items: async () => {
    const unkept = { tools, store: false, include: ['reasoning.encrypted_content'] }
    const first = await ask(LANTERN, unkept)
    equal(first.output[0].encrypted_content.length > 0, true)
    const input = [{ role: 'user', content: LANTERN }, ...first.output, resultOf(first)]
    equal((await ask(input, unkept)).output_text, said)
    await refused(404, responses.retrieve(first.id))
  },
  references: async () => {
    const first = await ask(LANTERN, { tools })
    const names = first.output.map(({ id }) => ({ type: 'item_reference', id }))
    equal((await ask([{ role: 'user', content: LANTERN }, ...names, resultOf(first)], { tools })).output_text, said)
  },
  input_items: async () => {
    const { id } = await ask(['One.', 'Two.', WHALE].map((content) => ({ role: 'user', content })))
    const found = []
    for await (const item of responses.inputItems.list(id, { limit: 2, order: 'asc' })) found.push(item.content[0].text)
    equal(found, ['One.', 'Two.', WHALE])
  },
  background: async () => {
    const first = await ask(LEDGER, { tools, background: true })
    equal([first.status, first.output], ['queued', []])
    await killTheExecutor()
    let found = first
    while (['queued', 'in_progress'].includes(found.status)) found = await responses.retrieve(first.id)
    equal([found.status, fileOf(found)], ['completed', 'club/minutes.txt'])
  },
  resumed: async () => {
    const begun = []
    for await (const event of await ask(LEDGER, { tools, background: true, stream: true })) {
      begun.push(event)
      if (begun.length === 60) break
    }
    const { id } = begun[0].response
    const rest = []
    // By the client's own accumulator, which begins at `starting_after`.
    const run = responses.stream({ response_id: id, starting_after: begun.at(-1).sequence_number })
    for await (const event of run) {
      rest.push(event)
      if (rest.length === 20) await killTheExecutor()
    }
    const whole = []
    for await (const event of await responses.retrieve(id, { stream: true })) whole.push(event)
    equal([...begun, ...rest].map((event) => event.sequence_number), [...whole.keys()])
    const texts = (events) => events.map((event) => [event.type, event.delta ?? ''])
    equal(texts([...begun, ...rest]), texts(whole))
    equal([whole.at(-1).type, fileOf(whole.at(-1).response)], ['response.completed', 'club/minutes.txt'])
    equal(fileOf(await run.finalResponse()), 'club/minutes.txt')
  },
  cancel: async () => {
    const { id } = await ask(WHALE, { background: true, ignore_eos: true, max_output_tokens: 12_000 })
    equal((await responses.cancel(id)).status, 'cancelled')
    equal((await responses.retrieve(id)).status, 'cancelled')
  },
  delete: async () => {
    const first = await ask(WHALE)
    equal((await responses.retrieve(first.id)).output_text, 'No, a mammal.')
    await responses.delete(first.id)
    await refused(404, responses.retrieve(first.id))
  },
})
