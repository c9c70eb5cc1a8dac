package httpapi

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The Go code in docs/api.md is part of an example that the client's tests run.
func TestPageHasTheGoThatRuns(t *testing.T) {
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("../api/example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(page, -1)
	if len(blocks) == 0 {
		t.Error("there is none")
	}
	for _, m := range blocks {
		if !bytes.Contains(example, m[1]) {
			t.Errorf("the example does not have:\n%s", m[1])
		}
	}
}

// TestPageCoversEveryRoute compares docs/api.md with the table of routes: each route
// has a heading, no heading is without a route, and each JSON is the example in the
// OpenAPI document.
func TestPageCoversEveryRoute(t *testing.T) {
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	byHeading := map[string]route{}
	for _, rt := range routes() {
		method := rt.method
		if rt.doc.proxied {
			method = "ANY" // one section has them all
		}
		byHeading[method+" "+ginParam.ReplaceAllString(rt.path, "{$1}")] = rt
	}
	seen := map[string]bool{}
	block := regexp.MustCompile("(?s)```json\n(.*?)```")
	for _, section := range strings.Split(string(page), "\n### ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		if !regexp.MustCompile(`^[A-Z]+ /`).MatchString(heading) {
			continue
		}
		rt, ok := byHeading[heading]
		if !ok {
			t.Errorf("docs/api.md has %q, the router has not", heading)
			continue
		}
		seen[heading] = true
		if rt.access != public && rt.access != signed && !strings.Contains(text, "curl ") {
			t.Errorf("%s has no curl example", heading)
		}
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			var got any
			if err := json.Unmarshal([]byte(m[1]), &got); err != nil {
				t.Errorf("%s: %v in %s", heading, err, m[1])
				continue
			}
			if !cmp.Equal(got, toAny(rt.doc.body)) && !cmp.Equal(got, toAny(rt.doc.answer)) {
				t.Errorf("%s: this is neither the request nor the answer of the document:\n%s\n%s", heading, m[1], cmp.Diff(toAny(rt.doc.answer), got))
			}
		}
	}
	for heading := range byHeading {
		if !seen[heading] {
			t.Errorf("docs/api.md lacks %q", heading)
		}
	}
	for _, link := range regexp.MustCompile(`\]\(#([a-z-]+)\)`).FindAllStringSubmatch(string(page), -1) {
		title := strings.ReplaceAll(link[1], "-", " ")
		if !regexp.MustCompile(`(?mi)^#+ ` + title + `$`).Match(page) {
			t.Errorf("a link to #%s, which is no heading", link[1])
		}
	}
}
