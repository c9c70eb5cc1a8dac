// Package dotenv reads .env files as the common libraries do. It supports comments, "export",
// values without quotes, literal values in single quotes and backticks, and values with
// escapes in double quotes. Quoted values may span several lines. ${NAME}, $NAME and
// ${NAME:-default} refer to variables defined earlier, except in single quotes and backticks.
// $NAME stays as it is if no such variable is defined; ${NAME} is empty then.
package dotenv

import (
	"errors"
	"fmt"
	"strings"
)

// MaxResult limits the size of all names and values together, in bytes. Without a limit, a
// few lines that refer to each other could produce a value larger than a machine's memory.
const MaxResult = 256 << 10

// maxDepth limits how deeply defaults may be nested.
const maxDepth = 16

// ErrTooLarge means that all names and values together exceed MaxResult.
var ErrTooLarge = fmt.Errorf("its variables have more than %d bytes together", MaxResult)

// Parse returns the variables of a .env file. If a name occurs several times, the last value
// counts. An error names the line and contains no value.
func Parse(text string) (map[string]string, error) {
	p := &parser{rest: strings.TrimPrefix(text, "\ufeff"), line: 1, env: map[string]string{}}
	p.rest = strings.ReplaceAll(p.rest, "\r\n", "\n")
	for {
		p.skipBlank()
		if p.rest == "" {
			return p.env, nil
		}
		line := p.line
		if err := p.assignment(); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
}

type parser struct {
	rest string
	line int
	env  map[string]string
	size int // of env
}

// take consumes n bytes.
func (p *parser) take(n int) string {
	s := p.rest[:n]
	p.line += strings.Count(s, "\n")
	p.rest = p.rest[n:]
	return s
}

// skipBlank consumes white space and comments before an assignment.
func (p *parser) skipBlank() {
	for {
		p.take(len(p.rest) - len(strings.TrimLeft(p.rest, " \t\n\r\v\f")))
		if !strings.HasPrefix(p.rest, "#") {
			return
		}
		p.take(p.lineEnd())
	}
}

// lineEnd returns the offset at which the present line ends.
func (p *parser) lineEnd() int {
	if i := strings.IndexByte(p.rest, '\n'); i >= 0 {
		return i
	}
	return len(p.rest)
}

func (p *parser) skipSpace() { p.take(len(p.rest) - len(strings.TrimLeft(p.rest, " \t"))) }

func (p *parser) assignment() error {
	name := p.name()
	if p.skipSpace(); name == "export" && !strings.HasPrefix(p.rest, "=") {
		name = p.name()
		p.skipSpace()
	}
	switch {
	case name == "":
		return errors.New("want the name of a variable")
	case !strings.HasPrefix(p.rest, "="):
		return errors.New("want = after the name of a variable")
	}
	p.take(1)
	p.skipSpace()
	value, err := p.value()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return p.set(name, value)
}

func (p *parser) set(name, value string) error {
	if before, had := p.env[name]; had {
		p.size -= len(name) + len(before)
	}
	if p.size += len(name) + len(value); p.size > MaxResult {
		return ErrTooLarge
	}
	p.env[name] = value
	return nil
}

// name consumes the name of a variable. It accepts more names than the platform does.
func (p *parser) name() string {
	n := 0
	for n < len(p.rest) && (isName(p.rest[n]) || p.rest[n] == '.' || p.rest[n] == '-') {
		n++
	}
	return p.take(n)
}

func isName(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func (p *parser) value() (string, error) {
	if p.rest == "" {
		return "", nil
	}
	switch quote := p.rest[0]; quote {
	case '\'', '`':
		end := strings.IndexByte(p.rest[1:], quote)
		if end < 0 {
			return "", errors.New("its quote is not closed")
		}
		value := p.take(end + 2)
		return value[1 : len(value)-1], p.nothingBehind()
	case '"':
		end := closing(p.rest)
		if end < 0 {
			return "", errors.New("its quote is not closed")
		}
		raw := p.take(end + 1)
		value, err := p.expand(raw[1:len(raw)-1], true, 0)
		if err != nil {
			return "", err
		}
		return value, p.nothingBehind()
	}
	raw := p.take(p.lineEnd())
	return p.expand(strings.TrimSpace(uncommented(raw)), false, 0)
}

// closing returns the index of the double quote that closes the one at the beginning of s, or
// -1.
func closing(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}

// uncommented returns a line without its comment. A comment starts at the beginning of the
// line or after white space.
func uncommented(line string) string {
	for i := range len(line) {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			return line[:i]
		}
	}
	return line
}

// nothingBehind refuses anything but a comment after a closing quote on the same line.
func (p *parser) nothingBehind() error {
	p.skipSpace()
	end := p.lineEnd()
	if rest := strings.TrimSpace(p.rest[:end]); rest != "" && rest[0] != '#' {
		return errors.New("something stands behind its closing quote")
	}
	p.take(end)
	return nil
}

// escapes maps the character after a backslash to its meaning in double quotes.
var escapes = map[byte]byte{'n': '\n', 'r': '\r', 't': '\t', '\\': '\\', '"': '"', '\'': '\'', '$': '$', '`': '`'}

// expand replaces variables and, in double quotes, escapes.
func (p *parser) expand(s string, quoted bool, depth int) (string, error) {
	if depth > maxDepth {
		return "", errors.New("its defaults are too deep in each other")
	}
	var out strings.Builder
	for i := 0; i < len(s); {
		switch {
		case s[i] == '\\' && i+1 < len(s) && (quoted && escapes[s[i+1]] != 0 || s[i+1] == '$'):
			out.WriteByte(escapes[s[i+1]])
			i += 2
		case s[i] == '$':
			value, n, err := p.variable(s[i:], quoted, depth)
			if err != nil {
				return "", err
			}
			out.WriteString(value)
			i += n
		default:
			out.WriteByte(s[i])
			i++
		}
		if out.Len() > MaxResult {
			return "", ErrTooLarge
		}
	}
	return out.String(), nil
}

// variable returns the value of the variable that s begins with, and the length of the
// reference to it. A dollar sign that begins no variable stands for itself.
func (p *parser) variable(s string, quoted bool, depth int) (value string, length int, err error) {
	braced := strings.HasPrefix(s, "${")
	begin := 1
	if braced {
		begin = 2
	}
	end := begin
	for end < len(s) && isName(s[end]) {
		end++
	}
	name := s[begin:end]
	switch {
	case name == "", name[0] >= '0' && name[0] <= '9':
		return "$", 1, nil
	case !braced:
		if value, set := p.env[name]; set {
			return value, end, nil
		}
		return "$", 1, nil // passwords and their hashes have dollar signs
	case strings.HasPrefix(s[end:], "}"):
		return p.env[name], end + 1, nil
	}
	rest, colon := strings.CutPrefix(s[end:], ":")
	if !strings.HasPrefix(rest, "-") {
		return "$", 1, nil
	}
	from := len(s) - len(rest) + 1
	to := closingBrace(s, from)
	if to < 0 {
		return "$", 1, nil
	}
	value, set := p.env[name]
	if !set || colon && value == "" {
		value, err = p.expand(s[from:to], quoted, depth+1)
	}
	return value, to + 1, err
}

// closingBrace returns the index of the brace that closes the default beginning at from, or
// -1.
func closingBrace(s string, from int) int {
	open := 0
	for i := from; i < len(s); i++ {
		switch {
		case s[i] == '\\':
			i++
		case strings.HasPrefix(s[i:], "${"):
			open++
		case s[i] == '}' && open == 0:
			return i
		case s[i] == '}':
			open--
		}
	}
	return -1
}
