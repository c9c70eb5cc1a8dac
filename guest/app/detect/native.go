package detect

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

// binary is where a Go program is built to.
const binary = ".berth/app"

var (
	goDirective  = regexp.MustCompile(`(?m)^(?:go|toolchain go)\s*([0-9][0-9A-Za-z.]*)`)
	goModule     = regexp.MustCompile(`(?m)^module\s+"?([^\s"]+)`)
	packageMain  = regexp.MustCompile(`(?m)^package main\b`)
	ignoredBuild = regexp.MustCompile(`(?m)^//go:build ignore`)
)

func golang(s *source) (Result, bool, error) {
	if !s.has("go.mod") {
		return Result{}, false, nil
	}
	mod := s.read("go.mod")
	t := s.tool("go")
	if m := goDirective.FindAllStringSubmatch(mod, -1); t.Version == "" && m != nil {
		// The toolchain line is the later and the newer one. Any newer Go does, too.
		t = Tool{Name: "go", Version: ">=" + m[len(m)-1][1], From: "go.mod"}
	}
	r := Result{Tools: []Tool{t}}
	r.Plan.Framework = "go"
	if s.has("go.sum") && !s.has("vendor/modules.txt") {
		r.Plan.InstallCommand = "go mod download"
	}
	r.Plan.StartCommand = "./" + binary
	main := s.goMain(mod)
	if main == "" && s.set.BuildCommand == "" {
		return r, false, fmt.Errorf("%w: go.mod is there, but no package main in its directory, or more than one in cmd/: set build_command, for example to \"go build -o %s ./cmd/server\"", ErrUnknown, binary)
	}
	r.Plan.BuildCommand = "go build -o " + binary + " " + main
	return r, true, nil
}

// goMain finds the package that is the program: the directory's own, the only one
// below cmd/, or of several the one with the module's name.
func (s *source) goMain(mod string) string {
	isMain := func(dir string) bool {
		for _, file := range s.glob(path.Join(dir, "*.go")) {
			text := s.read(file)
			if !strings.HasSuffix(file, "_test.go") && packageMain.MatchString(text) && !ignoredBuild.MatchString(text) {
				return true
			}
		}
		return false
	}
	if isMain(".") {
		return "."
	}
	var found []string
	for _, dir := range s.glob("cmd/*") {
		if isMain(dir) {
			found = append(found, dir)
		}
	}
	if m := goModule.FindStringSubmatch(mod); m != nil && len(found) > 1 {
		if named := "cmd/" + path.Base(m[1]); isMain(named) {
			return "./" + named
		}
		for _, usual := range []string{"cmd/server", "cmd/web", "cmd/app", "cmd/api"} {
			if isMain(usual) {
				return "./" + usual
			}
		}
	}
	if len(found) == 1 {
		return "./" + shellWord(found[0])
	}
	return ""
}

func rust(s *source) (Result, bool, error) {
	if !s.has("Cargo.toml") {
		return Result{}, false, nil
	}
	text := s.read("Cargo.toml")
	r := Result{Tools: []Tool{s.tool("rust")}}
	r.Plan.Framework = "rust"
	r.Plan.BuildCommand = "cargo build --release"
	if s.has("Cargo.lock") {
		r.Plan.BuildCommand += " --locked"
	}
	if s.dir != "." { // else that of a workspace which it is in
		r.Plan.BuildCommand += " --target-dir target"
	}
	pkg := tomlTable(text, "package")
	for _, name := range []string{pkg["default-run"], tomlTable(text, "bin")["name"], pkg["name"]} {
		if names := tomlStrings(name); len(names) > 0 {
			r.Plan.StartCommand = "./target/release/" + shellWord(names[0])
			return r, true, nil
		}
	}
	if s.set.StartCommand == "" && s.procfile() == "" {
		return r, false, fmt.Errorf("%w: Cargo.toml has no package, as a workspace's: set root_directory to one of its packages, or start_command to \"./target/release/<program>\"", ErrUnknown)
	}
	return r, true, nil
}

func deno(s *source) (Result, bool, error) {
	file := s.first("deno.json", "deno.jsonc")
	if file == "" && (!s.has("deno.lock") || s.has("package.json")) {
		return Result{}, false, nil
	}
	r := Result{Tools: []Tool{s.tool("deno")}}
	r.Plan.Framework = "deno"
	tasks := denoTasks(s.read(file))
	if tasks["build"] {
		r.Plan.BuildCommand = "deno task build"
	}
	main := s.first("main.ts", "main.js", "server.ts", "server.js", "mod.ts", "index.ts", "app.ts", "src/main.ts", "src/server.ts", "main.tsx")
	switch {
	case tasks["start"]:
		r.Plan.StartCommand = "deno task start"
	case main != "":
		r.Plan.InstallCommand = "deno cache " + main
		r.Plan.StartCommand = "deno run --allow-net --allow-env --allow-read " + main
	}
	return r, true, nil
}

var denoTask = regexp.MustCompile(`"(start|build)"\s*:`)

// denoTasks returns which of the tasks start and build there are. deno.jsonc is no JSON:
// what is looked for is found without parsing it.
func denoTasks(text string) map[string]bool {
	out := map[string]bool{}
	_, tasks, ok := strings.Cut(text, `"tasks"`)
	if !ok {
		return out
	}
	tasks, _, _ = strings.Cut(tasks, "\n  }")
	for _, m := range denoTask.FindAllStringSubmatch(tasks, -1) {
		out[m[1]] = true
	}
	return out
}

func static(s *source) (Result, bool, error) {
	dir := s.staticDir()
	if dir == "" {
		return Result{}, false, nil
	}
	var r Result
	r.Plan.Framework, r.Plan.StaticDir = "static", dir
	return r, true, nil
}

// staticDir is the directory of a site that needs no build.
func (s *source) staticDir() string {
	for _, dir := range []string{".", "public", "dist", "build", "out", "_site", "site", "www", "html"} {
		if s.has(path.Join(dir, "index.html")) {
			return dir
		}
	}
	return ""
}
