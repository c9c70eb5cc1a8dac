// Prisma's commands by its engine of WebAssembly, over node-postgres.
import { PrismaPg } from '@prisma/adapter-pg'
import { config } from './common.mjs'

export default {
  schema: 'prisma/schema.prisma',
  experimental: { adapter: true },
  engine: 'js',
  adapter: async () => new PrismaPg(config('verify-full')),
}
