package detect

import (
	"cmp"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// manager is what installs the packages of package.json.
type manager struct {
	name string // "npm", "pnpm", "yarn", "bun"
	lock string // its lock file; "": there is none
	new  bool   // yarn, of version 2 or later
	// version is the one that packageManager names; "": it names none.
	version string
	// reads is the version that reads the lock file, if the usual one does not; "": it does.
	reads string
	// builds tells pnpm to run what packages have to be built with. Since version 10 it runs
	// only those that the project allows.
	builds bool
}

// locks are the managers by their lock files. Of several, the first counts.
var locks = []struct{ file, manager string }{
	{"bun.lock", "bun"}, {"bun.lockb", "bun"}, {"pnpm-lock.yaml", "pnpm"}, {"yarn.lock", "yarn"}, {"package-lock.json", "npm"}, {"npm-shrinkwrap.json", "npm"},
}

// manager finds the app's package manager: by the field packageManager of package.json and
// by the lock files, of the app and of the workspace that it is in.
func (s *source) manager(p packageJSON) manager {
	dirs, fields := []string{s.dir}, []string{p.PackageManager}
	for dir := s.dir; dir != "."; {
		dir = path.Dir(dir)
		if isWorkspace(s.repo, dir) {
			root, _ := parsePackage(readFile(s.repo, path.Join(dir, "package.json")))
			dirs, fields = append(dirs, dir), append(fields, root.PackageManager)
		}
	}
	named, version := "", ""
	for _, field := range fields {
		name, v, _ := strings.Cut(field, "@")
		if named == "" && (name == "npm" || name == "pnpm" || name == "yarn" || name == "bun") {
			named = name
			version, _, _ = strings.Cut(v, "+") // a checksum
		}
	}
	modern := named == "yarn" && version != "" && !strings.HasPrefix(version, "1.") && version != "1"
	find := func(fits func(manager string) bool) (manager, bool) {
		for _, dir := range dirs {
			for _, l := range locks {
				if !fits(l.manager) || !isFile(s.repo, path.Join(dir, l.file)) {
					continue
				}
				m := manager{name: l.manager, lock: l.file, new: modern || isFile(s.repo, path.Join(dir, ".yarnrc.yml"))}
				if l.manager == named {
					m.version = version
				}
				if l.manager == "pnpm" {
					m.reads = pnpmOf(readFile(s.repo, path.Join(dir, l.file)))
				}
				return m, true
			}
		}
		return manager{}, false
	}
	// Of several lock files, all but one are left over.
	if m, ok := find(func(name string) bool { return name == named }); ok {
		return m
	}
	// yarn and pnpm refuse to work where another one is named.
	if m, ok := find(func(name string) bool { return named == "" || name != "yarn" && name != "pnpm" }); ok {
		return m
	}
	if named == "" && s.set.Framework == "bun" {
		named = "bun"
	}
	return manager{name: cmp.Or(named, "npm"), version: version, new: modern}
}

var pnpmFormat = regexp.MustCompile(`(?m)^lockfileVersion:\s*['"]?([0-9]+)`)

// pnpmOf returns the version of pnpm that reads a lock file, if it has a format that pnpm
// has given up since: 9 and later refuse it.
func pnpmOf(lock string) string {
	if m := pnpmFormat.FindStringSubmatch(lock); m != nil {
		return map[string]string{"5": "7", "6": "8"}[m[1]]
	}
	return ""
}

var pnpmBuilds = regexp.MustCompile(`BuiltDependencies|allowBuilds`)

// choosesBuilds reports whether the project says which packages pnpm builds, which it does
// since version 10.
func (s *source) choosesBuilds() bool {
	for dir := s.dir; ; dir = path.Dir(dir) {
		for _, file := range []string{"package.json", "pnpm-workspace.yaml"} {
			if pnpmBuilds.MatchString(readFile(s.repo, path.Join(dir, file))) {
				return true
			}
		}
		if dir == "." {
			return false
		}
	}
}

// isWorkspace reports whether a directory's packages are installed together.
func isWorkspace(repo fs.FS, dir string) bool {
	if pnpmWorkspace(readFile(repo, path.Join(dir, "pnpm-workspace.yaml"))) {
		return true
	}
	p, err := parsePackage(readFile(repo, path.Join(dir, "package.json")))
	return err == nil && p.Workspaces
}

// runtime is what runs the programs.
func (m manager) runtime() string {
	if m.name == "bun" {
		return "bun"
	}
	return "node"
}

// install is the command that installs what the lock file says, or without one what
// package.json does. Build tools are dev dependencies: they come in any case.
func (m manager) install() string {
	flags := " --prod=false" // pnpm's
	if m.builds {
		flags += " --config.dangerously-allow-all-builds=true"
	}
	switch {
	case m.name == "npm" && m.lock != "":
		return "npm ci"
	case m.name == "npm":
		return "npm install"
	case m.name == "pnpm" && m.lock != "":
		return "pnpm install --frozen-lockfile" + flags
	case m.name == "pnpm":
		return "pnpm install" + flags
	case m.name == "yarn" && m.new && m.lock != "":
		return "yarn install --immutable"
	case m.name == "yarn" && !m.new && m.lock != "":
		return "yarn install --frozen-lockfile --production=false"
	case m.name == "bun" && m.lock != "":
		return "bun install --frozen-lockfile"
	}
	return m.name + " install"
}

// run is the command that runs a script of package.json.
func (m manager) run(script string) string { return m.name + " run " + script }

// start is the command that runs a script for as long as the app runs: what the script
// says, if that means the same. A package manager around it takes time to start, memory
// while it runs, and signals that are the app's.
func (m manager) start(p packageJSON, script string) string {
	line := p.Scripts[script]
	wrapped := p.Scripts["pre"+script] != "" || p.Scripts["post"+script] != "" || strings.Contains(line, "npm_") || strings.Contains(line, "INIT_CWD")
	if wrapped || m.new || m.name == "bun" {
		return m.run(script)
	}
	return line
}

// exec is the command that runs a program of a package. npm's is found by PATH.
func (m manager) exec(command string) string {
	switch m.name {
	case "yarn":
		return "yarn " + command // with yarn's newer way of installing there is no node_modules
	case "bun":
		return "bun --bun x " + command
	}
	return command
}

// eval is the command that runs a program of one line, which may import packages. The line
// has no character that is special in a shell's double quotes.
func (m manager) eval(line string) string {
	switch m.name {
	case "yarn":
		return `yarn node --input-type=module -e "` + line + `"`
	case "bun":
		return `bun -e "` + line + `"`
	}
	return `node --input-type=module -e "` + line + `"`
}
