ALTER TABLE "drizzle_author" ADD COLUMN "born" integer;
--> statement-breakpoint
CREATE INDEX "drizzle_author_born" ON "drizzle_author" ("born");
