// What an application does, by Drizzle: migrations, then queries.
import assert from 'node:assert/strict'
import { eq, sql } from 'drizzle-orm'
import { drizzle } from 'drizzle-orm/node-postgres'
import { migrate } from 'drizzle-orm/node-postgres/migrator'
import { integer, pgTable, serial, text } from 'drizzle-orm/pg-core'
import pg from 'pg'
import { config, ok, ready } from './common.mjs'

const authors = pgTable('drizzle_author', { id: serial('id').primaryKey(), name: text('name').notNull().unique(), born: integer('born') })

function open(url) {
  const pool = new pg.Pool({ ...config('verify-full', url), max: 4 })
  // Else a session that ends while nothing runs in it ends the program.
  pool.on('connect', (client) => client.on('error', () => {}))
  return [pool, drizzle(pool)]
}

const [pool, db] = open()
await db.execute(sql`DROP TABLE IF EXISTS drizzle_author`)
await db.execute(sql`DROP SCHEMA IF EXISTS drizzle CASCADE`)
for (let i = 0; i < 2; i++) await migrate(db, { migrationsFolder: new URL('./migrations', import.meta.url).pathname })
ok('migrations')

const one = db.select().from(authors).where(eq(authors.name, sql.placeholder('name'))).prepare('drizzle_one')
await db.transaction(async (tx) => {
  await tx.insert(authors).values([{ name: 'a', born: 1900 }, { name: 'b' }])
})
for (const name of ['a', 'b']) assert.equal((await one.execute({ name }))[0].name, name)
await assert.rejects(db.transaction(async (tx) => {
  await tx.delete(authors)
  tx.rollback()
}))
assert.equal(await db.$count(authors), 2)
ok('prepared statements, transactions')
await db.execute(sql`DROP TABLE drizzle_author`)
await db.execute(sql`DROP SCHEMA drizzle CASCADE`)
await pool.end()

// of is the code of PostgreSQL's error that Drizzle's has for its cause.
const of = (code) => (e) => e.cause?.code === code || e.code === code

await ready('sleep')
const [old, held] = open()
let fresh
await assert.rejects(held.transaction(async (tx) => {
  await tx.execute(sql`SELECT 6 * 7`)
  ok('wake')
  fresh = await ready('rotation')
  await tx.execute(sql`SELECT 1`)
}))
assert.ok(fresh)
await assert.rejects(held.execute(sql`SELECT 1`), of('28P01'))
await old.end()
const [last, again] = open(fresh)
assert.equal((await again.execute(sql`SELECT 6 * 7 AS n`)).rows[0].n, 42)
await last.end()
ok('rotation')
