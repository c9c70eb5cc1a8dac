CREATE TABLE "drizzle_author" (
	"id" serial PRIMARY KEY NOT NULL,
	"name" text NOT NULL,
	CONSTRAINT "drizzle_author_name_unique" UNIQUE("name")
);
