package docs

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	assigned = regexp.MustCompile(`(?m)(?:^|[ ;(])([A-Za-z_]\w*)=|\bfor (\w+) in\b`)
	used     = regexp.MustCompile(`\$\{?([A-Za-z_]\w*)`)
)

// The examples of api.md run from top to bottom in one shell, as e2e does on real guests:
// every variable has a value by then.
func TestExamplesSetTheirVariables(t *testing.T) {
	page, err := os.ReadFile("api.md")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := Examples(string(page))
	if err != nil {
		t.Fatal(err)
	}
	if len(examples) < 100 {
		t.Fatalf("there are %d examples", len(examples))
	}
	for _, problem := range unset(examples) {
		t.Error("docs/api.md: " + problem)
	}
}

// unset tells of the variables that examples use and nothing sets.
func unset(examples []Example) (problems []string) {
	known := []string{"BERTH_URL", "BERTH_TOKEN", "BERTH_JWT", "BERTH_ADMIN_TOKEN"}
	for _, e := range examples {
		if e.Skip == "" {
			for _, m := range assigned.FindAllStringSubmatch(e.Text, -1) {
				known = append(known, m[1]+m[2])
			}
		}
		for _, m := range used.FindAllStringSubmatch(e.Text, -1) {
			if !slices.Contains(known, m[1]) {
				problems = append(problems, "the example of line "+strconv.Itoa(e.Line)+" uses $"+m[1]+", which no example before it sets")
			}
		}
	}
	return problems
}

func TestUnsetVariableIsFound(t *testing.T) {
	examples, err := Examples(strings.Join([]string{
		"```sh", `ID=$(curl $BERTH_URL | jq -r .id)`, "```",
		"```json", `{"a": "$NEVER"}`, "```",
		"```sh", `# Skip: it needs a second person.`, `GRACE=$(curl $BERTH_URL)`, "```",
		"```sh", `for path in $ID; do curl $BERTH_URL/$path -d '{"sql":"SELECT $1"}'; done`, `curl "$BERTH_URL/$GRACE"`, "```",
	}, "\n"))
	if err != nil || len(examples) != 3 {
		t.Fatalf("found %+v, %v", examples, err)
	}
	if examples[1].Skip != "it needs a second person." || examples[2].Line != 12 {
		t.Errorf("found %+v", examples)
	}
	want := []string{"the example of line 12 uses $GRACE, which no example before it sets"}
	if got := unset(examples); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUnclosedBlockIsFound(t *testing.T) {
	for _, page := range []string{
		"```sh\ncurl a\n## Functions\n\n```sh\ncurl b\n```\n",
		"```sh\ncurl a\n\n```sh\ncurl b\n```\n",
		"```sh\ncurl a\n",
	} {
		if _, err := Examples(page); err == nil {
			t.Errorf("no error for %q", page)
		}
	}
}
