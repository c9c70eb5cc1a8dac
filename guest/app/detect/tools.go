package detect

import (
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// aliases are other names of the tools.
var aliases = map[string]string{"nodejs": "node", "golang": "go", "python3": "python", "core:node": "node", "core:python": "python", "core:go": "go", "core:bun": "bun", "core:deno": "deno", "core:rust": "rust"}

func toolName(name string) string {
	name = strings.ToLower(strings.TrimSpace(name))
	if known, ok := aliases[name]; ok {
		return known
	}
	return name
}

// validVersion is what a version may look like: it becomes an argument of a command.
var validVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`)

// pins reads the versions that a repository asks for: of mise.toml, .mise.toml and
// .tool-versions the first that names a tool counts, as mise does it. .nvmrc is not
// read. A version is checked if its tool is needed: see usePins.
func pins(repo fs.FS) map[string]Tool {
	found := map[string]Tool{}
	note := func(file, name string, versions []string) {
		name = toolName(name)
		if _, ok := found[name]; ok || len(versions) == 0 {
			return
		}
		version := strings.TrimPrefix(versions[0], "v")
		if version == "latest" || version == "system" {
			version = ""
		}
		found[name] = Tool{Name: name, Version: version, From: file}
	}
	for _, file := range []string{"mise.toml", ".mise.toml"} {
		for name, v := range tomlTable(readFile(repo, file), "tools") {
			note(file, name, toolVersions(v))
		}
	}
	const file = ".tool-versions"
	for line := range strings.Lines(readFile(repo, file)) {
		line, _, _ = strings.Cut(line, "#")
		if f := strings.Fields(line); len(f) > 1 {
			note(file, f[0], f[1:])
		}
	}
	return found
}

// usePins refuses versions that are none, of the tools that the app needs, and notes the
// tools that the repository asks for in vain.
func (s *source) usePins(r *Result) error {
	unused := maps.Clone(s.pins)
	for _, t := range r.Tools {
		if p, ok := s.pins[t.Name]; ok && p == t && t.Version != "" && !validVersion.MatchString(t.Version) {
			return fmt.Errorf("%w: %s: %.80q is not a version of %.40q", ErrUnknown, t.From, t.Version, t.Name)
		}
		delete(unused, t.Name)
	}
	if names := slices.Sorted(maps.Keys(unused)); len(names) > 0 && r.Plan.Dockerfile == "" {
		r.Notes = append(r.Notes, fmt.Sprintf("the repository asks for versions of tools that are not installed, because this app is not known to need them: %.200q", strings.Join(names, ", ")))
	}
	return nil
}

// toolVersions reads a tool's value in mise.toml: "20", ["20", "22"], { version = "20" }.
func toolVersions(value string) []string {
	if inner, ok := strings.CutPrefix(value, "{"); ok {
		m := regexp.MustCompile(`\bversion\s*=\s*["']([^"']*)["']`).FindStringSubmatch(inner)
		if m == nil {
			return nil
		}
		return m[1:2]
	}
	return tomlStrings(value)
}

var tomlKey = regexp.MustCompile(`^\s*("[^"]*"|'[^']*'|[A-Za-z0-9_.:-]+)\s*=\s*(.*)$`)

// tomlTable returns the keys of one table of a TOML file with the text of their values;
// of arrays also what is on more lines. That is as much TOML as detection needs, and a
// file that is wrong elsewhere still says what it can.
func tomlTable(text, table string) map[string]string {
	out := map[string]string{}
	in, open := table == "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(stripComment(line))
		if open != "" {
			out[open] += " " + line
			if strings.HasSuffix(line, "]") {
				open = ""
			}
			continue
		}
		if strings.HasPrefix(line, "[") {
			in = strings.Trim(line, "[] ") == table
			continue
		}
		m := tomlKey.FindStringSubmatch(line)
		if !in || m == nil {
			continue
		}
		key := strings.Trim(m[1], `"'`)
		out[key] = m[2]
		if strings.HasPrefix(m[2], "[") && !strings.HasSuffix(m[2], "]") {
			open = key
		}
	}
	return out
}

// stripComment cuts a comment off, which begins with a # outside quotes.
func stripComment(line string) string {
	quote := rune(0)
	for i, c := range line {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '#':
			return line[:i]
		}
	}
	return line
}

var tomlString = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"|'([^']*)'`)

// tomlStrings returns the strings in a value.
func tomlStrings(value string) []string {
	var out []string
	for _, m := range tomlString.FindAllStringSubmatch(value, -1) {
		out = append(out, m[1]+m[2])
	}
	if len(out) == 0 && value != "" && !strings.ContainsAny(value, "[{\"'") {
		out = append(out, value) // a number without quotes, which people write
	}
	return out
}

var runtimeSetting = regexp.MustCompile(`^([a-z]+)[ @-]?v?([0-9][A-Za-z0-9.+-]*)?$`)

// parseRuntime reads the setting runtime: "node", "node 20", "node@20", "python-3.12".
func parseRuntime(s string) (name, version string) {
	m := runtimeSetting.FindStringSubmatch(strings.ToLower(strings.TrimSpace(s)))
	if m == nil {
		return "", ""
	}
	return toolName(m[1]), m[2]
}

var versionClause = regexp.MustCompile(`([=~!<>^]*)\s*v?([0-9]+(?:\.[0-9]+)*)`)

// required returns the versions that a manifest allows, as those of a Tool: "20", ">=3.12",
// ">=3.10,<3.13". Of alternatives the last one counts, which is the newest. "": any, or
// nothing that is understood.
func required(spec string) string {
	alternatives := strings.Split(spec, "||")
	if spec = alternatives[len(alternatives)-1]; len(spec) > 64 || strings.Contains(spec, " - ") {
		return ""
	}
	least, below := "", ""
	for _, m := range versionClause.FindAllStringSubmatch(spec, -1) {
		version := m[2]
		parts := strings.Split(version, ".")
		switch m[1] {
		case ">=", ">":
			least = version
		case "<":
			below = version
		case "^", "~=":
			if m[1] == "~=" && len(parts) > 2 {
				return parts[0] + "." + parts[1]
			}
			major, _ := strconv.Atoi(parts[0])
			least, below = version, strconv.Itoa(major+1)
		case "~":
			return strings.Join(parts[:min(2, len(parts))], ".")
		case "", "=", "==", "===":
			return version
		}
	}
	switch {
	case least == "":
		return ""
	case below == "":
		return ">=" + least
	}
	return ">=" + least + ",<" + below
}

// replaceTool puts a tool in the place of one with its name, or adds it.
func replaceTool(tools []Tool, t Tool) []Tool {
	if i := slices.IndexFunc(tools, func(other Tool) bool { return other.Name == t.Name }); i >= 0 {
		if t.Version != "" {
			tools[i] = t
		}
		return tools
	}
	return append(tools, t)
}

// pnpmWorkspace reports whether a file lists packages of a workspace.
func pnpmWorkspace(text string) bool {
	var w struct {
		Packages []string `yaml:"packages"`
	}
	return yaml.Unmarshal([]byte(text), &w) == nil && len(w.Packages) > 0
}
