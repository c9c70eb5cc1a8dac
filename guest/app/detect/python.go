package detect

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"
)

// programs are where a Python app's program usually is.
var programs = []string{
	"main.py", "app.py", "server.py", "api.py", "run.py", "application.py", "wsgi.py", "asgi.py", "index.py",
	"app/main.py", "app/app.py", "app/__init__.py", "src/main.py", "src/app.py", "api/main.py", "api/app.py", "backend/main.py",
}

func python(s *source) (Result, bool, error) {
	manifest := s.has("requirements.txt", "pyproject.toml", "Pipfile", "manage.py")
	program := s.first(programs[:6]...)
	if !manifest && (program == "" || s.has("package.json")) {
		return Result{}, false, nil
	}
	deps := s.requirements()
	framework := s.pythonFramework(deps)
	if framework == "python" && families[s.set.Framework] != "python" && s.has("package.json") {
		// Scripts of a web front end, or a front end of its scripts: one that has a
		// known framework counts.
		if p, err := parsePackage(s.read("package.json")); err == nil && (s.framework(p).name != "node" || p.Scripts["start"] != "") {
			return Result{}, false, nil
		}
	}
	r := Result{Tools: []Tool{s.pythonTool()}}
	r.Plan.Framework = framework
	r.Plan.InstallCommand = s.pythonInstall()
	r.Venv = r.Plan.InstallCommand != "" || s.set.InstallCommand != ""
	var extra string
	r.Plan.StartCommand, extra = s.pythonStart(framework, deps)
	if extra != "" && r.Plan.InstallCommand != "" {
		r.Plan.InstallCommand += " && pip install " + extra
	}
	return r, true, nil
}

func (s *source) pythonTool() Tool {
	t := s.tool("python")
	if t.Version != "" {
		return t
	}
	if v := strings.TrimPrefix(strings.TrimSpace(s.read("runtime.txt")), "python-"); v != "" && validVersion.MatchString(v) {
		return Tool{Name: "python", Version: v, From: "runtime.txt"}
	}
	// What installs the packages refuses any other.
	project, pipfile := s.read("pyproject.toml"), tomlTable(s.read("Pipfile"), "requires")
	for _, of := range []struct{ file, value string }{
		{"pyproject.toml", tomlTable(project, "project")["requires-python"]},
		{"pyproject.toml", tomlTable(project, "tool.poetry.dependencies")["python"]},
		{"Pipfile", cmp.Or(pipfile["python_full_version"], pipfile["python_version"])},
	} {
		if v := required(strings.Join(tomlStrings(of.value), "")); v != "" {
			return Tool{Name: "python", Version: v, From: of.file}
		}
	}
	return t
}

func (s *source) pythonFramework(deps []string) string {
	if families[s.set.Framework] == "python" {
		return s.set.Framework
	}
	if s.has("manage.py") && (slices.Contains(deps, "django") || strings.Contains(s.read("manage.py"), "django")) {
		return "django"
	}
	for _, name := range []string{"fastapi", "flask", "streamlit", "django"} {
		if slices.Contains(deps, name) {
			return name
		}
	}
	return "python"
}

var requirement = regexp.MustCompile(`^\s*([A-Za-z0-9][A-Za-z0-9._-]*)`)

// requirements lists the packages that an app names, normalized (PEP 503), with the
// extras that matter here as "fastapi[standard]".
func (s *source) requirements() []string {
	var out []string
	add := func(text string) {
		m := requirement.FindStringSubmatch(text)
		if m == nil {
			return
		}
		name := strings.ToLower(regexp.MustCompile(`[-_.]+`).ReplaceAllString(m[1], "-"))
		out = append(out, name)
		if rest := strings.TrimSpace(text[len(m[0]):]); strings.HasPrefix(rest, "[") {
			extras, _, _ := strings.Cut(rest[1:], "]")
			for extra := range strings.SplitSeq(extras, ",") {
				out = append(out, name+"["+strings.TrimSpace(extra)+"]")
			}
		}
	}
	for _, line := range s.requirementLines() {
		add(line)
	}
	project := s.read("pyproject.toml")
	for _, dep := range tomlStrings(tomlTable(project, "project")["dependencies"]) {
		add(dep)
	}
	for _, table := range []struct{ text, name string }{{project, "tool.poetry.dependencies"}, {s.read("Pipfile"), "packages"}} {
		for name, value := range tomlTable(table.text, table.name) {
			if strings.Contains(value, "standard") {
				name += "[standard]"
			}
			add(name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// include is an option of a requirements file that names another one. A file of constraints
// (-c) is none: pip installs nothing because a package is named there.
var include = regexp.MustCompile(`^(?:-r|--requirement[ \t=])[ \t]*([^\s#]+)`)

// maxIncluded limits the requirements files that are read.
const maxIncluded = 32

// requirementLines returns the lines of requirements.txt that name packages, and those of
// the files that it includes, which may be elsewhere in the repository.
func (s *source) requirementLines() (lines []string) {
	files := []string{path.Join(s.dir, "requirements.txt")}
	for i := 0; i < len(files); i++ {
		for line := range strings.Lines(readFile(s.repo, files[i])) {
			line = strings.TrimSpace(line)
			if m := include.FindStringSubmatch(line); m != nil {
				if other := path.Join(path.Dir(files[i]), m[1]); !path.IsAbs(m[1]) && len(files) < maxIncluded && !slices.Contains(files, other) {
					files = append(files, other)
				}
			} else if line != "" && line[0] != '#' && line[0] != '-' {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

func (s *source) pythonInstall() string {
	switch {
	case s.has("uv.lock"), s.has("pyproject.toml") && s.uvMember():
		return "pip install uv && uv sync --frozen --active"
	case s.has("poetry.lock"):
		return poetryInstall
	case s.has("requirements.txt"):
		return "pip install -r requirements.txt"
	case s.has("Pipfile.lock"):
		return "pip install pipenv && pipenv install --deploy"
	case s.has("Pipfile"):
		return "pip install pipenv && pipenv install --skip-lock"
	}
	switch project := s.read("pyproject.toml"); {
	case strings.Contains(project, "[tool.poetry") || strings.Contains(project, "poetry.core"):
		return poetryInstall
	case !strings.Contains(project, "[project]"):
		return ""
	case strings.Contains(project, "[build-system]") || s.has("setup.py", "setup.cfg"):
		return "pip install ."
	}
	// It is no package: pip would make one of its directories, and refuse if there are two.
	return "pip install uv && uv pip install -r pyproject.toml"
}

// uvMember reports whether the app is in a workspace of uv, which has one lock file at its
// root. pip knows no workspaces: it would look for their packages at the registry.
func (s *source) uvMember() bool {
	for dir := s.dir; dir != "."; {
		dir = path.Dir(dir)
		workspace := tomlTable(readFile(s.repo, path.Join(dir, "pyproject.toml")), "tool.uv.workspace")
		app := strings.TrimPrefix(s.dir, dir+"/")
		has := func(list string) bool {
			return slices.ContainsFunc(tomlStrings(workspace[list]), func(pattern string) bool {
				ok, _ := path.Match(path.Clean(pattern), app)
				return ok
			})
		}
		if has("members") && !has("exclude") {
			return isFile(s.repo, path.Join(dir, "uv.lock"))
		}
	}
	return false
}

const poetryInstall = "pip install poetry && poetry install --no-root --no-interaction"

// unbuffered begins the commands that start an app: what it prints is in its log at once.
// Python keeps up to 8 KiB back where its output is no terminal.
const unbuffered = "python -u "

// pythonStart returns the command that serves the app, and a package that it needs
// beside those that the app names.
func (s *source) pythonStart(framework string, deps []string) (command, extra string) {
	has := func(name string) bool { return slices.Contains(deps, name) }
	switch framework {
	case "django":
		return s.djangoStart(has), ""
	case "fastapi":
		return s.asgiStart(has)
	case "flask":
		module, object, _ := s.pythonObject("Flask")
		if has("gunicorn") {
			return unbuffered + "-m gunicorn --bind 0.0.0.0:$PORT " + shellWord(module+":"+object), ""
		}
		return unbuffered + "-m flask --app " + shellWord(module) + " run --host 0.0.0.0 --port $PORT", ""
	case "streamlit":
		if file := s.first(append([]string{"streamlit_app.py", "app.py"}, programs...)...); file != "" {
			return unbuffered + "-m streamlit run " + shellWord(file) + " --server.address 0.0.0.0 --server.port $PORT --server.headless true", ""
		}
		return "", ""
	}
	if file := s.first(programs...); file != "" && !strings.HasSuffix(file, "__init__.py") {
		return unbuffered + shellWord(file), ""
	}
	return "", ""
}

func (s *source) djangoStart(has func(string) bool) string {
	project := ""
	for _, file := range append(s.glob("*/wsgi.py"), s.glob("*/asgi.py")...) {
		project = path.Dir(file)
		break
	}
	// manage.py names the project's settings: of several directories that one.
	if m := regexp.MustCompile(`["']([A-Za-z0-9_]+)(?:\.[A-Za-z0-9_.]+)?\.?settings`).FindStringSubmatch(s.read("manage.py")); m != nil && s.has(m[1]+"/wsgi.py", m[1]+"/asgi.py") {
		project = m[1]
	}
	switch {
	case has("gunicorn") && s.has(project+"/wsgi.py"):
		return unbuffered + "-m gunicorn --bind 0.0.0.0:$PORT " + shellWord(project+".wsgi")
	case has("uvicorn") && s.has(project+"/asgi.py"):
		return unbuffered + "-m uvicorn --host 0.0.0.0 --port $PORT " + shellWord(project+".asgi:application")
	case has("daphne") && s.has(project+"/asgi.py"):
		return unbuffered + "-m daphne -b 0.0.0.0 -p $PORT " + shellWord(project+".asgi:application")
	}
	return unbuffered + "manage.py runserver --noreload 0.0.0.0:$PORT"
}

func (s *source) asgiStart(has func(string) bool) (command, extra string) {
	module, object, file := s.pythonObject("FastAPI")
	target := shellWord(module + ":" + object)
	switch {
	case has("uvicorn"):
	case has("hypercorn"):
		return unbuffered + "-m hypercorn --bind 0.0.0.0:$PORT " + target, ""
	case (has("fastapi[standard]") || has("fastapi-cli")) && file != "":
		return unbuffered + "-m fastapi run --host 0.0.0.0 --port $PORT " + shellWord(file), ""
	default:
		extra = "uvicorn"
	}
	return unbuffered + "-m uvicorn --host 0.0.0.0 --port $PORT " + target, extra
}

var object = regexp.MustCompile(`(?m)^([A-Za-z_][A-Za-z0-9_]*)\s*(?::\s*[A-Za-z0-9_.]+\s*)?=\s*(?:[A-Za-z_][A-Za-z0-9_]*\.)?([A-Z][A-Za-z0-9]*)\(`)

// pythonObject finds the module that makes an object of a class, and the object's name.
func (s *source) pythonObject(class string) (module, name, file string) {
	for _, file := range append(slices.Clone(programs), s.packages()...) {
		text := s.read(file)
		for _, m := range object.FindAllStringSubmatch(text, -1) {
			if m[2] == class {
				return moduleOf(file), m[1], file
			}
		}
		if class == "Flask" && regexp.MustCompile(`(?m)^def create_app\(`).MatchString(text) {
			return moduleOf(file), "create_app()", file
		}
	}
	if file = s.first(programs...); file != "" {
		return moduleOf(file), "app", file
	}
	return "app", "app", ""
}

// packages are the programs of packages that have the project's own name.
func (s *source) packages() (files []string) {
	for _, pattern := range []string{"*/__init__.py", "*/main.py", "*/app.py"} {
		for _, file := range s.glob(pattern) {
			if dir := path.Dir(file); dir != "tests" && dir != "test" && dir != "examples" {
				files = append(files, file)
			}
		}
	}
	return files
}

func moduleOf(file string) string {
	name := strings.TrimSuffix(strings.TrimSuffix(file, ".py"), "/__init__")
	return strings.ReplaceAll(name, "/", ".")
}
