package detect

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/guest/appapi"
)

func tree(files map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range files {
		out[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
	}
	return out
}

const indexHTML = "<!doctype html>"

func TestWhatAppsAre(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		set   Settings
		want  appapi.Plan
		tools string
	}{
		"static":        {files: map[string]string{"index.html": indexHTML}, want: appapi.Plan{Framework: "static", StaticDir: "."}},
		"static public": {files: map[string]string{"public/index.html": indexHTML, "README.md": ""}, want: appapi.Plan{Framework: "static", StaticDir: "public"}},
		"express": {
			files: map[string]string{"package.json": `{"dependencies":{"express":"4"},"scripts":{"start":"node server.js"}}`, "package-lock.json": "{}"},
			want:  appapi.Plan{Framework: "express", InstallCommand: "npm ci", StartCommand: "node server.js"}, tools: "node",
		},
		"plain node": {
			files: map[string]string{"package.json": `{"name":"a"}`, "server.js": ""},
			want:  appapi.Plan{Framework: "node", StartCommand: "node server.js"}, tools: "node",
		},
		"node main": {
			files: map[string]string{"package.json": `{"main":"lib/a b.js"}`, "lib/a b.js": ""},
			want:  appapi.Plan{Framework: "node", StartCommand: "node 'lib/a b.js'"}, tools: "node",
		},
		"next": {
			files: map[string]string{"package.json": `{"dependencies":{"next":"16","react":"19"},"scripts":{"build":"next build","start":"next start"}}`, "pnpm-lock.yaml": ""},
			want:  appapi.Plan{Framework: "next", InstallCommand: "pnpm install --frozen-lockfile --prod=false --config.dangerously-allow-all-builds=true", BuildCommand: "pnpm run build", StartCommand: "next start"}, tools: "node,pnpm",
		},
		"pnpm 8": {
			files: map[string]string{"package.json": `{"dependencies":{"express":"4"},"scripts":{"start":"node ."}}`, "pnpm-lock.yaml": "lockfileVersion: '6.0'\n"},
			want:  appapi.Plan{Framework: "express", InstallCommand: "pnpm install --frozen-lockfile --prod=false", StartCommand: "node ."}, tools: "node,pnpm8",
		},
		"pnpm 7": {
			files: map[string]string{"package.json": `{"dependencies":{"express":"4"},"scripts":{"start":"node ."}}`, "pnpm-lock.yaml": "lockfileVersion: 5.4\n"},
			want:  appapi.Plan{Framework: "express", InstallCommand: "pnpm install --frozen-lockfile --prod=false", StartCommand: "node ."}, tools: "node,pnpm7",
		},
		"pnpm that is named": {
			files: map[string]string{"package.json": `{"packageManager":"pnpm@8.6.0","dependencies":{"express":"4"},"scripts":{"start":"node ."}}`, "pnpm-lock.yaml": "lockfileVersion: '6.0'\n"},
			want:  appapi.Plan{Framework: "express", InstallCommand: "pnpm install --frozen-lockfile --prod=false", StartCommand: "node ."}, tools: "node,pnpm8.6.0",
		},
		"pnpm of today": {
			files: map[string]string{"package.json": `{"dependencies":{"express":"4"},"scripts":{"start":"node ."}}`, "pnpm-lock.yaml": "lockfileVersion: '9.0'\n"},
			want:  appapi.Plan{Framework: "express", InstallCommand: "pnpm install --frozen-lockfile --prod=false --config.dangerously-allow-all-builds=true", StartCommand: "node ."}, tools: "node,pnpm",
		},
		"pnpm and what it may build": {
			files: map[string]string{
				"package.json": `{"dependencies":{"express":"4"},"scripts":{"start":"node ."},"pnpm":{"onlyBuiltDependencies":["bcrypt"]}}`, "pnpm-lock.yaml": "lockfileVersion: '9.0'\n",
			},
			want: appapi.Plan{Framework: "express", InstallCommand: "pnpm install --frozen-lockfile --prod=false", StartCommand: "node ."}, tools: "node,pnpm",
		},
		"pnpm and what its workspace may build": {
			files: map[string]string{
				"pnpm-workspace.yaml": "packages: [apps/*]\nignoredBuiltDependencies: [esbuild]\n", "pnpm-lock.yaml": "lockfileVersion: '9.0'\n",
				"apps/web/package.json": `{"dependencies":{"express":"4"},"scripts":{"start":"node ."}}`,
			},
			set:  Settings{RootDirectory: "apps/web"},
			want: appapi.Plan{Framework: "express", InstallCommand: "pnpm install --frozen-lockfile --prod=false", StartCommand: "node ."}, tools: "node,pnpm",
		},
		"next export": {
			files: map[string]string{"package.json": `{"dependencies":{"next":"16"}}`, "next.config.mjs": "export default {\n  output: 'export',\n}"},
			want:  appapi.Plan{Framework: "next", InstallCommand: "npm install", BuildCommand: "next build", StaticDir: "out"}, tools: "node",
		},
		"vite": {
			files: map[string]string{"package.json": `{"devDependencies":{"vite":"7"},"scripts":{"build":"vite build"}}`, "yarn.lock": "", "index.html": indexHTML},
			want:  appapi.Plan{Framework: "vite", InstallCommand: "yarn install --frozen-lockfile --production=false", BuildCommand: "yarn run build", StaticDir: "dist", SPA: true}, tools: "node,yarn",
		},
		"vite with a server": {
			files: map[string]string{"package.json": `{"dependencies":{"express":"5"},"devDependencies":{"vite":"7"},"scripts":{"build":"vite build","start":"node server.js"}}`},
			want:  appapi.Plan{Framework: "express", InstallCommand: "npm install", BuildCommand: "npm run build", StartCommand: "node server.js"}, tools: "node",
		},
		"vite that makes a server": {
			files: map[string]string{"package.json": `{"dependencies":{"@tanstack/react-start":"1"},"devDependencies":{"vite":"7"},"scripts":{"build":"vite build","start":"NODE_ENV=production node .output/server/index.mjs"}}`},
			want:  appapi.Plan{Framework: "vite", InstallCommand: "npm install", BuildCommand: "npm run build", StartCommand: "NODE_ENV=production node .output/server/index.mjs"}, tools: "node",
		},
		"vite that starts itself": {
			files: map[string]string{"package.json": `{"devDependencies":{"vite":"7"},"scripts":{"build":"vite build","start":"vite preview"}}`},
			want:  appapi.Plan{Framework: "vite", InstallCommand: "npm install", BuildCommand: "npm run build", StaticDir: "dist", SPA: true}, tools: "node",
		},
		"static with tools": {
			files: map[string]string{"package.json": `{"main":"index.js","scripts":{"test":"echo no test && exit 1","format":"prettier -w ."},"devDependencies":{"prettier":"3"}}`, "index.html": indexHTML},
			want:  appapi.Plan{Framework: "static", StaticDir: "."},
		},
		"astro": {
			files: map[string]string{"package.json": `{"dependencies":{"astro":"5"}}`},
			want:  appapi.Plan{Framework: "astro", InstallCommand: "npm install", BuildCommand: "astro build", StaticDir: "dist"}, tools: "node",
		},
		"astro server": {
			files: map[string]string{"package.json": `{"dependencies":{"astro":"5","@astrojs/node":"9"},"scripts":{"start":"astro dev"}}`},
			want:  appapi.Plan{Framework: "astro", InstallCommand: "npm install", BuildCommand: "astro build", StartCommand: "node ./dist/server/entry.mjs"}, tools: "node",
		},
		"sveltekit": {
			files: map[string]string{"package.json": `{"devDependencies":{"@sveltejs/kit":"2","vite":"7","@sveltejs/adapter-node":"5"},"scripts":{"build":"vite build"}}`},
			want:  appapi.Plan{Framework: "sveltekit", InstallCommand: "npm install", BuildCommand: "npm run build", StartCommand: "node build"}, tools: "node",
		},
		"sveltekit auto": {
			files: map[string]string{"package.json": `{"devDependencies":{"@sveltejs/kit":"2","@sveltejs/adapter-auto":"5"}}`},
			want:  appapi.Plan{Framework: "sveltekit", InstallCommand: "npm install", BuildCommand: "vite build", StartCommand: `node --input-type=module -e "` + vitePreview + `"`}, tools: "node",
		},
		"nuxt": {
			files: map[string]string{"package.json": `{"dependencies":{"nuxt":"4"},"scripts":{"build":"nuxt build"}}`},
			want:  appapi.Plan{Framework: "nuxt", InstallCommand: "npm install", BuildCommand: "npm run build", StartCommand: "node .output/server/index.mjs"}, tools: "node",
		},
		"bun": {
			files: map[string]string{"package.json": `{"dependencies":{"hono":"4"}}`, "bun.lock": "", "index.ts": ""},
			want:  appapi.Plan{Framework: "hono", InstallCommand: "bun install --frozen-lockfile", StartCommand: "bun index.ts"}, tools: "bun",
		},
		"yarn 4": {
			files: map[string]string{"package.json": `{"packageManager":"yarn@4.1.0","scripts":{"start":"x"}}`, "yarn.lock": ""},
			want:  appapi.Plan{Framework: "node", InstallCommand: "yarn install --immutable", StartCommand: "yarn run start"}, tools: "node,yarn4.1.0",
		},
		"yarn 4 of a workspace": {
			files: map[string]string{
				"package.json": `{"packageManager":"yarn@4.5.0+sha512.abc","workspaces":["apps/*"]}`, "yarn.lock": "", "apps/web/package.json": `{"scripts":{"start":"x"}}`,
			},
			set:  Settings{RootDirectory: "apps/web"},
			want: appapi.Plan{Framework: "node", InstallCommand: "yarn install --immutable", StartCommand: "yarn run start"}, tools: "node,yarn4.5.0",
		},
		"packageManager and what another one has left": {
			files: map[string]string{"package.json": `{"packageManager":"npm@10.9.0","scripts":{"start":"x"}}`, "bun.lockb": "", "yarn.lock": "", "package-lock.json": "{}"},
			want:  appapi.Plan{Framework: "node", InstallCommand: "npm ci", StartCommand: "x"}, tools: "node",
		},
		"packageManager and a lock of one that refuses it": {
			files: map[string]string{"package.json": `{"packageManager":"pnpm@9.1.0","scripts":{"start":"x"},"dependencies":{"a":"1"}}`, "yarn.lock": ""},
			want:  appapi.Plan{Framework: "node", InstallCommand: "pnpm install --prod=false", StartCommand: "x"}, tools: "node,pnpm9.1.0",
		},
		"packageManager and a lock of one that passes over it": {
			files: map[string]string{"package.json": `{"packageManager":"yarn@1.22.22","scripts":{"start":"x"}}`, "package-lock.json": "{}"},
			want:  appapi.Plan{Framework: "node", InstallCommand: "npm ci", StartCommand: "x"}, tools: "node",
		},
		"yarn 1 and engines": {
			files: map[string]string{"package.json": `{"engines":{"node":"20.x"},"scripts":{"start":"x"}}`, "yarn.lock": ""},
			want:  appapi.Plan{Framework: "node", InstallCommand: "yarn install --frozen-lockfile --production=false", StartCommand: "x"}, tools: "node20,yarn",
		},
		"npm and engines": {
			files: map[string]string{"package.json": `{"engines":{"node":"20.x"},"scripts":{"start":"x"}}`},
			want:  appapi.Plan{Framework: "node", StartCommand: "x"}, tools: "node",
		},
		"of a workspace": {
			files: map[string]string{"package.json": `{"workspaces":["packages/*"]}`, "package-lock.json": "", "packages/web/package.json": `{"scripts":{"start":"node ."}}`},
			set:   Settings{RootDirectory: "packages/web/"},
			want:  appapi.Plan{Framework: "node", InstallCommand: "npm ci", StartCommand: "node ."}, tools: "node",
		},
		"of a workspace of turborepo": {
			files: map[string]string{
				"package.json": `{"packageManager":"pnpm@9.1.0","devDependencies":{"turbo":"^2"}}`, "pnpm-workspace.yaml": "packages:\n  - apps/*\n  - packages/*\n", "pnpm-lock.yaml": "",
				"turbo.json":            `{"tasks": {"build": {"dependsOn": ["^build"]}}}`,
				"apps/web/package.json": `{"dependencies":{"@shop/utils":"workspace:*"},"scripts":{"build":"tsc","start":"node ."}}`,
			},
			set:  Settings{RootDirectory: "apps/web"},
			want: appapi.Plan{Framework: "node", InstallCommand: "pnpm install --frozen-lockfile --prod=false", BuildCommand: "turbo run build --force --env-mode=loose", StartCommand: "node ."}, tools: "node,pnpm9.1.0",
		},
		"of a workspace of turborepo, alone": {
			files: map[string]string{
				"package.json": `{"packageManager":"npm@10.9.0","workspaces":["apps/*"],"devDependencies":{"turbo":"^2"}}`, "package-lock.json": "{}",
				"turbo.json":            `{"tasks": {"build": {"dependsOn": ["^build"]}}}`,
				"apps/web/package.json": `{"dependencies":{"express":"^5"},"scripts":{"build":"tsc","start":"node ."}}`,
			},
			set:  Settings{RootDirectory: "apps/web"},
			want: appapi.Plan{Framework: "express", InstallCommand: "npm ci", BuildCommand: "npm run build", StartCommand: "node ."}, tools: "node",
		},
		"flask": {
			files: map[string]string{"requirements.txt": "Flask==3.0\ngunicorn>=21\n", "app.py": "from flask import Flask\nserver = Flask(__name__)\n"},
			want:  appapi.Plan{Framework: "flask", InstallCommand: "pip install -r requirements.txt", StartCommand: "python -u -m gunicorn --bind 0.0.0.0:$PORT app:server"}, tools: "python",
		},
		"flask alone": {
			files: map[string]string{"requirements.txt": "flask", "main.py": "import flask\napp = flask.Flask(__name__)\n"},
			want:  appapi.Plan{Framework: "flask", InstallCommand: "pip install -r requirements.txt", StartCommand: "python -u -m flask --app main run --host 0.0.0.0 --port $PORT"}, tools: "python",
		},
		"flask of another file": {
			files: map[string]string{
				"web/requirements.txt": "-c all.txt\n-r requirements/web.txt # ours\n-r /etc/x\n-r https://example.com/r.txt\n", "web/all.txt": "django==5\nuvicorn==1\n",
				"web/requirements/web.txt": "--requirement=../../base.txt\n-rweb.txt\n-r../requirements.txt\ngunicorn\n", "base.txt": "flask\n",
				"web/app.py": "app = Flask(__name__)\n",
			},
			set:  Settings{RootDirectory: "web"},
			want: appapi.Plan{Framework: "flask", InstallCommand: "pip install -r requirements.txt", StartCommand: "python -u -m gunicorn --bind 0.0.0.0:$PORT app:app"}, tools: "python",
		},
		"flask factory": {
			files: map[string]string{"requirements.txt": "flask\ngunicorn", "app/__init__.py": "def create_app():\n  pass\n"},
			want:  appapi.Plan{Framework: "flask", InstallCommand: "pip install -r requirements.txt", StartCommand: "python -u -m gunicorn --bind 0.0.0.0:$PORT 'app:create_app()'"}, tools: "python",
		},
		"fastapi": {
			files: map[string]string{"pyproject.toml": "[project]\nname = \"a\"\ndependencies = [\n  \"fastapi>=0.1\", # web\n  \"uvicorn[standard]\",\n]\n", "src/main.py": "api: FastAPI = FastAPI()\n"},
			want:  appapi.Plan{Framework: "fastapi", InstallCommand: "pip install uv && uv pip install -r pyproject.toml", StartCommand: "python -u -m uvicorn --host 0.0.0.0 --port $PORT src.main:api"}, tools: "python",
		},
		"python package": {
			files: map[string]string{"pyproject.toml": "[build-system]\nrequires = [\"hatchling\"]\n[project]\nname = \"a\"\nrequires-python = \">=3.10\"\ndependencies = [\"flask\"]\n", "app.py": "app = Flask(__name__)\n"},
			want:  appapi.Plan{Framework: "flask", InstallCommand: "pip install .", StartCommand: "python -u -m flask --app app run --host 0.0.0.0 --port $PORT"}, tools: "python>=3.10",
		},
		"poetry without a lock": {
			files: map[string]string{"pyproject.toml": "[tool.poetry]\nname = \"a\"\n[tool.poetry.dependencies]\npython = \"^3.12\"\nflask = \"*\"\n[build-system]\nrequires = [\"poetry-core\"]\nbuild-backend = \"poetry.core.masonry.api\"\n", "app.py": "app = Flask(__name__)\n"},
			want:  appapi.Plan{Framework: "flask", InstallCommand: "pip install poetry && poetry install --no-root --no-interaction", StartCommand: "python -u -m flask --app app run --host 0.0.0.0 --port $PORT"}, tools: "python>=3.12,<4",
		},
		"pipenv": {
			files: map[string]string{"Pipfile": "[packages]\nflask = \"*\"\n[requires]\npython_version = \"3.12\"\n", "Pipfile.lock": "{}", "app.py": "app = Flask(__name__)\n"},
			want:  appapi.Plan{Framework: "flask", InstallCommand: "pip install pipenv && pipenv install --deploy", StartCommand: "python -u -m flask --app app run --host 0.0.0.0 --port $PORT"}, tools: "python3.12",
		},
		"flask, a factory in a package": {
			files: map[string]string{
				"pyproject.toml": "[project]\nname = \"flaskr\"\ndependencies = [\"flask\"]\n[build-system]\n", "flaskr/__init__.py": "def create_app(test_config=None):\n", "flaskr/db.py": "",
				"examples/app.py": "app = Flask(__name__)\n",
			},
			want: appapi.Plan{Framework: "flask", InstallCommand: "pip install .", StartCommand: "python -u -m flask --app flaskr run --host 0.0.0.0 --port $PORT"}, tools: "python",
		},
		"fastapi in a package": {
			files: map[string]string{"requirements.txt": "fastapi\nuvicorn\n", "shop/__init__.py": "", "shop/main.py": "app = FastAPI()\n"},
			want:  appapi.Plan{Framework: "fastapi", InstallCommand: "pip install -r requirements.txt", StartCommand: "python -u -m uvicorn --host 0.0.0.0 --port $PORT shop.main:app"}, tools: "python",
		},
		"a member of uv's workspace": {
			files: map[string]string{
				"pyproject.toml": "[tool.uv.workspace]\nmembers = [\n  \"libs/*\",\n  \"apps/*\",\n]\nexclude = [\"apps/old\"]\n", "uv.lock": "",
				"apps/api/pyproject.toml": "[project]\ndependencies = [\"lib\"]\n[build-system]\n[tool.uv.sources]\nlib = { workspace = true }\n", "apps/api/main.py": "",
			},
			set:  Settings{RootDirectory: "apps/api"},
			want: appapi.Plan{Framework: "python", InstallCommand: "pip install uv && uv sync --frozen --active", StartCommand: "python -u main.py"}, tools: "python",
		},
		"beside uv's workspace": {
			files: map[string]string{
				"pyproject.toml": "[tool.uv.workspace]\nmembers = [\"apps/*\"]\nexclude = [\"apps/old\"]\n", "uv.lock": "",
				"apps/old/pyproject.toml": "[project]\n[build-system]\n", "apps/old/main.py": "",
			},
			set:  Settings{RootDirectory: "apps/old"},
			want: appapi.Plan{Framework: "python", InstallCommand: "pip install .", StartCommand: "python -u main.py"}, tools: "python",
		},
		"python that is pinned": {
			files: map[string]string{".tool-versions": "python 3.13", "pyproject.toml": "[project]\nrequires-python = \">=3.12\"\n", "uv.lock": "", "main.py": ""},
			want:  appapi.Plan{Framework: "python", InstallCommand: "pip install uv && uv sync --frozen --active", StartCommand: "python -u main.py"}, tools: "python3.13",
		},
		"requirements of PowerShell": {
			files: map[string]string{"requirements.txt": "\xff\xfef\x00l\x00a\x00s\x00k\x00\r\x00\n\x00", "app.py": "app = Flask(__name__)\n"},
			want:  appapi.Plan{Framework: "flask", InstallCommand: "pip install -r requirements.txt", StartCommand: "python -u -m flask --app app run --host 0.0.0.0 --port $PORT"}, tools: "python",
		},
		"byte order marks": {
			files: map[string]string{"requirements.txt": "\ufeffflask\r\n", "app.py": "\ufeffapp = Flask(__name__)\r\n", "Procfile": "\xfe\xff\x00w\x00e\x00b\x00:\x00f"},
			want:  appapi.Plan{Framework: "flask", InstallCommand: "pip install -r requirements.txt", StartCommand: "f"}, tools: "python",
		},
		"fastapi without a server": {
			files: map[string]string{"requirements.txt": "fastapi", "main.py": "app = FastAPI()"},
			want:  appapi.Plan{Framework: "fastapi", InstallCommand: "pip install -r requirements.txt && pip install uvicorn", StartCommand: "python -u -m uvicorn --host 0.0.0.0 --port $PORT main:app"}, tools: "python",
		},
		"fastapi standard": {
			files: map[string]string{"requirements.txt": "fastapi[standard]==0.115", "main.py": "app = FastAPI()"},
			want:  appapi.Plan{Framework: "fastapi", InstallCommand: "pip install -r requirements.txt", StartCommand: "python -u -m fastapi run --host 0.0.0.0 --port $PORT main.py"}, tools: "python",
		},
		"django": {
			files: map[string]string{"requirements.txt": "Django\ngunicorn", "manage.py": "os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'shop.settings')", "shop/wsgi.py": "", "other/wsgi.py": ""},
			set:   Settings{BuildCommand: "python manage.py migrate"},
			want:  appapi.Plan{Framework: "django", InstallCommand: "pip install -r requirements.txt", BuildCommand: "python manage.py migrate", StartCommand: "python -u -m gunicorn --bind 0.0.0.0:$PORT shop.wsgi"}, tools: "python",
		},
		"django alone": {
			files: map[string]string{"Pipfile": "[packages]\ndjango = \"*\"\n", "Pipfile.lock": "{}", "manage.py": "import django", "mysite/asgi.py": ""},
			want:  appapi.Plan{Framework: "django", InstallCommand: "pip install pipenv && pipenv install --deploy", StartCommand: "python -u manage.py runserver --noreload 0.0.0.0:$PORT"}, tools: "python",
		},
		"python": {
			files: map[string]string{"main.py": "import http.server"},
			want:  appapi.Plan{Framework: "python", StartCommand: "python -u main.py"}, tools: "python",
		},
		"scripts of a front end": {
			files: map[string]string{"requirements.txt": "black", "package.json": `{"dependencies":{"next":"16"}}`},
			want:  appapi.Plan{Framework: "next", InstallCommand: "npm install", BuildCommand: "next build", StartCommand: "next start"}, tools: "node",
		},
		"go": {
			files: map[string]string{"go.mod": "module example.com/shop\n\ngo 1.22\n", "go.sum": "", "main.go": "package main\n"},
			want:  appapi.Plan{Framework: "go", InstallCommand: "go mod download", BuildCommand: "go build -o .berth/app .", StartCommand: "./.berth/app"}, tools: "go>=1.22",
		},
		"go cmd": {
			files: map[string]string{"go.mod": "module example.com/shop\n", "cmd/tool/main.go": "package main", "cmd/shop/main.go": "package main", "lib.go": "package shop"},
			want:  appapi.Plan{Framework: "go", BuildCommand: "go build -o .berth/app ./cmd/shop", StartCommand: "./.berth/app"}, tools: "go",
		},
		"rust": {
			files: map[string]string{"Cargo.toml": "[package]\nname = \"hello-web\"\n[dependencies]\naxum = { version = \"0.7\" }\n", "Cargo.lock": ""},
			want:  appapi.Plan{Framework: "rust", BuildCommand: "cargo build --release --locked", StartCommand: "./target/release/hello-web"}, tools: "rust",
		},
		"rust in a workspace": {
			files: map[string]string{"Cargo.toml": "[workspace]\nmembers = [\"web\"]\n", "web/Cargo.toml": "[package]\nname = \"web\"\n"},
			set:   Settings{RootDirectory: "web"},
			want:  appapi.Plan{Framework: "rust", BuildCommand: "cargo build --release --target-dir target", StartCommand: "./target/release/web"}, tools: "rust",
		},
		"deno": {
			files: map[string]string{"deno.json": "{\n  \"tasks\": {\n    \"dev\": \"deno run\", \"start\": \"deno run -A main.ts\"\n  }\n}", "main.ts": ""},
			want:  appapi.Plan{Framework: "deno", StartCommand: "deno task start"}, tools: "deno",
		},
		"deno main": {
			files: map[string]string{"deno.jsonc": "// c\n{}", "main.ts": ""},
			want:  appapi.Plan{Framework: "deno", InstallCommand: "deno cache main.ts", StartCommand: "deno run --allow-net --allow-env --allow-read main.ts"}, tools: "deno",
		},
		"procfile": {
			files: map[string]string{"Procfile": "release: ./migrate\nweb: ./serve --port $PORT\n", "package.json": `{"dependencies":{"express":"4"}}`},
			want:  appapi.Plan{Framework: "express", InstallCommand: "npm install", StartCommand: "./serve --port $PORT"}, tools: "node",
		},
		"procfile alone": {files: map[string]string{"Procfile": "web: nc -l"}, want: appapi.Plan{Framework: "other", StartCommand: "nc -l"}},
		"settings": {
			files: map[string]string{"package.json": `{"devDependencies":{"vite":"7"}}`, "Procfile": "web: x"},
			set:   Settings{Framework: "my own", InstallCommand: "i", BuildCommand: "b", StartCommand: "s"},
			want:  appapi.Plan{Framework: "my own", InstallCommand: "i", BuildCommand: "b", StartCommand: "s"}, tools: "node",
		},
		"a framework that is set": {
			files: map[string]string{"package.json": `{}`, "index.html": indexHTML, "go.mod": "module a"},
			set:   Settings{Framework: "static"},
			want:  appapi.Plan{Framework: "static", StaticDir: "."},
		},
		"versions": {
			files: map[string]string{
				"mise.toml": "[env]\nnode = \"9\"\n[tools]\nnode = \"20.11\" # ours\n\"core:python\" = [\"3.12\", \"3.11\"]\n", ".tool-versions": "nodejs 18\npnpm 9.1.0\n", ".nvmrc": "14",
				"apps/web/package.json": `{"scripts":{"start":"x"},"packageManager":"pnpm@9"}`,
			},
			set:  Settings{RootDirectory: "apps/web"},
			want: appapi.Plan{Framework: "node", StartCommand: "x"}, tools: "node20.11,pnpm9.1.0",
		},
		"runtime": {
			files: map[string]string{"package.json": `{"scripts":{"start":"x"}}`, ".tool-versions": "node 18"},
			set:   Settings{Runtime: "node 22"},
			want:  appapi.Plan{Framework: "node", StartCommand: "x"}, tools: "node22",
		},
		"dockerfile": {
			files: map[string]string{"Dockerfile": "FROM x"},
			want:  appapi.Plan{Framework: "dockerfile", Dockerfile: "Dockerfile"},
		},
		"dockerfile first": {
			files: map[string]string{"Dockerfile": "FROM x", "package.json": `{"scripts":{"start":"x"}}`, "Procfile": "web: y", ".tool-versions": "node 18"},
			set:   Settings{StartCommand: "z", Runtime: "node 22"},
			want:  appapi.Plan{Framework: "dockerfile", Dockerfile: "Dockerfile", StartCommand: "z"},
		},
		"dockerfile set": {
			files: map[string]string{"web/Dockerfile": "FROM x", "web/index.html": ""},
			set:   Settings{RootDirectory: "web", Framework: "dockerfile"},
			want:  appapi.Plan{Framework: "dockerfile", Dockerfile: "Dockerfile"},
		},
		"dockerfile off": {
			files: map[string]string{"Dockerfile": "FROM x", "package.json": `{"scripts":{"start":"x"}}`},
			set:   Settings{Framework: "node"},
			want:  appapi.Plan{Framework: "node", StartCommand: "x"}, tools: "node",
		},
		"dockerfile off by commands": {
			files: map[string]string{"Dockerfile": "FROM x", "index.html": ""},
			set:   Settings{BuildCommand: "b"},
			want:  appapi.Plan{Framework: "static", BuildCommand: "b", StaticDir: "."},
		},
		"dockerfile of a function": {
			files: map[string]string{"Dockerfile": "FROM x", "handler.py": ""},
			set:   Settings{StartCommand: "x", NoImage: true},
			want:  appapi.Plan{Framework: "other", StartCommand: "x"},
		},
		"prestart": {
			files: map[string]string{"package.json": `{"scripts":{"start":"x","prestart":"y"}}`},
			want:  appapi.Plan{Framework: "node", StartCommand: "npm run start"}, tools: "node",
		},
	} {
		got, err := Detect(tree(c.files), c.set)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(c.want, got.Plan); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		var tools []string
		for _, tool := range got.Tools {
			tools = append(tools, tool.Name+tool.Version)
		}
		if s := strings.Join(tools, ","); s != c.tools {
			t.Errorf("%s: it needs %s, want %s", name, s, c.tools)
		}
	}
}

func TestWhatIsNoApp(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		set   Settings
		want  string
	}{
		"nothing":            {files: map[string]string{"README.md": ""}, want: "there is no package.json"},
		"dockerfile":         {files: map[string]string{"Dockerfile": "FROM x"}, set: Settings{BuildCommand: "x"}, want: "the Dockerfile is not used, because install_command or build_command is set"},
		"dockerfile and":     {files: map[string]string{"Dockerfile": "FROM x"}, set: Settings{Framework: "dockerfile", InstallCommand: "x"}, want: "clear install_command and build_command"},
		"no dockerfile":      {files: map[string]string{"index.html": ""}, set: Settings{Framework: "dockerfile"}, want: "framework is set to dockerfile, but there is no Dockerfile"},
		"no image":           {files: map[string]string{"Dockerfile": "FROM x"}, set: Settings{NoImage: true}, want: "there is no package.json"},
		"dockerfile is dir":  {files: map[string]string{"Dockerfile/x": ""}, want: "there is no package.json"},
		"no start":           {files: map[string]string{"package.json": `{"dependencies":{"express":"4"}}`}, want: `add a "start" script`},
		"bad package.json":   {files: map[string]string{"package.json": `{`}, want: "package.json: "},
		"no such directory":  {files: map[string]string{"index.html": ""}, set: Settings{RootDirectory: "web"}, want: `"web" is not a directory`},
		"outside":            {files: map[string]string{"index.html": ""}, set: Settings{RootDirectory: "../etc"}, want: "root_directory"},
		"framework of none":  {files: map[string]string{"index.html": ""}, set: Settings{Framework: "django"}, want: "framework is set to django"},
		"cargo workspace":    {files: map[string]string{"Cargo.toml": "[workspace]\nmembers = []"}, want: "root_directory"},
		"go library":         {files: map[string]string{"go.mod": "module a", "a.go": "package a"}, want: "build_command"},
		"version of options": {files: map[string]string{"index.html": "", "package.json": `{"scripts":{"start":"x"}}`, ".tool-versions": "node --rm"}, want: "not a version"},
	} {
		_, err := Detect(tree(c.files), c.set)
		if !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestToolsOfOthers: what a repository asks for of tools that the app does not need is not
// installed, whatever it is, and the log says so.
func TestToolsOfOthers(t *testing.T) {
	files := map[string]string{
		"package.json": `{"scripts":{"start":"x"}}`, ".tool-versions": "terraform latest:1.5\nnodejs 20\npython 3.12\n",
		"mise.toml": "[tools]\n\"npm:prettier\" = \"ref:x\"\n",
	}
	r, err := Detect(tree(files), Settings{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Tools) != 1 || r.Tools[0].Version != "20" {
		t.Errorf("it needs %+v", r.Tools)
	}
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], `"npm:prettier, python, terraform"`) {
		t.Errorf("notes %q", r.Notes)
	}
	files["Dockerfile"] = "FROM x"
	if r, err := Detect(tree(files), Settings{}); err != nil || len(r.Notes) > 0 {
		t.Errorf("with a Dockerfile: notes %q, %v", r.Notes, err)
	}
}

// A link out of the tree shows nothing of what it leads to.
func TestLinksOutOfTheTreeAreNotFollowed(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{filepath.Join(outside, "Procfile"): "web: secret", filepath.Join(dir, "index.html"): ""} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"Procfile": filepath.Join(outside, "Procfile"), "up": outside, "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	r, err := Detect(root.FS(), Settings{})
	if err != nil || r.Plan.StartCommand != "" {
		t.Errorf("%+v, %v", r, err)
	}
	for _, dir := range []string{"up", "loop"} {
		if r, err := Detect(root.FS(), Settings{RootDirectory: dir}); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %+v, %v", dir, r, err)
		}
	}
}

func TestEveryFrameworkIsInTheTable(t *testing.T) {
	for _, f := range nodeFrameworks {
		if families[f.name] != "node" {
			t.Errorf("%s is in no family", f.name)
		}
	}
	for name, family := range families {
		if marks[family] == "" || !slices.ContainsFunc(detectors, func(d struct {
			family string
			find   func(*source) (Result, bool, error)
		},
		) bool {
			return d.family == family
		}) {
			t.Errorf("%s: no detector of %s", name, family)
		}
	}
}

func FuzzDetect(f *testing.F) {
	f.Add("package.json", `{"dependencies":{"next":1},"scripts":[]}`, "mise.toml", "[tools]\nnode=\"1\"")
	f.Add("pyproject.toml", "[project]\ndependencies = [\n\"fastapi", "main.py", "a=FastAPI(")
	f.Add("go.mod", "module \"x\"", "Procfile", "web: x")
	f.Add("Cargo.toml", "[package]\nname='a b'", ".tool-versions", "x")
	f.Fuzz(func(t *testing.T, a, textA, b, textB string) {
		r, err := Detect(tree(map[string]string{a: textA, b: textB}), Settings{})
		if err == nil && r.Plan.StartCommand == "" && r.Plan.StaticDir == "" && r.Plan.Dockerfile == "" {
			t.Errorf("%+v starts nothing", r)
		}
		for _, tool := range r.Tools {
			if strings.HasPrefix(tool.Version, "-") {
				t.Errorf("version %q", tool.Version)
			}
		}
	})
}

func TestVersionsThatManifestsAllow(t *testing.T) {
	for spec, want := range map[string]string{
		">=3.12": ">=3.12", ">=3.10,<3.13": ">=3.10,<3.13", "<3.13, >=3.10, !=3.11.1": ">=3.10,<3.13", "~=3.11": ">=3.11,<4", "~=3.11.2": "3.11", "==3.11.*": "3.11",
		"^3.12": ">=3.12,<4", "~3.11.2": "3.11", "3.9": "3.9", "*": "", "": "", "<4": "", "!=3.9": "", ">= 3.12": ">=3.12",
		"20.x": "20", "v20.11.0": "20.11.0", "^18.17 || >=20.5": ">=20.5", "18 - 22": "", "lts/*": "", "~20": "20", ">=" + strings.Repeat("1", 100): "",
	} {
		if got := required(spec); got != want {
			t.Errorf("%q: %q, want %q", spec, got, want)
		}
	}
}

// TestASiteWhoseBuildMakesPartsOfIt: a build may only write a style sheet beside index.html.
func TestASiteWhoseBuildMakesPartsOfIt(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"here":    {map[string]string{"index.html": indexHTML}, []string{"dist", "build", "out", "public", "_site", "."}},
		"in www":  {map[string]string{"www/index.html": indexHTML}, []string{"dist", "build", "out", "public", "_site", "www"}},
		"nowhere": {nil, []string{"dist", "build", "out", "public", "_site"}},
	} {
		files := map[string]string{"package.json": `{"scripts":{"build":"tailwindcss -o style.css"},"devDependencies":{"tailwindcss":"4"}}`}
		maps.Copy(files, c.files)
		r, err := Detect(tree(files), Settings{})
		if err != nil || !slices.Equal(r.StaticDirs, c.want) {
			t.Errorf("%s: %v, %v", name, r.StaticDirs, err)
		}
	}
}
