// What a client does, by node-postgres.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import pg from 'pg'
import { from as copyFrom, to as copyTo } from 'pg-copy-streams'
import { config, ok, ready } from './common.mjs'

async function connect(mode, url) {
  const client = new pg.Client(config(mode, url))
  await client.connect()
  return client
}

for (const mode of ['require', 'verify-full']) {
  const client = await connect(mode)
  assert.equal((await client.query('SELECT 6 * 7 AS n')).rows[0].n, 42)
  await client.end()
  ok('connect ' + mode)
}

const client = await connect('verify-full')
for (let i = 0; i < 3; i++) {
  const { rows } = await client.query({ name: 'p', text: 'SELECT $1::int + 1 AS n', values: [i] })
  assert.equal(rows[0].n, i + 1)
}
ok('prepared statements')

await client.query('CREATE TEMP TABLE pg_rows (n int PRIMARY KEY, t text)')
const lines = Array.from({ length: 10_000 }, (_, i) => `${i}\trow ${i}\n`)
await pipeline(Readable.from(lines), client.query(copyFrom('COPY pg_rows FROM STDIN')))
let back = ''
for await (const chunk of client.query(copyTo('COPY (SELECT * FROM pg_rows ORDER BY n) TO STDOUT'))) back += chunk
assert.equal(back, lines.join(''))
ok('copy')

await client.query('LISTEN pg_channel')
const other = await connect('verify-full')
const heard = once(client, 'notification')
await other.query("SELECT pg_notify('pg_channel', 'hello')")
assert.equal((await heard)[0].payload, 'hello')
ok('listen, notify')

// node-postgres has no public call for a cancel request: applications ask the server.
const { rows } = await client.query('SELECT pg_backend_pid() AS pid')
const slept = assert.rejects(client.query('SELECT pg_sleep(120)'), { code: '57014' })
const cancel = setInterval(() => other.query('SELECT pg_cancel_backend($1)', [rows[0].pid]), 200) // until it has begun
await slept
clearInterval(cancel)
await client.query('SELECT 1').catch(() => client.query('SELECT 1')) // a cancel too many
ok('cancel')
await other.end()
await client.end()

await ready('sleep')
const held = await connect('verify-full')
assert.equal((await held.query('SELECT 6 * 7 AS n')).rows[0].n, 42)
ok('wake')
const errors = [] // of a session in which nothing runs; without a listener they end the program
held.on('error', (e) => errors.push(e))
const cut = new Promise((resolve) => held.on('end', resolve))
const fresh = await ready('rotation')
await cut
assert.equal(errors[0].code, '57P01')
await assert.rejects(held.query('SELECT 1'))
await assert.rejects(connect('verify-full'), { code: '28P01' })
const again = await connect('verify-full', fresh)
assert.equal((await again.query('SELECT 6 * 7 AS n')).rows[0].n, 42)
await again.end()
ok('rotation')
