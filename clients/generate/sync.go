package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// own is the module that is written by hand in both halves: it defines how to
// wait.
const own = "_io.py"

// Each rule removes a form of waiting from Python text.
var withoutWaiting = []struct {
	from *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`\basync (def|with|for)\b`), "$1"},
	{regexp.MustCompile(`\bawait `), ""},
	{regexp.MustCompile(`\bAsync([A-Z])`), "$1"},
	{regexp.MustCompile(`\bAbstractAsync`), "Abstract"},
	{regexp.MustCompile(`\basynccontextmanager\b`), "contextmanager"},
	{regexp.MustCompile(`\b__a(enter|exit|iter|next)__`), "__${1}__"},
	{regexp.MustCompile(`\bStopAsyncIteration\b`), "StopIteration"},
	{regexp.MustCompile(`\ba(close|read|iter_bytes|next|iter)\(`), "$1("},
	{regexp.MustCompile(`\bwebsockets\.asyncio\b`), "websockets.sync"},
	{regexp.MustCompile(`"aclose"`), `"close"`},
	{regexp.MustCompile(`\b_async\b`), "_sync"},
}

// addSync adds the synchronous half of the Python package: each asynchronous
// module without its waiting.
func addSync(files map[string]string, pkg string) error {
	names, err := filepath.Glob(filepath.Join(pkg, "_async", "*.py"))
	if err != nil {
		return err
	}
	for _, name := range names {
		base := filepath.Base(name)
		if base == own {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		files[filepath.Join(pkg, "_sync", base)] = sync(base, string(text))
	}
	return nil
}

func sync(base, text string) string {
	for _, rule := range withoutWaiting {
		text = rule.from.ReplaceAllString(text, rule.to)
	}
	return "# Generated from _async/" + base + " by `make clients`. Do not edit.\n" + strings.TrimLeft(text, "\n")
}
