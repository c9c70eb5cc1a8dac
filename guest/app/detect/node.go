package detect

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// packageJSON is what is read of package.json. Fields of another type than usual are
// passed over.
type packageJSON struct {
	Name            string
	Main            string
	PackageManager  string
	Scripts         map[string]string
	Dependencies    map[string]string
	DevDependencies map[string]string
	Engines         map[string]string
	Workspaces      bool
}

func parsePackage(text string) (packageJSON, error) {
	var raw map[string]json.RawMessage
	var p packageJSON
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return p, fmt.Errorf("%w: package.json: %w", ErrUnknown, err)
	}
	_ = json.Unmarshal(raw["name"], &p.Name)
	_ = json.Unmarshal(raw["main"], &p.Main)
	_ = json.Unmarshal(raw["packageManager"], &p.PackageManager)
	for key, to := range map[string]*map[string]string{"scripts": &p.Scripts, "dependencies": &p.Dependencies, "devDependencies": &p.DevDependencies, "engines": &p.Engines} {
		var loose map[string]any
		_ = json.Unmarshal(raw[key], &loose)
		*to = map[string]string{}
		for k, v := range loose {
			if s, ok := v.(string); ok {
				(*to)[k] = s
			}
		}
	}
	_, p.Workspaces = raw["workspaces"]
	return p, nil
}

func (p packageJSON) dependsOn(name string) bool {
	_, prod := p.Dependencies[name]
	_, dev := p.DevDependencies[name]
	return prod || dev
}

func node(s *source) (Result, bool, error) {
	if !s.has("package.json") {
		return Result{}, false, nil
	}
	p, err := parsePackage(s.read("package.json"))
	if err != nil {
		return Result{}, false, err
	}
	m := s.manager(p)
	r := Result{Tools: []Tool{s.tool(m.runtime())}}
	if engine := required(p.Engines["node"]); engine != "" && r.Tools[0].Version == "" && m.name == "yarn" && !m.new {
		r.Tools[0] = Tool{Name: "node", Version: engine, From: "package.json"} // yarn 1 refuses any other
	}
	if m.name != "npm" && m.name != "bun" {
		t := s.tool(m.name)
		if t.Version == "" && validVersion.MatchString(m.version) {
			t = Tool{Name: m.name, Version: m.version, From: "package.json"}
		}
		if t.Version == "" && m.reads != "" {
			t = Tool{Name: m.name, Version: m.reads, From: m.lock}
		}
		// Where nothing names a version, the project may be one of pnpm 9, whose lock file
		// has the same format.
		m.builds = m.name == "pnpm" && t.Version == "" && !s.choosesBuilds()
		r.Tools = append(r.Tools, t)
	}
	if len(p.Dependencies)+len(p.DevDependencies) > 0 || m.lock != "" || p.Workspaces {
		r.Plan.InstallCommand = m.install()
	}
	f := s.framework(p)
	if f.name == "node" && p.Scripts["start"] == "" && p.Scripts["build"] == "" && s.mainFile(p) == "" && s.staticDir() != "" {
		return Result{}, false, nil // a site whose package.json only names tools
	}
	r.Plan.Framework = f.name
	if f.name == "node" && m.name == "bun" {
		r.Plan.Framework = "bun"
	}
	switch {
	case p.Scripts["build"] != "" && s.needsTurbo(p):
		// All variables are there for the build, as for any other, not only those that
		// turbo.json lists. What was built before may have been built with others.
		r.Plan.BuildCommand = "turbo run build --force --env-mode=loose"
	case p.Scripts["build"] != "":
		r.Plan.BuildCommand = m.run("build")
	case f.build != "":
		r.Plan.BuildCommand = m.exec(f.build)
	}
	s.serve(&r, p, f, m)
	return r, true, nil
}

var turboBuild = regexp.MustCompile(`"build"\s*:`)

// needsTurbo reports whether packages of the repository have to be built before the app,
// by Turborepo, which builds the app after them.
func (s *source) needsTurbo(p packageJSON) bool {
	if s.dir == "." || !isWorkspace(s.repo, ".") || strings.Contains(p.Scripts["build"], "turbo") {
		return false
	}
	root, err := parsePackage(readFile(s.repo, "package.json"))
	if err != nil || !root.dependsOn("turbo") || root.PackageManager == "" { // it refuses to work without
		return false
	}
	if !turboBuild.MatchString(readFile(s.repo, "turbo.json") + readFile(s.repo, "turbo.jsonc")) {
		return false
	}
	for _, versions := range []map[string]string{p.Dependencies, p.DevDependencies} {
		for _, v := range versions {
			if v == "*" || strings.HasPrefix(v, "workspace:") {
				return true
			}
		}
	}
	return false
}

// framework returns the first that package.json depends on, or what the setting says.
func (s *source) framework(p packageJSON) nodeFramework {
	for _, f := range nodeFrameworks {
		if s.set.Framework == f.name || families[s.set.Framework] == "" && p.dependsOn(f.pkg) {
			return f
		}
	}
	return nodeFramework{name: "node"}
}

// serve fills in how what is built is served.
func (s *source) serve(r *Result, p packageJSON, f nodeFramework, m manager) {
	site := func(dirs []string, spa bool) {
		r.Plan.StaticDir, r.Plan.SPA = dirs[0], spa
		r.StaticDirs = outputs(dirs)
	}
	switch {
	case f.name == "next" && s.exports():
		site([]string{"out"}, false)
	case f.name == "sveltekit" && p.dependsOn("@sveltejs/adapter-static"):
		site(f.static, false)
	case f.name == "sveltekit" && !p.dependsOn("@sveltejs/adapter-node"):
		// Its other adapters build for somebody's servers. Vite serves what was built.
		r.Plan.StartCommand = m.eval(vitePreview)
	case f.name == "sveltekit", f.name == "nuxt":
		r.Plan.StartCommand = f.start
	case f.name == "vite" && serverScript.MatchString(p.Scripts["start"]):
		r.Plan.StartCommand = m.start(p, "start")
	case len(f.static) > 0 && (f.server == "" || !p.dependsOn(f.server)):
		site(f.static, f.spa)
	case f.name == "nestjs" && p.Scripts["start:prod"] != "":
		r.Plan.StartCommand = m.start(p, "start:prod")
	case f.server != "":
		r.Plan.StartCommand = f.start
	case p.Scripts["start"] != "":
		r.Plan.StartCommand = m.start(p, "start")
	case f.start != "":
		r.Plan.StartCommand = m.exec(f.start)
	default:
		if main := s.mainFile(p); main != "" {
			r.Plan.StartCommand = m.runtime() + " " + shellWord(main)
		} else if p.Scripts["build"] != "" {
			site([]string{"dist"}, false)
			if dir := s.staticDir(); dir != "" && !slices.Contains(r.StaticDirs, dir) {
				r.StaticDirs = append(r.StaticDirs, dir) // the build makes a part of it, as a style sheet
			}
		}
	}
}

// vitePreview is "vite preview", which has no flag for what it needs here: since Vite 6.0.9
// and 5.4.12 it answers 403 at every host name but localhost that the project's
// configuration does not list.
const vitePreview = "(await (await import('vite')).preview({ preview: { host: '0.0.0.0', port: Number(process.env.PORT), strictPort: true, allowedHosts: true } })).printUrls()"

// serverScript is a script that starts a program, as what Vite has built for a server is
// started, and not a tool.
var serverScript = regexp.MustCompile(`^(?:cross-env\s+)?(?:[A-Za-z_][A-Za-z0-9_]*=\S*\s+)*(?:node|bun|deno|tsx)\s`)

var exportSetting = regexp.MustCompile(`(?m)^[^/\n]*\boutput\s*:\s*['"]export['"]`)

// exports reports whether Next.js writes a static site.
func (s *source) exports() bool {
	return exportSetting.MatchString(s.read(s.first("next.config.js", "next.config.mjs", "next.config.ts", "next.config.cjs")))
}

// mainFile is the program: package.json's main, or a file with a usual name.
func (s *source) mainFile(p packageJSON) string {
	names := []string{"server.js", "index.js", "app.js", "main.js", "server.mjs", "index.mjs", "src/index.js", "src/server.js", "src/main.js"}
	if main := path.Clean(p.Main); p.Main != "" && !path.IsAbs(main) {
		names = append([]string{main, main + ".js"}, names...)
	}
	if s.manager(p).name == "bun" {
		names = append(names, "index.ts", "server.ts", "src/index.ts")
	}
	return s.first(names...)
}

// outputs are where builds put sites: those that are named, then the usual ones.
func outputs(first []string) []string {
	seen, out := map[string]bool{}, []string{}
	for _, dir := range append(first, "dist", "build", "out", "public", "_site") {
		if !seen[dir] {
			seen[dir] = true
			out = append(out, dir)
		}
	}
	return out
}

// shellWord quotes what a shell would not take as one word.
func shellWord(s string) string {
	if regexp.MustCompile(`^[A-Za-z0-9_./@:+-]+$`).MatchString(s) && !strings.HasPrefix(s, "-") {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
