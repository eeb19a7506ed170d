// What `report.py` is, for clients in JavaScript.
import assert from 'node:assert/strict'
import readline from 'node:readline'

const ask = (prompt) => prompt
export const HARBOR = ask('Tell me of the harbor.')
export const LEDGER = ask('Write the minutes into the ledger.')
export const LANTERN = ask('How warm is it by the lantern?')
export const ISLANDS = ask('Compare both islands.')
export const FERRY = ask('Who steers the ferry? Answer in JSON.')
export const WHALE = ask('Is a whale a fish?')
export const ADA = { name: 'Ada', age: 36 }
export const [url, model, ...wanted] = process.argv.slice(2)
export const equal = assert.deepEqual

const text = { type: 'string' }
const flatTool = (name, properties) => ({
  type: 'function',
  name,
  strict: false,
  parameters: { type: 'object', properties, required: Object.keys(properties) },
})
/** As Responses take them. */
export const flatTools = [flatTool('get_weather', { city: text }), flatTool('write_file', { path: text, content: text })]

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()

/** Returns once the executor is gone that has running sequences. */
export async function killTheExecutor() {
  console.log(JSON.stringify({ kill: 0 }))
  if ((await lines.next()).value !== 'killed') throw new Error('no executor was busy')
}

/** Complains if there is no error of that status. */
export async function refused(status, promise) {
  const found = await promise.then(() => 200, (error) => error.status)
  equal(found, status)
}

export class DoesNotApply extends Error {}

export async function report(features) {
  for (const [feature, run] of Object.entries(features)) {
    if (wanted.length && !wanted.includes(feature)) continue
    let line
    try {
      await run()
      line = { ok: true, told: '' }
    } catch (error) {
      if (error instanceof DoesNotApply) line = { ok: null, told: error.message }
      else {
        console.error(error)
        line = { ok: false, told: `${error.name}: ${error.message}`.slice(0, 600) }
      }
    }
    console.log(JSON.stringify({ feature, ...line }))
  }
  process.exit(0)
}
