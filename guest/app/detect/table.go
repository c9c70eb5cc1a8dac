package detect

// families are the frameworks by what they are made with: the names that Plan.Framework
// and the setting framework have. Any other name is a label: detection goes on without
// it.
var families = map[string]string{
	"next": "node", "nuxt": "node", "remix": "node", "react-router": "node", "astro": "node", "sveltekit": "node", "vite": "node",
	"create-react-app": "node", "angular": "node", "vue-cli": "node", "gatsby": "node", "docusaurus": "node", "eleventy": "node",
	"nestjs": "node", "express": "node", "fastify": "node", "koa": "node", "hono": "node", "hapi": "node", "node": "node", "bun": "node",
	"django": "python", "fastapi": "python", "flask": "python", "streamlit": "python", "python": "python",
	"go": "go", "rust": "rust", "deno": "deno", "static": "static", dockerfile: dockerfile,
}

// marks are the files that a family is known by.
var marks = map[string]string{
	"node": "package.json", "python": "requirements.txt, pyproject.toml, Pipfile or Python program", "go": "go.mod", "rust": "Cargo.toml",
	"deno": "deno.json", "static": "index.html", dockerfile: "Dockerfile",
}

// nodeFramework is one that is known by a package that package.json depends on.
type nodeFramework struct {
	name, pkg string
	build     string   // without a script "build"
	start     string   // that serves what was built; "": the script "start", or main
	static    []string // where its build puts a site that needs no server
	spa       bool
	server    string // a package that makes a server of a static one
}

// nodeFrameworks are asked for in turn: those that are made with others come first.
var nodeFrameworks = []nodeFramework{
	{name: "next", pkg: "next", build: "next build", start: "next start"},
	{name: "nuxt", pkg: "nuxt", build: "nuxt build", start: "node .output/server/index.mjs"},
	{name: "react-router", pkg: "@react-router/serve", build: "react-router build", start: "react-router-serve ./build/server/index.js"},
	{name: "remix", pkg: "@remix-run/serve", build: "remix vite:build", start: "remix-serve ./build/server/index.js"},
	{name: "astro", pkg: "astro", build: "astro build", start: "node ./dist/server/entry.mjs", static: []string{"dist"}, server: "@astrojs/node"},
	{name: "sveltekit", pkg: "@sveltejs/kit", build: "vite build", start: "node build", static: []string{"build"}},
	{name: "gatsby", pkg: "gatsby", build: "gatsby build", static: []string{"public"}},
	{name: "docusaurus", pkg: "@docusaurus/core", build: "docusaurus build", static: []string{"build"}},
	{name: "eleventy", pkg: "@11ty/eleventy", build: "eleventy", static: []string{"_site"}},
	{name: "angular", pkg: "@angular/core", build: "ng build", static: []string{"dist"}, spa: true},
	{name: "nestjs", pkg: "@nestjs/core", build: "nest build", start: "node dist/main"},
	{name: "express", pkg: "express"},
	{name: "fastify", pkg: "fastify"},
	{name: "koa", pkg: "koa"},
	{name: "hapi", pkg: "@hapi/hapi"},
	{name: "hono", pkg: "@hono/node-server"},
	{name: "hono", pkg: "hono"},
	{name: "create-react-app", pkg: "react-scripts", build: "react-scripts build", static: []string{"build"}, spa: true},
	{name: "vue-cli", pkg: "@vue/cli-service", build: "vue-cli-service build", static: []string{"dist"}, spa: true},
	{name: "vite", pkg: "vite", build: "vite build", static: []string{"dist"}, spa: true},
}
