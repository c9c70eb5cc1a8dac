// What an application does, by Prisma: a schema, then queries. It has no COPY and no
// LISTEN.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { PrismaPg } from '@prisma/adapter-pg'
import { config, ok, ready } from './common.mjs'
import { PrismaClient } from './prisma/client/index.js'

const open = (url) => new PrismaClient({ adapter: new PrismaPg({ ...config('verify-full', url), max: 4 }) })

const env = { ...process.env, PRISMA_SCHEMA_ENGINE_BINARY: '/bin/true', PRISMA_QUERY_ENGINE_LIBRARY: '/bin/true' } // as in scripts/install-deps
const cwd = new URL('.', import.meta.url).pathname
const prisma = (args, input) => execFileSync('npx', ['prisma', ...args], { cwd, env, input, stdio: ['pipe', 'pipe', 'inherit'] })

const db = open()
await db.$executeRaw`DROP TABLE IF EXISTS prisma_author`
// Not migrate deploy: for the tables that are there it reads columns of the type name,
// which this adapter does not know.
prisma(['db', 'execute', '--schema', 'prisma/schema.prisma', '--stdin'], prisma(['migrate', 'diff', '--from-empty', '--to-schema-datamodel', 'prisma/schema.prisma', '--script']))
ok('schema')

await db.$transaction(async (tx) => {
  await tx.author.createMany({ data: [{ name: 'a', born: 1900 }, { name: 'b' }] })
})
for (const name of ['a', 'b']) assert.equal((await db.author.findUnique({ where: { name } })).name, name)
await assert.rejects(db.author.create({ data: { name: 'a' } }), { code: 'P2002' })
await assert.rejects(db.$transaction(async (tx) => {
  await tx.author.deleteMany()
  throw new Error('roll back')
}))
assert.equal(await db.author.count(), 2)
await db.author.createMany({ data: Array.from({ length: 10_000 }, (_, i) => ({ name: `row ${i}` })) })
assert.equal(await db.author.count(), 10_002)
ok('queries, transactions')

// Prisma has no call for a cancel request: applications ask the server.
await assert.rejects(db.$transaction(async (tx) => {
  const [{ pid }] = await tx.$queryRaw`SELECT pg_backend_pid() AS pid`
  const cancel = setInterval(() => db.$queryRaw`SELECT pg_cancel_backend(${pid}::int)`.catch(console.error), 200) // until it has begun
  await tx.$queryRaw`SELECT 1 FROM pg_sleep(120)`.finally(() => clearInterval(cancel))
}, { timeout: 120_000 }), /57014/)
ok('cancel')
await db.$executeRaw`DROP TABLE prisma_author`
await db.$disconnect()

await ready('sleep')
const held = open()
let fresh
await assert.rejects(held.$transaction(async (tx) => {
  await tx.$queryRaw`SELECT 6 * 7`
  ok('wake')
  fresh = await ready('rotation')
  await tx.$queryRaw`SELECT 1`
}, { maxWait: 60_000, timeout: 600_000 })) // a wake may take longer than the 2 s of maxWait
assert.ok(fresh)
await assert.rejects(held.$queryRaw`SELECT 1`, /28P01/)
// held is not disconnected: its pool would wait for the session that was cut, which
// the adapter has not given back.
const again = open(fresh)
assert.deepEqual(await again.$queryRaw`SELECT 6 * 7 AS n`, [{ n: 42 }])
await again.$disconnect()
ok('rotation')
